//! `outboxd check`: every finding provoked on real servers, and seen to go.

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;

use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, ProcessPostgres, shared_kafka, shared_postgres, unique, until, versions};

/// What `check --json` printed.
struct Report {
    code: Option<i32>,
    ok: bool,
    findings: Vec<Value>,
}

impl Report {
    /// The worst finding of this check with this grade.
    fn find(&self, check: &str, grade: &str) -> Option<&Value> {
        self.findings.iter().find(|finding| finding["check"] == check && finding["grade"] == grade)
    }

    fn assert_found(&self, check: &str, grade: &str) -> &Value {
        let found = self.find(check, grade).unwrap_or_else(|| panic!("no {grade} of {check} in {:#?}", self.findings));
        let has_remedy = found["remedy"].is_string();
        assert_eq!(has_remedy, matches!(grade, "error" | "warning"), "{found}");
        assert_eq!(self.code, Some(i32::from(!self.ok)));
        assert!(grade != "error" || !self.ok);
        found
    }

    fn assert_gone(&self, check: &str) {
        let bad = |grade| self.find(check, grade);
        assert!(bad("error").or_else(|| bad("warning")).is_none(), "{check} is still there in {:#?}", self.findings);
    }
}

async fn check(scenario: &Scenario, arguments: &[&str]) -> Report {
    check_at(scenario, &scenario.conninfo, arguments).await
}

async fn check_at(scenario: &Scenario, conninfo: &str, arguments: &[&str]) -> Report {
    let mut command = scenario.outboxd("check");
    command.env("OUTBOXD_DATABASE_URL", conninfo);
    // The last of a flag that comes twice counts.
    command.args(["--json", "--slot", &scenario.slot, "--brokers", &scenario.bootstrap, "--topic", &scenario.topic]);
    let output = command.args(arguments).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(text.trim()).unwrap_or_else(|error| {
        panic!("{error} in {text:?} and {}", String::from_utf8_lossy(&output.stderr));
    });
    let findings = report["findings"].as_array().unwrap().clone();
    Report { code: output.status.code(), ok: report["ok"].as_bool().unwrap(), findings }
}

pub(crate) async fn insert(sql: &Client, aggregate_type: &str, payload_bytes: usize, created_at: &str) {
    let payload = format!("\"{}\"", "x".repeat(payload_bytes));
    let statement = format!(
        "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at) \
         values (gen_random_uuid(), $1, 'k', 'e', ('{payload}')::json, {created_at})"
    );
    sql.execute(&statement, &[&aggregate_type]).await.unwrap();
}

/// A server of its own: other tests' slots and settings would be seen.
async fn own(version: u32) -> (Postgres, Scenario) {
    let settings = [("max_replication_slots", "4"), ("max_wal_senders", "2")];
    let postgres = Postgres::start(version, &settings).await;
    let scenario = Scenario::new(&postgres, shared_kafka().await).await;
    (postgres, scenario)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_publication_and_table_is_found_and_goes_with_its_remedy() {
    for version in versions() {
        let (_postgres, scenario) = own(version).await;
        let sql = scenario.sql().await;
        let healthy = check(&scenario, &[]).await;
        assert!(healthy.ok && healthy.code == Some(0), "{:#?}", healthy.findings);
        let worse = |finding: &&Value| finding["grade"] == "warning" || finding["grade"] == "error";
        assert_eq!(healthy.findings.iter().filter(worse).count(), 0, "{:#?}", healthy.findings);

        let all = "alter publication outboxd set table outboxd.outbox";
        let columns = "alter publication outboxd set table outboxd.outbox (id, payload)";
        let filter = "alter publication outboxd set table outboxd.outbox where (event_type <> 'x')";
        for (since, provoke, check_name, grade, undo) in [
            (14, "alter publication outboxd set (publish = 'update')", "publication_inserts", "error", None),
            (14, "alter publication outboxd set (publish = 'insert, delete')", "publication_ballast", "warning", None),
            (
                14,
                "create table other (); alter publication outboxd add table other",
                "publication_ballast",
                "warning",
                Some("drop table other"),
            ),
            (14, "alter publication outboxd drop table outboxd.outbox", "publication_covers", "error", Some(all)),
            (15, columns, "publication_columns", "error", None),
            (15, filter, "publication_filter", "warning", None),
            (
                14,
                "alter publication outboxd drop table outboxd.outbox; alter table outboxd.outbox set unlogged",
                "table",
                "error",
                None,
            ),
        ] {
            if version < since {
                continue;
            }
            sql.batch_execute(provoke).await.unwrap();
            let report = check(&scenario, &[]).await;
            let remedy = report.assert_found(check_name, grade)["remedy"].as_str().unwrap();
            sql.batch_execute(undo.unwrap_or(remedy)).await.unwrap_or_else(|error| panic!("{remedy}: {error:?}"));
            check(&scenario, &[]).await.assert_gone(check_name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_views_and_tables_that_are_no_outbox_are_found() {
    let postgres = shared_postgres(*versions().last().unwrap()).await;
    let scenario = Scenario::without_topic(postgres, "127.0.0.1:1").await;
    let sql = scenario.sql().await;
    sql.batch_execute(
        "create table public.parted (id uuid, aggregate_type text, aggregate_id text, event_type text, payload json) \
           partition by hash (id); \
         create table public.part partition of public.parted for values with (modulus 1, remainder 0); \
         create publication parted for table public.parted with (publish = 'insert'); \
         create view public.seen as select * from public.parted; \
         create table public.notes (n int, payload json)",
    )
    .await
    .unwrap();
    let parted = ["--publication", "parted", "--table", "public.parted"];
    let report = check(&scenario, &parted).await;
    let remedy = report.assert_found("publication_root", "error")["remedy"].as_str().unwrap();
    sql.batch_execute(remedy).await.unwrap();
    let report = check(&scenario, &parted).await;
    report.assert_gone("publication_root");
    report.assert_gone("publication_covers");
    check(&scenario, &["--table", "public.seen"]).await.assert_found("table", "error");
    check(&scenario, &["--table", "public.absent"]).await.assert_found("table", "error");
    check(&scenario, &["--table", "public.notes"]).await.assert_found("table_columns", "error");
    check(&scenario, &["--publication", "absent"]).await.assert_found("publication", "error");
    // Both ends at once.
    check(&scenario, &["--table", "public.absent"]).await.assert_found("brokers", "error");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_role_lacks_is_found_and_goes_with_its_remedy() {
    let postgres = shared_postgres(versions()[0]).await;
    let mut scenario = Scenario::new(postgres, shared_kafka().await).await;
    let sql = scenario.sql().await;
    let role = unique("role");
    sql.batch_execute(&format!("create role {role} login password 'outboxd-tests'")).await.unwrap();
    scenario.conninfo = scenario.conninfo.replace("user=postgres", &format!("user={role}"));
    let report = check(&scenario, &[]).await;
    report.assert_found("replication", "error");
    let grants = report.assert_found("table_privilege", "warning")["remedy"].as_str().unwrap();
    sql.batch_execute(grants).await.unwrap();
    sql.batch_execute(&format!("alter role {role} replication; alter table outboxd.outbox enable row level security"))
        .await
        .unwrap();
    let report = check(&scenario, &[]).await;
    report.assert_gone("replication");
    report.assert_gone("table_privilege");
    let remedy = report.assert_found("row_security", "warning")["remedy"].as_str().unwrap();
    sql.batch_execute(remedy).await.unwrap();
    check(&scenario, &[]).await.assert_gone("row_security");

    scenario.conninfo = scenario.conninfo.replace("password=outboxd-tests", "password=wrong");
    let report = check(&scenario, &[]).await;
    let what = report.assert_found("database", "error")["what"].as_str().unwrap();
    assert!(what.contains("password authentication failed"), "{what}");
    report.assert_gone("brokers");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_slot_is_found_and_goes() {
    for version in versions() {
        let (_postgres, scenario) = own(version).await;
        let sql = scenario.sql().await;
        let (slot, other) = (&scenario.slot, "other");
        check(&scenario, &["--slot", "absent"]).await.assert_found("slot", "error");
        for (create, drop_it) in [
            ("select pg_create_logical_replication_slot('other', 'test_decoding')", true),
            ("select pg_create_physical_replication_slot('other')", true),
            ("select pg_create_logical_replication_slot('other', 'pgoutput', true)", true),
            ("select pg_create_logical_replication_slot('other', 'pgoutput')", false),
        ] {
            sql.batch_execute(create).await.unwrap();
            let report = check(&scenario, &["--slot", other]).await;
            if drop_it {
                report.assert_found("slot", "error");
                sql.batch_execute("select pg_drop_replication_slot('other')").await.unwrap();
            } else {
                report.assert_gone("slot");
            }
        }
        let elsewhere = scenario.conninfo.replace(&scenario.database, "postgres");
        check_at(&scenario, &elsewhere, &["--slot", other]).await.assert_found("slot", "error");

        // All four are taken.
        sql.batch_execute(
            "select pg_create_physical_replication_slot('p1'), pg_create_physical_replication_slot('p2')",
        )
        .await
        .unwrap();
        check(&scenario, &["--slot", "absent"]).await.assert_found("replication_slots", "error");
        sql.batch_execute("select pg_drop_replication_slot('p1'), pg_drop_replication_slot('p2')").await.unwrap();
        check(&scenario, &["--slot", "absent"]).await.assert_gone("replication_slots");

        // Both are taken.
        let relay = scenario.start().await;
        let second = scenario.relay().flag("--slot", other).start();
        until("both relays", Duration::from_secs(30), || async {
            let query = "select count(*) from pg_stat_replication";
            let count: i64 = sql.query_one(query, &[]).await.unwrap().get(0);
            if count == 2 { Ok(()) } else { Err(count) }
        })
        .await;
        check(&scenario, &["--slot", "absent"]).await.assert_found("wal_senders", "error");
        let active = check(&scenario, &[]).await;
        active.assert_found("slot_active", "note");
        active.assert_gone("publication_age");
        assert!(second.terminate().await.success());
        check(&scenario, &["--slot", "absent"]).await.assert_gone("wal_senders");
        assert!(relay.terminate().await.success());

        age(&scenario, version, &sql).await;
        limits(&scenario, version, &sql, slot).await;
    }
}

/// A publication that was made after the slot.
async fn age(scenario: &Scenario, version: u32, sql: &Client) {
    sql.batch_execute("create table public.late (like outboxd.outbox including all)").await.unwrap();
    insert(sql, "t", 1, "now()").await;
    sql.batch_execute("create publication late for table public.late with (publish = 'insert')").await.unwrap();
    let late = ["--slot", "other", "--publication", "late", "--table", "public.late"];
    let grade = if version < 18 { "error" } else { "warning" };
    check(scenario, &late).await.assert_found("publication_age", grade);
    sql.batch_execute("select pg_drop_replication_slot('other')").await.unwrap();
    sql.batch_execute("select pg_create_logical_replication_slot('other', 'pgoutput')").await.unwrap();
    // The first slot has not read that far and would hold the second one's horizon back.
    let slot = &scenario.slot;
    sql.execute("select pg_replication_slot_advance($1, pg_current_wal_lsn())", &[slot]).await.unwrap();
    sql.batch_execute("select pg_drop_replication_slot('other')").await.unwrap();
    sql.batch_execute("select pg_create_logical_replication_slot('other', 'pgoutput')").await.unwrap();
    check(scenario, &late).await.assert_gone("publication_age");
}

async fn set(sql: &Client, setting: &str) {
    sql.batch_execute(&format!("alter system set {setting}")).await.unwrap();
    sql.batch_execute("select pg_reload_conf()").await.unwrap();
}

/// Settings that may cost the slot, and what happens when they do.
async fn limits(scenario: &Scenario, version: u32, sql: &Client, slot: &str) {
    check(scenario, &[]).await.assert_found("max_slot_wal_keep_size", "note");
    set(sql, "wal_sender_timeout = '8s'").await;
    until("the setting", Duration::from_secs(10), || async {
        check(scenario, &[]).await.find("wal_sender_timeout", "warning").map(drop).ok_or("not there")
    })
    .await;
    set(sql, "wal_sender_timeout = '60s'").await;
    if version >= 18 {
        set(sql, "idle_replication_slot_timeout = '1d'").await;
        until("the setting", Duration::from_secs(10), || async {
            check(scenario, &[]).await.find("idle_replication_slot_timeout", "warning").map(drop).ok_or("not there")
        })
        .await;
        set(sql, "idle_replication_slot_timeout = 0").await;
    }
    set(sql, "max_slot_wal_keep_size = '16MB'").await;
    for _ in 0..4 {
        sql.batch_execute(
            "create table if not exists public.filler (); drop table public.filler; select pg_switch_wal()",
        )
        .await
        .unwrap();
    }
    until("little room, or none", Duration::from_secs(10), || async {
        let report = check(scenario, &[]).await;
        let found = report.find("max_slot_wal_keep_size", "warning").or_else(|| report.find("slot_lost", "error"));
        found.map(drop).ok_or("not there")
    })
    .await;
    sql.batch_execute("checkpoint").await.unwrap();
    let report = check(scenario, &[]).await;
    report.assert_found("slot_lost", "error");
    report.assert_gone("wal_sender_timeout");
    report.assert_gone("idle_replication_slot_timeout");
    let status = scenario.outboxd("status").args(["--json", "--slot", slot]).output().await.unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["lost"], true, "{status}");
    set(sql, "max_slot_wal_keep_size = -1").await;
    let arguments = ["--slot", slot];
    assert!(scenario.outboxd("drop").args(arguments).output().await.unwrap().status.success());
    scenario.setup(&[]).await;
    let report = check(scenario, &[]).await;
    assert!(report.ok, "{:#?}", report.findings);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_topics_is_found_and_goes() {
    let kafka = shared_kafka().await;
    let postgres = shared_postgres(*versions().last().unwrap()).await;
    let scenario = Scenario::new(postgres, kafka).await;
    let (sql, topic) = (scenario.sql().await, scenario.topic.as_str());
    for (setting, name, grade, good) in [
        (("min.insync.replicas", "2"), "topic_copies", "error", ("min.insync.replicas", "1")),
        (("retention.ms", "60000"), "topic_retention", "warning", ("retention.ms", "604800000")),
        (("max.message.bytes", "4000"), "topic_size", "error", ("max.message.bytes", "1048588")),
    ] {
        insert(&sql, topic, 5_000, "now()").await;
        kafka.alter_topic(topic, &[setting]).await;
        check(&scenario, &[]).await.assert_found(name, grade);
        kafka.alter_topic(topic, &[good]).await;
        check(&scenario, &[]).await.assert_gone(name);
    }
    kafka.alter_topic(topic, &[("cleanup.policy", "compact")]).await;
    check(&scenario, &[]).await.assert_found("topic_compaction", "note");
    kafka.alter_topic(topic, &[("cleanup.policy", "delete")]).await;

    // An event that has waited for longer than the topic keeps it.
    insert(&sql, topic, 1, "now() - interval '8 days'").await;
    check(&scenario, &[]).await.assert_found("topic_retention", "warning");
    let relay = scenario.start().await;
    scenario.confirmed().await;
    assert!(relay.terminate().await.success());
    sql.batch_execute("delete from outboxd.outbox").await.unwrap();
    check(&scenario, &[]).await.assert_gone("topic_retention");

    // Topics by the rows' types.
    let prefix = unique("prefix");
    let template = format!("{prefix}.{{aggregate_type}}");
    let by_type = ["--topic", template.as_str()];
    check(&scenario, &by_type).await.assert_found("topic", "warning");
    insert(&sql, "order", 1, "now()").await;
    check(&scenario, &by_type).await.assert_found("topic", "error");
    let name = format!("{prefix}.order");
    kafka.no_topic_begins_with(&prefix).await;
    kafka.create_topic(&name, 3, &[]).await;
    check(&scenario, &by_type).await.assert_gone("topic");
    insert(&sql, "an order", 1, "now()").await;
    check(&scenario, &by_type).await.assert_found("topic", "error");

    let report = check(&scenario, &["--brokers", "127.0.0.1:1", "--request-timeout", "2s"]).await;
    let what = report.assert_found("brokers", "error")["what"].as_str().unwrap();
    assert!(what.contains("refused"), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_serve_is_found() {
    let version = *versions().last().unwrap();
    let postgres = ProcessPostgres::start(version, &[]).await;
    let scenario = Scenario::without_topic(&postgres, "127.0.0.1:1").await;
    postgres.stop(crate::harness::servers::StopMode::Fast).await;
    let copy = postgres.copy_data().await;
    postgres.start_again().await;
    let standby = postgres.start_standby(&copy, &[]).await;
    let on_standby = standby.conninfo(&scenario.database);
    check_at(&scenario, &on_standby, &[]).await.assert_found("primary", "error");
    check(&scenario, &[]).await.assert_gone("primary");
    standby.promote().await;
    check_at(&scenario, &on_standby, &[]).await.assert_gone("primary");

    let replica = Postgres::start(version, &[("wal_level", "replica")]).await;
    let database = replica.create_database().await;
    let plain = Scenario::on(&replica, &database, "127.0.0.1:1");
    check(&plain, &[]).await.assert_found("wal_level", "error");

    let ascii = unique("ascii");
    let sql = postgres.sql("postgres").await;
    let create = format!("create database {ascii} template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'");
    sql.batch_execute(&create).await.unwrap();
    let on_ascii = Scenario::on(&postgres, &ascii, "127.0.0.1:1");
    check(&on_ascii, &[]).await.assert_found("encoding", "warning");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_cannot_be_judged_is_not_called_good() {
    let postgres = Postgres::start(14, &[]).await;
    let scenario = Scenario::without_topic(&postgres, "127.0.0.1:1").await;
    let sql = scenario.sql().await;
    // More than the check reads before the first event.
    sql.batch_execute(
        "create table public.other (filler text); alter table public.other alter filler set storage external; \
         insert into public.other select repeat('x', 1000000) from generate_series(1, 30)",
    )
    .await
    .unwrap();
    insert(&sql, "t", 1, "now()").await;
    sql.batch_execute("alter publication outboxd set (publish = 'insert')").await.unwrap();
    let report = check(&scenario, &[]).await;
    let found = report.assert_found("publication_age", "warning");
    assert!(!found["remedy"].as_str().unwrap().contains("drop"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_and_rows_without_a_type_are_told() {
    let scenario = Scenario::without_topic(shared_postgres(versions()[0]).await, "127.0.0.1:1").await;
    let (sql, locking) = (scenario.sql().await, scenario.sql().await);
    locking.batch_execute("begin; lock table outboxd.outbox in access exclusive mode").await.unwrap();
    let report = check(&scenario, &["--request-timeout", "1s"]).await;
    report.assert_found("table_rows", "warning");
    report.assert_found("brokers", "error");
    locking.batch_execute("commit").await.unwrap();
    sql.batch_execute(
        "alter table outboxd.outbox alter aggregate_type drop not null; \
         insert into outboxd.outbox (id, aggregate_id, event_type) values (gen_random_uuid(), 'k', 'e')",
    )
    .await
    .unwrap();
    let report = check(&scenario, &["--request-timeout", "1s"]).await;
    report.assert_gone("table_rows");
    // One topic for all needs no type.
    report.assert_gone("table_nulls");
    let by_type = ["--request-timeout", "1s", "--topic", "{aggregate_type}"];
    check(&scenario, &by_type).await.assert_found("table_nulls", "warning");
}
