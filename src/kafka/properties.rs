//! librdkafka's settings: those the contract needs, those a user gives, and which of the user's are refused.

use std::fmt;

use rdkafka::ClientConfig;

/// Settings that carry the contract, with the reason why they may not be changed. librdkafka's aliases included.
const RESERVED: [(&str, &str); 27] = [
    ("acks", "an event counts as published only once all in-sync replicas have it"),
    ("request.required.acks", "an event counts as published only once all in-sync replicas have it"),
    ("enable.idempotence", "without it a retry could repeat or reorder events"),
    ("enable.gapless.guarantee", "without it later events could overtake a failed one"),
    ("transactional.id", "transactions are not used"),
    ("max.in.flight", "more than five requests in flight would break the order; outboxd sets it"),
    (
        "max.in.flight.requests.per.connection",
        "more than five requests in flight would break the order; outboxd sets it",
    ),
    ("message.timeout.ms", "a delivery that times out leaves a gap"),
    ("delivery.timeout.ms", "a delivery that times out leaves a gap"),
    ("retries", "a delivery that is given up leaves a gap"),
    ("message.send.max.retries", "a delivery that is given up leaves a gap"),
    ("partitioner", "outboxd chooses the partition itself, as Java's clients do (murmur2)"),
    ("partitioner_cb", "outboxd chooses the partition itself, as Java's clients do (murmur2)"),
    ("queuing.strategy", "events must leave in the order in which they came"),
    ("queue.buffering.max.messages", "use --window-events"),
    ("queue.buffering.max.kbytes", "use --window-bytes"),
    ("topic.metadata.propagation.max.ms", "a topic that is created again within that time must lose nothing"),
    ("delivery.report.only.error", "every event's report is needed"),
    ("produce.offset.report", "it is not used"),
    ("dr_cb", "outboxd sets the callbacks"),
    ("dr_msg_cb", "outboxd sets the callbacks"),
    ("log_cb", "outboxd sets the callbacks"),
    ("error_cb", "outboxd sets the callbacks"),
    ("bootstrap.servers", "use --brokers"),
    ("metadata.broker.list", "use --brokers"),
    ("log.queue", "outboxd sets it"),
    ("test.mock.num.brokers", "a mock broker keeps nothing"),
];

/// Parts of names whose values are secrets.
const SECRET: [&str; 5] = ["password", "secret", "key.pem", "sasl.jaas", "token"];

/// librdkafka's settings as a user gives them: `name=value`, later ones win.
#[derive(Clone, Default)]
pub struct Properties(Vec<(String, String)>);

/// Values may be secrets: only names are shown.
impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Properties {
    /// Adds one `name=value` of the command line, as kcat's `-X`.
    ///
    /// # Errors
    /// When it is no such pair, when the name is reserved, and when the value is a secret: a command line is visible to
    /// every user of the machine.
    pub fn add_argument(&mut self, text: &str) -> Result<(), PropertyError> {
        let (name, value) = parse(text)?;
        if is_secret(&name) {
            return Err(PropertyError::Secret(name));
        }
        self.0.push((name, value));
        Ok(())
    }

    /// Adds the lines of a file as kcat's `-F`: `name=value`, empty lines, comments with `#`.
    ///
    /// # Errors
    /// Every line that is wrong, with its number from 1.
    pub fn add_file(&mut self, contents: &str) -> Result<(), Vec<(usize, PropertyError)>> {
        let mut errors = Vec::new();
        for (number, line) in (1..).zip(contents.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match parse(line) {
                Ok(pair) => self.0.push(pair),
                Err(error) => errors.push((number, error)),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The names that were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The number given for `name`, if it is one.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        self.0.iter().rev().find(|(given, _)| given == name).and_then(|(_, value)| value.parse().ok())
    }

    /// Copies all of them into `config`.
    pub fn apply(&self, config: &mut ClientConfig) {
        for (name, value) in &self.0 {
            config.set(name, value);
        }
    }
}

fn parse(text: &str) -> Result<(String, String), PropertyError> {
    let (name, value) = text.split_once('=').ok_or(PropertyError::NoPair)?;
    // kcat's prefix for topic settings, which librdkafka takes without it too.
    let name = name.trim();
    let name = name
        .strip_prefix("topic.")
        .filter(|rest| !rest.starts_with("metadata.") && !rest.starts_with("blacklist"))
        .unwrap_or(name);
    match RESERVED.iter().find(|(reserved, _)| *reserved == name) {
        Some((_, reason)) => Err(PropertyError::Reserved { name: name.to_owned(), reason }),
        None if name.is_empty() => Err(PropertyError::NoPair),
        None => Ok((name.to_owned(), value.trim().to_owned())),
    }
}

fn is_secret(name: &str) -> bool {
    SECRET.iter().any(|part| name.contains(part)) && !name.ends_with(".url") && !name.ends_with(".location")
}

/// A librdkafka setting that is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyError {
    /// No `name=value`.
    NoPair,
    /// The contract needs it as it is.
    Reserved {
        /// The setting.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// A secret on a command line.
    Secret(String),
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPair => f.write_str("expected name=value"),
            Self::Reserved { name, reason } => write!(f, "{name} cannot be set: {reason}"),
            Self::Secret(name) => {
                write!(
                    f,
                    "{name} is a secret and a command line is visible to all; put it into a file and name that with -F, or into OUTBOXD_KAFKA_PROPERTIES"
                )
            }
        }
    }
}

impl std::error::Error for PropertyError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_the_contract_is_refused_with_the_reason() {
        for (name, _) in RESERVED {
            let error = Properties::default().add_argument(&format!("{name}=1")).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
        assert!(Properties::default().add_argument("topic.acks=1").is_err());
    }

    #[test]
    fn secrets_are_taken_from_a_file_only() {
        let mut properties = Properties::default();
        for name in ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "ssl.key.pem"] {
            assert_eq!(properties.add_argument(&format!("{name}=x")), Err(PropertyError::Secret(name.to_owned())));
        }
        properties.add_file("# kcat's form\n\nsasl.password = hunter2\n").unwrap();
        assert!(!format!("{properties:?}").contains("hunter2"));
        assert_eq!(properties.add_argument("ssl.key.location=/etc/key"), Ok(()));
    }

    #[test]
    fn every_bad_line_of_a_file_is_named() {
        let errors = Properties::default().add_file("linger.ms=1\nacks=1\nnonsense\n").unwrap_err();
        assert_eq!(errors.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3]);
    }
}
