//! Every wrong turn of a first hour: one clear message that names the thing and the remedy, the exit code of its class, and
//! nothing lost.

use std::time::Duration;

use crate::harness::ledger::AssertClean as _;
use crate::harness::relay::RelayCommand;
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, ProcessPostgres, StopMode, shared_kafka, shared_postgres, versions};
use crate::harness::writer::Plan;

/// A relay that ends by itself with this code, having said all of these.
async fn ends(command: &RelayCommand, code: i32, parts: &[&str]) {
    let mut relay = command.start();
    let status = relay.ended(Duration::from_secs(40)).await;
    let log = relay.log();
    assert_eq!(status.code(), Some(code), "{log}");
    let last = log.lines().rev().find(|line| line.starts_with("outboxd: ")).unwrap_or_default();
    for part in parts {
        assert!(last.contains(part), "{part:?} is missing in the last line of:\n{log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
    println!("{code}: {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wrong_turn_has_its_message_its_code_and_loses_nothing() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let sql = scenario.sql().await;
        scenario.write(&Plan { events: Some(500), ..Plan::default() }).done().await;
        let relay = || {
            let relay = scenario.relay().flag("--start-limit", "1s").flag("--topic-wait", "1s");
            relay.flag("--on-failure", "halt")
        };

        wrong_addresses(&scenario).await;
        for (flag, value, code, parts) in [
            ("--slot", "absent", 78, ["the replication slot \"absent\" does not exist", "`outboxd setup`"]),
            ("--publication", "absent", 78, ["the publication \"absent\" does not exist", "`outboxd setup`"]),
            (
                "--table",
                "public.absent",
                78,
                ["does not cover the table public.absent", "ADD TABLE \"public\".\"absent\""],
            ),
            ("--topic", "absent", 78, ["the topic absent does not exist", "create it"]),
            ("--topic", "{aggregate}", 78, ["no column aggregate, which --topic names", "aggregate_id is the nearest"]),
            ("--topic", "{aggregate", 64, ["--topic: a brace is not closed", "a brace"]),
            ("--window-events", "many", 64, ["--window-events: ", "is no number"]),
        ] {
            ends(&relay().flag(flag, value), code, &parts).await;
        }
        shared_kafka().await.no_topic_begins_with("absent").await;

        let plain = format!("{}_plain", scenario.slot);
        sql.execute("select pg_create_logical_replication_slot($1, 'test_decoding')", &[&plain]).await.unwrap();
        ends(&relay().flag("--slot", &plain), 78, &["test_decoding instead of pgoutput", "--slot"]).await;
        sql.execute("select pg_drop_replication_slot($1)", &[&plain]).await.unwrap();

        sql.batch_execute(
            "create table public.notes (n uuid, payload json); create publication notes for table public.notes",
        )
        .await
        .unwrap();
        let notes = relay().flag("--table", "public.notes").flag("--publication", "notes");
        ends(&notes, 78, &["id or event_id", "published are: n, payload", "Add what is missing"]).await;
        sql.batch_execute("alter publication outboxd set (publish = 'update')").await.unwrap();
        ends(&relay(), 78, &["does not publish inserts", "SET (publish = 'insert')"]).await;
        sql.batch_execute("alter publication outboxd set (publish = 'insert')").await.unwrap();

        let _consumer = scenario.consume();
        let good = scenario.start().await;
        scenario.settle().await;
        assert!(good.terminate().await.success());
        scenario.judge().assert_clean(&format!("every wrong turn on {version}"), 0);
    }
}

async fn wrong_addresses(scenario: &Scenario) {
    let port = scenario.conninfo.split_whitespace().find(|part| part.starts_with("port=")).unwrap();
    for (from, to, code, parts) in [
        ("password=outboxd-tests", "password=hunter2", 77, ["password authentication failed", "PGPASSWORD"]),
        ("host=127.0.0.1", "host=no-such-host.invalid", 69, ["host no-such-host.invalid", "are host and port right"]),
        (port, "port=1", 69, ["refused", "are host and port right"]),
        (
            &format!("dbname={}", scenario.database),
            "dbname=absent",
            78,
            ["database \"absent\" does not exist", "PGDATABASE"],
        ),
    ] {
        let mut command = scenario.relay().flag("--start-limit", "1s");
        command.database_url = command.database_url.replace(from, to);
        ends(&command, code, &parts).await;
        for other in ["setup", "status"] {
            let mut command = scenario.outboxd(other);
            let output =
                command.env("OUTBOXD_DATABASE_URL", scenario.conninfo.replace(from, to)).output().await.unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{other}: {text}");
            assert!(parts.iter().all(|part| text.contains(part)), "{other}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_set_up_for_this_is_named() {
    let version = *versions().last().unwrap();
    let postgres = Postgres::start(version, &[("wal_level", "replica")]).await;
    let database = postgres.create_database().await;
    let scenario = Scenario::on(&postgres, &database, "127.0.0.1:1");
    ends(&scenario.relay(), 78, &["wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'"]).await;
    let setup = scenario.outboxd("setup").output().await.unwrap();
    assert_eq!(setup.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&setup.stderr).contains("ALTER SYSTEM SET wal_level = 'logical'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_named_and_waited_for_until_it_is_the_primary() {
    let version = *versions().last().unwrap();
    let postgres = ProcessPostgres::start(version, &[]).await;
    let scenario = Scenario::without_topic(&postgres, "127.0.0.1:1").await;
    postgres.stop(StopMode::Fast).await;
    let copy = postgres.copy_data().await;
    postgres.start_again().await;
    let standby = postgres.start_standby(&copy, &[]).await;
    let mut command = scenario.relay().flag("--start-limit", "1s");
    command.database_url = standby.conninfo(&scenario.database);
    ends(&command, 69, &["this server is a standby", "target_session_attrs=primary"]).await;
    let mut command = scenario.relay();
    command.database_url = standby.conninfo(&scenario.database);
    let mut relay = command.start();
    relay.logged("this server is a standby").await;
    standby.promote().await;
    relay.ready().await;
    assert!(relay.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_do_not_answer_are_named_and_waited_for() {
    let scenario = Scenario::new(shared_postgres(versions()[0]).await, shared_kafka().await).await;
    scenario.write(&Plan { events: Some(100), ..Plan::default() }).done().await;
    let mut relay = scenario.relay().flag("--brokers", "127.0.0.1:1").flag("--request-timeout", "1s").start();
    relay.logged("no answer from the brokers 127.0.0.1:1").await;
    let log = relay.log();
    let told = log.lines().find(|line| line.contains("no answer from the brokers")).unwrap();
    assert!(told.contains("is --brokers right?") && told.contains("outboxd check"), "{told}");
    assert!(!relay.has_ended());
    assert!(relay.terminate().await.success());
    let _consumer = scenario.consume();
    let good = scenario.start().await;
    scenario.settle().await;
    assert!(good.terminate().await.success());
    scenario.judge().assert_clean("brokers that did not answer", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_younger_than_the_slot_is_named() {
    for version in versions() {
        let scenario = Scenario::without_topic(shared_postgres(version).await, "127.0.0.1:1").await;
        let sql = scenario.sql().await;
        let late = format!("{}_late", scenario.database);
        sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", &[&late]).await.unwrap();
        let event = "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                     values (gen_random_uuid(), 't', 'k', 'e', '1')";
        sql.batch_execute(event).await.unwrap();
        sql.batch_execute("create publication late for table outboxd.outbox with (publish = 'insert')").await.unwrap();
        let command = scenario.relay().flag("--slot", &late).flag("--publication", "late");
        // An error until 17, a warning from 18 on.
        ends(&command, 78, &["publication \"late\"", "was created after the slot", "create it again"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ready_line_shows_every_setting_and_its_source() {
    let scenario = Scenario::without_topic(shared_postgres(versions()[0]).await, "127.0.0.1:1").await;
    let mut relay = scenario.relay().flag("-X", "linger.ms=2").start();
    relay.ready().await;
    let log = relay.log();
    let line = log.lines().find(|line| line.contains("ready: ")).unwrap();
    for part in [
        &format!("database={} [OUTBOXD_DATABASE_URL]", scenario.database),
        "password=given [OUTBOXD_DATABASE_URL]",
        &format!("slot={} [--slot]", scenario.slot),
        "brokers=127.0.0.1:1 [--brokers]",
        "publication=outboxd ",
        "window-bytes=16MiB ",
        "silence=5s ",
        "librdkafka=linger.ms [-X]",
    ] {
        assert!(line.contains(part), "{part:?} is missing in {line}");
    }
    assert!(!line.contains("outboxd-tests"), "{line}");
    assert!(relay.terminate().await.success());
}
