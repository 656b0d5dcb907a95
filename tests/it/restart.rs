//! The restart family: whatever dies, nothing is lost, nothing is made up, the order stays, and the repeats are bounded.

use std::time::Duration;

use crate::harness::ledger::{AssertClean as _, bound};
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Kafka, Postgres, StopMode, shared_kafka, shared_postgres, until, versions};
use crate::harness::writer::Plan;

/// The window of these relays: small, so that the bound means something.
const WINDOW: usize = 2_000;

/// A plan's largest transaction.
const ROWS: usize = 10;

fn small(scenario: &Scenario) -> crate::harness::relay::RelayCommand {
    scenario.relay().flag("--window-events", &WINDOW.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_while_50_000_events_flow() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let mut random = fastrand::Rng::with_seed(scenario.seed);
        let _consumer = scenario.consume();
        let plan = Plan { events: Some(50_000), pause: Duration::from_millis(2), ..Plan::default() };
        let writer = scenario.write(&plan);
        let mut kills = 0;
        let mut relay = small(&scenario).start();
        while kills < 20 || writer.committed() < 50_000 {
            relay.ready().await;
            // Some events later, at a moment that has nothing to do with them.
            let seen = scenario.ledger.lock().unwrap().seen().len();
            let more = if scenario.ledger.lock().unwrap().is_settled() { 0 } else { random.usize(1..1_500) };
            let _ = tokio::time::timeout(Duration::from_secs(10), scenario.seen(seen + more)).await;
            tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
            relay.kill().await;
            kills += 1;
            relay = small(&scenario).start();
        }
        writer.done().await;
        relay.ready().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        let verdict = scenario.judge();
        verdict.assert_clean(&format!("PostgreSQL {version}, {kills} kills at random"), bound(kills, WINDOW, ROWS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_each_failpoint() {
    for version in versions() {
        for point in ["after_receive", "after_produce", "after_ack", "after_confirm"] {
            let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
            let mut random = fastrand::Rng::with_seed(scenario.seed);
            let _consumer = scenario.consume();
            let writer = scenario.write(&Plan::default());
            for _ in 0..3 {
                let hits = if point == "after_confirm" { random.u32(1..5) } else { random.u32(1..700) };
                let mut relay = small(&scenario).failpoints(&format!("{point}=kill:{hits}")).start();
                let status = relay.ended(Duration::from_secs(60)).await;
                assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{}", relay.log());
            }
            writer.finish().await;
            let relay = scenario.start().await;
            scenario.settle().await;
            assert!(relay.terminate().await.success());
            let test = format!("PostgreSQL {version}, 3 kills {point}");
            scenario.judge().assert_clean(&test, bound(3, WINDOW, ROWS));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_while_transactions_flow_repeats_nothing() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let _consumer = scenario.consume();
        let writer = scenario.write(&Plan::default());
        for _ in 0..4 {
            let relay = scenario.start().await;
            let seen = scenario.ledger.lock().unwrap().seen().len();
            scenario.seen(seen + 500).await;
            assert!(relay.terminate().await.success());
        }
        writer.finish().await;
        let relay = scenario.start().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, 4 SIGTERM"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_restarted_fast_and_immediately() {
    for version in versions() {
        let postgres = Postgres::start(version, &[]).await;
        let scenario = Scenario::new(&postgres, shared_kafka().await).await;
        let _consumer = scenario.consume();
        let relay = scenario.start().await;
        let writer = scenario.write(&Plan::default());
        for mode in [StopMode::Fast, StopMode::Immediate, StopMode::Fast, StopMode::Immediate] {
            let seen = scenario.ledger.lock().unwrap().seen().len();
            scenario.seen(seen + 500).await;
            postgres.stop(mode).await;
            postgres.start_again().await;
        }
        let seen = scenario.ledger.lock().unwrap().seen().len();
        scenario.seen(seen + 500).await;
        writer.finish().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        // The relay lived on, and recognised what the server sent again.
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, 4 restarts of the server"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_and_relay_are_killed_together() {
    for version in versions() {
        let postgres = Postgres::start(version, &[]).await;
        let scenario = Scenario::new(&postgres, shared_kafka().await).await;
        let _consumer = scenario.consume();
        let writer = scenario.write(&Plan::default());
        let mut allowed = 0;
        for _ in 0..3 {
            let relay = small(&scenario).start();
            let seen = scenario.ledger.lock().unwrap().seen().len();
            scenario.seen(seen + 1_000).await;
            tokio::join!(postgres.kill(), relay.kill());
            postgres.start_again().await;
            // What the server has forgotten of the confirmations: everything from where the slot stands now.
            let sql = scenario.sql().await;
            let query = "select lpad(upper(to_hex((confirmed_flush_lsn - '0/0')::bigint)), 16, '0') from pg_replication_slots where slot_name = $1";
            let confirmed: String = sql.query_one(query, &[&scenario.slot]).await.unwrap().get(0);
            let ledger = scenario.ledger.lock().unwrap();
            allowed += ledger.seen().iter().filter(|record| record.position.get(..16) >= Some(&confirmed)).count();
            allowed += bound(1, WINDOW, ROWS);
        }
        writer.finish().await;
        let relay = scenario.start().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, server and relay killed 3 times"), allowed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_is_paused_and_killed() {
    for version in versions() {
        let kafka = Kafka::start().await;
        let scenario = Scenario::new(shared_postgres(version).await, &kafka).await;
        let _consumer = scenario.consume();
        let relay = scenario.start().await;
        let writer = scenario.write(&Plan::default());
        scenario.seen(500).await;
        kafka.pause().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        // Two windows of 16 MiB, and the program itself.
        assert!(relay.peak_mib() < 96, "{} MiB while the broker was paused", relay.peak_mib());
        kafka.unpause().await;
        let seen = scenario.ledger.lock().unwrap().seen().len();
        scenario.seen(seen + 500).await;
        for _ in 0..2 {
            kafka.kill().await;
            kafka.start_again().await;
            let seen = scenario.ledger.lock().unwrap().seen().len();
            scenario.seen(seen + 500).await;
        }
        writer.finish().await;
        scenario.settle().await;
        let log = relay.log();
        let rewinds = log.matches("sent again, in order").count();
        assert!(relay.terminate().await.success());
        // Only a new producer may repeat, and each at most a window.
        let test = format!("PostgreSQL {version}, Kafka paused once and killed twice, {rewinds} rewinds");
        scenario.judge().assert_clean(&test, bound(rewinds, 20_000, ROWS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_walsender_is_terminated() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let _consumer = scenario.consume();
        let relay = scenario.start().await;
        let writer = scenario.write(&Plan::default());
        let sql = scenario.sql().await;
        for _ in 0..5 {
            let seen = scenario.ledger.lock().unwrap().seen().len();
            scenario.seen(seen + 300).await;
            let query =
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active";
            until("the walsender to be terminated", Duration::from_secs(30), || async {
                let row = sql.query_opt(query, &[&scenario.slot]).await.unwrap();
                if row.is_some_and(|row| row.get(0)) { Ok(()) } else { Err("the slot is not in use") }
            })
            .await;
        }
        writer.finish().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, walsender terminated 5 times"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_are_absent_at_the_start() {
    for version in versions() {
        let kafka = Kafka::start().await;
        let scenario = Scenario::new(shared_postgres(version).await, &kafka).await;
        kafka.kill().await;
        let mut relay = scenario.start().await;
        scenario.write(&Plan { events: Some(2_000), ..Plan::default() }).done().await;
        assert!(!relay.has_ended());
        kafka.start_again().await;
        let _consumer = scenario.consume();
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, brokers absent at the start"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fast_shutdown_is_not_held_up_by_a_paused_broker() {
    for version in versions() {
        let kafka = Kafka::start().await;
        let postgres = Postgres::start(version, &[]).await;
        let scenario = Scenario::new(&postgres, &kafka).await;
        let _consumer = scenario.consume();
        let relay = scenario.start().await;
        let writer = scenario.write(&Plan::default());
        scenario.seen(500).await;

        let begin = std::time::Instant::now();
        postgres.stop(StopMode::Fast).await;
        assert!(begin.elapsed() < Duration::from_secs(5), "a fast stop took {:?}", begin.elapsed());
        postgres.start_again().await;

        let seen = scenario.ledger.lock().unwrap().seen().len();
        scenario.seen(seen + 500).await;
        kafka.pause().await;
        let committed = writer.committed();
        until("events without an acknowledgement", Duration::from_secs(30), || async {
            if writer.committed() > committed + 500 { Ok(()) } else { Err("too few yet") }
        })
        .await;
        let begin = std::time::Instant::now();
        postgres.stop(StopMode::Fast).await;
        let took = begin.elapsed();
        kafka.unpause().await;
        postgres.start_again().await;
        assert!(took < Duration::from_secs(5), "a fast stop with a paused broker took {took:?}");
        writer.finish().await;
        scenario.settle().await;
        let rewinds = relay.log().matches("sent again, in order").count()
            + relay.log().matches("nothing is published until").count();
        assert!(relay.terminate().await.success());
        let test = format!("PostgreSQL {version}, fast stops ({took:?} with a paused broker)");
        scenario.judge().assert_clean(&test, bound(rewinds, 20_000, ROWS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_larger_than_the_window_passes() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let _consumer = scenario.consume();
        let mut relay = scenario.relay().flag("--window-events", "100").flag("--window-bytes", "128KiB").start();
        relay.ready().await;
        let plan = Plan {
            events: Some(5_000),
            connections: 1,
            rows_per_transaction: 5_000,
            rolled_back_of_ten: 0,
            ..Plan::default()
        };
        scenario.write(&plan).done().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, 5,000 rows through a window of 100"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_stops_the_publishing_and_nothing_is_lost() {
    for version in versions() {
        let (postgres, kafka) = (Postgres::start(version, &[]).await, Kafka::start().await);
        let scenario = Scenario::new(&postgres, &kafka).await;
        let _consumer = scenario.consume();
        let mut relay = scenario.relay().flag("--silence", "2s").flag("--publish-stall", "1s").start();
        let writer = scenario.write(&Plan::default());
        scenario.seen(500).await;
        kafka.pause().await;
        relay.logged("stalled: the oldest event").await;
        postgres.pause().await;
        relay.logged("nothing is published until it speaks again").await;
        kafka.unpause().await;
        postgres.unpause().await;
        relay.logged("a new producer sends again").await;
        relay.logged("no longer stalled").await;
        let seen = scenario.ledger.lock().unwrap().seen().len();
        scenario.seen(seen + 500).await;
        writer.finish().await;
        scenario.settle().await;
        assert!(relay.terminate().await.success());
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, silent for 2 s"), bound(1, 20_000, ROWS));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_within_its_limit_and_a_second_signal_at_once() {
    let kafka = Kafka::start().await;
    let scenario = Scenario::new(shared_postgres(versions()[0]).await, &kafka).await;
    let _consumer = scenario.consume();
    let writer = scenario.write(&Plan::default());
    for (limit, second_signal) in [("1s", false), ("1h", true)] {
        let mut relay = scenario.relay().flag("--drain-limit", limit).start();
        let committed = writer.committed();
        until("events that were committed since the start", Duration::from_secs(30), || async {
            let arrived = scenario.ledger.lock().unwrap().arrived();
            if arrived > committed { Ok(()) } else { Err(format!("{arrived} of {committed} have arrived")) }
        })
        .await;
        kafka.pause().await;
        let committed = writer.committed();
        until("events without an acknowledgement", Duration::from_secs(30), || async {
            if writer.committed() > committed + 100 { Ok(()) } else { Err("too few yet") }
        })
        .await;
        relay.signal(rustix::process::Signal::TERM);
        relay.logged("stopping: ").await;
        if second_signal {
            relay.signal(rustix::process::Signal::INT);
        }
        assert!(relay.ended(Duration::from_secs(10)).await.success());
        assert!(relay.log().contains("stopped without an acknowledgement"), "{}", relay.log());
        kafka.unpause().await;
    }
    writer.finish().await;
    let relay = scenario.start().await;
    scenario.settle().await;
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("2 stops with a paused broker", bound(2, 20_000, ROWS));
}
