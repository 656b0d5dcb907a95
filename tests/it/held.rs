//! Events that cannot be published: they stop nobody else, are never lost, and can be repaired while the relay runs.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::message::OwnedMessage;
use tokio_postgres::Client;

use crate::harness::consumer::{Consumer, header};
use crate::harness::ledger::{AssertClean as _, bound};
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, acl, shared_kafka, shared_postgres, unique, until, versions};
use crate::harness::writer::Plan;

const LIMIT: Duration = Duration::from_secs(60);

/// A topic beside that of the writer, for the events that go wrong, and those behind them.
struct Side {
    topic: String,
    consumer: Consumer,
}

impl Side {
    async fn new(kafka: &Kafka, prefix: &str, config: &[(&str, &str)]) -> Self {
        let topic = unique(prefix);
        kafka.create_topic(&topic, PARTITIONS, config).await;
        Self::on(kafka, topic)
    }

    /// A topic that need not be there.
    fn on(kafka: &Kafka, topic: String) -> Self {
        let consumer = Consumer::start(&kafka.bootstrap(), &topic, PARTITIONS, &Arc::default());
        Self { topic, consumer }
    }

    /// The payloads that have arrived for a key, in order.
    fn payloads(&self, key: &str) -> Vec<String> {
        let of_key =
            self.consumer.records().into_iter().filter(|record| record.key().unwrap_or_default() == key.as_bytes());
        of_key.map(|record| String::from_utf8(record.payload().unwrap_or_default().to_vec()).unwrap()).collect()
    }

    /// Waits until these have arrived for a key, and nothing else.
    async fn arrived(&self, key: &str, payloads: &[&str]) {
        until(&format!("{payloads:?} for {key}"), LIMIT, || async {
            let seen = self.payloads(key);
            if seen == payloads { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
}

/// One event; gives its id.
async fn insert(sql: &Client, topic: &str, key: &str, payload: &str) -> String {
    let statement = "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
        values (gen_random_uuid(), $1, $2, 'Happened', $3::text::json) returning id::text";
    sql.query_one(statement, &[&topic, &key, &payload]).await.unwrap().get(0)
}

/// Waits until the event has a row in this state; gives class, reason and attempts.
async fn held(sql: &Client, event_id: &str, state: &str) -> (String, String, i32) {
    let query = "select state, class, reason, attempts from outboxd.held where event_id = $1";
    until(&format!("{event_id} to be {state}"), LIMIT, || async {
        match sql.query_opt(query, &[&event_id]).await.unwrap() {
            Some(row) if row.get::<_, String>(0) == state => Ok((row.get(1), row.get(2), row.get(3))),
            Some(row) => Err(row.get::<_, String>(0)),
            None => Err("not held".to_owned()),
        }
    })
    .await
}

/// Waits until nothing is held but what is dead.
async fn nothing_waits(sql: &Client) {
    until("nothing to wait", LIMIT, || async {
        let query = "select count(*), coalesce(min(state || ' ' || class || ' ' || reason), '') from outboxd.held where state <> 'dead'";
        let row = sql.query_one(query, &[]).await.unwrap();
        if row.get::<_, i64>(0) == 0 { Ok(()) } else { Err(row.get::<_, String>(1)) }
    })
    .await;
}

/// Watches for the longest time in which no record arrives.
struct Gaps {
    stop: Arc<AtomicBool>,
    watch: tokio::task::JoinHandle<Duration>,
}

impl Gaps {
    fn watch(scenario: &Scenario) -> Self {
        let (stop, ledger) = (Arc::<AtomicBool>::default(), scenario.ledger.clone());
        let watch = tokio::spawn({
            let stop = stop.clone();
            async move {
                let (mut longest, mut last, mut at) = (Duration::ZERO, 0, Instant::now());
                while !stop.load(Ordering::Relaxed) {
                    let seen = ledger.lock().unwrap().seen().len();
                    if seen != last {
                        (longest, last, at) = (longest.max(at.elapsed()), seen, Instant::now());
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                longest
            }
        });
        Self { stop, watch }
    }

    async fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.watch.await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_events_among_10_000_end_where_the_policy_says_and_stop_nobody_else() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        let small = Side::new(kafka, "small", &[("max.message.bytes", "20000")]).await;
        let compact = Side::new(kafka, "compact", &[("cleanup.policy", "compact")]).await;
        let strict = Side::new(kafka, "strict", &[("message.timestamp.before.max.ms", "1")]).await;
        let late = unique("late");
        let _consumer = scenario.consume();
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(b"[[rule]]\nwhen = { aggregate_type = 'compact*' }\nkey = 'none'\n").unwrap();
        let mut relay = scenario.relay().flag("--config", config.path().to_str().unwrap()).start();
        relay.ready().await;

        let gaps = Gaps::watch(&scenario);
        let writer =
            scenario.write(&Plan { events: Some(10_000), pause: Duration::from_millis(20), ..Plan::default() });
        scenario.seen(2_000).await;
        let large = format!("\"{}\"", "x".repeat(30_000));
        let too_large = insert(&sql, &small.topic, "k", &large).await;
        insert(&sql, &small.topic, "k", "1").await;
        let no_key = insert(&sql, &compact.topic, "k", "1").await;
        let no_topic = insert(&sql, "no topic!", "k", "1").await;
        let missing = insert(&sql, &late, "k", "1").await;
        insert(&sql, &late, "k", "2").await;
        insert(&sql, &late, "l", "1").await;
        assert_eq!(held(&sql, &too_large, "dead").await.0, "too_large");
        assert_eq!(held(&sql, &no_key, "dead").await.0, "no_key");
        assert_eq!(held(&sql, &no_topic, "dead").await.0, "unmappable");
        held(&sql, &missing, "parked").await;
        small.arrived("k", &["1"]).await;
        kafka.create_topic(&late, PARTITIONS, &[]).await;
        let late = Side::on(kafka, late);
        insert(&sql, &late.topic, "k", "3").await;
        late.arrived("k", &["1", "2", "3"]).await;
        late.arrived("l", &["1"]).await;
        let longest = gaps.longest().await;
        assert_eq!(relay.log().matches("sent again, in order").count(), 0, "{}", relay.log());

        // What nobody could foresee.
        let gaps = Gaps::watch(&scenario);
        let refused = insert(&sql, &strict.topic, "k", "1").await;
        let (class, reason, _) = held(&sql, &refused, "dead").await;
        assert_eq!(class, "record", "{reason}");
        writer.done().await;
        scenario.settle().await;
        let rewinds = relay.log().matches("sent again, in order").count();
        println!(
            "PostgreSQL {version}: longest gap {longest:.1?}; with {rewinds} rewinds {:.1?}",
            gaps.longest().await
        );
        assert!(longest < Duration::from_secs(2), "innocent events waited for {longest:.1?}");
        nothing_waits(&sql).await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, bad events"), bound(rewinds, 20_000, 10));
        assert_eq!(late.payloads("k"), ["1", "2", "3"]);
        assert!(header(&late.consumer.records()[0], "outboxd_released").is_none(), "nobody has released it");
    }
}

/// Runs `outboxd dead-letters`; gives the code, the JSON lines and the words on standard error.
async fn dead_letters(scenario: &Scenario, arguments: &[&str]) -> (i32, Vec<serde_json::Value>, String) {
    let mut command = scenario.outboxd("dead-letters");
    let output = command.args(["--slot", &scenario.slot, "--json"]).args(arguments).output().await.unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let json = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), json, String::from_utf8(output.stderr).unwrap())
}

/// The number of the row of an event.
async fn number(scenario: &Scenario, event_id: &str) -> String {
    let (code, list, _) = dead_letters(scenario, &["list"]).await;
    assert_eq!(code, 0);
    let row = list.iter().find(|row| row["event_id"] == event_id).unwrap_or_else(|| panic!("{event_id}: {list:?}"));
    row["id"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_key_waits_over_a_restart_and_is_released_in_order() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        let small = Side::new(kafka, "small", &[("max.message.bytes", "20000")]).await;
        let command = scenario.relay().flag("--on-failure", "quarantine").flag("--topic-refresh", "500ms");
        let mut relay = command.start();
        relay.ready().await;
        let large = format!("\"{}\"", "x".repeat(30_000));
        insert(&sql, &small.topic, "k", "0").await;
        let bad = insert(&sql, &small.topic, "k", &large).await;
        let behind = insert(&sql, &small.topic, "k", "1").await;
        insert(&sql, &small.topic, "l", "1").await;
        assert_eq!(held(&sql, &bad, "quarantined").await.0, "too_large");
        assert_eq!(held(&sql, &behind, "parked").await.0, "behind");
        small.arrived("l", &["1"]).await;
        scenario.confirmed().await;
        relay.kill().await;
        insert(&sql, &small.topic, "k", "2").await;
        let mut relay = command.start();
        relay.ready().await;
        insert(&sql, &small.topic, "l", "2").await;
        small.arrived("l", &["1", "2"]).await;
        small.arrived("k", &["0"]).await;

        let number = number(&scenario, &bad).await;
        let (code, shown, _) = dead_letters(&scenario, &["show", &number]).await;
        assert_eq!((code, shown[0]["value"].as_str(), shown[0]["key"].as_str()), (0, Some(&*large), Some("k")));
        let (code, would, _) = dead_letters(&scenario, &["requeue", "--all", "--dry-run"]).await;
        assert_eq!((code, &would[0]["events"], &would[0]["states"]["quarantined"]), (0, &1.into(), &1.into()));
        // Too early: it is refused once more, and goes on waiting.
        let (code, done, _) = dead_letters(&scenario, &["requeue", &number]).await;
        assert_eq!((code, &done[0]["events"]), (0, &1.into()));
        held(&sql, &bad, "quarantined").await;
        small.arrived("k", &["0"]).await;
        kafka.alter_topic(&small.topic, &[("max.message.bytes", "100000")]).await;
        until("it to be taken", LIMIT, || async {
            dead_letters(&scenario, &["requeue", "--class", "too_large"]).await;
            if small.payloads("k").len() > 1 { Ok(()) } else { Err("not yet") }
        })
        .await;
        small.arrived("k", &["0", &large, "1", "2"]).await;
        nothing_waits(&sql).await;
        let marks: Vec<_> = small.consumer.records().iter().map(|record| header(record, "outboxd_released")).collect();
        assert_eq!(marks.iter().flatten().count(), 1, "only what an operator has released is marked: {marks:?}");

        // The key is free, and holds again with the next one; what is discarded lets the others go on.
        insert(&sql, &small.topic, "k", "3").await;
        small.arrived("k", &["0", &large, "1", "2", "3"]).await;
        let larger = format!("\"{}\"", "x".repeat(200_000));
        let bad = insert(&sql, &small.topic, "k", &larger).await;
        insert(&sql, &small.topic, "k", "4").await;
        held(&sql, &bad, "quarantined").await;
        let number = self::number(&scenario, &bad).await;
        assert_eq!(dead_letters(&scenario, &["discard", &number]).await.0, 0);
        small.arrived("k", &["0", &large, "1", "2", "3", "4"]).await;
        until("the tombstone to go", LIMIT, || async {
            let (_, list, _) = dead_letters(&scenario, &["list"]).await;
            if list.is_empty() { Ok(()) } else { Err(format!("{list:?}")) }
        })
        .await;
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_point_of_holding_and_releasing_loses_nothing() {
    let kafka = shared_kafka().await;
    for version in versions() {
        for (point, count, is_release) in [
            ("before_hold", 2, false),
            ("after_hold", 1, false),
            ("after_hold", 3, false),
            ("after_release", 1, true),
            ("after_release", 3, true),
            ("after_settle", 2, true),
        ] {
            let scenario = Scenario::without_topic(shared_postgres(version).await, &kafka.bootstrap()).await;
            let mut relay = scenario.relay().failpoints(&format!("{point}=kill:{count}")).start();
            relay.ready().await;
            let plan = Plan { events: Some(6_000), pause: Duration::from_millis(5), ..Plan::default() };
            let writer = scenario.write(&plan);
            let sql = scenario.sql().await;
            if is_release {
                until("events to be held", LIMIT, || async {
                    let query = "select count(*) from outboxd.held";
                    let held: i64 = sql.query_one(query, &[]).await.unwrap().get(0);
                    if held > 1_500 { Ok(()) } else { Err(held) }
                })
                .await;
                kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
            }
            assert_eq!(relay.ended(LIMIT).await.code(), None, "{}", relay.log());
            let mut relay = scenario.relay().start();
            relay.ready().await;
            if !is_release {
                kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
            }
            let _consumer = scenario.consume();
            scenario.seen(2_000).await;
            writer.done().await;
            scenario.settle().await;
            nothing_waits(&sql).await;
            assert!(relay.terminate().await.success());
            // One batch of releases beside the window.
            let bound = bound(1, 20_000, 10) + 500;
            scenario.judge().assert_clean(&format!("PostgreSQL {version}, {point}={count}"), bound);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_copied_and_tried_again_and_bad_wishes_change_nothing() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::new(shared_postgres(versions()[0]).await, kafka).await;
    let sql = scenario.sql().await;
    let small = Side::new(kafka, "small", &[("max.message.bytes", "20000")]).await;
    let copies = Side::new(kafka, "dead", &[]).await;
    let command = scenario.relay().flag("--dead-letter-topic", &copies.topic).flag("--topic-refresh", "500ms");
    let mut relay = command.clone().flag("--retry-dead-letters", "2s").start();
    relay.ready().await;
    let large = format!("\"{}\"", "x".repeat(30_000));
    let bad = insert(&sql, &small.topic, "k", &large).await;
    insert(&sql, &small.topic, "k", "1").await;
    let unmappable = insert(&sql, "no topic!", "k", "1").await;
    copies.arrived("k", &[&large]).await;
    let copy_of = |id: &str| {
        let of_event = |record: &OwnedMessage| header(record, "id").as_deref() == Some(id);
        copies.consumer.records().into_iter().filter(of_event).collect::<Vec<_>>()
    };
    let copy = &copy_of(&bad)[0];
    assert_eq!(header(copy, "outboxd_class").as_deref(), Some("too_large"));
    assert_eq!(header(copy, "outboxd_topic"), Some(small.topic.clone()));
    assert!(header(copy, "outboxd_reason").unwrap().contains("the topic takes 20000"));
    // The scheduler tries it again, in vain.
    until("a second attempt", LIMIT, || async {
        let (_, _, attempts) = held(&sql, &bad, "dead").await;
        if attempts >= 3 { Ok(()) } else { Err(attempts) }
    })
    .await;
    kafka.alter_topic(&small.topic, &[("max.message.bytes", "100000")]).await;
    small.arrived("k", &["1", &large]).await;
    let marked = header(&small.consumer.records()[1], "outboxd_released");
    assert_eq!(marked.as_deref(), Some("true"), "it comes behind a newer event of its key");
    assert_eq!(copy_of(&bad).len(), 1, "copied once");
    let columns: serde_json::Value = serde_json::from_slice(copy_of(&unmappable)[0].payload().unwrap()).unwrap();
    assert_eq!(columns["aggregate_type"], "no topic!");
    assert!(relay.terminate().await.success());

    // Wishes that cannot be done.
    let number = number(&scenario, &unmappable).await;
    for (arguments, code, part) in [
        (&["requeue", "999999"][..], 78, "holds no event 999999"),
        (&["show", "999999"], 78, "holds no event 999999"),
        (&["requeue", &number], 78, "no record could be made of event"),
        (&["requeue"], 64, "which ones?"),
        (&["discard", "--state", "ded"], 64, "--state: \"ded\" is unknown"),
        (&["show"], 64, "which one?"),
        (&["discard", &number, "--wait", "1s"], 69, "no relay has taken the request"),
    ] {
        let (seen, _, words) = dead_letters(&scenario, arguments).await;
        assert_eq!(seen, code, "{arguments:?}: {words}");
        assert!(words.contains(part), "{arguments:?}: {words}");
    }
    held(&sql, &unmappable, "dead").await;
    let mut relay = command.start();
    relay.ready().await;
    held(&sql, &unmappable, "dead").await;
    assert_eq!(dead_letters(&scenario, &["discard", &number]).await.0, 0);
    assert!(relay.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_says_how_often_it_may_be_tried_and_a_rule_what_happens_then() {
    let kafka = shared_kafka().await;
    let postgres = shared_postgres(*versions().last().unwrap()).await;
    let database = postgres.create_database().await;
    let scenario = Scenario::on(postgres, &database, &kafka.bootstrap());
    let sql = scenario.sql().await;
    let table = "create table public.outbox (id int primary key, aggregate_type text, aggregate_id text, event_type text, \
        payload text, max_retries int)";
    sql.batch_execute(table).await.unwrap();
    scenario.setup(&["--table", "public.outbox"]).await;
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let rules = "[[rule]]\nwhen = { event_type = 'Dear' }\non-failure = 'quarantine'\n\
        [[rule]]\nwhen = { event_type = 'Vital' }\non-failure = 'halt'\n";
    config.write_all(rules.as_bytes()).unwrap();
    let relay = scenario.relay().flag("--table", "public.outbox").flag("--config", config.path().to_str().unwrap());
    let mut relay = relay.flag("--topic-wait", "2s").start();
    relay.ready().await;
    let insert = "insert into public.outbox values (1, $1, 'k', 'Happened', '1', 2), (2, $1, 'l', 'Dear', '1', 1), \
        (3, $1, 'm', 'Happened', '1', 9)";
    sql.execute(insert, &[&scenario.topic]).await.unwrap();
    assert_eq!(held(&sql, "2", "quarantined").await.2, 1);
    assert_eq!(held(&sql, "1", "dead").await.2, 2);
    assert_eq!(held(&sql, "3", "parked").await.0, "no_topic");
    let vital = "insert into public.outbox values (4, $1, 'n', 'Vital', '1', 1)";
    sql.execute(vital, &[&scenario.topic]).await.unwrap();
    let status = relay.ended(LIMIT).await;
    assert_eq!(status.code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains(&format!("the topic {} does not exist", scenario.topic)), "{}", relay.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_not_be_written_to_for_a_while_stops_nobody_else() {
    let authorizer = [
        ("KAFKA_AUTHORIZER_CLASS_NAME", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND", "true"),
    ];
    let kafka = Kafka::start_process_with(&authorizer).await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, &kafka).await;
        let sql = scenario.sql().await;
        let side = Side::new(&kafka, "side", &[]).await;
        let _consumer = scenario.consume();
        let mut relay = scenario.start().await;
        let writer =
            scenario.write(&Plan { events: Some(10_000), pause: Duration::from_millis(20), ..Plan::default() });
        scenario.seen(2_000).await;
        insert(&sql, &side.topic, "k", "1").await;
        side.arrived("k", &["1"]).await;
        acl::forbid_writing(&kafka.bootstrap(), &side.topic).await;
        let gaps = Gaps::watch(&scenario);
        let taken = insert(&sql, &side.topic, "k", "2").await;
        insert(&sql, &side.topic, "l", "1").await;
        held(&sql, &taken, "parked").await;
        relay.logged("still does not take events").await;
        insert(&sql, &side.topic, "k", "3").await;
        let seen = scenario.ledger.lock().unwrap().seen().len();
        scenario.seen(seen + 500).await;
        let rewinds = relay.log().matches("sent again, in order").count();
        let longest = gaps.longest().await;
        acl::allow_writing(&kafka.bootstrap(), &side.topic).await;
        side.arrived("k", &["1", "2", "3"]).await;
        side.arrived("l", &["1"]).await;
        writer.done().await;
        scenario.settle().await;
        nothing_waits(&sql).await;
        println!("PostgreSQL {version}: forbidden topic, {rewinds} rewinds, longest gap {longest:.1?}");
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, forbidden topic"), bound(rewinds, 20_000, 10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_back_is_freed_under_a_steady_load() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(versions()[0]).await, &kafka.bootstrap()).await;
    let sql = scenario.sql().await;
    let relay = scenario.start().await;
    let writer = scenario.write(&Plan { pause: Duration::from_millis(50), ..Plan::default() });
    let count = async || -> i64 { sql.query_one("select count(*) from outboxd.held", &[]).await.unwrap().get(0) };
    until("events to be held", LIMIT, || async {
        let held = count().await;
        if held > 1_500 { Ok(()) } else { Err(held) }
    })
    .await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
    let _consumer = scenario.consume();
    until("the topic to be free", LIMIT, || async {
        let held = count().await;
        if held == 0 { Ok(()) } else { Err(held) }
    })
    .await;
    let before = relay.log().matches("still does not take events").count();
    let seen = scenario.ledger.lock().unwrap().seen().len();
    scenario.seen(seen + 2_000).await;
    // It was not only for a moment between two of the events that come all the while.
    assert_eq!(count().await, 0, "events are still held");
    writer.finish().await;
    scenario.settle().await;
    println!("{before} probes in vain");
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("a topic that is back under a steady load", 0);
}
