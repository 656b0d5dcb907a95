//! Rows of the outbox that are published once more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::message::{Message as _, OwnedMessage};
use tokio_postgres::Client;

use crate::harness::consumer::{Consumer, header};
use crate::harness::ledger::AssertClean as _;
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, acl, shared_kafka, shared_postgres, unique, until, versions};
use crate::harness::writer::Plan;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `outboxd replay`; gives the code, the JSON lines and the words on standard error.
async fn replay(scenario: &Scenario, arguments: &[&str]) -> (i32, Vec<serde_json::Value>, String) {
    let mut command = scenario.outboxd("replay");
    let output = command.args(["--slot", &scenario.slot, "--json"]).args(arguments).output().await.unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let json = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), json, String::from_utf8(output.stderr).unwrap())
}

/// As [`replay`], and it must go well; gives the last JSON line.
async fn replayed(scenario: &Scenario, arguments: &[&str]) -> serde_json::Value {
    let (code, json, words) = replay(scenario, arguments).await;
    assert_eq!(code, 0, "{arguments:?}: {words}");
    json.last().unwrap().clone()
}

fn is_replayed(record: &OwnedMessage) -> bool {
    header(record, "outboxd_replay").is_some()
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap()
}

/// A topic of its own for what is replayed.
async fn other(kafka: &Kafka) -> (String, Consumer) {
    let topic = unique("other");
    kafka.create_topic(&topic, PARTITIONS, &[]).await;
    let consumer = Consumer::start(&kafka.bootstrap(), &topic, PARTITIONS, &Arc::default());
    (topic, consumer)
}

/// Ids by key, in the order of the rows.
async fn rows(sql: &Client) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::<String, Vec<String>>::new();
    for row in sql.query("select aggregate_id, id::text from outboxd.outbox order by seq", &[]).await.unwrap() {
        rows.entry(row.get(0)).or_default().push(row.get(1));
    }
    rows
}

/// Ids by key, in the order of arrival; of repeats the first.
fn arrived(records: &[OwnedMessage]) -> BTreeMap<String, Vec<String>> {
    let mut arrived = BTreeMap::<String, Vec<String>>::new();
    for record in records {
        let (ids, id) = (arrived.entry(text(record.key())).or_default(), header(record, "id").unwrap());
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    arrived
}

async fn count(what: &str, expected: usize, seen: impl Fn() -> usize) {
    until(&format!("{expected} {what}"), LIMIT, || async { if seen() >= expected { Ok(()) } else { Err(seen()) } })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_replayed_in_their_order_while_live_events_go_on() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        scenario.write(&Plan { events: Some(3_000), pause: Duration::ZERO, ..Plan::default() }).done().await;
        scenario.settle().await;
        let before = rows(&sql).await;
        let total: usize = before.values().map(Vec::len).sum();
        let (topic, elsewhere) = other(kafka).await;

        // All to another topic, while events come.
        let dry = replayed(&scenario, &["--aggregate-type", &scenario.topic, "--dry-run"]).await;
        assert_eq!(dry["events"], total);
        let writer = scenario.write(&Plan { pause: Duration::from_millis(5), keys: 20, ..Plan::default() });
        scenario.seen(total + 200).await;
        let started = Instant::now();
        let until_now: String = sql.query_one("select now()::text", &[]).await.unwrap().get(0);
        let done =
            replayed(&scenario, &["--from", "1h", "--to", &until_now, "--rate", "0", "--to-topic", &topic]).await;
        let took = started.elapsed();
        let events = done["events"].as_u64().unwrap() as usize;
        println!("PostgreSQL {version}: {events} events replayed in {took:.1?} beside live ones");
        count("replayed records", events, || elsewhere.count()).await;
        let seen = arrived(&elsewhere.records());
        let now = rows(&sql).await;
        for (key, ids) in &seen {
            assert_eq!(&now[key][..ids.len()], ids, "the order of key {key}");
        }
        assert!(events >= total && seen.values().map(Vec::len).sum::<usize>() == events);
        let record = &elsewhere.records()[0];
        assert!(is_replayed(record) && header(record, "outboxd_position").is_none());
        let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64
            - record.timestamp().to_millis().unwrap();
        assert!((0..60_000).contains(&age), "the timestamp is the present, and not {age} ms ago");

        // One key, to its own topic, at a rate; first deliveries of live events are not touched.
        let (key, ids) = before.iter().max_by_key(|(_, ids)| ids.len()).unwrap();
        let started = Instant::now();
        let done = replayed(&scenario, &["--aggregate", key, "--to", &until_now, "--rate", "20"]).await;
        assert!(done["events"].as_u64().unwrap() >= ids.len() as u64);
        let took = started.elapsed();
        let at_least = Duration::from_secs_f64((ids.len() as f64 - 10.0) / 20.0);
        assert!(took >= at_least, "{} events at 20 a second in {took:?}", ids.len());
        writer.finish().await;
        scenario.settle().await;
        let records = consumer.records();
        let marked: Vec<_> = records.iter().filter(|record| is_replayed(record)).cloned().collect();
        assert_eq!(marked.len() as u64, done["events"].as_u64().unwrap());
        assert_eq!(arrived(&marked)[key][..ids.len()], ids[..]);

        // By ids, also while the relay restarts; and again what was replayed.
        let two = [ids[3].as_str(), ids[1].as_str()];
        let done = replayed(&scenario, &["--id", two[0], "--id", two[1], "--to-topic", &topic]).await;
        assert_eq!(done["events"], 2);
        count("records", events + 2, || elsewhere.count()).await;
        let last: Vec<_> = elsewhere.records()[events..].iter().map(|record| header(record, "id").unwrap()).collect();
        assert_eq!(last, [ids[1].clone(), ids[3].clone()], "in the order of the rows");
        // The relay is told of a request; by its poll alone, each would take five seconds.
        let started = Instant::now();
        for id in &ids[..6] {
            replayed(&scenario, &["--id", id, "--to-topic", &topic]).await;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nobody told the relay: {:?}", started.elapsed());
        assert!(relay.terminate().await.success());
        let verdict = scenario.judge();
        verdict.assert_clean(&format!("PostgreSQL {version}, replays"), marked.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_point_of_a_replay_it_goes_on_where_it_stood() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        let _consumer = scenario.consume();
        let relay = scenario.start().await;
        scenario.write(&Plan { events: Some(4_000), pause: Duration::ZERO, ..Plan::default() }).done().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        let rows = rows(&sql).await;
        let total: usize = rows.values().map(Vec::len).sum();
        for (point, hit) in
            [("before_replay", 2), ("after_replay", 1), ("after_replay", 3), ("after_replayed", 1), ("after_ack", 700)]
        {
            let (topic, elsewhere) = other(kafka).await;
            let mut relay = scenario.relay().failpoints(&format!("{point}=kill:{hit}")).start();
            relay.ready().await;
            let asked =
                replayed(&scenario, &["--from", "1970-01-01", "--to-topic", &topic, "--rate", "0", "--detach"]).await;
            let request = asked["request"].to_string();
            assert_eq!(asked["events"], total);
            assert_eq!(relay.ended(LIMIT).await.code(), None, "{}", relay.log());
            let mut relay = scenario.start().await;
            relay.ready().await;
            let done = replayed(&scenario, &["--watch", &request]).await;
            count("records", total, || elsewhere.count()).await;
            assert!(relay.terminate().await.success());
            let records = elsewhere.records();
            let repeats = records.len() - total;
            println!("PostgreSQL {version}, {point}={hit}: {total} events, {repeats} repeats (bound 1000), {done}");
            assert_eq!(arrived(&records), rows, "all, in order");
            assert!(repeats <= 1_000);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_never_a_first_delivery_and_leaves_out_what_is_held() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        let small = unique("small");
        kafka.create_topic(&small, PARTITIONS, &[("max.message.bytes", "20000")]).await;
        let held_back = Consumer::start(&kafka.bootstrap(), &small, PARTITIONS, &Arc::default());
        let consumer = scenario.consume();
        let mut relay = scenario.relay().flag("--on-failure", "quarantine").start();
        relay.ready().await;
        let insert = "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
            values (gen_random_uuid(), $1, 'k', 'Happened', $2::text::json)";
        for payload in ["1".to_owned(), format!("\"{}\"", "x".repeat(30_000)), "2".to_owned()] {
            sql.execute(insert, &[&small, &payload]).await.unwrap();
        }
        until("two events to be held", LIMIT, || async {
            let held: i64 = sql.query_one("select count(*) from outboxd.held", &[]).await.unwrap().get(0);
            if held == 2 { Ok(()) } else { Err(held) }
        })
        .await;
        let done = replayed(&scenario, &["--aggregate", "k", "--aggregate-type", &small]).await;
        assert_eq!(done["events"], 1, "{done}");
        assert!(done["message"].as_str().unwrap().starts_with("2 were left out"), "{done}");
        count("records", 2, || held_back.count()).await;
        assert_eq!(held_back.records().iter().map(|record| text(record.payload())).collect::<Vec<_>>(), ["1", "1"]);

        // Again and again the newest are replayed while they are written: a live event is always there before its replay.
        let writer = scenario.write(&Plan { pause: Duration::from_millis(10), ..Plan::default() });
        scenario.seen(500).await;
        for _ in 0..6 {
            replayed(&scenario, &["--aggregate-type", &scenario.topic, "--from", "2s", "--rate", "0"]).await;
        }
        writer.finish().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        let mut first = BTreeMap::new();
        for record in consumer.records() {
            first.entry(header(&record, "id").unwrap()).or_insert(is_replayed(&record));
        }
        let count = consumer.records().iter().filter(|record| is_replayed(record)).count();
        println!("PostgreSQL {version}: {} events, {count} replayed records", first.len());
        assert!(count > 1_000);
        assert_eq!(first.values().filter(|is_replayed| **is_replayed).count(), 0, "a replay was a first delivery");
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, replays beside live events"), count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_wishes_change_nothing_and_a_replay_can_be_ended_and_resumed() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::new(shared_postgres(versions()[0]).await, kafka).await;
    let sql = scenario.sql().await;
    let _consumer = scenario.consume();
    let unknown = "00000000-0000-4000-8000-000000000000";
    for (arguments, code, part) in [
        (&[][..], 64, "which events?"),
        (&["--from", "yesterdayish"], 64, "--from: \"yesterdayish\" is no time"),
        (&["--to", "2026-13-01"], 64, "--to: \"2026-13-01\" is no time"),
        (&["--id", "7"], 64, "invalid input syntax for type uuid: \"7\""),
        (&["--id", unknown], 78, "no such row with the id"),
        (&["--id", unknown, "--to-topic", "a b"], 64, "--to-topic: is no name of a topic"),
        (&["--aggregate", "k", "--order-by", "nothing"], 64, "--order-by: the table has no column \"nothing\""),
        (&["--from", "1h", "--time-column", "payload"], 64, "which is no time"),
        (&["--watch", "99"], 78, "there is no replay with the number 99"),
        (&["--cancel", "99", "--id", unknown], 64, "already knows which events"),
        (&["--resume", "99"], 78, "there is no replay with the number 99"),
    ] {
        let (seen, _, words) = replay(&scenario, arguments).await;
        assert_eq!(seen, code, "{arguments:?}: {words}");
        assert!(words.contains(part), "{arguments:?}: {words}");
    }
    scenario.write(&Plan { events: Some(2_000), pause: Duration::ZERO, ..Plan::default() }).done().await;
    let (code, _, words) = replay(&scenario, &["--from", "1h", "--wait", "1s"]).await;
    assert_eq!((code, words.contains("no relay has taken the request")), (69, true), "{words}");
    let requests: i64 =
        sql.query_one("select count(*) from outboxd.request where state <> 'cancelled'", &[]).await.unwrap().get(0);
    assert_eq!(requests, 0, "a wish left something behind");

    let relay = scenario.start().await;
    scenario.settle().await;
    let (code, _, words) = replay(&scenario, &["--from", "1h", "--to-topic", "not-there"]).await;
    assert_eq!((code, words.contains("the topic not-there: the topic does not exist")), (78, true), "{words}");
    // Ended in the middle, and resumed.
    let (topic, elsewhere) = other(kafka).await;
    let asked = replayed(&scenario, &["--from", "1h", "--to-topic", &topic, "--rate", "500", "--detach"]).await;
    let request = asked["request"].to_string();
    count("records", 300, || elsewhere.count()).await;
    replayed(&scenario, &["--cancel", &request]).await;
    let (code, _, words) = replay(&scenario, &["--watch", &request]).await;
    assert_eq!((code, words.contains("was cancelled")), (78, true), "{words}");
    assert_eq!(replay(&scenario, &["--cancel", &request]).await.0, 78);
    let seen = elsewhere.count();
    assert!(seen < 1_500, "it went on: {seen}");
    let total = asked["events"].as_u64().unwrap() as usize;
    replayed(&scenario, &["--resume", &request]).await;
    count("records", total, || elsewhere.count()).await;
    assert!(elsewhere.count() - total <= 250, "more than a page twice");
    assert_eq!(arrived(&elsewhere.records()), rows(&sql).await);
    assert_eq!(replay(&scenario, &["--list"]).await.1.len(), 3);
    assert!(relay.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_other_shapes_are_replayed_as_they_lie() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let postgres = shared_postgres(version).await;
        let scenario = Scenario::on(postgres, &postgres.create_database().await, &kafka.bootstrap());
        let sql = scenario.sql().await;
        let table = "create table public.outboxevent (id uuid primary key, aggregatetype text, aggregateid text, type text, \
            payload bytea) partition by hash (id); \
            create table public.outboxevent_0 partition of public.outboxevent for values with (modulus 2, remainder 0); \
            create table public.outboxevent_1 partition of public.outboxevent for values with (modulus 2, remainder 1)";
        sql.batch_execute(table).await.unwrap();
        scenario.setup(&["--table", "public.outboxevent"]).await;
        let (topic, consumer) = other(kafka).await;
        let command = scenario.bare_relay().flag("--table", "public.outboxevent").flag("--topic", &topic);
        let mut relay = command.flag("--records", "debezium").flag("--on-failure", "halt").start();
        relay.ready().await;
        let insert = "insert into public.outboxevent select gen_random_uuid(), 'order', 'k' || n % 3, 'Placed', \
            decode(to_char(n, 'FM0000'), 'hex') from generate_series(1, 300) n";
        sql.execute(insert, &[]).await.unwrap();
        sql.execute("update public.outboxevent set type = null where aggregateid = 'k2'", &[]).await.unwrap();
        count("records", 300, || consumer.count()).await;
        // An empty id makes the row unmappable for a replay as for the relay; a NULL type does not.
        let done = replayed(&scenario, &["--table", "public.outboxevent", "--aggregate", "k1"]).await;
        assert_eq!((&done["events"], &done["message"]), (&100.into(), &serde_json::Value::Null));
        count("records", 400, || consumer.count()).await;
        let records = consumer.records();
        assert!(records[300..].iter().all(is_replayed));
        let of = |records: &[OwnedMessage]| {
            let of_key = records.iter().filter(|record| record.key() == Some(b"k1"));
            let mut payloads: Vec<_> = of_key.map(|record| record.payload().unwrap().to_vec()).collect();
            payloads.sort();
            payloads
        };
        assert_eq!(of(&records[..300]), of(&records[300..]));
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_not_be_written_to_ends_the_replay_and_live_events_go_on() {
    let authorizer = [
        ("KAFKA_AUTHORIZER_CLASS_NAME", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND", "true"),
    ];
    let kafka = Kafka::start_process_with(&authorizer).await;
    let scenario = Scenario::new(shared_postgres(versions()[0]).await, &kafka).await;
    let _consumer = scenario.consume();
    let relay = scenario.start().await;
    let (topic, elsewhere) = other(&kafka).await;
    acl::forbid_writing(&kafka.bootstrap(), &topic).await;
    let writer = scenario.write(&Plan { pause: Duration::from_millis(5), ..Plan::default() });
    scenario.seen(1_000).await;
    let (code, _, words) = replay(&scenario, &["--from", "1h", "--to-topic", &topic]).await;
    assert_eq!(code, 78, "{words}");
    assert!(words.contains(&format!("the topic {topic}: ")) && words.contains("uthoriz"), "{words}");
    acl::allow_writing(&kafka.bootstrap(), &topic).await;
    let request = replay(&scenario, &["--list"]).await.1[0]["id"].to_string();
    let done = replayed(&scenario, &["--resume", &request]).await;
    count("records", done["events"].as_u64().unwrap() as usize, || elsewhere.count()).await;
    writer.finish().await;
    scenario.settle().await;
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("a forbidden replay", 0);
}
