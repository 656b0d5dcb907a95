//! Rows to events to records.

use bytes::Bytes;

use super::*;
use crate::pgoutput::{self, Message, PgTimestamp, Relation, RelationCache, Tuple};
use crate::postgres::Lsn;

/// A Relation message of the columns (name, type oid).
fn relation(columns: &[(&str, u32)]) -> Relation {
    let mut bytes = b"R\0\0\0\x07shop\0outbox\0d".to_vec();
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, oid) in columns {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(oid.to_be_bytes());
        bytes.extend((-1i32).to_be_bytes());
    }
    match pgoutput::parse(&bytes).unwrap() {
        Message::Relation(body) => Relation::clone(&RelationCache::default().apply(body)),
        other => panic!("{other:?}"),
    }
}

fn row(values: &[Option<&str>]) -> Vec<u8> {
    let mut bytes = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
    for value in values {
        match value {
            None => bytes.push(b'n'),
            Some(text) => {
                bytes.push(b't');
                bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                bytes.extend(text.as_bytes());
            }
        }
    }
    bytes
}

const TEXT: u32 = 25;
const OURS: [(&str, u32); 6] = [
    ("id", 2950),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", 114),
    ("headers", 3802),
];

fn event(columns: &[(&str, u32)], values: &[Option<&str>]) -> Result<Event, MappingError> {
    let shape = Shape::of(&relation(columns)).unwrap();
    let row = row(values);
    let position = Position::new(Lsn::new(0x16_B374_D848), Ordinal::new(2));
    Event::map(&shape, &Tuple::parse(&row).unwrap(), Bytes::copy_from_slice, position, PgTimestamp::default())
}

const ROW: [Option<&str>; 6] =
    [Some("i"), Some("order"), Some("order-7"), Some("OrderPlaced"), Some("{\"a\": 1.10}"), None];

#[test]
fn a_row_of_our_table_is_an_event() {
    let event = event(&OURS, &ROW).unwrap();
    assert_eq!(event.id(), b"i");
    assert_eq!(event.aggregate_type(), b"order");
    assert_eq!(event.event_type(), b"OrderPlaced");
    let record = Record::of(&event, 0).unwrap();
    assert_eq!(record.key, Some(&b"order-7"[..]));
    assert_eq!(record.value.as_deref(), Some(&b"{\"a\": 1.10}"[..]));
    assert_eq!(record.more_headers, []);
    assert_eq!(&event.position().to_text(), b"00000016B374D848-00000002");
}

#[test]
fn debeziums_names_are_found_in_any_order_and_beside_other_columns() {
    let columns =
        [("payload", TEXT), ("x", 23), ("type", TEXT), ("id", 2950), ("aggregateid", TEXT), ("aggregatetype", TEXT)];
    let values = [Some("p"), Some("9"), Some("t"), Some("i"), Some("k"), Some("a")];
    let event = event(&columns, &values).unwrap();
    let mut topic = String::new();
    "x.{aggregate_type}.{event_type}".parse::<TopicTemplate>().unwrap().render(&event, &mut topic).unwrap();
    assert_eq!(topic, "x.a.t");
    assert_eq!(event.aggregate_id(), Some(&b"k"[..]));
}

#[test]
fn a_table_without_the_columns_is_refused_with_their_names() {
    let error = Shape::of(&relation(&[("id", 2950), ("payload", TEXT)])).unwrap_err().to_string();
    assert!(
        error.contains("aggregate_type or aggregatetype") && error.contains("published are: id, payload"),
        "{error}"
    );
}

#[test]
fn null_is_a_tombstone_or_no_key_or_an_error() {
    let mut values = ROW;
    (values[2], values[4]) = (None, None);
    let event_without_key = event(&OURS, &values).unwrap();
    let record = Record::of(&event_without_key, 0).unwrap();
    assert_eq!((record.key, record.value), (None, None));
    values[0] = None;
    assert_eq!(event(&OURS, &values).unwrap_err(), MappingError::Null { role: "id" });
}

#[test]
fn bytea_is_decoded_and_must_be_hexadecimal() {
    let columns = OURS.map(|(name, oid)| (name, if name == "payload" { 17 } else { oid }));
    let payload = |text| {
        let mut values = ROW;
        values[4] = Some(text);
        let event = event(&columns, &values).unwrap();
        Record::of(&event, 0).map(|record| record.value.unwrap().into_owned())
    };
    assert_eq!(payload("\\x00ff10"), Ok(vec![0, 255, 16]));
    assert_eq!(payload("\\x"), Ok(vec![]));
    for text in ["00ff", "\\x0", "\\x0g", "\\x+1"] {
        assert_eq!(payload(text), Err(MappingError::Bytea), "{text}");
    }
}

#[test]
fn headers_are_a_json_object_whose_values_stand_as_they_are() {
    let headers = |text| {
        let mut values = ROW;
        values[5] = Some(text);
        let event = event(&OURS, &values).unwrap();
        Record::of(&event, 0).map(|record| record.more_headers)
    };
    let value = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!(
        headers(r#"{"a": "x\ny", "n": 12345678901234567890.10, "o": {"b": [1]}, "z": null}"#),
        Ok(vec![
            ("a".to_owned(), value("x\ny")),
            ("n".to_owned(), value("12345678901234567890.10")),
            ("o".to_owned(), value(r#"{"b": [1]}"#)),
            ("z".to_owned(), None),
        ])
    );
    assert_eq!(headers("null"), Ok(vec![]));
    for text in ["[]", "1", "{", ""] {
        assert_eq!(headers(text), Err(MappingError::Headers), "{text}");
    }
}

#[test]
fn the_timestamp_is_the_commit_time_only_while_that_is_recent() {
    let event = event(&OURS, &ROW).unwrap();
    let committed_ms = event.committed_at().unix_ms();
    let hour = 3_600_000;
    for (now, is_recent) in [(0, true), (hour, true), (hour + 1, false), (-1, false)] {
        let record = Record::of(&event, committed_ms + now).unwrap();
        assert_eq!(record.timestamp_ms == committed_ms, is_recent, "{now}");
        assert_eq!(record.commit_time_ms, (!is_recent).then_some(committed_ms), "{now}");
    }
}

#[test]
fn what_no_topic_can_be_called_is_an_error() {
    let topic = |aggregate_type: &'static str| {
        let mut values = ROW;
        values[1] = Some(aggregate_type);
        let template: TopicTemplate = "{aggregate_type}".parse().unwrap();
        template.render(&event(&OURS, &values).unwrap(), &mut String::new())
    };
    assert_eq!(topic("order"), Ok(()));
    assert_eq!(topic("or der"), Err(MappingError::TopicCharacters { role: "aggregate_type" }));
    assert_eq!(topic("ü"), Err(MappingError::TopicCharacters { role: "aggregate_type" }));
    assert_eq!(topic(""), Err(MappingError::TopicName));
    assert_eq!(topic(".."), Err(MappingError::TopicName));
}

#[test]
fn nothing_of_a_row_is_shown_by_debug() {
    let mut values = ROW;
    values[4] = Some("hunter2");
    assert!(!format!("{:?}", event(&OURS, &values).unwrap()).contains("hunter2"));
}
