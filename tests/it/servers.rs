//! The servers under the tests do what the other tests rely on.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use tokio_postgres::Client;

use crate::harness::servers::{
    Kafka, Postgres, ProcessPostgres, StopMode, shared_kafka, shared_postgres, unique, until, versions,
};

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_rows_and_slot_over_pause_kill_and_stops() {
    for version in versions() {
        rows_and_slot_stay(&Postgres::start(version, &[]).await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_as_a_process_keeps_rows_and_slot_over_pause_kill_and_stops() {
    for version in versions() {
        rows_and_slot_stay(&*ProcessPostgres::start(version, &[]).await).await;
    }
}

async fn rows_and_slot_stay(postgres: &Postgres) {
    let database = postgres.create_database().await;
    let sql = postgres.sql(&database).await;
    sql.batch_execute("create table t (n int)").await.unwrap();
    sql.batch_execute("select pg_create_logical_replication_slot('s', 'pgoutput')").await.unwrap();
    assert_eq!(
        number(&sql, "select current_setting('server_version_num')::bigint / 10000").await,
        i64::from(postgres.version())
    );
    assert_eq!(text(&sql, "show fsync").await, "on");

    postgres.pause().await;
    let mut answer = pin!(sql.simple_query("select 1"));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "a paused server answers nothing");
    postgres.unpause().await;
    answer.await.unwrap();

    for lives in 1..=3 {
        let sql = postgres.sql(&database).await;
        sql.batch_execute("insert into t select generate_series(1, 1000)").await.unwrap();
        match lives {
            1 => postgres.kill().await,
            2 => postgres.stop(StopMode::Immediate).await,
            _ => postgres.stop(StopMode::Fast).await,
        }
        assert!(!postgres.is_running().await);
        postgres.start_again().await;
        let sql = postgres.sql(&database).await;
        assert_eq!(number(&sql, "select count(*) from t").await, lives * 1000);
        assert_eq!(number(&sql, "select count(*) from pg_replication_slots").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_server_gives_each_test_a_database() {
    for version in versions() {
        let (one, other) = (shared_postgres(version).await, shared_postgres(version).await);
        let (first, second) = (one.create_database().await, other.create_database().await);
        assert_ne!(first, second);
        one.sql(&first).await.batch_execute("create table t ()").await.unwrap();
        // The name is free in the other database, which is on the same server.
        other.sql(&second).await.batch_execute("create table t ()").await.unwrap();
        assert_eq!(one.port(), other.port());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_data_makes_the_server_shorter() {
    for version in versions() {
        let postgres = ProcessPostgres::start(version, &[]).await;
        postgres.sql("postgres").await.batch_execute("create table t as select 1").await.unwrap();
        postgres.stop(StopMode::Fast).await;
        let copy = postgres.copy_data().await;
        postgres.start_again().await;
        postgres.sql("postgres").await.batch_execute("insert into t values (2)").await.unwrap();

        let other = ProcessPostgres::start_on(&copy, version, &[]).await;
        assert_ne!(other.data_folder(), postgres.data_folder());
        assert_eq!(number(&other.sql("postgres").await, "select count(*) from t").await, 1);
        assert_eq!(number(&postgres.sql("postgres").await, "select count(*) from t").await, 2);

        postgres.kill().await;
        postgres.restore_data(&copy).await;
        postgres.start_again().await;
        assert_eq!(number(&postgres.sql("postgres").await, "select count(*) from t").await, 1);
        let (over_socket, connection) =
            tokio_postgres::connect(&postgres.socket_conninfo("postgres"), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(number(&over_socket, "select count(*) from t").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_lacks_what_it_did_not_receive() {
    for version in versions() {
        let primary = ProcessPostgres::start(version, &[]).await;
        primary.sql("postgres").await.batch_execute("create table t as select 1").await.unwrap();
        primary.stop(StopMode::Fast).await;
        let copy = primary.copy_data().await;
        primary.start_again().await;
        let standby = primary.start_standby(&copy, &[]).await;
        let sql = primary.sql("postgres").await;
        sql.batch_execute("insert into t values (2)").await.unwrap();
        let replica = standby.sql("postgres").await;
        until("the standby to replay", Duration::from_secs(30), || async {
            if number(&replica, "select count(*) from t").await == 2 { Ok(()) } else { Err("not yet") }
        })
        .await;

        standby.stop(StopMode::Immediate).await;
        sql.batch_execute("insert into t values (3)").await.unwrap();
        primary.kill().await;
        standby.start_again().await;
        standby.promote().await;

        let promoted = standby.sql("postgres").await;
        promoted.batch_execute("insert into t values (4), (5)").await.unwrap();
        assert_eq!(number(&promoted, "select count(*) from t").await, 4);
        assert!(text(&promoted, "select pg_walfile_name(pg_current_wal_lsn())").await.starts_with("00000002"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_takes_records_again_after_each_kill_and_pause() {
    killed_and_paused(&Kafka::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_as_a_process_takes_records_again_after_each_kill_and_pause() {
    killed_and_paused(&Kafka::start_process().await).await;
}

async fn killed_and_paused(kafka: &Kafka) {
    kafka.create_topic("t", 3, &[("max.message.bytes", "65536")]).await;
    let acks = acks(kafka);
    acks.produced_and_acked(100).await;

    for _ in 0..2 {
        kafka.kill().await;
        assert!(!kafka.is_running().await);
        acks.produce(100);
        let begin = Instant::now();
        kafka.start_again().await;
        acks.all_acked(Duration::from_secs(30)).await;
        println!("a record was acknowledged {:?} after the start", begin.elapsed());
    }

    kafka.pause().await;
    acks.produce(100);
    let before = acks.acked();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(acks.acked(), before, "a paused broker acknowledges nothing");
    assert!(kafka.is_running().await);
    kafka.unpause().await;
    acks.all_acked(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_can_be_deleted_and_created_again_and_none_comes_by_itself() {
    let kafka = shared_kafka().await;
    let topic = unique("topic");
    kafka.create_topic(&topic, 1, &[]).await;
    kafka.delete_topic(&topic).await;
    kafka.create_topic(&topic, 2, &[]).await;

    let acks = acks(kafka);
    let absent = unique("absent");
    let answer = acks.producer.client().fetch_metadata(Some(&absent), Duration::from_secs(5)).unwrap();
    assert!(answer.topics()[0].error().is_some());
}

/// A producer that counts what it sent and what was acknowledged.
struct Acks {
    producer: ThreadedProducer<Counter>,
    produced: AtomicU64,
}

#[derive(Default)]
struct Counter(AtomicU64);

impl ClientContext for Counter {}

impl ProducerContext for Counter {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            panic!("a record was refused: {error}");
        }
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn acks(kafka: &Kafka) -> Acks {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.bootstrap()).set("enable.idempotence", "true").set("message.timeout.ms", "0");
    config.set("reconnect.backoff.max.ms", "1000").set("log_level", "0");
    Acks { producer: config.create_with_context(Counter::default()).unwrap(), produced: AtomicU64::new(0) }
}

impl Acks {
    fn produce(&self, records: u64) {
        for _ in 0..records {
            self.producer.send(BaseRecord::<str, str>::to("t").payload("payload")).unwrap();
        }
        self.produced.fetch_add(records, Ordering::SeqCst);
    }

    fn acked(&self) -> u64 {
        self.producer.context().0.load(Ordering::SeqCst)
    }

    async fn all_acked(&self, limit: Duration) {
        until("all records to be acknowledged", limit, || async {
            let (acked, produced) = (self.acked(), self.produced.load(Ordering::SeqCst));
            if acked == produced { Ok(()) } else { Err(format!("{acked} of {produced}")) }
        })
        .await;
    }

    async fn produced_and_acked(&self, records: u64) {
        self.produce(records);
        self.all_acked(Duration::from_secs(30)).await;
    }
}

async fn number(sql: &Client, query: &str) -> i64 {
    sql.query_one(query, &[]).await.unwrap().get(0)
}

async fn text(sql: &Client, query: &str) -> String {
    sql.query_one(query, &[]).await.unwrap().get(0)
}
