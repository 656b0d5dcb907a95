//! Headers: of ours, and those that a row brings.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::position::Position;

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
/// The header that carries the text of the timestamp column where the record's timestamp cannot be that.
pub const HEADER_TIMESTAMP: &str = "outboxd_timestamp";
/// The header that says that the value is not the payload but tells where that is: `row`, or the URL of what is in the store.
pub const HEADER_CLAIM_CHECK: &str = "outboxd_claim_check";
/// The header that says what the value is.
pub const HEADER_CONTENT_TYPE: &str = "content-type";

/// A header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its value.
    pub value: HeaderValue<'a>,
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue<'a> {
    /// There is none.
    Null,
    /// Bytes as they are.
    Bytes(Cow<'a, [u8]>),
    /// A position as text, which needs no allocation.
    Position([u8; Position::TEXT_LEN]),
}

impl HeaderValue<'_> {
    /// The bytes; `None` where there is no value.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Null => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::Position(text) => Some(text),
        }
    }
}

impl<'a> Header<'a> {
    pub(super) fn new(name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { name: name.into(), value: HeaderValue::Bytes(value.into()) }
    }

    /// The bytes of name and value.
    pub(super) fn len(&self) -> usize {
        self.name.len() + self.value.as_bytes().map_or(0, <[u8]>::len)
    }
}

/// A header's value, or none for a NULL.
fn owned(name: String, value: Option<String>) -> Header<'static> {
    let value = value.map_or(HeaderValue::Null, |value| HeaderValue::Bytes(value.into_bytes().into()));
    Header { name: name.into(), value }
}

/// A JSON object: strings as they are, other values as the JSON text that stands there, null as no value.
pub(super) fn of_json(json: &[u8]) -> Option<Vec<Header<'static>>> {
    let members: Option<BTreeMap<String, &RawValue>> = serde_json::from_slice(json).ok()?;
    let value = |raw: &RawValue| match serde_json::from_str::<Option<String>>(raw.get()) {
        Ok(text) => text,
        Err(_) => Some(raw.get().to_owned()),
    };
    Some(members.into_iter().flatten().map(|(name, raw)| owned(name, value(raw))).collect())
}

/// An hstore as `hstore_out` prints it: `"name"=>"value", "other"=>NULL`, with `\` before `"` and `\`.
pub(super) fn of_hstore(text: &str) -> Option<Vec<Header<'static>>> {
    let (mut headers, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let name = quoted(&mut rest)?;
        rest = rest.strip_prefix("=>")?;
        let value = match rest.strip_prefix("NULL") {
            Some(after) => {
                rest = after;
                None
            }
            None => Some(quoted(&mut rest)?),
        };
        headers.push(owned(name, value));
        rest = if rest.is_empty() { rest } else { rest.strip_prefix(", ").filter(|rest| !rest.is_empty())? };
    }
    Some(headers)
}

/// Takes a quoted text from the front.
fn quoted(rest: &mut &str) -> Option<String> {
    let (mut text, mut characters) = (String::new(), rest.strip_prefix('"')?.chars());
    loop {
        match characters.next()? {
            '\\' => text.push(characters.next()?),
            '"' => break,
            character => text.push(character),
        }
    }
    *rest = characters.as_str();
    Some(text)
}

/// `traceparent` and `tracestate` in Debezium's span context: the lines of Java's `Properties.store`, where `:`, `=`, `#`, `!` and
/// white space may stand behind a `\`.
pub(super) fn of_span_context(text: &str) -> Vec<Header<'static>> {
    let line = |line: &str| {
        let (name, value) = line.split_once('=')?;
        let is_trace = matches!(name.trim(), "traceparent" | "tracestate");
        is_trace.then(|| owned(name.trim().to_owned(), Some(value.replace('\\', ""))))
    };
    text.lines().filter(|line| !line.starts_with(['#', '!'])).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(headers: Vec<Header<'_>>) -> Vec<(String, Option<String>)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        headers.into_iter().map(|header| (header.name.into_owned(), header.value.as_bytes().map(text))).collect()
    }

    fn pair(name: &str, value: &str) -> (String, Option<String>) {
        (name.to_owned(), Some(value.to_owned()))
    }

    #[test]
    fn an_hstore_is_read_with_its_escapes() {
        let text = r#""a"=>"1", "b c"=>NULL, "q\"\\"=>"x, \"y\"=>z", "e"=>"""#;
        let expected = vec![pair("a", "1"), ("b c".to_owned(), None), pair("q\"\\", "x, \"y\"=>z"), pair("e", "")];
        assert_eq!(pairs(of_hstore(text).unwrap()), expected);
        assert_eq!(of_hstore("").map(pairs), Some(vec![]));
        for broken in ["a=>1", "\"a\"", "\"a\"=>", "\"a\"=>\"1\",", "\"a\"=>\"1\", ", "\"a\"=>\"1"] {
            assert_eq!(of_hstore(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_span_context_is_two_headers() {
        let text = "#Tue Dec 01 15:00:00 UTC 2026\ntraceparent=00-4bf9-00f0-01\ntracestate=a\\=1,b\\=2\nbaggage=x\n";
        assert_eq!(
            pairs(of_span_context(text)),
            [pair("traceparent", "00-4bf9-00f0-01"), pair("tracestate", "a=1,b=2")]
        );
        assert_eq!(of_span_context(""), vec![]);
    }

    proptest::proptest! {
        #[test]
        fn an_hstore_round_trips(members: Vec<(String, Option<String>)>) {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            let member = |(name, value): &(String, Option<String>)| match value {
                Some(value) => format!("\"{}\"=>\"{}\"", escape(name), escape(value)),
                None => format!("\"{}\"=>NULL", escape(name)),
            };
            let text = members.iter().map(member).collect::<Vec<_>>().join(", ");
            proptest::prop_assert_eq!(of_hstore(&text).map(pairs), Some(members));
        }

        #[test]
        fn nothing_panics(text: String) {
            let _ = (of_hstore(&text), of_json(text.as_bytes()), of_span_context(&text));
        }
    }
}
