//! The Kafka record of an event.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::event::{Event, MappingError};
use super::position::Position;

/// A record may carry the commit time as its timestamp while that is at most this old, in milliseconds. An older one
/// would let the topic's retention delete the record at once.
const RECENT_MS: i64 = 3_600_000;

/// Where events come from: the source's name and the table, since ids of different tables may be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source(String);

impl Source {
    /// `name/schema.table`, the text of the header `outboxd_source`.
    #[must_use]
    pub fn new(name: &str, table: &str) -> Self {
        Self(format!("{name}/{table}"))
    }

    /// The header's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A header of the table's own: its name and, unless it is JSON's null, its value.
pub type MoreHeader = (String, Option<Vec<u8>>);

/// What goes to Kafka, less topic and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The aggregate's id; `None` is a record without key.
    pub key: Option<&'a [u8]>,
    /// The payload as it stands; `None` is a tombstone.
    pub value: Option<Cow<'a, [u8]>>,
    /// Unix time in milliseconds.
    pub timestamp_ms: i64,
    /// The true commit time, where the timestamp is not it.
    pub commit_time_ms: Option<i64>,
    /// The table's own headers.
    pub more_headers: Vec<MoreHeader>,
}

/// The header that carries the event's id.
pub const HEADER_ID: &str = "id";
/// The header that says what happened.
pub const HEADER_EVENT_TYPE: &str = "event_type";
/// The header that says where the event comes from.
pub const HEADER_SOURCE: &str = "outboxd_source";
/// The header that carries the event's [`Position`] as text.
pub const HEADER_POSITION: &str = "outboxd_position";
/// The header that carries the commit time in Unix milliseconds where the record's timestamp does not.
pub const HEADER_COMMIT_TIME: &str = "outboxd_commit_time";

impl<'a> Record<'a> {
    /// The record of `event`; `now_ms` is the Unix time in milliseconds.
    ///
    /// # Errors
    /// When the payload or the headers column is not what its type promises.
    pub fn of(event: &'a Event, now_ms: i64) -> Result<Self, MappingError> {
        let value = match event.payload() {
            Some(payload) if event.payload_is_bytea() => Some(Cow::Owned(decode_bytea(payload)?)),
            Some(payload) => Some(Cow::Borrowed(payload)),
            None => None,
        };
        let committed_ms = event.committed_at().unix_ms();
        let is_recent = (now_ms.saturating_sub(RECENT_MS)..=now_ms).contains(&committed_ms);
        Ok(Self {
            key: event.aggregate_id(),
            value,
            timestamp_ms: if is_recent { committed_ms } else { now_ms },
            commit_time_ms: (!is_recent).then_some(committed_ms),
            more_headers: event.headers().map_or_else(|| Ok(Vec::new()), parse_headers)?,
        })
    }

    /// At least so many bytes the record has for a broker, uncompressed: key, value and headers without their framing.
    #[must_use]
    pub fn size_min(&self, event: &Event) -> usize {
        let ours = event.id().len() + event.event_type().len() + Position::TEXT_LEN;
        let theirs: usize =
            self.more_headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len)).sum();
        let value = self.value.as_ref().map_or(0, |value| value.len());
        self.key.map_or(0, <[u8]>::len) + value + ours + theirs
    }
}

/// `\x` and two digits a byte: `bytea_output = hex`, which the replication connection sets.
fn decode_bytea(text: &[u8]) -> Result<Vec<u8>, MappingError> {
    let digits = text.strip_prefix(b"\\x").ok_or(MappingError::Bytea)?;
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.chunks(2).map(|pair| byte(pair).ok_or(MappingError::Bytea)).collect()
}

/// A JSON object: strings as they are, other values as the JSON text that stands there, null as no value.
fn parse_headers(json: &[u8]) -> Result<Vec<MoreHeader>, MappingError> {
    let members: Option<BTreeMap<String, &RawValue>> =
        serde_json::from_slice(json).map_err(|_| MappingError::Headers)?;
    let value = |raw: &RawValue| match serde_json::from_str::<Option<String>>(raw.get()) {
        Ok(text) => text.map(String::into_bytes),
        Err(_) => Some(raw.get().as_bytes().to_vec()),
    };
    Ok(members.into_iter().flatten().map(|(name, raw)| (name, value(raw))).collect())
}
