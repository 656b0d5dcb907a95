//! Events that cannot be published: they stop nobody else, are never lost, and can be repaired while the relay runs.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use tokio_postgres::Client;

use crate::harness::consumer::{Consumer, header};
use crate::harness::ledger::{AssertClean as _, bound};
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, shared_kafka, shared_postgres, unique, until, versions};
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
