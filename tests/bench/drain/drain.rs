//! A backlog, as fast as possible.

use std::time::{Duration, Instant};

use super::backlog::{DEFAULT, Feed, REFERENCE, SLOT, copy_slot};
use super::failure::Failure;
use super::meter::{Machine, Meter};
use super::options::Options;
use super::relay::Measured;
use super::stage::Stage;
use super::topic::Topic;
use super::way::Way;

/// How often the topic's end offsets are asked for. That is the precision of a duration.
const POLL: Duration = Duration::from_millis(50);

/// Nothing is that slow; something is stuck.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a drain reads.
#[derive(Clone, Copy, Debug)]
struct Backlog {
    /// Before the name.
    prefix: &'static str,
    feed: Feed,
    rows_per_transaction: u64,
}

const BACKLOGS: [Backlog; 3] = [
    Backlog { prefix: "", feed: REFERENCE, rows_per_transaction: 10 },
    Backlog { prefix: "", feed: REFERENCE, rows_per_transaction: 1 },
    Backlog { prefix: "default_", feed: DEFAULT, rows_per_transaction: 10 },
];

impl Backlog {
    /// Such as `default_unix_10`.
    fn name(&self, way: Way) -> String {
        format!("{}{}_{}", self.prefix, way.as_str(), self.rows_per_transaction)
    }
}

/// One drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) events_per_s: f64,
    /// The same from the start of the process on.
    pub(crate) events_per_s_total: f64,
    /// CPU seconds a million events.
    pub(crate) cpu_client: f64,
    pub(crate) cpu_walsender: f64,
    pub(crate) cpu_broker: f64,
    /// What others than these and this program used of the machine, in percent.
    pub(crate) others_percent: f64,
    /// The most memory that the client has had.
    pub(crate) peak_mib: f64,
}

/// All drains of one backlog over one kind of connection.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) name: String,
    pub(crate) outboxd: Vec<Run>,
    pub(crate) pg_recvlogical: Vec<Run>,
}

/// Lets the broker's just-in-time compiler see the work before it is measured. On two cores that it shares with all others it takes
/// about two million events until its CPU time for one has fallen to a quarter and stays there.
pub(crate) async fn warm_up(stage: &Stage, options: &Options) -> Result<(), Failure> {
    let (rows, drains) = (options.warm_up_rows(), options.warm_ups());
    eprintln!("bench: warming up with {drains} drains of {rows} rows");
    REFERENCE.create(stage).await;
    REFERENCE.fill(stage, rows, 10).await;
    for _ in 0..drains {
        outboxd(stage, &REFERENCE, Way::Unix, Goal::all(rows)).await?;
    }
    REFERENCE.remove(stage).await;
    Ok(())
}

pub(crate) async fn all(stage: &Stage, options: &Options) -> Result<Vec<Drain>, Failure> {
    let mut drains = Vec::new();
    for backlog in BACKLOGS {
        let Backlog { feed, rows_per_transaction, .. } = &backlog;
        feed.create(stage).await;
        eprintln!("bench: drain: {} rows into {}, {rows_per_transaction} a transaction", options.rows(), feed.table);
        let end = feed.fill(stage, options.rows(), *rows_per_transaction).await;
        drains.extend(drain(stage, options, &backlog, &end).await?);
        feed.remove(stage).await;
    }
    Ok(drains)
}

/// In turns, so that what changes on the machine meanwhile meets all alike.
async fn drain(stage: &Stage, options: &Options, backlog: &Backlog, end: &str) -> Result<[Drain; 2], Failure> {
    let (feed, rows) = (&backlog.feed, options.rows());
    let mut drains = Way::ALL.map(|way| Drain { name: backlog.name(way), outboxd: vec![], pg_recvlogical: vec![] });
    for number in 1..=options.runs() {
        for (way, drain) in Way::ALL.into_iter().zip(&mut drains) {
            let read = pg_recvlogical(stage, feed, way, end, rows).await?;
            say(drain, number, "pg_recvlogical", read);
            drain.pg_recvlogical.push(read);
            let published = outboxd(stage, feed, way, Goal::all(rows)).await?;
            say(drain, number, "outboxd", published);
            drain.outboxd.push(published);
        }
    }
    Ok(drains)
}

fn say(drain: &Drain, number: u32, client: &str, run: Run) {
    let Run { events_per_s, cpu_client, cpu_walsender, cpu_broker, others_percent, .. } = run;
    let cpu = format!("{cpu_client:.1} + {cpu_walsender:.1} + {cpu_broker:.1} CPU s/million");
    let figures = format!("{events_per_s:>8.0} events/s, {cpu}, others {others_percent:.0} %");
    eprintln!("bench: drain {}, run {number}: {client:<14} {figures}", drain.name);
}

/// The meters of one run.
struct Meters {
    begin: Instant,
    machine: Machine,
    client: Meter,
    broker: Meter,
    walsender: Option<Meter>,
}

impl Meters {
    fn start(stage: &Stage, client: &Measured) -> Self {
        Self {
            begin: Instant::now(),
            machine: Machine::from_now(),
            client: Meter::from_birth(client.pid()),
            broker: Meter::from_now(stage.broker),
            walsender: None,
        }
    }

    async fn sample(&mut self, stage: &Stage) {
        if self.walsender.is_none() {
            self.walsender = stage.walsender(SLOT).await.map(Meter::from_birth);
        }
        for meter in [Some(&mut self.client), Some(&mut self.broker), self.walsender.as_mut()].into_iter().flatten() {
            meter.sample();
        }
    }

    /// The run has just ended.
    fn run(mut self, rows: u64, events_per_s: f64) -> Run {
        let seconds = self.begin.elapsed().as_secs_f64();
        let walsender = self.walsender.map_or(0.0, |meter| meter.cpu());
        let others_percent = self.machine.others_percent(self.client.cpu() + self.broker.cpu() + walsender);
        let a_million = |cpu: f64| cpu * 1e6 / rows as f64;
        Run {
            events_per_s,
            events_per_s_total: rows as f64 / seconds,
            cpu_client: a_million(self.client.cpu()),
            cpu_walsender: a_million(walsender),
            cpu_broker: a_million(self.broker.cpu()),
            others_percent,
            peak_mib: self.client.peak_mib(),
        }
    }
}

/// From the start of the process to its end.
async fn pg_recvlogical(stage: &Stage, feed: &Feed, way: Way, end: &str, rows: u64) -> Result<Run, Failure> {
    copy_slot(stage).await;
    let begin = Instant::now();
    let mut client = Measured::pg_recvlogical(stage, feed, way, end);
    let mut meters = Meters::start(stage, &client);
    while !client.has_ended()? {
        if begin.elapsed() > PATIENCE {
            return Err(Failure::new("pg_recvlogical does not reach the end of the backlog"));
        }
        meters.sample(stage).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let events_per_s = rows as f64 / begin.elapsed().as_secs_f64();
    Ok(meters.run(rows, events_per_s))
}

/// What a drain is to publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Rows of the backlog.
    pub(crate) rows: u64,
    /// Records that are to come of them.
    pub(crate) records: u64,
    /// Further flags of outboxd.
    pub(crate) flags: &'static [&'static str],
}

impl Goal {
    /// Every row becomes a record.
    const fn all(rows: u64) -> Self {
        Self { rows, records: rows, flags: &[] }
    }
}

/// From the first progress to the last.
pub(crate) async fn outboxd(stage: &Stage, feed: &Feed, way: Way, goal: Goal) -> Result<Run, Failure> {
    let Goal { rows, records, flags } = goal;
    copy_slot(stage).await;
    let topic = Topic::create(&stage.kafka).await;
    // Its connection to the broker is there before the time counts.
    topic.count()?;
    let mut relay = Measured::outboxd(stage, feed, way, &topic, flags);
    let mut meters = Meters::start(stage, &relay);
    // The polls that saw the first and the latest progress: when, and how many events.
    let (mut first, mut last) = (None, (meters.begin, 0));
    let mut ticks = tokio::time::interval(POLL);
    while last.1 < records {
        ticks.tick().await;
        relay.has_ended()?;
        last = (Instant::now(), topic.count()?);
        if last.1 > 0 {
            first.get_or_insert(last);
        }
        if meters.begin.elapsed() > PATIENCE {
            return Err(Failure::new(format!("outboxd published {} of {records} events within {PATIENCE:?}", last.1)));
        }
        meters.sample(stage).await;
    }
    let (begin, seen) = first.unwrap_or(last);
    if seen == last.1 {
        return Err(Failure::new(format!("{rows} rows are too few: all were published between two polls")));
    }
    let events_per_s = (last.1 - seen) as f64 / (last.0 - begin).as_secs_f64();
    let run = meters.run(rows, events_per_s);
    exactly(relay, &topic, records).await?;
    topic.delete(&stage.kafka).await;
    Ok(run)
}

/// Each event once: there was neither a crash nor an error, so there is no excuse for a repeat.
async fn exactly(relay: Measured, topic: &Topic, rows: u64) -> Result<(), Failure> {
    relay.terminate().await?;
    match topic.count()? {
        count if count == rows => Ok(()),
        count => Err(Failure::new(format!("the topic has {count} records of {rows} events"))),
    }
}
