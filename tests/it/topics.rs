//! Topics: small ones, missing ones, ones that vanish, and a producer that fails.

use std::time::Duration;

use rdkafka::message::Message;

use crate::harness::consumer::Consumer;
use crate::harness::ledger::{AssertClean as _, bound};
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Kafka, shared_kafka, shared_postgres, unique, until, versions};
use crate::harness::writer::{Place, Plan, Writer};

fn newest() -> u32 {
    *versions().last().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn small_events_into_a_topic_with_small_messages_are_not_refused() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(newest()).await, &kafka.bootstrap()).await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[("max.message.bytes", "65536")]).await;
    let other = unique("other");
    kafka.create_topic(&other, PARTITIONS, &[]).await;
    let relay = scenario.start().await;
    let _consumer = scenario.consume();
    let _other_consumer = Consumer::start(&scenario.bootstrap, &other, PARTITIONS, &scenario.ledger);
    // The other topic is in use first, with large events among its own, so the producer was made for large batches.
    let place = Place { aggregate_type: other, ..scenario.place() };
    let large = Plan { events: Some(200), payload_bytes: 200_000, keys: 20, pause: Duration::ZERO, ..Plan::default() };
    let others = Writer::start(&place, &large, &scenario.ledger, scenario.seed + 1_000);
    scenario.seen(1).await;
    let small = Plan { events: Some(10_000), rows_per_transaction: 500, pause: Duration::ZERO, ..Plan::default() };
    scenario.write(&small).done().await;
    others.done().await;
    scenario.settle().await;
    let log = relay.log();
    assert_eq!(log.matches("sent again, in order").count(), 0, "{log}");
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("10,000 small events beside large ones", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_created_again_after_20_s_gets_everything() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::new(shared_postgres(newest()).await, kafka).await;
    let mut relay = scenario.start().await;
    let first = scenario.consume();
    scenario.write(&Plan { events: Some(1_000), ..Plan::default() }).done().await;
    scenario.settle().await;
    drop(first);
    kafka.delete_topic(&scenario.topic).await;
    // Other keys: those of a connection go on counting only within one writer.
    let writer = Writer::start(&scenario.place(), &Plan::default(), &scenario.ledger, scenario.seed + 1_000);
    tokio::time::sleep(Duration::from_secs(20)).await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
    let _second = scenario.consume();
    let seen = scenario.ledger.lock().unwrap().seen().len();
    scenario.seen(seen + 1_000).await;
    writer.finish().await;
    scenario.settle().await;
    assert!(!relay.has_ended(), "{}", relay.log());
    let rewinds = relay.log().matches("sent again, in order").count();
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean(&format!("topic created again, {rewinds} rewinds"), bound(rewinds, 20_000, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_fails_with_1_000_events_in_flight_keeps_the_order() {
    for version in versions() {
        let kafka = Kafka::start().await;
        let scenario = Scenario::new(shared_postgres(version).await, &kafka).await;
        let _consumer = scenario.consume();
        let plan =
            Plan { rows_per_transaction: 50, rolled_back_of_ten: 0, savepoints_of_ten: 0, keys: 20, ..Plan::default() };
        let mut relay = scenario.relay().failpoints("after_produce=fatal:2000").start();
        relay.ready().await;
        Writer::start(&scenario.place(), &Plan { events: Some(800), ..plan.clone() }, &scenario.ledger, 1).done().await;
        scenario.settle().await;
        // What is produced from here on has no answer, but reaches the broker's socket: it lands although the producer that
        // sent it is gone by then.
        kafka.pause().await;
        let writer = Writer::start(&scenario.place(), &Plan { events: Some(3_000), ..plan }, &scenario.ledger, 2);
        writer.done().await;
        relay.logged("the producer failed").await;
        relay.logged("a new producer sends again").await;
        kafka.unpause().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        let verdict = scenario.judge();
        assert!(verdict.repeats > 0, "nothing of the old producer landed, so the test showed nothing");
        verdict
            .assert_clean(&format!("PostgreSQL {version}, producer failed with 1,000 in flight"), bound(1, 20_000, 50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_is_waited_for_and_then_named() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(newest()).await, &kafka.bootstrap()).await;
    let mut relay = scenario.relay().flag("--topic-wait", "3s").flag("--on-failure", "halt").start();
    relay.ready().await;
    scenario.write(&Plan { events: Some(100), ..Plan::default() }).done().await;
    let status = relay.ended(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(78), "{}", relay.log());
    assert!(relay.log().contains(&format!("the topic {} does not exist", scenario.topic)), "{}", relay.log());

    let mut relay = scenario.relay().flag("--on-failure", "halt").start();
    relay.logged("create it within 30s").await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
    let _consumer = scenario.consume();
    scenario.settle().await;
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("topic created late", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partitions_are_used() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(newest()).await, &kafka.bootstrap()).await;
    kafka.create_topic(&scenario.topic, 1, &[]).await;
    let mut relay = scenario.relay().flag("--topic-refresh", "500ms").start();
    relay.ready().await;
    kafka.create_partitions(&scenario.topic, PARTITIONS).await;
    let consumer = scenario.consume();
    let writer = scenario.write(&Plan::default());
    until("records in the new partitions", Duration::from_secs(30), || async {
        let used = (0..PARTITIONS).filter(|p| consumer.records().iter().any(|r| r.partition() == *p)).count();
        if used == PARTITIONS as usize { Ok(()) } else { Err(format!("{used} are used")) }
    })
    .await;
    writer.finish().await;
    scenario.settle().await;
    assert!(relay.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_published_stops_the_relay_in_front_of_it() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(newest()).await, &kafka.bootstrap()).await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[("max.message.bytes", "20000")]).await;
    let _consumer = scenario.consume();
    let mut relay = scenario.relay().flag("--on-failure", "halt").start();
    relay.ready().await;
    scenario.write(&Plan { events: Some(100), ..Plan::default() }).done().await;
    let too_large = Plan {
        events: Some(1),
        connections: 1,
        rows_per_transaction: 1,
        payload_bytes: 30_000,
        rolled_back_of_ten: 0,
        ..Plan::default()
    };
    Writer::start(&scenario.place(), &too_large, &scenario.ledger, scenario.seed + 1_000).done().await;
    let status = relay.ended(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(65), "{}", relay.log());
    let log = relay.log();
    assert!(log.contains("the event at commit LSN") && log.contains("raise the topic's max.message.bytes"), "{log}");

    // Everything before it was published and confirmed; after the remedy it goes on, and nothing is lost or repeated.
    kafka.alter_topic(&scenario.topic, &[("max.message.bytes", "100000")]).await;
    let relay = scenario.start().await;
    scenario.settle().await;
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("halted in front of an event that is too large", 0);
}
