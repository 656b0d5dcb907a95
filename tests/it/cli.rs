//! The command line: setup and drop, and settings that are refused.

use std::time::Duration;

use crate::harness::ledger::AssertClean as _;
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, ProcessPostgres, shared_kafka, shared_postgres, until, versions};
use crate::harness::writer::Plan;

async fn outboxd(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_outboxd"));
    let output = command.args(arguments).env_remove("OUTBOXD_DATABASE_URL").envs(environment.iter().copied()).output();
    let output = output.await.unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn all_mistakes_are_reported_together_before_anything_is_opened() {
    let arguments = [
        "run",
        "--database-url",
        "postgresql://u:hunter2@h/d?sslmode=require",
        "--table",
        "outbox",
        "--topic",
        "a b",
        "-X",
        "acks=1",
        "-X",
        "sasl.password=hunter2",
        "-X",
        "linger.ms=x",
        "--window-bytes",
        "1",
        "--silence",
        "soon",
    ];
    let (code, text) = outboxd(&arguments, &[]).await;
    assert_eq!(code, Some(64), "{text}");
    for part in [
        "--database-url: has a password",
        "sslmode",
        "--table: expected schema.table",
        "--topic: ' '",
        "-X acks: acks cannot be set",
        "-X sasl.password: sasl.password is a secret",
        "-X or -F",
        "--window-bytes: must be at least",
        "--silence",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_are_not_utf_8_are_refused_by_name() {
    use std::os::unix::ffi::OsStrExt as _;
    for name in ["PGUSER", "PGPASSWORD", "OUTBOXD_KAFKA_PROPERTIES", "OUTBOXD_SOURCE"] {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_outboxd"));
        command.arg("run").env(name, std::ffi::OsStr::from_bytes(b"\xff\xfe=x"));
        let output = command.output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{name}: {text}");
        assert!(name == "OUTBOXD_SOURCE" || text.contains(name), "{name} is missing in {text}");
    }
    let (code, text) = outboxd(&["run", "--slot", "Bad Slot"], &[]).await;
    assert_eq!(code, Some(64));
    assert!(text.contains("--slot: \"Bad Slot\": a slot's name has lower-case letters"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_flags_have_the_exit_code_of_a_wrong_setting() {
    assert_eq!(outboxd(&["run", "--no-such-flag"], &[]).await.0, Some(64));
    assert_eq!(outboxd(&["--help"], &[]).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_and_drop_can_be_repeated_and_a_dry_run_changes_nothing() {
    for version in versions() {
        let postgres = shared_postgres(version).await;
        let database = postgres.create_database().await;
        let scenario = Scenario::on(postgres, &database, "");
        let sql = postgres.sql(&database).await;
        let there = || async {
            let query = "select (select count(*) from pg_publication) + (select count(*) from pg_replication_slots where \
                         database = current_database()) + (select count(*) from pg_namespace where nspname = 'outboxd')";
            sql.query_one(query, &[]).await.unwrap().get::<_, i64>(0)
        };
        let planned = scenario.setup(&["--dry-run"]).await;
        for part in ["CREATE TABLE \"outboxd\".\"outbox\"", "CREATE PUBLICATION", "pg_create_logical_replication_slot"]
        {
            assert!(planned.contains(part), "{planned}");
        }
        assert_eq!(there().await, 0);
        let done = scenario.setup(&[]).await;
        assert_eq!(done.matches("done: ").count(), 5, "{done}");
        assert_eq!(there().await, 3);
        let again = scenario.setup(&["--json"]).await;
        assert_eq!(again.matches("\"state\":\"present\"").count(), 2, "{again}");
        assert_eq!(there().await, 3);

        if version >= 15 {
            let query = "select string_agg(a, ' ' order by a) from pg_publication_tables, unnest(attnames) a";
            let columns: String = sql.query_one(query, &[]).await.unwrap().get(0);
            assert_eq!(columns, "aggregate_id aggregate_type event_type headers id payload");
        }
        if version >= 17 {
            let query = "select failover from pg_replication_slots where slot_name = $1";
            assert!(sql.query_one(query, &[&scenario.slot]).await.unwrap().get::<_, bool>(0));
        }
        for _ in 0..2 {
            let drop = scenario.outboxd("drop").args(["--slot", &scenario.slot]).output().await.unwrap();
            assert!(drop.status.success(), "{}", String::from_utf8_lossy(&drop.stderr));
            assert_eq!(there().await, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_changed_is_refused() {
    let postgres = shared_postgres(versions()[0]).await;
    let scenario = Scenario::without_topic(postgres, "").await;
    scenario.sql().await.batch_execute("update outboxd.migration set checksum = 'x' where version = 1").await.unwrap();
    let setup = scenario.outboxd("setup").args(["--slot", &scenario.slot]).output().await.unwrap();
    assert_eq!(setup.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&setup.stderr).contains("0001_schema"));
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_names_the_transaction_that_the_slot_waits_for() {
    for version in versions() {
        let postgres = shared_postgres(version).await;
        let database = postgres.create_database().await;
        let scenario = Scenario::on(postgres, &database, "");
        let old = postgres.sql(&database).await;
        let pid: i32 = old.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
        old.batch_execute("begin; select pg_current_xact_id()").await.unwrap();
        let mut setup = scenario.outboxd("setup");
        setup.args(["--slot", &scenario.slot]).stdout(std::process::Stdio::piped());
        let mut child = setup.spawn().unwrap();
        let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
        let waits_for = format!("pid {pid} ");
        loop {
            let line = tokio::time::timeout(Duration::from_secs(20), lines.next_line()).await.unwrap().unwrap();
            let line = line.expect("setup waits for the open transaction and says so");
            if line.contains(&waits_for) {
                break;
            }
        }
        old.batch_execute("commit").await.unwrap();
        assert!(child.wait().await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_in_use_is_waited_for() {
    let postgres = shared_postgres(versions()[0]).await;
    let scenario = Scenario::without_topic(postgres, "127.0.0.1:1").await;
    let first = scenario.start().await;
    // For longer than it would wait for a server that cannot be reached.
    let mut second = scenario.relay().flag("--start-limit", "1s").start();
    until("several attempts", Duration::from_secs(30), || async {
        let attempts = second.log().matches("is active for PID").count();
        if attempts >= 5 { Ok(()) } else { Err(attempts) }
    })
    .await;
    // With the reader's process id, name and age.
    let log = second.log();
    let told =
        log.lines().find(|line| line.contains("it is read by the server process ")).unwrap_or_else(|| panic!("{log}"));
    assert!(told.contains("(outboxd from ") && told.contains("connected for 00:00:"), "{told}");
    let drop = scenario.outboxd("drop").args(["--slot", &scenario.slot]).output().await.unwrap();
    assert_eq!(drop.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&drop.stderr).contains("is in use by the server process"));
    assert!(first.terminate().await.success());
    second.ready().await;
    assert!(second.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_log_in_works() {
    let postgres = Postgres::start(versions()[0], &[]).await;
    let scenario = Scenario::without_topic(&postgres, "127.0.0.1:1").await;
    let sql = scenario.sql().await;
    // SCRAM is what all other tests use over TCP.
    sql.batch_execute(
        "set password_encryption = 'md5'; create role by_md5 superuser replication login password 'secret'",
    )
    .await
    .unwrap();
    let file: String = sql.query_one("show hba_file", &[]).await.unwrap().get(0);
    let hba = "host all by_md5 all md5\nhost all by_password all password\nhost all by_trust all trust\n\
               local all all trust\nhost all all all scram-sha-256\n";
    sql.batch_execute("create role by_password superuser replication login password 'secret'").await.unwrap();
    sql.batch_execute("create role by_trust superuser replication login").await.unwrap();
    // COPY TO PROGRAM writes where the server's file is, in a container too.
    let lines = hba.trim_end().split('\n').map(|line| format!("('{line}')")).collect::<Vec<_>>().join(", ");
    sql.batch_execute(&format!("copy (values {lines}) to '{file}'")).await.unwrap();
    sql.batch_execute("select pg_reload_conf()").await.unwrap();
    for (user, password) in [("by_md5", "secret"), ("by_password", "secret"), ("by_trust", "")] {
        let mut command = scenario.relay();
        command.database_url = format!(
            "host=127.0.0.1 port={} user={user} password='{password}' dbname={}",
            postgres.port(),
            scenario.database
        );
        until("the new rules", Duration::from_secs(10), || async {
            let config = &command.database_url;
            tokio_postgres::connect(config, tokio_postgres::NoTls).await.map(drop).map_err(|error| format!("{error:?}"))
        })
        .await;
        let mut relay = command.start();
        relay.ready().await;
        assert!(relay.terminate().await.success(), "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_beyond_the_limit_is_named_and_the_socket_works_too() {
    let postgres = ProcessPostgres::start(versions()[0], &[]).await;
    let kafka = shared_kafka().await;
    let scenario = Scenario::new(&postgres, kafka).await;
    let _consumer = scenario.consume();
    let mut command = scenario.relay().flag("--max-message-bytes", "100KiB").flag("--on-failure", "halt");
    command.database_url = postgres.socket_conninfo(&scenario.database);
    let mut relay = command.start();
    relay.ready().await;
    let plan =
        Plan { events: Some(1), connections: 1, rows_per_transaction: 1, rolled_back_of_ten: 0, ..Plan::default() };
    scenario.write(&Plan { payload_bytes: 200_000, ..plan }).done().await;
    assert_eq!(relay.ended(Duration::from_secs(30)).await.code(), Some(65), "{}", relay.log());
    assert!(relay.log().contains("raise --max-message-bytes"), "{}", relay.log());

    let mut relay = command.flag("--max-message-bytes", "1MiB").start();
    relay.ready().await;
    scenario.settle().await;
    assert!(relay.terminate().await.success());
    scenario.judge().assert_clean("a row beyond the limit", 0);
}
