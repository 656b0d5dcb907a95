//! Golden records: tables that people have, options, and the records that each row becomes, read back from Kafka.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use outboxd::kafka::partition::partition_of;
use rdkafka::message::{Headers as _, Message, OwnedMessage};

use crate::harness::consumer::Consumer;
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, Postgres, shared_kafka, shared_postgres, unique, until, versions};

/// A table, options, rows, and the records that are to come of them. `$u` is a text that no other test has.
struct Case {
    name: &'static str,
    table: &'static str,
    ddl: &'static str,
    flags: &'static [&'static str],
    /// What stands in the configuration file, if there is one.
    config: &'static str,
    rows: &'static str,
    records: &'static [Golden],
}

const CASE: Case = Case { name: "", table: "public.outbox", ddl: "", flags: &[], config: "", rows: "", records: &[] };

/// A record; the headers are all but those that begin with `outboxd_`.
struct Golden {
    topic: &'static str,
    key: Option<&'static str>,
    value: Option<&'static [u8]>,
    headers: &'static [(&'static str, &'static str)],
    partition: Option<i32>,
    timestamp: Option<i64>,
}

const GOLDEN: Golden = Golden { topic: "", key: None, value: None, headers: &[], partition: None, timestamp: None };

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

/// The table of Debezium's outbox event router.
const DEBEZIUM: &str = "create table public.outboxevent (id uuid primary key, aggregatetype varchar(255) not null, \
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb, timestamp timestamptz default now(), \
    tracingspancontext varchar(256))";

/// A table of our own names with columns beside them.
const MORE: &str = "create table public.outbox (id int primary key, aggregate_type text, aggregate_id numeric, event_type text, \
    payload json, tenant text, at timestamp, part int, schema_version int, traceparent text, tracestate text, headers json)";

const ID: &str = "11111111-1111-4111-8111-111111111111";

const CASES: &[Case] = &[
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
        name: "Debezium's, with its own headers",
        table: "public.outboxevent",
        ddl: DEBEZIUM,
        flags: &["--records", "debezium", "--header", "type=eventType"],
        rows: "insert into outboxevent values ('11111111-1111-4111-8111-111111111111', 'order_$u', '7', 'Placed', '{}')",
        records: &[Golden {
            topic: "outbox.event.order_$u",
            key: Some("7"),
            value: Some(b"{}"),
            headers: &[("id", ID), ("eventType", "Placed")],
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
];

#[tokio::test(flavor = "multi_thread")]
async fn every_table_and_option_makes_the_records_it_should() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let postgres = shared_postgres(version).await;
        for case in CASES {
            println!("PostgreSQL {version}: {}", case.name);
            check(case, postgres, kafka).await;
        }
    }
}

async fn check(case: &Case, postgres: &Postgres, kafka: &Kafka) {
    let token = unique("u");
    let filled = |text: &str| text.replace("$u", &token);
    let scenario = Scenario::on(postgres, &postgres.create_database().await, &kafka.bootstrap());
    let sql = scenario.sql().await;
    sql.batch_execute(&filled(case.ddl)).await.unwrap();
    let table = filled(case.table);
    scenario.setup(&["--table", &table]).await;
    let mut topics: Vec<String> = case.records.iter().map(|golden| filled(golden.topic)).collect();
    topics.sort();
    topics.dedup();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(filled(case.config).as_bytes()).unwrap();
    let mut command = scenario.bare_relay().flag("--config", config.path().to_str().unwrap());
    command = command.flag("--create-topics", &format!("partitions={PARTITIONS},replication=1"));
    if case.config.is_empty() {
        command = command.flag("--table", &table);
    }
    command.arguments.extend(case.flags.iter().map(|flag| filled(flag)));
    let mut relay = command.start();
    relay.ready().await;
    sql.batch_execute(&filled(case.rows)).await.unwrap();
    scenario.confirmed().await;
    let consumers: Vec<_> =
        topics.iter().map(|topic| Consumer::start(&scenario.bootstrap, topic, PARTITIONS, &scenario.ledger)).collect();
    let records = || -> Vec<OwnedMessage> { consumers.iter().flat_map(Consumer::records).collect() };
    until("the records", Duration::from_secs(30), || async {
        let there = records().len();
        if there >= case.records.len() { Ok(()) } else { Err(format!("there are {there}: {}", relay.log())) }
    })
    .await;
    assert!(relay.terminate().await.success(), "{}", case.name);
    let mut records = records();
    assert_eq!(records.len(), case.records.len(), "{}", case.name);
    for golden in case.records {
        let id = golden.headers.iter().find(|(name, _)| *name == "id").map(|(_, value)| *value);
        let index = records.iter().position(|record| headers(record).get("id").map(String::as_str) == id);
        compare(case, golden, &records.swap_remove(index.unwrap()), &filled);
    }
}

fn headers(record: &OwnedMessage) -> BTreeMap<String, String> {
    let text =
        |value: Option<&[u8]>| value.map_or("NULL".to_owned(), |value| String::from_utf8(value.to_vec()).unwrap());
    let all = record.headers().unwrap().iter().map(|header| (header.key.to_owned(), text(header.value)));
    all.filter(|(name, _)| !name.starts_with("outboxd_")).collect()
}

fn compare(case: &Case, golden: &Golden, record: &OwnedMessage, filled: &impl Fn(&str) -> String) {
    let name = case.name;
    assert_eq!(record.topic(), filled(golden.topic), "{name}");
    assert_eq!(record.key(), golden.key.map(str::as_bytes), "{name}");
    assert_eq!(record.payload(), golden.value, "{name}");
    let expected = golden.headers.iter().map(|(name, value)| ((*name).to_owned(), filled(value))).collect();
    assert_eq!(headers(record), expected, "{name}");
    let by_key = |key: &str| partition_of(key.as_bytes(), PARTITIONS.cast_unsigned()).cast_signed();
    if let Some(partition) = golden.partition.or_else(|| golden.key.map(by_key)) {
        assert_eq!(record.partition(), partition, "{name}");
    }
    if let Some(timestamp) = golden.timestamp {
        assert_eq!(record.timestamp().to_millis(), Some(timestamp), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_arrives_byte_for_byte() {
    let kafka = shared_kafka().await;
    let postgres = shared_postgres(*versions().last().unwrap()).await;
    let scenario = Scenario::on(postgres, &postgres.create_database().await, &kafka.bootstrap());
    let sql = scenario.sql().await;
    let topic = unique("bytes");
    kafka.create_topic(&topic, 1, &[("max.message.bytes", "12000000")]).await;
    sql.batch_execute("create table public.outbox (id text, payload text, raw bytea, body json)").await.unwrap();
    scenario.setup(&["--table", "public.outbox"]).await;
    // A character of each plane, at both ends of the lengths of UTF-8.
    let planes: String = (0..=16u32)
        .flat_map(|plane| [0x80, 0x7FF, 0x800, 0xFFFD].map(|low| plane << 16 | low))
        .filter_map(char::from_u32)
        .collect();
    let large: String = planes.chars().cycle().take(10_000_000 / 4).collect();
    let bytes: Vec<u8> = (0..10_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let json = format!("{{\"text\":  \"{}\\n\"}}", planes.replace(['"', '\\'], ""));
    for (column, payload) in [("payload", large.as_bytes()), ("raw", &bytes), ("body", json.as_bytes())] {
        let consumer = Consumer::start(&scenario.bootstrap, &topic, 1, &scenario.ledger);
        let before = consumer.count();
        let command = scenario.bare_relay().flag("--table", "public.outbox").flag("--topic", &topic);
        let mut relay = command.flag("--column", &format!("payload={column}")).start();
        relay.ready().await;
        let statement = format!("insert into public.outbox (id, {column}) values ($1, $2)");
        match column {
            "raw" => sql.execute(&statement, &[&column, &payload]).await.unwrap(),
            _ => {
                let statement = statement.replace("$2", if column == "body" { "$2::text::json" } else { "$2" });
                sql.execute(&statement, &[&column, &std::str::from_utf8(payload).unwrap()]).await.unwrap()
            }
        };
        let find =
            || consumer.records().into_iter().find(|record| headers(record).get("id").is_some_and(|id| id == column));
        until("the record", Duration::from_secs(60), || async { find().map(drop).ok_or(before) }).await;
        assert!(find().unwrap().payload() == Some(payload), "{column} is another");
        scenario.confirmed().await;
        assert!(relay.terminate().await.success());
    }
}
