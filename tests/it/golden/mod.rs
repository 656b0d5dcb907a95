//! Golden records: tables that people have, options, and the records that each row becomes, read back from Kafka.

mod cases;
mod debezium;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

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

#[tokio::test(flavor = "multi_thread")]
async fn every_table_and_option_makes_the_records_it_should() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let postgres = shared_postgres(version).await;
        for case in cases::CASES.iter().chain(debezium::CASES) {
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

/// The time that the value or a CloudEvent's header tells.
fn time_of(record: &OwnedMessage) -> Option<String> {
    let value: Option<serde_json::Value> = record.payload().and_then(|value| serde_json::from_slice(value).ok());
    let in_value = value.and_then(|value| Some(value.get("time")?.as_str()?.to_owned()));
    in_value.or_else(|| headers(record).get("ce_time").cloned())
}

fn compare(case: &Case, golden: &Golden, record: &OwnedMessage, filled: &impl Fn(&str) -> String) {
    let name = case.name;
    assert_eq!(record.topic(), filled(golden.topic), "{name}");
    assert_eq!(record.key(), golden.key.map(str::as_bytes), "{name}");
    // `$time` stands for the commit time, which is the record's timestamp, too.
    let time = time_of(record).unwrap_or_default();
    if !time.is_empty() {
        let at = humantime::parse_rfc3339(&time).unwrap().duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(i64::try_from(at.as_millis()).ok(), record.timestamp().to_millis(), "{name}: {time}");
    }
    let filled = |text: &str| filled(text).replace("$time", &time);
    let value = golden.value.map(|value| match std::str::from_utf8(value) {
        Ok(text) => filled(text).into_bytes(),
        Err(_) => value.to_vec(),
    });
    assert_eq!(record.payload(), value.as_deref(), "{name}");
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
