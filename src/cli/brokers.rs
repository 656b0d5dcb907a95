//! The flags that several commands share: which brokers, and which topics.

use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;

use super::effective::Effective;
use crate::config::run::{Mistakes, kafka_properties};
use crate::kafka::producer::ProducerSettings;

/// The environment's librdkafka settings, one `name=value` a line.
pub(super) const KAFKA_PROPERTIES: &str = "OUTBOXD_KAFKA_PROPERTIES";

/// Where events go.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// The brokers to begin with: host:port, separated by commas.
    #[arg(long, env = "OUTBOXD_BROKERS", default_value = "localhost:9092")]
    pub(super) brokers: String,
    /// A librdkafka setting. Secrets go into a file (-F) or into OUTBOXD_KAFKA_PROPERTIES, which holds lines of them.
    #[arg(short = 'X', value_name = "NAME=VALUE")]
    property: Vec<String>,
    /// A file of librdkafka settings, as kcat takes it: lines of name=value.
    #[arg(short = 'F', value_name = "FILE", env = "OUTBOXD_KAFKA_FILE")]
    property_file: Option<String>,
    /// How long a broker may take for one request.
    #[arg(long, env = "OUTBOXD_REQUEST_TIMEOUT", default_value = "5s")]
    request_timeout: String,
}

impl BrokerArgs {
    /// What clients of the brokers are made from, checked; the window is that of the relay.
    pub(super) fn producer(
        &self,
        (window_bytes, window_events): (usize, usize),
        effective: &Effective,
        mistakes: &mut Mistakes,
    ) -> ProducerSettings {
        let request_timeout = positive("--request-timeout", &self.request_timeout, mistakes);
        let file = self.property_file.as_deref();
        let given = settings(&self.brokers, effective.kafka(), file, &self.property, mistakes);
        let settings = ProducerSettings { window_bytes, window_events, request_timeout, ..given };
        mistakes.note("-X or -F", settings.plain_config().create_native_config().map(drop));
        settings
    }
}

/// The brokers and librdkafka's settings of the file, the environment and the arguments, checked. Without a window.
pub(super) fn settings(
    brokers: &str,
    config: (&str, &str),
    file: Option<&str>,
    arguments: &[String],
    mistakes: &mut Mistakes,
) -> ProducerSettings {
    let file = file.map(|path| (path, std::fs::read_to_string(path)));
    let environment = environment_properties(mistakes);
    let properties = kafka_properties(config, file, environment.as_deref(), arguments, mistakes);
    if brokers.split(',').any(|broker| broker.trim().is_empty()) {
        mistakes.add("--brokers", "expected host:port, separated by commas");
    }
    let request_timeout = Duration::from_secs(5);
    ProducerSettings { brokers: brokers.to_owned(), properties, window_bytes: 0, window_events: 0, request_timeout }
}

fn environment_properties(mistakes: &mut Mistakes) -> Option<String> {
    let lines = std::env::var_os(KAFKA_PROPERTIES)?.into_string();
    mistakes.note(KAFKA_PROPERTIES, lines.map_err(|_| "is not UTF-8"))
}

/// A time.
pub(super) fn duration(flag: &str, text: &str, mistakes: &mut Mistakes) -> Duration {
    mistakes.note(flag, humantime::parse_duration(text)).unwrap_or_default()
}

/// A time of at least a millisecond.
pub(super) fn positive(flag: &str, text: &str, mistakes: &mut Mistakes) -> Duration {
    match mistakes.note(flag, humantime::parse_duration(text)) {
        Some(duration) if duration >= Duration::from_millis(1) => duration,
        Some(_) => {
            mistakes.add(flag, "must be at least 1ms");
            Duration::ZERO
        }
        None => Duration::ZERO,
    }
}

/// A size.
pub(super) fn bytes(flag: &str, text: &str, at_least: usize, mistakes: &mut Mistakes) -> usize {
    let size = mistakes.note(flag, text.parse::<ByteSize>()).map(|size| usize::try_from(size.as_u64()));
    match size {
        Some(Ok(size)) if size >= at_least => size,
        Some(_) => {
            mistakes.add(flag, format_args!("must be at least {at_least} bytes"));
            0
        }
        None => 0,
    }
}
