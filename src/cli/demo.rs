//! `outboxd demo`.

use std::path::PathBuf;

use clap::Args;
use rdkafka::ClientConfig;

use super::brokers;
use super::exit::{Class, Failed};
use crate::config::run::Mistakes;
use crate::demo::{self, Error, Settings};
use crate::postgres::conninfo::{Conninfo, Process, password_in_text};
use crate::terminal::say;

/// The arguments. The environment's OUTBOXD_DATABASE_URL and the like are for `run` and have no effect here, so that nobody
/// tries this out on a database that is in use without having said so.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many events are committed.
    #[arg(long, default_value_t = 40_000)]
    events: usize,
    /// How often the relay is killed with SIGKILL while events flow.
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// Decides what is written and when the relay is killed [default: a random one, which is told].
    #[arg(long)]
    seed: Option<u64>,
    /// Leave what the demo makes: the private PostgreSQL's data, or schema, slot, publication and topic.
    #[arg(long)]
    keep: bool,
    /// The last line of standard output is the outcome as JSON; all else goes to standard error.
    #[arg(long)]
    json: bool,
    /// The folder with initdb and postgres [default: searched in PATH and where distributions put them].
    #[arg(long, value_name = "DIR")]
    postgres_bin: Option<PathBuf>,
    /// A database of your own, as libpq takes it; all goes into a schema of the demo's own. A password: in PGPASSWORD or in
    /// a password file.
    #[arg(long)]
    database_url: Option<String>,
    /// Brokers of your own: host:port, separated by commas. Further librdkafka settings: in OUTBOXD_KAFKA_PROPERTIES or in
    /// the file that OUTBOXD_KAFKA_FILE names.
    #[arg(long)]
    brokers: Option<String>,
}

/// Runs the demo and prints the outcome.
///
/// # Errors
/// Mistakes in the settings, why there is no verdict, or a verdict that is not clean.
pub async fn run(args: DemoArgs) -> Result<(), Failed> {
    let settings = args.settings().map_err(|mistakes| Failed::new(Class::Usage, mistakes))?;
    let report = demo::run(&settings).await.map_err(failed)?;
    if args.json {
        say(serde_json::to_string(&report).map_err(|error| Failed::new(Class::Data, error))?)?;
    }
    if report.is_clean() {
        return Ok(());
    }
    let message = format!("the contract is broken; the same again: outboxd demo --seed {}", settings.seed);
    Err(Failed::new(Class::Verdict, message))
}

fn failed(error: Error) -> Failed {
    match error {
        Error::Interrupted => Failed::new(Class::Interrupted, error),
        Error::Missing(_) => Failed::new(Class::Setup, error),
        Error::Failed(_) => Failed::new(Class::Unavailable, error),
        Error::Database(error) => Failed::from(error),
    }
}

impl DemoArgs {
    fn settings(&self) -> Result<Settings, Mistakes> {
        let mut mistakes = Mistakes::default();
        let database = self.database_url.as_deref().and_then(|url| database(url, &mut mistakes));
        let brokers = self.brokers.as_deref().map(|brokers| clients(brokers, &mut mistakes));
        if self.events == 0 {
            mistakes.add("--events", "must be at least 1");
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        Ok(Settings {
            events: self.events,
            kills: self.kills,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
            keep: self.keep,
            postgres_bin: self.postgres_bin.clone(),
            database,
            brokers,
            json: self.json,
        })
    }
}

fn database(url: &str, mistakes: &mut Mistakes) -> Option<(String, Conninfo)> {
    if password_in_text(url) {
        let remedy = "has a password, and a command line is visible to every user of the machine; put it into PGPASSWORD \
                      or a password file";
        mistakes.add("--database-url", remedy);
    }
    let conninfo = mistakes.note("--database-url", Conninfo::parse(url, &Process))?;
    Some((url.to_owned(), conninfo))
}

/// The settings that all clients of these brokers need, the relay's included.
fn clients(brokers: &str, mistakes: &mut Mistakes) -> ClientConfig {
    let file = std::env::var("OUTBOXD_KAFKA_FILE").ok();
    brokers::settings(brokers, ("", ""), file.as_deref(), &[], mistakes).plain_config()
}
