//! A record for people and for programs: `explain` and `tail` print it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::outbox::{Event, Filtered, Mapping, MappingError, Record, Source};

/// What is made of one row.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Shown {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// The number of the rule that decided, from 1.
    rule: Option<usize>,
    /// Why no record is made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    filtered: Option<&'static str>,
    /// Why none can be made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    record: Option<ShownRecord>,
    /// The rule in words.
    #[serde(skip)]
    rule_words: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ShownRecord {
    topic: String,
    key: Option<String>,
    timestamp_ms: i64,
    headers: Vec<ShownHeader>,
    value: Option<String>,
    /// In place of a value that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    value_bytes: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
struct ShownHeader {
    name: String,
    value: Option<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Shown {
    /// What the relay would send for this event; `is_placed` where it has come from the stream and so has a position.
    pub(super) fn of(event: &Event, mapping: &Mapping, source: &Source, now_ms: i64, is_placed: bool) -> Self {
        let mut shown = Self {
            id: text(event.id()),
            position: is_placed.then(|| event.position().to_string()),
            rule: event.rule().map(|number| number + 1),
            rule_words: event.rule().and_then(|number| mapping.rules.get(number)).map(ToString::to_string),
            filtered: event.filtered().map(|filtered| match filtered {
                Filtered::Status => "status",
                Filtered::Rule(_) => "rule",
            }),
            ..Self::default()
        };
        if shown.filtered.is_none() {
            match ShownRecord::of(event, source, now_ms, is_placed) {
                Ok(record) => shown.record = Some(record),
                Err(error) => shown.error = Some(error.to_string()),
            }
        }
        shown
    }

    /// A row that is no event.
    pub(super) fn refused(error: &MappingError) -> Self {
        Self { error: Some(error.to_string()), ..Self::default() }
    }

    /// Why it cannot be published.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The topic, where there is one.
    pub(super) fn topic(&self) -> Option<&str> {
        self.record.as_ref().map(|record| record.topic.as_str())
    }

    /// The key, where there is one.
    pub(super) fn key(&self) -> Option<&str> {
        self.record.as_ref()?.key.as_deref()
    }

    /// One line: position, topic, key, and the value in part.
    pub(super) fn line(&self, width: usize) -> String {
        let position = self.position.as_deref().unwrap_or_default();
        let rest = match (&self.record, self.filtered, &self.error) {
            (Some(record), ..) => {
                let key = record.key.as_deref().unwrap_or("(no key)");
                format!("{} {key} {}", record.topic, record.value_words())
            }
            (None, Some(by), _) => format!("(left out by {by}) id {}", self.id),
            (None, None, error) => {
                format!("(cannot be published) id {}: {}", self.id, error.as_deref().unwrap_or_default())
            }
        };
        let line = format!("{position} {}", rest.replace(|character: char| character.is_control(), " "));
        match line.char_indices().nth(width) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
            None => line,
        }
    }

    /// All of it, a line for each thing.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |name: &str, value: &str| format!("{name:<10} {value}");
        let mut lines = vec![line("id", &self.id)];
        let rule = match (self.rule, &self.rule_words) {
            (Some(number), Some(words)) => format!("{number}: {words}"),
            _ => "none fits".to_owned(),
        };
        lines.push(line("rule", &rule));
        if let Some(by) = self.filtered {
            lines.push(line("filtered", &format!("by {by}: no record is made of it")));
        }
        if let Some(error) = &self.error {
            lines.push(line("error", &format!("it cannot be published: {error}")));
        }
        let Some(record) = &self.record else { return lines };
        lines.push(line("topic", &record.topic));
        lines.push(line("key", record.key.as_deref().unwrap_or("none")));
        let seconds = u64::try_from(record.timestamp_ms).unwrap_or_default();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_millis(seconds.min(253_402_300_799_000));
        lines.push(line("timestamp", &humantime::format_rfc3339_millis(at).to_string()));
        for ShownHeader { name, value } in &record.headers {
            lines.push(line("header", &format!("{name}: {}", value.as_deref().unwrap_or("NULL"))));
        }
        lines.push(line("value", &record.value_words()));
        lines
    }
}

impl ShownRecord {
    fn of(event: &Event, source: &Source, now_ms: i64, is_placed: bool) -> Result<Self, MappingError> {
        let mut topic = String::new();
        event.topic(&mut topic)?;
        let record = Record::of(event, source, now_ms)?;
        let is_known = |name: &str| is_placed || name != crate::outbox::header::HEADER_POSITION;
        let headers = record.headers.iter().filter(|header| is_known(&header.name));
        let value = record.value.as_deref();
        let is_text = value.is_some_and(|value| std::str::from_utf8(value).is_ok());
        Ok(Self {
            topic,
            key: record.key.as_deref().map(text),
            timestamp_ms: record.timestamp_ms,
            headers: headers
                .map(|header| ShownHeader { name: header.name.to_string(), value: header.value.as_bytes().map(text) })
                .collect(),
            value: value.filter(|_| is_text).map(text),
            value_base64: value.filter(|_| !is_text).map(|value| STANDARD.encode(value)),
            value_bytes: value.map(<[u8]>::len),
        })
    }

    fn value_words(&self) -> String {
        match (&self.value, &self.value_base64, self.value_bytes) {
            (Some(text), ..) => text.clone(),
            (None, Some(base64), bytes) => format!("{} bytes, in base64: {base64}", bytes.unwrap_or_default()),
            (None, None, _) => "none (a tombstone)".to_owned(),
        }
    }
}
