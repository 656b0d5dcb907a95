//! What Debezium's outbox event router makes of rows, captured from it.

use super::{CASE, Case, GOLDEN, Golden};

/// The table of Debezium's outbox event router.
pub(super) const DEBEZIUM: &str = "create table public.outboxevent (id uuid primary key, aggregatetype varchar(255) not null, \
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb, timestamp timestamptz default now(), \
    tracingspancontext varchar(256))";

pub(super) const CASES: &[Case] = &[
    // What Debezium 3.6.1.Final (Kafka Connect 4.3.1) made of these rows: outbox event router, string converters, defaults but for
    // table.fields.additional.placement = type:header:eventType. Its headers __debezium.context.* tell of its own process.
    Case {
        name: "as Debezium emits them, jsonb",
        table: "public.outboxevent",
        ddl: DEBEZIUM,
        flags: &["--records", "debezium", "--header", "type=eventType"],
        rows: "alter table outboxevent alter aggregateid drop not null; alter table outboxevent alter type drop not null; \
            insert into outboxevent values \
              ('11111111-1111-4111-8111-111111111110', 'a_$u', '7', 'OrderPlaced', '{\"b\": 1, \"a\": 1.10}'), \
              ('11111111-1111-4111-8111-111111111111', 'a_$u', 'schlüssel', null, '[1, \"ü😀\"]'), \
              ('11111111-1111-4111-8111-111111111112', 'a_$u', null, 'Äpfel', 'null'), \
              ('11111111-1111-4111-8111-111111111113', 'b_$u', '', 'T', null), \
              ('11111111-1111-4111-8111-111111111114', 'b_$u', '8', 'T', '\"text\"'); \
            begin; insert into outboxevent values ('11111111-1111-4111-8111-111111111115', 'b_$u', '9', 'T', '12'); \
            delete from outboxevent where aggregateid = '9'; commit; \
            insert into outboxevent values ('11111111-1111-4111-8111-111111111116', 'b_$u', '10', 'T', '{}'); \
            update outboxevent set payload = '1' where aggregateid = '10'",
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(b"{\"a\": 1.10, \"b\": 1}"),
                headers: &[("id", "11111111-1111-4111-8111-111111111110"), ("eventType", "OrderPlaced")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("schlüssel"),
                value: Some("[1, \"ü😀\"]".as_bytes()),
                headers: &[("id", "11111111-1111-4111-8111-111111111111"), ("eventType", "NULL")],
                partition: Some(0),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: None,
                value: Some(b"null"),
                headers: &[("id", "11111111-1111-4111-8111-111111111112"), ("eventType", "Äpfel")],
                partition: None,
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.b_$u",
                key: Some(""),
                value: None,
                headers: &[("id", "11111111-1111-4111-8111-111111111113"), ("eventType", "T")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.b_$u",
                key: Some("8"),
                value: Some(b"\"text\""),
                headers: &[("id", "11111111-1111-4111-8111-111111111114"), ("eventType", "T")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.b_$u",
                key: Some("9"),
                value: Some(b"12"),
                headers: &[("id", "11111111-1111-4111-8111-111111111115"), ("eventType", "T")],
                partition: Some(5),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.b_$u",
                key: Some("10"),
                value: Some(b"{}"),
                headers: &[("id", "11111111-1111-4111-8111-111111111116"), ("eventType", "T")],
                partition: Some(4),
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "as Debezium emits them, text",
        table: "public.outboxtext",
        ddl: "create table public.outboxtext (id bigint primary key, aggregatetype varchar(255) not null, aggregateid varchar(255), \
            type varchar(255), payload text)",
        flags: &["--records", "debezium"],
        rows: "insert into outboxtext values (42, 'a_$u', '7', 'T', 'not JSON'), (43, 'a_$u', '7', 'T', ''), \
            (44, 'a_$u', '8', 'T', ' {\"x\":1} '), (45, 'a_$u', '8', 'T', E'multi\\nline'), (46, 'a_$u', '9', 'T', null)",
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(b"not JSON"),
                headers: &[("id", "42")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(b""),
                headers: &[("id", "43")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("8"),
                value: Some(b" {\"x\":1} "),
                headers: &[("id", "44")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("8"),
                value: Some(b"multi\nline"),
                headers: &[("id", "45")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("9"),
                value: None,
                headers: &[("id", "46")],
                partition: Some(5),
                ..GOLDEN
            },
        ],
        ..CASE
    },
    // route.tombstone.on.empty.payload = true.
    Case {
        name: "as Debezium emits them, text, empty ones as tombstones",
        table: "public.outboxtext",
        ddl: "create table public.outboxtext (id bigint primary key, aggregatetype varchar(255) not null, aggregateid varchar(255), \
            type varchar(255), payload text)",
        flags: &["--records", "debezium", "--tombstone-on-empty"],
        rows: "insert into outboxtext values (42, 'a_$u', '7', 'T', 'not JSON'), (43, 'a_$u', '7', 'T', ''), \
            (44, 'a_$u', '8', 'T', ' {\"x\":1} '), (45, 'a_$u', '8', 'T', E'multi\\nline'), (46, 'a_$u', '9', 'T', null)",
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(b"not JSON"),
                headers: &[("id", "42")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: None,
                headers: &[("id", "43")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("8"),
                value: Some(b" {\"x\":1} "),
                headers: &[("id", "44")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("8"),
                value: Some(b"multi\nline"),
                headers: &[("id", "45")],
                partition: Some(3),
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("9"),
                value: None,
                headers: &[("id", "46")],
                partition: Some(5),
                ..GOLDEN
            },
        ],
        ..CASE
    },
];
