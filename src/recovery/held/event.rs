//! A held event as it stands in the table.

use std::collections::BTreeMap;
use std::fmt;

use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::outbox::{Header, HeaderValue, OnFailure, Ordinal, Position};
use crate::postgres::Lsn;

/// Where a held event is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for its next attempt, or behind one that does.
    Parked,
    /// It keeps its place until an operator releases it.
    Quarantined,
    /// It gave up its place.
    Dead,
    /// It is published next, whatever its key does.
    Requeued,
    /// It is not published; the row stays until the log before it is confirmed.
    Discarded,
}

impl State {
    /// All of them, with their names in the table.
    pub const ALL: [(&'static str, Self); 5] = [
        ("parked", Self::Parked),
        ("quarantined", Self::Quarantined),
        ("dead", Self::Dead),
        ("requeued", Self::Requeued),
        ("discarded", Self::Discarded),
    ];

    /// Later events of its key wait behind it.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Parked | Self::Quarantined)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, state)| state == self).map_or("", |(name, _)| name))
    }
}

/// What is held with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Its key.
    Event,
    /// Its topic.
    Topic,
}

/// A header of a held record: text where it is that, else bytes, else without value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldHeader {
    /// Its name.
    pub name: String,
    /// The value, where it is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The value, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "base64_bytes")]
    pub base64: Option<Vec<u8>>,
}

impl HeldHeader {
    /// A header with a text.
    #[must_use]
    pub fn text(name: &str, text: impl Into<String>) -> Self {
        Self { name: name.to_owned(), text: Some(text.into()), base64: None }
    }

    /// The bytes of the value.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.text.as_ref().map(String::as_bytes).or(self.base64.as_deref())
    }

    /// As a record carries it.
    #[must_use]
    pub fn to_header(&self) -> Header<'_> {
        let value = self.bytes().map_or(HeaderValue::Null, |bytes| HeaderValue::Bytes(bytes.into()));
        Header { name: self.name.as_str().into(), value }
    }
}

impl From<&Header<'_>> for HeldHeader {
    fn from(header: &Header<'_>) -> Self {
        let name = header.name.clone().into_owned();
        let Some(bytes) = header.value.as_bytes() else { return Self { name, ..Self::default() } };
        // PostgreSQL's texts have no NUL.
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self { name, text: Some(text.to_owned()), base64: None },
            _ => Self { name, text: None, base64: Some(bytes.to_vec()) },
        }
    }
}

/// An event that cannot be published now.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldEvent {
    /// The row's number; 0 before it is stored.
    #[serde(default)]
    pub id: i64,
    /// Where its transaction was committed.
    pub commit_lsn: Lsn,
    /// Its place in the transaction.
    pub ordinal: u32,
    /// Where it comes from.
    pub source: String,
    /// Its id, as far as it could be read.
    pub event_id: Option<String>,
    /// What happened.
    pub event_type: Option<String>,
    /// The record's topic; `None` where no record could be made of the row.
    pub topic: Option<String>,
    /// The record's key.
    #[serde(default, with = "base64_bytes")]
    pub key: Option<Vec<u8>>,
    /// The record's value. It may be large, so it goes into the table as it is and not in JSON.
    #[serde(default, skip_serializing, deserialize_with = "base64_bytes::deserialize")]
    pub value: Option<Vec<u8>>,
    /// The record's headers.
    pub headers: Vec<HeldHeader>,
    /// The partition that the row asks for.
    pub partition: Option<i32>,
    /// The record's timestamp where that is a column's, in Unix milliseconds.
    pub timestamp_ms: Option<i64>,
    /// When it was committed, in Unix microseconds.
    pub committed_us: i64,
    /// The row, where no record could be made of it.
    pub columns: Option<BTreeMap<String, Option<String>>>,
    /// Where it is in its life.
    pub state: State,
    /// What is held with it.
    pub scope: Scope,
    /// What happens to it in the end.
    pub on_failure: OnFailure,
    /// The kind of the refusal, in one word.
    pub class: String,
    /// Why it was refused, without contents.
    pub reason: String,
    /// How often it was refused.
    pub attempts: u32,
    /// How often it may be.
    pub max_attempts: u32,
    /// Until the next attempt, in seconds.
    #[serde(default)]
    pub retry_in: Option<f64>,
    /// An operator has released it.
    #[serde(default)]
    pub released: bool,
}

impl HeldEvent {
    /// The event's place.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position::new(self.commit_lsn, Ordinal::new(self.ordinal))
    }

    /// What names its row.
    #[must_use]
    pub fn row(&self) -> Row {
        Row { id: self.id, commit_lsn: self.commit_lsn, ordinal: self.ordinal, event_id: self.event_id.clone() }
    }

    /// About how many bytes it is.
    #[must_use]
    pub fn len(&self) -> usize {
        let bytes = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter().map(|header| header.name.len() + header.bytes().map_or(0, <[u8]>::len));
        let columns = self.columns.iter().flatten();
        let columns = columns.map(|(name, value)| name.len() + value.as_ref().map_or(0, String::len));
        bytes(&self.key) + bytes(&self.value) + headers.sum::<usize>() + columns.sum::<usize>()
    }

    /// Always false: it has at least a position.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Names a row. After a failover a number may be another row's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its number.
    pub id: i64,
    commit_lsn: Lsn,
    ordinal: u32,
    event_id: Option<String>,
}

impl Row {
    /// The id of its event.
    #[must_use]
    pub fn event_id(&self) -> Option<&str> {
        self.event_id.as_deref()
    }
}

/// Neither contents nor ids belong into a log.
impl fmt::Debug for HeldEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HeldEvent");
        shown.field("position", &self.position()).field("state", &self.state).field("class", &self.class);
        shown.finish_non_exhaustive()
    }
}

mod base64_bytes {
    use base64::Engine as _;

    use super::{Deserialize, Deserializer, STANDARD, Serialize, Serializer};

    #[allow(clippy::ref_option)] // serde's signature
    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(mut text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        // PostgreSQL's encode() breaks lines.
        text.retain(|character| character != '\n');
        STANDARD.decode(text).map(Some).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_keeps_its_bytes_whatever_they_are() {
        let values: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"text"), Some(b"a\0b"), Some(&[0xFF, 0xFE])];
        for value in values {
            let of_record = HeaderValue::Bytes(value.unwrap_or_default().into());
            let value_of_record = if value.is_some() { of_record } else { HeaderValue::Null };
            let held = HeldHeader::from(&Header { name: "n".into(), value: value_of_record });
            let json = serde_json::to_string(&held).unwrap();
            let back: HeldHeader = serde_json::from_str(&json).unwrap();
            assert_eq!(back.bytes(), value, "{json}");
            assert_eq!(back.to_header().value.as_bytes(), value);
        }
    }
}
