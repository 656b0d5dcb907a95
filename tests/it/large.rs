//! A transaction far larger than the window.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, Postgres, until, versions};

const ROWS: u32 = 1_000_000;

/// Reads the topic as it grows: counts, and checks that the numbers of each key grow. Keeps no records.
struct Counter {
    consumer: BaseConsumer,
    last: HashMap<Vec<u8>, u32>,
    count: u32,
}

impl Counter {
    fn new(bootstrap: &str, topic: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", topic).set("enable.auto.commit", "false");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut partitions = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            partitions.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&partitions).unwrap();
        Self { consumer, last: HashMap::new(), count: 0 }
    }

    fn read_to(&mut self, count: u32, limit: Duration) {
        let until = Instant::now() + limit;
        while self.count < count {
            assert!(Instant::now() < until, "{} of {count} records within {limit:?}", self.count);
            let Some(Ok(record)) = self.consumer.poll(Duration::from_millis(100)) else { continue };
            let payload: serde_json::Value = serde_json::from_slice(record.payload().unwrap()).unwrap();
            let number = u32::try_from(payload["n"].as_u64().unwrap()).unwrap();
            let before = self.last.insert(record.key().unwrap().to_vec(), number);
            assert!(before < Some(number), "{before:?} before {number}");
            self.count += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_rows_in_one_transaction_pass_in_little_memory_while_the_broker_is_paused() {
    let version = *versions().last().unwrap();
    let postgres = Postgres::start(version, &[("wal_sender_timeout", "5s")]).await;
    let kafka = Kafka::start().await;
    let scenario = Scenario::new(&postgres, &kafka).await;
    let relay = scenario.relay().flag("--silence", "2s").start();
    let mut relay = relay;
    relay.ready().await;
    let sql = scenario.sql().await;
    let walsender = async || -> i32 {
        let query = "select pid from pg_stat_replication where application_name = 'outboxd'";
        sql.query_one(query, &[]).await.unwrap().get(0)
    };
    let pid = walsender().await;
    let statement = format!(
        "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         select gen_random_uuid(), '{}', 'key-' || n % 5000, 'Happened', \
         json_build_object('n', n, 'filler', repeat('x', 270)) from generate_series(1, {ROWS}) n",
        scenario.topic
    );
    sql.batch_execute(&statement).await.unwrap();
    let mut counter = Counter::new(&scenario.bootstrap, &scenario.topic);
    counter.read_to(20_000, Duration::from_secs(60));

    kafka.pause().await;
    let paused_at = Instant::now();
    while paused_at.elapsed() < Duration::from_secs(15) {
        // The server has been answered within its 5 s all the while, by the same connection.
        assert_eq!(walsender().await, pid);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(counter.count < ROWS, "the broker was paused in the middle");
    kafka.unpause().await;
    counter.read_to(ROWS, Duration::from_secs(300));
    scenario.confirmed().await;
    assert_eq!(walsender().await, pid);
    let peak = relay.peak_mib();
    println!("{ROWS} rows in one transaction: peak memory {peak} MiB");
    assert!(peak < 96, "{peak} MiB");
    assert!(relay.terminate().await.success());
    until("nothing more to come", Duration::from_secs(10), || async {
        let ends = (0..PARTITIONS).map(|partition| {
            let limit = Duration::from_secs(5);
            counter.consumer.fetch_watermarks(&scenario.topic, partition, limit).unwrap().1
        });
        let total: i64 = ends.sum();
        if total == i64::from(ROWS) { Ok(()) } else { Err(total) }
    })
    .await;
}
