//! Tables, options and rows, with their records.

use super::debezium::DEBEZIUM;
use super::{CASE, Case, GOLDEN, Golden};

/// The table of services that keep a status.
const STATUSES: &str = "create table public.outbox_events (id bigserial primary key, status varchar(20) default 'PENDING', \
    event_type varchar(100), aggregate_type varchar(100), aggregate_id varchar(100), payload text, event_class varchar(200), \
    idempotency_key varchar(200), retry_count int default 0, max_retries int default 5, last_error text, \
    processed_at timestamptz, locked_until timestamptz, created_at timestamptz default now(), updated_at timestamptz)";

/// A table without the aggregate's type.
const PLAIN: &str = "create table public.outbox_$u (id uuid primary key, aggregate_id uuid, event_type text, payload text, \
    created_at timestamptz default now(), published_at timestamptz)";

/// A table whose rows know where they go.
const ROUTED: &str = "create table public.outbox (event_id text primary key, topic text not null, partition_key text, \
    payload bytea, status text)";

/// A table of our own names with columns beside them.
const MORE: &str = "create table public.outbox (id int primary key, aggregate_type text, aggregate_id numeric, event_type text, \
    payload json, tenant text, at timestamp, part int, schema_version int, traceparent text, tracestate text, headers json)";

const ID: &str = "11111111-1111-4111-8111-111111111111";

pub(super) const CASES: &[Case] = &[
    Case {
        name: "statuses",
        table: "public.outbox_events",
        ddl: STATUSES,
        rows: "insert into outbox_events (status, event_type, aggregate_type, aggregate_id, payload, event_class, idempotency_key) \
            values ('PROCESSED', 'Paid', 'a_$u', '7', '{\"x\":1}', 'domain', 'a:7:Paid'), \
                   (null, 'Seen', 'a_$u', null, '', null, null)",
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(b"{\"x\":1}"),
                headers: &[
                    ("id", "1"),
                    ("event_type", "Paid"),
                    ("event_class", "domain"),
                    ("idempotency_key", "a:7:Paid"),
                ],
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                value: Some(b""),
                headers: &[("id", "2"), ("event_type", "Seen")],
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "statuses, filtered",
        table: "public.outbox_events",
        ddl: STATUSES,
        flags: &["--status-filter", "PENDING,NEW", "--tombstone-on-empty"],
        rows: "insert into outbox_events (status, event_type, aggregate_type, aggregate_id, payload) values \
            ('FAILED', 'x', 'a_$u', '1', 'no'), (null, 'x', 'a_$u', '1', 'no'), ('NEW', 'x', 'a_$u', '1', '')",
        records: &[Golden {
            topic: "outbox.event.a_$u",
            key: Some("1"),
            headers: &[("id", "3"), ("event_type", "x")],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "plain",
        table: "public.outbox_$u",
        ddl: PLAIN,
        rows: "insert into outbox_$u values ('11111111-1111-4111-8111-111111111111', \
            'AAAAAAAA-1111-4111-8111-111111111111', 'Placed', 'not JSON')",
        records: &[Golden {
            topic: "outbox.event.outbox_$u",
            key: Some("aaaaaaaa-1111-4111-8111-111111111111"),
            value: Some(b"not JSON"),
            headers: &[("id", ID), ("event_type", "Placed")],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "routed",
        ddl: ROUTED,
        rows: "insert into outbox values ('e-1', 't1_$u', 'k', '\\x00ff61', 'NEW'), ('e-2', 't2_$u', null, null, null)",
        records: &[
            Golden { topic: "t1_$u", key: Some("k"), value: Some(b"\x00\xffa"), headers: &[("id", "e-1")], ..GOLDEN },
            Golden { topic: "t2_$u", headers: &[("id", "e-2")], ..GOLDEN },
        ],
        ..CASE
    },
    Case {
        name: "Debezium's, with our headers",
        table: "public.outboxevent",
        ddl: DEBEZIUM,
        // Insert and delete in one transaction, as its users do.
        rows: "begin; insert into outboxevent values ('11111111-1111-4111-8111-111111111111', 'order_$u', '7', 'Placed', \
            '{\"b\": 1, \"a\": 1.10}', now(), E'#c\\ntraceparent=00-1-2-01\\ntracestate=a\\\\=1\\n'); delete from outboxevent; commit",
        records: &[Golden {
            topic: "outbox.event.order_$u",
            key: Some("7"),
            value: Some(b"{\"a\": 1.10, \"b\": 1}"),
            headers: &[("id", ID), ("event_type", "Placed"), ("traceparent", "00-1-2-01"), ("tracestate", "a=1")],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "columns, key, partition, timestamp and headers of the user's choice",
        ddl: MORE,
        flags: &[
            "--topic",
            "{tenant|lower:-none}.{event_type|kebab}.$u",
            "--key",
            "{tenant:-x}/{aggregate_id}",
            "--header",
            "tenant=t",
            "--partition-column",
            "part",
            "--timestamp-column",
            "at",
        ],
        rows: "insert into outbox values (1, 'a', 12.50, 'OrderPlaced', '{}', 'ACME', '2026-11-30 10:00:00.5', 4, 2, '00-1', 'v=1', \
            '{\"n\": 1}'), (2, 'a', 7, 'OrderPlaced', 'null', null, 'infinity', null, null, null, null, null)",
        records: &[
            Golden {
                topic: "acme.order-placed.$u",
                key: Some("ACME/12.50"),
                value: Some(b"{}"),
                headers: &[
                    ("id", "1"),
                    ("event_type", "OrderPlaced"),
                    ("n", "1"),
                    ("schema_version", "2"),
                    ("traceparent", "00-1"),
                    ("tracestate", "v=1"),
                    ("t", "ACME"),
                ],
                partition: Some(4),
                timestamp: Some(1_796_032_800_500),
            },
            Golden {
                topic: "none.order-placed.$u",
                key: Some("x/7"),
                value: Some(b"null"),
                headers: &[("id", "2"), ("event_type", "OrderPlaced")],
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "rules and names of columns in a file",
        ddl: "create table public.outbox (uid int, kind text, body text, customer text)",
        config: "table = 'public.outbox'\ntopic = 'other_$u'\n[columns]\nid = 'uid'\npayload = 'body'\nevent_type = 'kind'\n\
            [[rule]]\nwhen = { kind = 'Audit*' }\ndrop = true\n\
            [[rule]]\nwhen = { kind = ['Order*', 'Refund?'], customer = 'vip' }\ntopic = 'vip_$u'\nkey = 'customer'\n\
            headers = { priority = 'high' }\n",
        rows: "insert into outbox values (1, 'AuditLogin', 'no', 'vip'), (2, 'OrderPlaced', 'a', 'vip'), (3, 'OrderPlaced', 'b', 'x')",
        records: &[
            Golden {
                topic: "vip_$u",
                key: Some("vip"),
                value: Some(b"a"),
                headers: &[("id", "2"), ("event_type", "OrderPlaced"), ("priority", "high")],
                ..GOLDEN
            },
            Golden {
                topic: "other_$u",
                value: Some(b"b"),
                headers: &[("id", "3"), ("event_type", "OrderPlaced")],
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "a topic rewritten as Debezium's router does",
        table: "public.outboxevent",
        ddl: DEBEZIUM,
        flags: &["--route-by", "type", "--route-regex", "Order(.*)", "--route-replacement", "orders-$1_$u"],
        rows: "insert into outboxevent values ('11111111-1111-4111-8111-111111111111', 'a', '7', 'OrderPlaced', null)",
        records: &[Golden {
            topic: "orders-Placed_$u",
            key: Some("7"),
            headers: &[("id", ID), ("event_type", "OrderPlaced")],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "an envelope",
        table: "public.outboxevent",
        ddl: DEBEZIUM,
        flags: &["--value", "envelope", "--key", "none"],
        rows: "insert into outboxevent values ('11111111-1111-4111-8111-111111111111', 'a_$u', '7', 'Placed', null)",
        records: &[Golden { topic: "outbox.event.a_$u", headers: &[("id", ID), ("event_type", "Placed")], ..GOLDEN }],
        ..CASE
    },
    Case {
        name: "hstore headers, a domain over bytea, a name in mixed case and with a dot",
        table: "\"Out.Box\".\"Events 1\"",
        ddl: "create extension hstore; create domain blob as bytea; create schema \"Out.Box\"; create table \"Out.Box\".\"Events 1\" \
            (id text primary key, aggregate_type text, \"Key\" text, payload blob, headers hstore)",
        flags: &["--column", "aggregate_id=Key,event_type="],
        rows: "insert into \"Out.Box\".\"Events 1\" values ('ä\u{1F600}', 'a_$u', 'schlüssel', '\\x0001', 'a=>1, \"b c\"=>\"ü\"')",
        records: &[Golden {
            topic: "outbox.event.a_$u",
            key: Some("schlüssel"),
            value: Some(b"\x00\x01"),
            headers: &[("id", "ä\u{1F600}"), ("a", "1"), ("b c", "ü")],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "a partitioned table, through its root",
        ddl: "create table public.outbox (id int, aggregate_type text, aggregate_id int, type text, payload text) \
            partition by range (id); create table p1 partition of outbox for values from (0) to (10); \
            create table p2 partition of outbox default",
        rows: "insert into outbox values (1, 'a_$u', 5, 't', 'one'); insert into p2 values (20, 'a_$u', 5, 't', 'two')",
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("5"),
                value: Some(b"one"),
                headers: &[("id", "1"), ("event_type", "t")],
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("5"),
                value: Some(b"two"),
                headers: &[("id", "20"), ("event_type", "t")],
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "a table and those that inherit from it",
        table: "public.outbox_$u",
        ddl: "create table public.outbox_$u (id int, payload text); create schema more; \
            create table more.child (extra text, primary key (id)) inherits (public.outbox_$u); \
            create table public.grandchild () inherits (more.child)",
        rows: "insert into outbox_$u values (1, 'one'); insert into more.child values (2, 'two'); \
            insert into grandchild values (3, 'three')",
        records: &[
            Golden { topic: "outbox.event.outbox_$u", value: Some(b"one"), headers: &[("id", "1")], ..GOLDEN },
            Golden { topic: "outbox.event.outbox_$u", value: Some(b"two"), headers: &[("id", "2")], ..GOLDEN },
            Golden { topic: "outbox.event.outbox_$u", value: Some(b"three"), headers: &[("id", "3")], ..GOLDEN },
        ],
        ..CASE
    },
    Case {
        name: "an envelope around JSON, text and bytes; a tombstone stays one",
        ddl: ENVELOPED,
        flags: &["--value", "envelope"],
        rows: ENVELOPED_ROWS,
        records: &[
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(
                    br#"{"id":"1","type":"Placed","aggregate":{"type":"a_$u","id":"7"},"version":"2","time":"$time","payload":{"n": 1.10}}"#,
                ),
                headers: &[("id", "1"), ("event_type", "Placed"), ("schema_version", "2")],
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                value: Some(
                    br#"{"id":"2","type":"Said","aggregate":{"type":"a_$u","id":"7"},"version":null,"time":"$time","payload":"\"hi\""}"#,
                ),
                headers: &[("id", "2"), ("event_type", "Said")],
                ..GOLDEN
            },
            Golden {
                topic: "outbox.event.a_$u",
                key: Some("7"),
                headers: &[("id", "3"), ("event_type", "Gone")],
                ..GOLDEN
            },
        ],
        ..CASE
    },
    Case {
        name: "CloudEvents in the structured mode",
        ddl: ENVELOPED,
        flags: &["--value", "cloudevents", "--source", "shop"],
        rows: "insert into outbox values (1, 'a_$u', '7', 'Placed', '{\"n\": 1.10}', '2')",
        records: &[Golden {
            topic: "outbox.event.a_$u",
            key: Some("7"),
            value: Some(
                br#"{"specversion":"1.0","id":"1","source":"/shop/public.outbox","type":"Placed","subject":"7","time":"$time","datacontenttype":"application/json","data":{"n": 1.10}}"#,
            ),
            headers: &[
                ("id", "1"),
                ("event_type", "Placed"),
                ("schema_version", "2"),
                ("content-type", "application/cloudevents+json; charset=UTF-8"),
            ],
            ..GOLDEN
        }],
        ..CASE
    },
    Case {
        name: "CloudEvents in the binary mode",
        ddl: ENVELOPED,
        flags: &["--value", "cloudevents-binary", "--source", "shop"],
        rows: "insert into outbox values (1, 'a_$u', '7', 'Placed', '{\"n\": 1.10}', null)",
        records: &[Golden {
            topic: "outbox.event.a_$u",
            key: Some("7"),
            value: Some(b"{\"n\": 1.10}"),
            headers: &[
                ("id", "1"),
                ("event_type", "Placed"),
                ("ce_specversion", "1.0"),
                ("ce_id", "1"),
                ("ce_source", "/shop/public.outbox"),
                ("ce_type", "Placed"),
                ("ce_subject", "7"),
                ("ce_time", "$time"),
                ("content-type", "application/json"),
            ],
            ..GOLDEN
        }],
        ..CASE
    },
];

const ENVELOPED: &str = "create table public.outbox (id int, aggregate_type text, aggregate_id text, event_type text, payload text, \
    schema_version text)";

const ENVELOPED_ROWS: &str = "insert into outbox values (1, 'a_$u', '7', 'Placed', '{\"n\": 1.10}', '2'), \
    (2, 'a_$u', '7', 'Said', '\"hi\"', null), (3, 'a_$u', '7', 'Gone', null, null)";
