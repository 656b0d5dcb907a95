//! The Kafka record of an event.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use smallvec::SmallVec;

use super::columns::Role;
use super::event::{Event, MappingError};
use super::header::{
    self, HEADER_CLAIM_CHECK, HEADER_COMMIT_TIME, HEADER_CONTENT_TYPE, HEADER_EVENT_TYPE, HEADER_ID, HEADER_POSITION,
    HEADER_SOURCE, HEADER_TIMESTAMP, Header, HeaderValue,
};
use super::mapping::{Layout, ValueFormat};
use super::shape::{Kind, Then};
use super::timestamp;
use super::value::{self, CloudEvent};

/// A record may carry the commit time as its timestamp while that is at most this old, in milliseconds. An older one
/// would let the topic's retention delete the record at once; brokers refuse one that lies so far ahead.
const RECENT_MS: i64 = 3_600_000;

/// Whether a record that is sent now may carry the commit time as its timestamp; both are Unix times in milliseconds.
#[must_use]
pub fn is_recent(committed_ms: i64, now_ms: i64) -> bool {
    (0..=RECENT_MS).contains(&now_ms.saturating_sub(committed_ms))
}

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

    /// The same as a relative reference (RFC 3986): `/name/schema.table`.
    pub(super) fn to_uri(&self) -> String {
        const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'_').remove(b'-').remove(b'~');
        format!("/{}", utf8_percent_encode(&self.0, &KEPT))
    }
}

/// What goes to Kafka, less topic and partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The aggregate's id, unless the user wants another; `None` is a record without key.
    pub key: Option<Cow<'a, [u8]>>,
    /// The payload, as it stands or in an envelope; `None` is a tombstone.
    pub value: Option<Cow<'a, [u8]>>,
    /// Unix time in milliseconds.
    pub timestamp_ms: i64,
    /// In the order in which they are sent.
    pub headers: SmallVec<[Header<'a>; 8]>,
}

impl<'a> Record<'a> {
    /// The record of `event`, which comes from `source`; `now_ms` is the Unix time in milliseconds.
    ///
    /// # Errors
    /// When a column is not what its type promises, or NULL where the format needs it.
    pub fn of(event: &'a Event, source: &'a Source, now_ms: i64) -> Result<Self, MappingError> {
        let (timestamp_ms, about_time) = time(event, now_ms);
        let mut headers = SmallVec::new();
        match event.shape().layout {
            Layout::Outboxd => ours(event, source, about_time, &mut headers)?,
            Layout::Debezium => headers.push(Header::new(HEADER_ID, event.id())),
        }
        named(event, &mut headers)?;
        if event.is_claimed() {
            let place = event.claim_url(source).map_or(Cow::Borrowed(&b"row"[..]), |url| Cow::Owned(url.into_bytes()));
            headers.push(Header::new(HEADER_CLAIM_CHECK, place));
        }
        match event.shape().value {
            ValueFormat::Payload | ValueFormat::Envelope => {}
            ValueFormat::CloudEvents => {
                headers.push(Header::new(HEADER_CONTENT_TYPE, value::CLOUD_EVENT.as_bytes()));
            }
            ValueFormat::CloudEventsBinary => attributes(event, source, &mut headers)?,
        }
        Ok(Self { key: event.key()?, value: value::of(event, source)?, timestamp_ms, headers })
    }

    /// At least so many bytes the record has for a broker, uncompressed: key, value and headers without their framing.
    #[must_use]
    pub fn size_min(&self) -> usize {
        let headers: usize = self.headers.iter().map(Header::len).sum();
        self.key.as_ref().map_or(0, |key| key.len()) + self.value.as_ref().map_or(0, |value| value.len()) + headers
    }
}

/// The record's timestamp, and the header that tells what it could not be.
fn time(event: &Event, now_ms: i64) -> (i64, Option<Header<'_>>) {
    let committed_ms = event.committed_at().unix_ms();
    let is_recent = is_recent(committed_ms, now_ms);
    let column = event.shape().timestamp.and_then(|slot| event.field(slot));
    if let Some(text) = column {
        let at = std::str::from_utf8(text).ok().and_then(timestamp::unix_ms);
        return match at.filter(|at| (0..now_ms.saturating_add(RECENT_MS)).contains(at)) {
            Some(at) => (at, None),
            None => (if is_recent { committed_ms } else { now_ms }, Some(Header::new(HEADER_TIMESTAMP, text))),
        };
    }
    match is_recent {
        true => (committed_ms, None),
        false => (now_ms, Some(Header::new(HEADER_COMMIT_TIME, committed_ms.to_string().into_bytes()))),
    }
}

type Headers<'a> = SmallVec<[Header<'a>; 8]>;

/// The headers of our own records. Each costs librdkafka an allocation, so there are no more than these.
fn ours<'a>(
    event: &'a Event,
    source: &'a Source,
    about_time: Option<Header<'a>>,
    headers: &mut Headers<'a>,
) -> Result<(), MappingError> {
    headers.push(Header::new(HEADER_ID, event.id()));
    if let Some(event_type) = event.role(Role::EventType) {
        headers.push(Header::new(HEADER_EVENT_TYPE, event_type));
    }
    headers.push(Header::new(HEADER_SOURCE, source.as_str().as_bytes()));
    let position = HeaderValue::Position(event.position().to_text());
    headers.push(Header { name: HEADER_POSITION.into(), value: position });
    headers.extend(about_time);
    if let Some(text) = event.role(Role::SpanContext).and_then(|text| std::str::from_utf8(text).ok()) {
        headers.extend(header::of_span_context(text));
    }
    if let Some((slot, text)) = event.shape().role(Role::Headers).and_then(|slot| Some((slot, event.field(slot)?))) {
        let more = match event.shape().kind(slot) {
            Kind::Hstore => std::str::from_utf8(text).ok().and_then(header::of_hstore),
            Kind::Text | Kind::Json | Kind::Bytea => header::of_json(text),
        };
        headers.extend(more.ok_or(MappingError::Headers)?);
    }
    Ok(())
}

/// The headers that are columns, and those of the rule that fits.
fn named<'a>(event: &'a Event, headers: &mut Headers<'a>) -> Result<(), MappingError> {
    for (name, slot) in &event.shape().headers {
        match event.bytes(*slot)? {
            Some(value) => headers.push(Header::new(name.as_str(), value)),
            // Debezium's router says that there is nothing.
            None if event.shape().layout == Layout::Debezium => {
                headers.push(Header { name: name.as_str().into(), value: HeaderValue::Null });
            }
            None => {}
        }
    }
    if let Some(Then::Change { headers: more, .. }) = event.then() {
        for (name, text) in more {
            let mut value = String::new();
            if event.render(text, &mut value).is_ok() {
                headers.push(Header::new(name.as_str(), value.into_bytes()));
            }
        }
    }
    Ok(())
}

/// CloudEvents in the binary mode (Kafka Protocol Binding for CloudEvents 1.0.2, section 3.2).
fn attributes<'a>(event: &'a Event, source: &Source, headers: &mut Headers<'a>) -> Result<(), MappingError> {
    let attributes = CloudEvent::attributes(event, source)?;
    for (name, value) in attributes.given {
        headers.push(Header::new(format!("ce_{name}"), value.into_bytes()));
    }
    headers.extend(attributes.content_type.map(|text| Header::new(HEADER_CONTENT_TYPE, text.as_bytes())));
    Ok(())
}
