//! What one event costs the relay before librdkafka has it: `cargo bench --bench micro`.
//!
//! The parser reads the three messages of a transaction with one insert, as a server sends them; the mapping goes from the row
//! to the record. Neither waits for anything, so a change of a few percent shows here that a drain on real servers would hide.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use outboxd::outbox::{Event, Mapping, Ordinal, Position, Record, Shape, Source, TypeNames};
use outboxd::pgoutput::{self, Message, PgTimestamp, Relation, RelationCache, Tuple};
use outboxd::postgres::Lsn;

/// Type oids of PostgreSQL's catalogue.
const UUID: u32 = 2950;
const TEXT: u32 = 25;
const JSON: u32 = 114;
const JSONB: u32 = 3802;

const COMMIT: u64 = 0x16_B374_D848;
/// Microseconds since PostgreSQL's epoch, and the same moment in Unix milliseconds.
const COMMITTED_AT: i64 = 820_000_000_000_000;
const NOW_MS: i64 = 946_684_800_000 + COMMITTED_AT / 1000;

/// The outbox table as `outboxd setup` publishes it.
const COLUMNS: [(&str, u32); 6] = [
    ("id", UUID),
    ("aggregate_type", TEXT),
    ("aggregate_id", TEXT),
    ("event_type", TEXT),
    ("payload", JSON),
    ("headers", JSONB),
];

const PAYLOAD: &str = concat!(
    r#"{"n": 123456, "ts": 1764561234.123456, "order_id": "order-4711", "customer_id": "customer-15289", "status": "placed", "#,
    r#""currency": "EUR", "total": 28948, "items": [{"sku": "SKU-1023456", "price": 1999, "quantity": 2}, "#,
    r#"{"sku": "SKU-0000042", "price": 24950, "quantity": 1}], "address": "12 Long Street, Springfield 12345"}"#
);

fn begin() -> Vec<u8> {
    [&b"B"[..], &COMMIT.to_be_bytes(), &COMMITTED_AT.to_be_bytes(), &4711u32.to_be_bytes()].concat()
}

fn commit() -> Vec<u8> {
    [&b"C\0"[..], &COMMIT.to_be_bytes(), &(COMMIT + 0x30).to_be_bytes(), &COMMITTED_AT.to_be_bytes()].concat()
}

/// About 400 bytes.
fn insert(headers: Option<&str>) -> Vec<u8> {
    let id = "0197b2f4-7c1e-7d3a-9f55-2c6b8f0a4e11";
    let values = [Some(id), Some("order"), Some("order-4711"), Some("OrderPlaced"), Some(PAYLOAD), headers];
    let mut bytes = b"I\0\0\x40\0N".to_vec();
    bytes.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
    for value in values {
        let Some(text) = value else {
            bytes.push(b'n');
            continue;
        };
        bytes.push(b't');
        bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn relation() -> Relation {
    let mut bytes = b"R\0\0\x40\0outboxd\0outbox\0d".to_vec();
    bytes.extend(u16::try_from(COLUMNS.len()).unwrap().to_be_bytes());
    for (name, oid) in COLUMNS {
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

fn parser(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    for (name, bytes) in [("begin", begin()), ("insert", insert(None)), ("commit", commit())] {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| black_box(pgoutput::parse(black_box(&bytes)).unwrap())));
    }
    group.finish();
}

/// The tuple of an Insert message.
fn tuple(message: &[u8]) -> Tuple<'_> {
    match pgoutput::parse(message).unwrap() {
        Message::Insert { new, .. } => new,
        other => panic!("{other:?}"),
    }
}

fn mapping(criterion: &mut Criterion) {
    let shape = Arc::new(Shape::of(&relation(), &Mapping::default(), &TypeNames::new()).unwrap());
    let source = Source::new("shop", "outboxd.outbox");
    let position = Position::new(Lsn::new(COMMIT), Ordinal::new(2));
    let mut group = criterion.benchmark_group("map");
    group.throughput(Throughput::Elements(1));
    for (name, headers) in [("row", None), ("row with headers", Some(r#"{"trace": "4bf92f3577b34da6", "tenant": 7}"#))]
    {
        // As in the relay: the event takes a slice of the block that was read, without a copy.
        let block = Bytes::from(insert(headers));
        let mut name_of_topic = String::new();
        let event = |tuple: Tuple<'_>| {
            Event::map(&shape, &tuple, |row| block.slice_ref(row), position, PgTimestamp::from_micros(COMMITTED_AT))
                .unwrap()
        };
        group.bench_function(format!("{name} to event"), |bencher| {
            bencher.iter_batched(|| tuple(&block), |tuple| black_box(event(tuple)), BatchSize::SmallInput);
        });
        let mapped = event(tuple(&block));
        group.bench_function(format!("{name}, event to record"), |bencher| {
            bencher.iter(|| {
                mapped.topic(&mut name_of_topic).unwrap();
                black_box(&name_of_topic);
                black_box(Record::of(black_box(&mapped), &source, NOW_MS).unwrap())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parser, mapping);
criterion_main!(benches);
