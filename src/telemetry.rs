//! What the relay tells about itself: the log, and the registry of metrics with every name in one place.

use std::io::IsTerminal;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends the log to standard error. `OUTBOXD_LOG` chooses what is logged, in `tracing`'s filter syntax (default `info`).
pub fn init_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("OUTBOXD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Fails only when a log was set up before, as a test may have done; then that one stays.
    let _ = match format {
        LogFormat::Text => {
            let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            tracing::subscriber::set_global_default(log.with_ansi(ansi).finish())
        }
        LogFormat::Json => tracing::subscriber::set_global_default(log.json().finish()),
    };
}

type Total = Counter<u64, AtomicU64>;
type Level = Gauge<u64, AtomicU64>;

/// The relay's metrics. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Events that came from the database for the first time.
    pub received: Total,
    /// Events that the database sent again and that were recognised.
    pub recognised: Total,
    /// Rows that the status filter or a rule leaves out.
    pub filtered: Total,
    /// Events that the brokers acknowledged.
    pub published: Total,
    /// Bytes of the replication stream.
    pub stream_bytes: Total,
    /// Statuses that moved the confirmed position.
    pub confirmations: Total,
    /// Producers that ended with a refusal, a fatal error or a silence, and were replaced.
    pub rewinds: Total,
    /// Connections to the database that were lost or failed.
    pub reconnects: Total,
    /// Events in the window.
    pub window_events: Level,
    /// Bytes of the events in the window.
    pub window_bytes: Level,
    /// Events that a crash would repeat, beside those of the open transaction.
    pub uncovered_events: Level,
    /// The confirmed position, in bytes from the beginning of the log.
    pub confirmed_lsn: Level,
    /// The end of what has come, in bytes from the beginning of the log.
    pub received_lsn: Level,
    /// Seconds for which the oldest event has waited for its acknowledgement.
    pub oldest_seconds: Level,
    /// 1 while the oldest event waits for longer than `--publish-stall`.
    pub stalled: Level,
    /// Events that went to the held ones.
    pub held: Total,
    /// Held events that were published.
    pub released: Total,
    /// Events that were published once more because somebody asked for it.
    pub replayed: Total,
    /// Keys that wait behind held events.
    pub held_keys: Level,
    /// Topics that do not take events.
    pub held_topics: Level,
}

impl Metrics {
    /// New metrics, and the registry that they are in.
    #[must_use]
    pub fn registered() -> (Self, Registry) {
        let (metrics, mut registry) = (Self::default(), Registry::default());
        metrics.register(&mut registry);
        (metrics, registry)
    }

    /// Every metric under its name; a server of `/metrics` encodes the registry.
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("outboxd");
        let totals: [(&str, &str, &Total); 10] = [
            ("events_received", "Events that came from the database for the first time", &self.received),
            ("events_recognised", "Events that the database sent again and that were recognised", &self.recognised),
            ("events_filtered", "Rows that the status filter or a rule leaves out", &self.filtered),
            ("events_published", "Events that the brokers acknowledged", &self.published),
            ("confirmations", "Statuses that moved the confirmed position", &self.confirmations),
            ("rewinds", "Producers that were replaced after a failure", &self.rewinds),
            ("reconnects", "Connections to the database that were lost or failed", &self.reconnects),
            ("events_held", "Events that went to the held ones", &self.held),
            ("events_released", "Held events that were published", &self.released),
            ("events_replayed", "Events that were published once more on request", &self.replayed),
        ];
        for (name, help, metric) in totals {
            registry.register(name, help, metric.clone());
        }
        registry.register_with_unit(
            "stream",
            "Bytes of the replication stream",
            Unit::Bytes,
            self.stream_bytes.clone(),
        );
        let levels: [(&str, &str, &Level); 7] = [
            ("window_events", "Events in the window", &self.window_events),
            (
                "uncovered_events",
                "Events that a crash would repeat, less the open transaction's",
                &self.uncovered_events,
            ),
            ("confirmed_lsn", "The confirmed position, in bytes from the beginning of the log", &self.confirmed_lsn),
            ("received_lsn", "The end of what has come, in bytes from the beginning of the log", &self.received_lsn),
            ("held_keys", "Keys that wait behind held events", &self.held_keys),
            ("held_topics", "Topics that do not take events", &self.held_topics),
            ("stalled", "1 while the oldest event waits for longer than --publish-stall", &self.stalled),
        ];
        for (name, help, metric) in levels {
            registry.register(name, help, metric.clone());
        }
        registry.register_with_unit("window", "Bytes in the window", Unit::Bytes, self.window_bytes.clone());
        let oldest = "For how long the oldest event has waited for its acknowledgement";
        registry.register_with_unit("oldest_event", oldest, Unit::Seconds, self.oldest_seconds.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_encoded_under_its_name() {
        let ((metrics, registry), mut text) = (Metrics::registered(), String::new());
        metrics.published.inc_by(7);
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("outboxd_events_published_total 7"), "{text}");
        assert_eq!(text.matches("# HELP").count(), fields(&metrics), "a metric is not registered: {text}");
    }

    /// How many fields the struct has: a line each in its indented debug form, at the first level of indentation.
    fn fields(metrics: &Metrics) -> usize {
        let debug = format!("{metrics:#?}");
        debug
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|field| field.starts_with(char::is_alphabetic))
            .count()
    }
}
