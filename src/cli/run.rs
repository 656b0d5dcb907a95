//! `outboxd run`.

use std::time::Duration;

use clap::Args;

use super::brokers::{BrokerArgs, bytes, duration, positive};
use super::effective::Effective;
use super::exit::{Class, Failed};
use super::held::HeldArgs;
use super::mapping::MappingArgs;
use super::target::TargetArgs;
use crate::claims::Store;
use crate::config::run::{Mistakes, RunSettings, Times};
use crate::relay::Relay;
use crate::relay::limits::Limits;
use crate::telemetry::Metrics;

/// The longest that `--gather` may be.
const GATHER_MAX: Duration = Duration::from_millis(100);

/// The arguments. Each can be given as an environment variable; a flag wins.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The name of this source in the header outboxd_source [default: the database's name].
    #[arg(long, env = "OUTBOXD_SOURCE")]
    source: Option<String>,
    #[command(flatten)]
    brokers: BrokerArgs,
    #[command(flatten)]
    mapping: MappingArgs,
    #[command(flatten)]
    held: HeldArgs,
    /// The most bytes of events without an acknowledgement.
    #[arg(long, env = "OUTBOXD_WINDOW_BYTES", default_value = "16MiB")]
    window_bytes: String,
    /// The most events without an acknowledgement, or not yet confirmed.
    #[arg(long, env = "OUTBOXD_WINDOW_EVENTS", default_value = "20000")]
    window_events: String,
    /// The largest row, in bytes, as the server sends it.
    #[arg(long, env = "OUTBOXD_MAX_MESSAGE_BYTES", default_value = "64MiB")]
    max_message_bytes: String,
    /// How often PostgreSQL is told the confirmed position at least.
    #[arg(long, env = "OUTBOXD_STATUS_INTERVAL", default_value = "1s")]
    status_interval: String,
    /// How long bytes gather while the stream is busy, before they are read: at most 100ms; 0s is off, "auto" suits the
    /// connection (200us over a unix socket, 1ms to 16ms over TCP).
    #[arg(long, env = "OUTBOXD_GATHER", default_value = "auto")]
    gather: String,
    /// An event that waits for its acknowledgement this long is reported as a stall.
    #[arg(long, env = "OUTBOXD_PUBLISH_STALL", default_value = "30s")]
    publish_stall: String,
    /// After SIGTERM, how long publishing and confirming what has come may take.
    #[arg(long, env = "OUTBOXD_DRAIN_LIMIT", default_value = "10s")]
    drain_limit: String,
    /// While PostgreSQL shuts down, how long it waits for what is not acknowledged.
    #[arg(long, env = "OUTBOXD_SHUTDOWN_GRACE", default_value = "3s")]
    shutdown_grace: String,
    /// Without a word from PostgreSQL for this long, nothing more is published. Must be below half of wal_sender_timeout.
    #[arg(long, env = "OUTBOXD_SILENCE", default_value = "5s")]
    silence: String,
    /// Without a word from PostgreSQL for this long, the connection is given up.
    #[arg(long, env = "OUTBOXD_RECEIVE_TIMEOUT", default_value = "2m")]
    receive_timeout: String,
    /// At the start, how long a database that cannot be reached is waited for.
    #[arg(long, env = "OUTBOXD_START_LIMIT", default_value = "30s")]
    start_limit: String,
    /// How long an event waits for a topic that does not exist, before the relay stops.
    #[arg(long, env = "OUTBOXD_TOPIC_WAIT", default_value = "30s")]
    topic_wait: String,
    /// Make topics that do not exist: partitions=6,replication=3, where what is left out is the broker's default. Without it an
    /// event for such a topic waits and then stops the relay.
    #[arg(long, value_name = "HOW", env = "OUTBOXD_CREATE_TOPICS", num_args = 0..=1, default_missing_value = "")]
    create_topics: Option<String>,
    /// How often topics are looked at for new partitions and size limits.
    #[arg(long, env = "OUTBOXD_TOPIC_REFRESH", default_value = "10s")]
    topic_refresh: String,
}

/// Relays until a signal comes or something halts it.
///
/// # Errors
/// All mistakes in the settings together, or what halted the relay.
pub async fn run(args: RunArgs, effective: &Effective) -> Result<(), Failed> {
    let settings = args.settings(effective).map_err(|mistakes| Failed::new(Class::Usage, mistakes))?;
    for warning in settings.database.warnings() {
        tracing::warn!("{warning}");
    }
    let (metrics, _registry) = Metrics::registered();
    let relay = Relay::new(settings, metrics)?;
    relay.run().await?;
    Ok(())
}

impl RunArgs {
    fn settings(&self, effective: &Effective) -> Result<RunSettings, Mistakes> {
        let mut mistakes = effective.mistakes();
        let target = self.target.check(&mut mistakes);
        let mapping = self.mapping.mapping(effective, &mut mistakes);
        let claims = mapping.claim_check_to.as_ref();
        let claims = claims.and_then(|place| mistakes.note("--claim-check-to", Store::open(place)));
        let gather = self.gather(&mut mistakes);
        let new_topics = self.create_topics.as_ref();
        let new_topics = new_topics.and_then(|text| mistakes.note("--create-topics", text.parse()));
        let limits = self.limits(&mut mistakes);
        let held = self.held.settings(&mut mistakes);
        let times = self.times(&mut mistakes);
        let producer = self.brokers.producer((limits.window_bytes, limits.window_events), effective, &mut mistakes);
        let message_bytes_max = bytes("--max-message-bytes", &self.max_message_bytes, 1024, &mut mistakes);
        match target {
            Some(target) if mistakes.is_empty() => Ok(RunSettings {
                summary: effective.line(&target.database, producer.properties.names()),
                source: self.source.clone().unwrap_or_else(|| target.database.dbname().to_owned()),
                slot: target.slot,
                publication: target.publication,
                database: target.database,
                table: target.table,
                mapping,
                claims,
                producer,
                new_topics,
                limits,
                held,
                times,
                message_bytes_max,
                gather,
            }),
            _ => Err(mistakes),
        }
    }

    fn gather(&self, mistakes: &mut Mistakes) -> Option<Duration> {
        if self.gather == "auto" {
            return None;
        }
        let gather = duration("--gather", &self.gather, mistakes);
        // The whole relay sleeps meanwhile.
        if gather > GATHER_MAX {
            mistakes.add("--gather", "must be at most 100ms");
        }
        Some(gather)
    }

    fn limits(&self, mistakes: &mut Mistakes) -> Limits {
        Limits {
            window_bytes: bytes("--window-bytes", &self.window_bytes, 64 << 10, mistakes),
            window_events: number("--window-events", &self.window_events, 10, mistakes),
            status_interval: positive("--status-interval", &self.status_interval, mistakes),
            ..Limits::default()
        }
    }

    fn times(&self, mistakes: &mut Mistakes) -> Times {
        Times {
            publish_stall: positive("--publish-stall", &self.publish_stall, mistakes),
            drain_limit: duration("--drain-limit", &self.drain_limit, mistakes),
            shutdown_grace: duration("--shutdown-grace", &self.shutdown_grace, mistakes),
            silence: positive("--silence", &self.silence, mistakes),
            receive_timeout: positive("--receive-timeout", &self.receive_timeout, mistakes),
            start_limit: duration("--start-limit", &self.start_limit, mistakes),
            topic_wait: duration("--topic-wait", &self.topic_wait, mistakes),
            topic_refresh: positive("--topic-refresh", &self.topic_refresh, mistakes),
        }
    }
}

fn number(flag: &str, text: &str, at_least: usize, mistakes: &mut Mistakes) -> usize {
    let number: Result<usize, _> = text.parse().map_err(|_| format!("{text:?} is no number"));
    match mistakes.note(flag, number) {
        Some(number) if number >= at_least => number,
        Some(_) => {
            mistakes.add(flag, format_args!("must be at least {at_least}"));
            0
        }
        None => 0,
    }
}
