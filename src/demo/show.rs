//! What happens in a demo, in its order.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use super::broker::{self, Broker, PARTITIONS};
use super::consumer::Consumer;
use super::database::Database;
use super::error::Error;
use super::folder::{self, Folder};
use super::ledger::{Ledger, Verdict};
use super::play::Play;
use super::relay::RelayCommand;
use super::screen::Screen;
use super::server::{self, Server};
use super::stage::Stage;
use super::writer::Application;
use super::{Report, Settings, WINDOW_EVENTS, locked};
use crate::postgres::conninfo::Conninfo;
use crate::postgres::setup::Step;
use crate::terminal::Colour;

/// The whole of it; what it starts is put on the stage.
pub(super) async fn play(
    settings: &Settings,
    stage: &mut Stage,
    screen: &mut Screen,
) -> Result<(Report, Verdict), Error> {
    let in_temporary = |error| {
        let folder = std::env::temp_dir();
        Error::failed(format_args!("the folder for temporary files, {} (TMPDIR names it)", folder.display()), error)
    };
    // What leads to a topic goes after it.
    let left = folder::left().map_err(in_temporary)?;
    let dead: Vec<String> = left.iter().map(|path| folder::identifier(path)).collect();
    sweep_topics(settings, &dead).await?;
    folder::sweep(&left).await.map_err(in_temporary)?;
    let (url, conninfo, name) = open(settings, stage, screen).await?;
    let database = stage.database.insert(Database::open(&conninfo, &name).await?);
    screen.say(None, format_args!("PostgreSQL {}: {}", database.server_version().await?, place(settings)));
    if settings.database.is_some() {
        let dead = database.sweep().await?;
        sweep_topics(settings, &dead).await?;
    }
    database.set_up(|step| told(&step, screen)).await?;
    let table = database.table()?.to_string();

    let broker = stage.broker.insert(broker(settings, &name)?);
    broker.create_topic().await?;
    let whose = if broker.is_own() { "your brokers" } else { "a broker inside this process" };
    screen.say(None, format_args!("Kafka: {whose}, topic {} with {PARTITIONS} partitions", broker.topic()));
    let ledger = Arc::<Mutex<Ledger>>::default();
    let consumer = Consumer::start(broker.config(), broker.topic(), PARTITIONS, Arc::clone(&ledger))?;
    stage.consumer = Some(consumer);

    let command = command(settings, url, &name, &table, broker);
    let application = Application { conninfo, schema: name, ledger: Arc::clone(&ledger), seed: settings.seed };
    let Settings { events, kills, seed, .. } = settings;
    screen.say(None, format_args!("writing {events} events; the relay will be killed {kills} times (--seed {seed})"));
    stage.relay = Some(command.start()?);
    stage.writer = application.start(settings.events);
    let kills = Play::new(settings, &ledger, &command).run(stage, screen).await?;
    end(stage, &ledger, kills).await
}

/// A folder, and the database: a private one, or one's own. Returns how to connect and the name of all that is made.
async fn open(
    settings: &Settings,
    stage: &mut Stage,
    screen: &mut Screen,
) -> Result<(String, Conninfo, String), Error> {
    let in_temporary = |error| Error::failed(std::env::temp_dir().display(), error);
    let folder = stage.folder.insert(Folder::create().map_err(in_temporary)?);
    let name = folder.identifier();
    if let Some((url, conninfo)) = &settings.database {
        return Ok((url.clone(), conninfo.clone(), name));
    }
    let programs = server::find_programs(settings.postgres_bin.as_deref())?;
    let from = programs.display();
    screen.say(Some(Colour::Grey), format_args!("making a PostgreSQL in {} ({from})", folder.path().display()));
    let server = stage.server.insert(Server::start(&programs, folder.path()).await?);
    Ok((server.url().to_owned(), server.conninfo().clone(), name))
}

const fn place(settings: &Settings) -> &'static str {
    if settings.database.is_some() { "your database, in a schema of its own" } else { "private, on a unix socket" }
}

fn told(step: &Step, screen: &mut Screen) {
    match step {
        Step::Present { what } => screen.say(Some(Colour::Grey), format_args!("setup: {what} is there")),
        Step::Done { what, .. } => screen.say(Some(Colour::Grey), format_args!("setup: {what}")),
        Step::Waiting(holders) => {
            let pids: Vec<String> = holders.iter().map(|holder| holder.pid.to_string()).collect();
            let pids = pids.join(", ");
            screen.say(Some(Colour::Yellow), format_args!("setup: the slot waits for open transactions: pid {pids}"));
        }
    }
}

fn broker(settings: &Settings, name: &str) -> Result<Broker, Error> {
    match &settings.brokers {
        Some(config) => Ok(Broker::own(config, name)),
        None => Broker::in_process(),
    }
}

/// A demo that was killed has left a topic, if it had the same brokers.
async fn sweep_topics(settings: &Settings, dead: &[String]) -> Result<(), Error> {
    for topic in dead {
        if let Some(config) = &settings.brokers {
            broker::delete(config, topic).await?;
        }
    }
    Ok(())
}

fn command(settings: &Settings, url: String, name: &str, table: &str, broker: &Broker) -> RelayCommand {
    let (brokers, window) = (broker.bootstrap(), WINDOW_EVENTS.to_string());
    let mut flags = vec![
        ("--slot", name),
        ("--publication", name),
        ("--table", table),
        ("--brokers", &brokers),
        ("--topic", broker.topic()),
        ("--window-events", &window),
    ];
    if !broker.is_own() {
        // The in-process broker never answers the question after max.message.bytes, which every start waits for.
        flags.push(("--request-timeout", "1s"));
    }
    RelayCommand {
        url,
        arguments: flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]).collect(),
        database_is_own: settings.database.is_some(),
        brokers_are_own: broker.is_own(),
    }
}

/// Whether all tasks have ended, and well.
pub(super) fn is_written(writer: &mut JoinSet<Result<(), Error>>) -> Result<bool, Error> {
    while let Some(ended) = writer.try_join_next() {
        ended.map_err(|error| Error::failed("the writer", error))??;
    }
    Ok(writer.is_empty())
}

/// Ends the relay in good order, reads the topic to its end, and judges.
async fn end(stage: &mut Stage, ledger: &Mutex<Ledger>, kills: usize) -> Result<(Report, Verdict), Error> {
    if let Some(relay) = stage.relay.take() {
        relay.terminate().await?;
    }
    if let Some(consumer) = stage.consumer.take() {
        consumer.finish().await?;
    }
    let verdict = locked(ledger).judge();
    // The ledger's own word is not enough for what was committed.
    if let Some(database) = &stage.database {
        let committed = database.committed().await?;
        if usize::try_from(committed) != Ok(verdict.committed) {
            let ledger = verdict.committed;
            return Err(Error::Failed(format!("the ledger has {ledger} commits, the table of orders {committed}")));
        }
    }
    Ok((Report::new(&verdict, kills), verdict))
}

/// The verdict, for a person.
pub(super) fn tell(report: &Report, verdict: &Verdict, screen: &mut Screen) {
    let Report { committed, rolled_back, delivered, repeats, repeats_bound, kills, .. } = report;
    let mark = |is_good| Some(if is_good { Colour::Green } else { Colour::Red });
    screen.say(None, format_args!("{committed} events committed, {rolled_back} rolled back, {delivered} delivered"));
    let allowed = format_args!("{repeats} repeats after {kills} kills (at most {repeats_bound} are allowed)");
    screen.say(mark(repeats <= repeats_bound), allowed);
    for (what, count) in [("lost", report.lost), ("phantom", report.phantom), ("out of order", report.out_of_order)] {
        screen.say(mark(count == 0), format_args!("{count} {what}"));
    }
    if !report.is_clean() {
        screen.say(Some(Colour::Red), verdict.examples());
    }
}
