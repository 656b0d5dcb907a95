//! The settings of `outboxd run`, checked as a whole before anything is opened.

use std::fmt;
use std::time::Duration;

use super::held::HeldSettings;
use crate::claims::Store;
use crate::kafka::creation::NewTopics;
use crate::kafka::producer::ProducerSettings;
use crate::kafka::properties::Properties;
use crate::outbox::Mapping;
use crate::postgres::{Conninfo, QualifiedName};
use crate::relay::limits::Limits;

/// Everything that `outboxd run` needs to know.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The database.
    pub database: Conninfo,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// The outbox table.
    pub table: QualifiedName,
    /// The name of this source of events.
    pub source: String,
    /// What is made of rows.
    pub mapping: Mapping,
    /// The store of payloads that are too large to travel; `None` leaves them in the table.
    pub claims: Option<Store>,
    /// What producers are made from.
    pub producer: ProducerSettings,
    /// How topics are made that do not exist; `None` is not at all.
    pub new_topics: Option<NewTopics>,
    /// The window and the pace of statuses.
    pub limits: Limits,
    /// What happens to events that cannot be published.
    pub held: HeldSettings,
    /// The times.
    pub times: Times,
    /// The largest message that the server may send, in bytes.
    pub message_bytes_max: usize,
    /// How long the reader lets bytes gather while the stream is busy; nothing is what suits the kind of connection.
    pub gather: Option<Duration>,
    /// All of it in one line with where each came from, without secrets.
    pub summary: String,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// An event that waits this long for its acknowledgement is a stall.
    pub publish_stall: Duration,
    /// After a signal, until everything received is published and confirmed.
    pub drain_limit: Duration,
    /// While the server shuts down, until the connection is closed.
    pub shutdown_grace: Duration,
    /// Without a word from the server, until nothing more is published.
    pub silence: Duration,
    /// Without a word from the server, until the connection is given up.
    pub receive_timeout: Duration,
    /// At the start, until a database that cannot be reached ends the process.
    pub start_limit: Duration,
    /// At the first event for a topic that does not exist, until the relay halts.
    pub topic_wait: Duration,
    /// Between two looks at the topics in use.
    pub topic_refresh: Duration,
}

/// Mistakes in the settings, all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// Adds one: what it is about, and what is wrong with it.
    pub fn add(&mut self, about: &str, what: impl fmt::Display) {
        self.0.push(format!("{about}: {what}"));
    }

    /// The value, or `None` with the mistake noted.
    pub fn note<T, E: fmt::Display>(&mut self, about: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(about, error)).ok()
    }

    /// There are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// Gathers the user's librdkafka settings: those of the configuration file (its name and the lines), the file, the environment's
/// lines, then the arguments, later ones winning.
pub fn kafka_properties(
    config: (&str, &str),
    file: Option<(&str, std::io::Result<String>)>,
    environment: Option<&str>,
    arguments: &[String],
    mistakes: &mut Mistakes,
) -> Properties {
    let mut properties = Properties::default();
    let mut add_lines = |name: &str, lines: &str, mistakes: &mut Mistakes| {
        for (line, error) in properties.add_file(lines).err().into_iter().flatten() {
            mistakes.add(&format!("{name}, line {line}"), error);
        }
    };
    add_lines(config.0, config.1, mistakes);
    match file {
        Some((path, Ok(lines))) => add_lines(path, &lines, mistakes),
        Some((path, Err(error))) => mistakes.add(&format!("-F {path}"), error),
        None => {}
    }
    add_lines("OUTBOXD_KAFKA_PROPERTIES", environment.unwrap_or_default(), mistakes);
    for argument in arguments {
        let name = argument.split('=').next().unwrap_or_default();
        mistakes.note(&format!("-X {name}"), properties.add_argument(argument));
    }
    properties
}
