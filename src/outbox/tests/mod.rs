//! Rows to events to records.

mod format;

use std::sync::Arc;

use bytes::Bytes;

use super::mapping::{HeaderColumn, Key, Layout, Rewrite, ValueFormat};
use super::rule::{Action, Change, Condition, Rule};
use super::*;
use crate::pgoutput::{PgTimestamp, Relation, Tuple, encode};
use crate::postgres::Lsn;

const TEXT: u32 = 25;
const UUID: u32 = 2950;
const JSON: u32 = 114;
const JSONB: u32 = 3802;
const BYTEA: u32 = 17;
/// An extension's type has another oid in every database.
const HSTORE: u32 = 16_400;

const OURS: [(&str, u32); 6] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSON),
    ("headers", JSONB),
];

const ROW: [Option<&str>; 6] =
    [Some("i"), Some("order"), Some("order-7"), Some("OrderPlaced"), Some("{\"a\": 1.10}"), None];

/// When all rows are committed.
const COMMITTED_US: i64 = 820_000_000_000_000;
const COMMITTED_MS: i64 = 946_684_800_000 + COMMITTED_US / 1000;

fn relation(columns: &[(&str, u32)]) -> Relation {
    Relation::new("shop", "outbox", columns.iter().map(|(name, oid)| ((*name).to_owned(), *oid)))
}

fn shape(columns: &[(&str, u32)], mapping: &Mapping) -> Result<Shape, ShapeError> {
    let types = TypeNames::from([(HSTORE, "hstore".to_owned())]);
    Shape::of(&relation(columns), mapping, &types)
}

fn map(mapping: &Mapping, columns: &[(&str, u32)], values: &[Option<&str>]) -> Result<Event, MappingError> {
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| value.map(str::as_bytes)).collect();
    let row = encode(&values);
    let position = Position::new(Lsn::new(0x16_B374_D848), Ordinal::new(2));
    let shape = Arc::new(shape(columns, mapping).unwrap());
    let committed_at = PgTimestamp::from_micros(COMMITTED_US);
    Event::map(&shape, &Tuple::parse(&row).unwrap(), Bytes::copy_from_slice, position, committed_at)
}

fn event(columns: &[(&str, u32)], values: &[Option<&str>]) -> Result<Event, MappingError> {
    map(&Mapping::default(), columns, values)
}

/// A record as text, to be compared at a glance.
#[derive(Debug, PartialEq)]
struct Seen {
    topic: String,
    key: Option<String>,
    value: Option<String>,
    headers: Vec<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn seen(event: &Event) -> Result<Seen, MappingError> {
    let source = Source::new("shop", "shop.outbox");
    let record = Record::of(event, &source, COMMITTED_MS)?;
    let mut topic = String::new();
    event.topic(&mut topic)?;
    let header = |header: &header::Header<'_>| {
        format!("{}={}", header.name, header.value.as_bytes().map_or_else(|| "NULL".to_owned(), text))
    };
    let is_ours = |header: &String| header.starts_with("outboxd_");
    Ok(Seen {
        topic,
        key: record.key.as_deref().map(text),
        value: record.value.as_deref().map(text),
        headers: record.headers.iter().map(header).filter(|header| !is_ours(header)).collect(),
    })
}

fn seen_by(mapping: &Mapping, columns: &[(&str, u32)], values: &[Option<&str>]) -> Seen {
    seen(&map(mapping, columns, values).unwrap()).unwrap()
}

fn with_payload(oid: u32, payload: Option<&'static str>) -> ([(&'static str, u32); 6], [Option<&'static str>; 6]) {
    let (mut columns, mut row) = (OURS, ROW);
    columns[4].1 = oid;
    row[4] = payload;
    (columns, row)
}

#[test]
fn a_row_of_our_table_is_a_record() {
    let event = event(&OURS, &ROW).unwrap();
    assert_eq!(event.id(), b"i");
    let source = Source::new("shop", "shop.outbox");
    let record = Record::of(&event, &source, COMMITTED_MS).unwrap();
    assert_eq!(record.key.as_deref(), Some(&b"order-7"[..]));
    assert_eq!(record.value.as_deref(), Some(&b"{\"a\": 1.10}"[..]));
    let headers: Vec<(&str, String)> =
        record.headers.iter().map(|header| (&*header.name, text(header.value.as_bytes().unwrap()))).collect();
    let expected = [
        ("id", "i"),
        ("event_type", "OrderPlaced"),
        ("outboxd_source", "shop/shop.outbox"),
        ("outboxd_position", "00000016B374D848-00000002"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name, value.to_owned())));
}

#[test]
fn a_topic_column_goes_before_the_aggregates_type_and_that_before_the_table() {
    let topic =
        |columns: &[(&str, u32)], values: &[Option<&str>]| seen(&event(columns, values).unwrap()).unwrap().topic;
    let columns = [("id", TEXT), ("payload", TEXT), ("aggregatetype", TEXT), ("topic", TEXT)];
    let values = [Some("i"), Some("p"), Some("order"), Some("t")];
    assert_eq!(topic(&columns, &values), "t");
    assert_eq!(topic(&columns[..3], &values[..3]), "outbox.event.order");
    assert_eq!(topic(&columns[..2], &values[..2]), "outbox.event.outbox");
}

#[test]
fn a_table_without_the_columns_is_refused_with_their_names() {
    let error = shape(&[("a", TEXT), ("payload", TEXT)], &Mapping::default()).unwrap_err().to_string();
    assert!(error.contains("column id or event_id") && error.contains("published are: a, payload"), "{error}");
}

#[test]
fn what_an_option_names_must_be_in_the_table_and_published() {
    let columns = ["id", "payload", "tenant", "aggregatetype"].map(str::to_owned);
    let error = |mapping: &Mapping, published: &[String]| {
        ShapeError::among("shop.outbox", &columns, published, mapping)
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(error(&Mapping::default(), &columns), "");
    assert!(error(&Mapping::default(), &columns[..3]).contains("without its column aggregatetype"));
    assert_eq!(error(&Mapping::default(), &[&columns[..2], &columns[3..]].concat()), "", "nobody reads tenant");
    let topic = |text: &str| Mapping { topic: Some(text.parse().unwrap()), ..Mapping::default() };
    assert_eq!(error(&topic("{tenant}.{aggregate_type}.{table}"), &columns), "");
    assert!(
        error(&topic("{tennant}"), &columns).contains("no column tennant, which --topic names; tenant is the nearest")
    );
    assert_eq!(error(&topic("{region:-eu}"), &columns), "");
    assert!(error(&topic("{tenant}"), &[&columns[..2], &columns[3..]].concat()).contains("without its column tenant"));
    let mut named = Mapping::default();
    named.columns.name("payload=body").unwrap();
    assert!(error(&named, &columns).contains("without the column body"));
}

#[test]
fn null_is_a_tombstone_or_no_key_or_an_error() {
    let mut values = ROW;
    (values[2], values[3], values[4]) = (None, None, None);
    let record = seen(&event(&OURS, &values).unwrap()).unwrap();
    assert_eq!((record.key, record.value, record.headers), (None, None, vec!["id=i".to_owned()]));
    values[0] = None;
    assert_eq!(event(&OURS, &values).unwrap_err(), MappingError::Null { column: "id".to_owned() });
    let mut values = ROW;
    values[1] = None;
    let error = seen(&event(&OURS, &values).unwrap()).unwrap_err();
    assert_eq!(error, MappingError::NoTopic { column: "aggregate_type".to_owned() });
}

#[test]
fn an_empty_payload_is_a_tombstone_if_so_wanted() {
    for (oid, payload) in [(TEXT, ""), (BYTEA, "\\x")] {
        let (columns, row) = with_payload(oid, Some(payload));
        assert_eq!(seen_by(&Mapping::default(), &columns, &row).value.as_deref(), Some(""));
        let mapping = Mapping { empty_is_tombstone: true, ..Mapping::default() };
        assert_eq!(seen_by(&mapping, &columns, &row).value, None);
    }
}

#[test]
fn well_known_columns_are_headers_of_their_name() {
    let columns = [
        ("id", 20),
        ("payload", TEXT),
        ("event_class", TEXT),
        ("idempotency_key", TEXT),
        ("schema_version", 23),
        ("traceparent", TEXT),
        ("tenant", TEXT),
        ("blob", BYTEA),
    ];
    let values = [Some("7"), Some("p"), Some("domain"), None, Some("2"), Some("00-1"), Some("acme"), Some("\\x6869")];
    let of = |column: &str, header: &str| HeaderColumn { column: column.to_owned(), header: header.to_owned() };
    let mapping = Mapping { headers: vec![of("tenant", "x-tenant"), of("blob", "blob")], ..Mapping::default() };
    let headers = seen_by(&mapping, &columns, &values).headers;
    assert_eq!(
        headers,
        ["id=7", "schema_version=2", "event_class=domain", "traceparent=00-1", "x-tenant=acme", "blob=hi"]
    );
}

#[test]
fn key_and_partition_are_what_was_asked_for() {
    let columns = [OURS.as_slice(), &[("n", 23)]].concat();
    let row = |n: Option<&'static str>| [ROW.as_slice(), &[n]].concat();
    let key = |key: &str| {
        let mapping = Mapping { key: key.parse().unwrap(), ..Mapping::default() };
        seen_by(&mapping, &columns, &row(None)).key
    };
    assert_eq!(key("event_type").as_deref(), Some("OrderPlaced"));
    assert_eq!(key("{aggregate_type}/{aggregate_id}").as_deref(), Some("order/order-7"));
    assert_eq!(key("{n}/{aggregate_id}"), None);
    assert_eq!(key("none"), None);
    let mapping = Mapping { partition: Some("n".to_owned()), ..Mapping::default() };
    let partition = |n| map(&mapping, &columns, &row(n)).unwrap().partition(6);
    assert_eq!(partition(Some("5")), Ok(Some(5)));
    assert_eq!(partition(None), Ok(None));
    for bad in ["6", "-1", "x", ""] {
        let error = MappingError::Partition { column: "n".to_owned(), partitions: 6 };
        assert_eq!(partition(Some(bad)), Err(error), "{bad}");
    }
}

#[test]
fn the_timestamp_is_the_commit_time_only_while_that_is_recent() {
    let (event, source) = (event(&OURS, &ROW).unwrap(), Source::new("", ""));
    let hour = 3_600_000;
    for (now, is_recent) in [(0, true), (hour, true), (hour + 1, false), (-1, false)] {
        let record = Record::of(&event, &source, COMMITTED_MS + now).unwrap();
        assert_eq!(record.timestamp_ms == COMMITTED_MS, is_recent, "{now}");
        let told = record.headers.iter().find(|header| header.name == header::HEADER_COMMIT_TIME);
        let told = told.map(|header| text(header.value.as_bytes().unwrap()));
        assert_eq!(told, (!is_recent).then(|| COMMITTED_MS.to_string()), "{now}");
    }
}

#[test]
fn a_timestamp_column_counts_where_a_broker_would_take_it() {
    let columns = [OURS.as_slice(), &[("at", 1184)]].concat();
    let mapping = Mapping { timestamp: Some("at".to_owned()), ..Mapping::default() };
    let source = Source::new("", "");
    for (at, expected) in [
        (Some("2001-09-09 01:46:40+00"), 1_000_000_000_000),
        (None, COMMITTED_MS),
        (Some("infinity"), COMMITTED_MS),
        (Some("12026-01-01 00:00:00+00"), COMMITTED_MS),
        (Some("0001-01-01 00:00:00+00 BC"), COMMITTED_MS),
    ] {
        let event = map(&mapping, &columns, &[ROW.as_slice(), &[at]].concat()).unwrap();
        let record = Record::of(&event, &source, COMMITTED_MS).unwrap();
        assert_eq!(record.timestamp_ms, expected, "{at:?}");
        let told = record.headers.iter().find(|header| header.name == header::HEADER_TIMESTAMP);
        let told = told.map(|header| text(header.value.as_bytes().unwrap()));
        assert_eq!(told.as_deref(), at.filter(|_| expected == COMMITTED_MS));
    }
}

#[test]
fn a_topic_can_be_rewritten() {
    let topic = |pattern: &str, replacement: &str| {
        let rewrite = Some(Rewrite::new("event_type", pattern, replacement).unwrap());
        seen_by(&Mapping { rewrite, ..Mapping::default() }, &OURS, &ROW).topic
    };
    assert_eq!(topic("(?<routedByValue>.*)", "outbox.event.${routedByValue}"), "outbox.event.OrderPlaced");
    assert_eq!(topic("Order(.*)", "orders-$1"), "orders-Placed");
    assert_eq!(topic("Order(.*)", "orders-$1_x"), "orders-Placed_x", "as in Java");
    assert_eq!(topic("Order", "x"), "OrderPlaced", "it must fit the whole text");
    for replacement in ["$2", "${name}", "x$9_"] {
        assert!(Rewrite::new("a", "(.*)", replacement).is_err(), "{replacement}");
    }
    assert!(Rewrite::new("a", "(", "x").is_err() && Rewrite::new("a", ")(", "x").is_err());
}

#[test]
fn the_first_rule_that_fits_wins() {
    let rule = |pattern: &str, then| Rule { when: vec![Condition::new("event_type", [pattern])], then };
    let change = |topic: &str| Action::Change(Change { topic: Some(topic.parse().unwrap()), ..Change::default() });
    let headers = vec![("kind".to_owned(), "{aggregate_type|lower}!".parse().unwrap())];
    let more = Action::Change(Change { key: Some(Key::None), headers, ..Change::default() });
    let rules = vec![rule("Audit*", Action::Drop), rule("OrderP*", change("placed")), rule("Order*", more)];
    let mapping = Mapping { rules, ..Mapping::default() };
    let of = |event_type| {
        let mut row = ROW;
        row[3] = Some(event_type);
        map(&mapping, &OURS, &row).unwrap()
    };
    assert_eq!(of("AuditLogin").filtered(), Some(Filtered::Rule(0)));
    let placed = seen(&of("OrderPlaced")).unwrap();
    assert_eq!((placed.topic.as_str(), placed.key.as_deref()), ("placed", Some("order-7")));
    let other = seen(&of("OrderX")).unwrap();
    assert_eq!((other.topic.as_str(), other.key.as_deref()), ("outbox.event.order", None));
    assert_eq!(other.headers.last().unwrap(), "kind=order!");
    assert_eq!(of("X").rule(), None);
}

#[test]
fn rows_of_other_statuses_are_left_out() {
    let columns = [OURS.as_slice(), &[("status", TEXT)]].concat();
    let mapping = Mapping { statuses: vec!["NEW".to_owned(), "PENDING".to_owned()], ..Mapping::default() };
    let filtered =
        |mapping: &Mapping, status| map(mapping, &columns, &[ROW.as_slice(), &[status]].concat()).unwrap().filtered();
    assert_eq!(filtered(&mapping, Some("PENDING")), None);
    for status in [Some("SENT"), Some(""), None] {
        assert_eq!(filtered(&mapping, status), Some(Filtered::Status));
        assert_eq!(filtered(&Mapping::default(), status), None);
    }
}

#[test]
fn a_column_that_records_need_is_missed_and_others_are_not() {
    let header = HeaderColumn { column: "tenant".to_owned(), header: "tenant".to_owned() };
    let mapping = Mapping { headers: vec![header], ..Mapping::default() };
    let tenant = [("tenant", TEXT)];
    let now = shape(&[&OURS[..], &tenant].concat(), &mapping).unwrap();
    let lost = |columns: &[(&str, u32)]| now.lost_in(&shape(columns, &mapping).unwrap()).map(str::to_owned);
    assert_eq!(lost(&[&tenant, &OURS[..]].concat()), None);
    assert_eq!(lost(&[&tenant, &OURS[..5]].concat()), None, "headers can be done without");
    assert_eq!(lost(&OURS).as_deref(), Some("tenant"));
    assert_eq!(lost(&[&tenant, &OURS[..1], &OURS[2..]].concat()).as_deref(), Some("aggregate_type"));
    let mut renamed = [&tenant, &OURS[..]].concat();
    renamed[2].0 = "aggregatetype";
    assert_eq!(lost(&renamed), None, "it has another name that is known");
}

#[test]
fn what_no_topic_can_be_called_is_an_error() {
    let topic = |aggregate_type: &'static str| {
        let mut values = ROW;
        values[1] = Some(aggregate_type);
        let mapping = Mapping { topic: Some("{aggregate_type}".parse().unwrap()), ..Mapping::default() };
        map(&mapping, &OURS, &values).unwrap().topic(&mut String::new())
    };
    assert_eq!(topic("a b"), Err(MappingError::TopicCharacters));
    assert_eq!(topic("ä"), Err(MappingError::TopicCharacters));
    for name in ["", ".", ".."] {
        assert_eq!(topic(name), Err(MappingError::TopicName));
    }
    assert_eq!(topic("a.B_c-9"), Ok(()));
}
