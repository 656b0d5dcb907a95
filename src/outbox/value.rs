//! The value of a record: the payload, or the payload in an envelope.

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::columns::Role;
use super::event::{Event, MappingError};
use super::mapping::ValueFormat;
use super::record::Source;
use super::shape::Kind;

/// What a CloudEvent in the structured mode says that it is.
pub(super) const CLOUD_EVENT: &str = "application/cloudevents+json; charset=UTF-8";

/// The value of `event`'s record; `None` is a tombstone.
pub(super) fn of<'e>(event: &'e Event, source: &Source) -> Result<Option<Cow<'e, [u8]>>, MappingError> {
    if event.is_claimed() {
        return claim(event, source).map(|json| Some(Cow::Owned(json)));
    }
    let Some(payload) = payload(event)? else { return Ok(None) };
    match event.shape().value {
        ValueFormat::Payload | ValueFormat::CloudEventsBinary => Ok(Some(payload)),
        ValueFormat::Envelope => envelope(event, &payload).map(|json| Some(Cow::Owned(json))),
        ValueFormat::CloudEvents => cloud_event(event, source, &payload).map(|json| Some(Cow::Owned(json))),
    }
}

/// The payload as bytes; `None` where it is NULL, or empty and that is a tombstone.
fn payload(event: &Event) -> Result<Option<Cow<'_, [u8]>>, MappingError> {
    let Some(slot) = event.shape().role(Role::Payload) else { return Ok(None) };
    let is_tombstone = |payload: &Cow<'_, [u8]>| event.shape().empty_is_tombstone && payload.is_empty();
    Ok(event.bytes(slot)?.filter(|payload| !is_tombstone(payload)))
}

/// `\x` and two digits a byte: `bytea_output = hex`, which the replication connection sets.
pub(super) fn decode_bytea(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(b"\\x")?;
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}

/// A payload inside of JSON.
enum Data<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Data<'a> {
    /// JSON where the column is JSON, or is text that holds an object or an array; other text is a string.
    fn of(event: &Event, payload: &'a [u8]) -> Result<Self, MappingError> {
        let slot = event.shape().role(Role::Payload).unwrap_or_default();
        let kind = event.shape().kind(slot);
        if kind == Kind::Bytea {
            return Ok(Self::Bytes(payload));
        }
        let column = || event.shape().name(slot).to_owned();
        let looks_like_json =
            payload.trim_ascii_start().starts_with(b"{") || payload.trim_ascii_start().starts_with(b"[");
        match serde_json::from_slice::<&RawValue>(payload) {
            Ok(json) if kind == Kind::Json || looks_like_json => Ok(Self::Json(json)),
            Err(_) if kind == Kind::Json => Err(MappingError::Json { column: column() }),
            _ => std::str::from_utf8(payload).map(Self::Text).map_err(|_| MappingError::Encoding { column: column() }),
        }
    }

    const fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json",
            Self::Text(_) => "text/plain",
            Self::Bytes(_) => "application/octet-stream",
        }
    }
}

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(json) => json.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
        }
    }
}

/// In place of a payload that is too large to travel: where it is.
#[derive(Serialize)]
struct Claim<'a> {
    source: &'a str,
    id: Cow<'a, str>,
    column: &'a str,
    #[serde(flatten)]
    stored: Option<Stored>,
}

/// The payload that is in the store.
#[derive(Serialize)]
struct Stored {
    url: String,
    bytes: usize,
    sha256: String,
}

fn claim(event: &Event, source: &Source) -> Result<Vec<u8>, MappingError> {
    let slot = event.shape().role(Role::Payload).unwrap_or_default();
    let id = String::from_utf8_lossy(event.id());
    let stored = match (event.claim_url(source), event.receipt()?) {
        (Some(url), Some(receipt)) => Some(Stored { url, bytes: receipt.bytes(), sha256: receipt.sha256() }),
        _ => None,
    };
    json(&Claim { source: source.as_str(), id, column: event.shape().name(slot), stored })
}

#[derive(Serialize)]
struct Envelope<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    event_type: Option<Cow<'a, str>>,
    aggregate: Aggregate<'a>,
    version: Option<Cow<'a, str>>,
    time: String,
    payload: Data<'a>,
}

#[derive(Serialize)]
struct Aggregate<'a> {
    #[serde(rename = "type")]
    aggregate_type: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
}

/// What the column of a role holds, as text.
fn role(event: &Event, role: Role) -> Option<Cow<'_, str>> {
    event.role(role).map(String::from_utf8_lossy)
}

/// The last second that RFC 3339 can tell: it has four digits for a year.
const YEAR_9999_END: Duration = Duration::from_secs(253_402_300_799);

/// When the transaction was committed, as RFC 3339 has it, in microseconds. Times before 1970 are its beginning.
fn time(event: &Event) -> String {
    let since = Duration::from_micros(u64::try_from(event.committed_at().unix_us()).unwrap_or_default());
    let since = since.min(YEAR_9999_END);
    humantime::format_rfc3339_micros(UNIX_EPOCH + since).to_string()
}

fn envelope(event: &Event, payload: &[u8]) -> Result<Vec<u8>, MappingError> {
    json(&Envelope {
        id: String::from_utf8_lossy(event.id()),
        event_type: role(event, Role::EventType),
        aggregate: Aggregate { aggregate_type: role(event, Role::AggregateType), id: role(event, Role::AggregateId) },
        version: role(event, Role::SchemaVersion),
        time: time(event),
        payload: Data::of(event, payload)?,
    })
}

/// The attributes of a CloudEvent (CloudEvents 1.0.2), without the data.
#[derive(Serialize)]
pub(super) struct CloudEvent<'a> {
    specversion: &'static str,
    id: Cow<'a, str>,
    source: String,
    #[serde(rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<Cow<'a, str>>,
    time: String,
    datacontenttype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<Cow<'a, str>>,
}

impl<'a> CloudEvent<'a> {
    fn of(event: &'a Event, source: &Source, data: &Data<'_>) -> Result<Self, MappingError> {
        Ok(Self {
            specversion: "1.0",
            id: String::from_utf8_lossy(event.id()),
            source: source.to_uri(),
            event_type: role(event, Role::EventType).ok_or_else(|| event.null(Role::EventType))?,
            subject: role(event, Role::AggregateId),
            time: time(event),
            datacontenttype: data.content_type(),
            traceparent: role(event, Role::TraceParent),
            tracestate: role(event, Role::TraceState),
        })
    }

    /// The attributes of the binary mode, by the names of their headers but for the prefix `ce_`, and the content type.
    pub(super) fn attributes(event: &'a Event, source: &Source) -> Result<BinaryAttributes, MappingError> {
        // Without a payload there is nothing whose type could be told.
        let payload = payload(event)?;
        let data = payload.as_deref().map(|payload| Data::of(event, payload)).transpose()?;
        let content_type = data.as_ref().map(Data::content_type);
        let all = Self::of(event, source, data.as_ref().unwrap_or(&Data::Text("")))?;
        let owned = |text: Cow<'_, str>| Some(text.into_owned());
        let attributes = [
            ("specversion", Some(all.specversion.to_owned())),
            ("id", owned(all.id)),
            ("source", Some(all.source)),
            ("type", owned(all.event_type)),
            ("subject", all.subject.and_then(owned)),
            ("time", Some(all.time)),
            ("traceparent", all.traceparent.and_then(owned)),
            ("tracestate", all.tracestate.and_then(owned)),
        ];
        let given = attributes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        Ok(BinaryAttributes { content_type, given })
    }
}

/// What the headers of a CloudEvent say.
pub(super) struct BinaryAttributes {
    pub(super) content_type: Option<&'static str>,
    pub(super) given: Vec<(&'static str, String)>,
}

#[derive(Serialize)]
struct Structured<'a> {
    #[serde(flatten)]
    attributes: CloudEvent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<Data<'a>>,
}

fn cloud_event(event: &Event, source: &Source, payload: &[u8]) -> Result<Vec<u8>, MappingError> {
    let data = Data::of(event, payload)?;
    let attributes = CloudEvent::of(event, source, &data)?;
    let (data, data_base64) = match data {
        Data::Bytes(_) => (None, Some(data)),
        Data::Json(_) | Data::Text(_) => (Some(data), None),
    };
    json(&Structured { attributes, data, data_base64 })
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, MappingError> {
    serde_json::to_vec(value).map_err(|_| MappingError::Json { column: Role::Payload.name().to_owned() })
}
