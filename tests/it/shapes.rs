//! Commands around the mapping: `explain`, `tail`, `--config`, and columns that are not there.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use rdkafka::message::{Message as _, OwnedMessage};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::harness::consumer::header;
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Postgres, shared_kafka, shared_postgres, until, versions};

/// A database without anything of ours, and a table in it.
async fn database(postgres: &Postgres, ddl: &str) -> Scenario {
    let scenario = Scenario::on(postgres, &postgres.create_database().await, "127.0.0.1:1");
    scenario.sql().await.batch_execute(ddl).await.unwrap();
    scenario
}

/// Runs a command to its end: the exit code, standard output, standard error.
async fn run(scenario: &Scenario, command: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = scenario.outboxd(command).args(arguments).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const TABLE: &str = "create table public.outbox (id int primary key, aggregate_type text, aggregate_id text, type text, \
    payload jsonb, raw bytea, tenant text)";

#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_what_becomes_of_a_row() {
    for version in versions() {
        let scenario = database(shared_postgres(version).await, TABLE).await;
        let sql = scenario.sql().await;
        sql.batch_execute(
            "insert into outbox values (7, 'order', 'o-7', 'Placed', '{\"a\": 1}', '\\x00ff', 'acme'), \
             (8, null, null, null, null, null, null)",
        )
        .await
        .unwrap();
        let mut config = tempfile::NamedTempFile::new().unwrap();
        let rule =
            "[[rule]]\nwhen = { tenant = 'ac*' }\ntopic = 'acme'\n[[rule]]\nwhen = { type = 'No*' }\ndrop = true\n";
        config.write_all(rule.as_bytes()).unwrap();
        let file = config.path().to_str().unwrap();
        let base = ["--table", "public.outbox", "--json", "--config", file];
        let explain = async |more: &[&str]| {
            let (code, out, err) = run(&scenario, "explain", &[&base[..], more].concat()).await;
            let json: serde_json::Value = serde_json::from_str(&out).unwrap_or_default();
            (code, json, err)
        };
        let (code, json, _) = explain(&["--id", "7"]).await;
        assert_eq!(code, Some(0));
        assert_eq!((&json["topic"], &json["key"], &json["rule"]), (&"acme".into(), &"o-7".into(), &1.into()));
        assert_eq!((&json["value"], &json["value_bytes"]), (&"{\"a\": 1}".into(), &8.into()));
        assert_eq!(json["headers"][1], serde_json::json!({"name": "event_type", "value": "Placed"}));
        let (_, json, _) = explain(&["--id", "7", "--column", "payload=raw"]).await;
        assert_eq!((&json["value"], &json["value_base64"]), (&serde_json::Value::Null, &"AP8=".into()));
        let (code, json, err) = explain(&["--id", "8"]).await;
        assert_eq!((code, json["topic"].is_null()), (Some(65), true));
        assert!(err.contains("aggregate_type, which names the topic, is NULL"), "{err}");
        let (code, json, _) = explain(&["--row", r#"{"id": 1, "type": "Noise", "payload": {"b": 2}}"#]).await;
        assert_eq!((code, &json["filtered"], &json["rule"]), (Some(0), &"rule".into(), &2.into()));
        for (arguments, code, part) in [
            (&["--id", "9"][..], 78, "has no row \"9\""),
            (&["--row", "[]"], 64, "--row: is not a JSON object"),
            (&["--row", r#"{"tenent": 1}"#], 64, "tenent is no published column; tenant?"),
            (
                &["--id", "7", "--topic", "{tennant}"],
                78,
                "no column tennant, which --topic names; tenant is the nearest",
            ),
            (&["--id", "7", "--column", "body=payload"], 64, "\"body\" is nothing that a column can be"),
        ] {
            let (found, _, err) = explain(arguments).await;
            assert_eq!(found, Some(code), "{arguments:?}: {err}");
            assert!(err.contains(part), "{part} is missing: {err}");
        }
        let words = ["--table", "public.outbox", "--config", file, "--id", "7"];
        let (_, out, _) = run(&scenario, "explain", &words).await;
        assert!(out.contains("rule       1: tenant like ac*: topic acme\ntopic      acme\n"), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_shows_what_is_committed_and_leaves_the_slot_alone() {
    for version in versions() {
        let scenario = Scenario::without_topic(shared_postgres(version).await, "127.0.0.1:1").await;
        let sql = scenario.sql().await;
        let slots = "select slot_name::text, confirmed_flush_lsn::text from pg_replication_slots where database = $1";
        let before: Vec<(String, String)> = slots_of(&sql, slots, &scenario.database).await;
        let mut tail = scenario.outboxd("tail");
        tail.args(["--json", "-n", "2", "--event-type", "Placed", "--only-key", "k"]);
        let mut child = tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        while !log.next_line().await.unwrap().unwrap().contains("following outboxd.outbox") {}
        let insert = |key: &str, event_type: &str, payload: &str| {
            format!(
                "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) values \
                 (gen_random_uuid(), 'order', '{key}', '{event_type}', '{payload}')"
            )
        };
        let rolled_back = format!("begin; {}; rollback", insert("k", "Placed", "0"));
        let twice = format!("begin; {}; {}; commit", insert("k", "Other", "1"), insert("k", "Placed", "2"));
        for statement in [rolled_back, twice, insert("other", "Placed", "3"), insert("k", "Placed", "4")] {
            sql.batch_execute(&statement).await.unwrap();
        }
        let mut records = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            records.push(serde_json::from_str::<serde_json::Value>(&line).unwrap());
        }
        assert!(child.wait().await.unwrap().success());
        let values: Vec<_> = records.iter().map(|record| record["value"].as_str().unwrap()).collect();
        assert_eq!(values, ["2", "4"]);
        assert_eq!(records[0]["topic"], "outbox.event.order");
        assert!(records[0]["position"].as_str().unwrap().ends_with("-00000001"), "{}", records[0]);
        until("the slot of tail to be gone", Duration::from_secs(10), || async {
            let now = slots_of(&sql, slots, &scenario.database).await;
            if now == before { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }
}

async fn slots_of(sql: &tokio_postgres::Client, query: &str, database: &str) -> Vec<(String, String)> {
    let rows = sql.query(query, &[&database]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_gives_defaults_and_its_mistakes_come_with_all_others() {
    let scenario = database(shared_postgres(versions()[0]).await, TABLE).await;
    let file = |text: &str| {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(text.as_bytes()).unwrap();
        config
    };
    let config = file("tabel = 'x'\nbrokers = 'a:1'\n[kafka]\nacks = '1'\n[[rule]]\ntopic = 'a b'\n");
    let path = config.path().to_str().unwrap();
    let (code, _, err) = run(&scenario, "run", &["--config", path, "--window-bytes", "1"]).await;
    assert_eq!(code, Some(64));
    for part in [
        "tabel: there is no such setting; table is the nearest",
        "rule 1, topic: ' ' is not allowed",
        "line 1: acks cannot be set",
        "--window-bytes: must be at least",
    ] {
        assert!(err.contains(part), "{part} is missing: {err}");
    }
    let (code, _, err) = run(&scenario, "setup", &["--config", path, "--dry-run"]).await;
    assert!(code == Some(64) && err.contains("tabel: there is no such setting"), "{err}");
    let wrong = [
        "--route-regex",
        "(",
        "--header",
        "=x",
        "--key",
        "{",
        "--column",
        "foo",
        "--column",
        "zz=1",
        "--value",
        "xml",
        "--records",
        "d",
        "--claim-check-above=x",
        "--create-topics",
        "6",
    ];
    let (code, _, err) = run(&scenario, "run", &wrong).await;
    assert_eq!(code, Some(64));
    for flag in ["route-regex", "header", "key", "column", "value", "records", "claim-check-above", "create-topics"] {
        assert!(err.contains(&format!("--{flag}: ")), "{flag} is missing: {err}");
    }
    let (code, _, err) = run(&scenario, "run", &["--route-by", "type", "--route-replacement", "${x}"]).await;
    assert!(code == Some(64) && err.contains("the replacement names the group \"x\""), "{err}");
    let (code, _, err) = run(&scenario, "check", &["--config", "/no/such/file"]).await;
    assert!(code == Some(64) && err.contains("/no/such/file: No such file"), "{err}");

    // Flags win over the environment, and that over the file; what is in effect is told with its source.
    scenario.setup(&["--table", "public.outbox"]).await;
    let config = file(&format!(
        "table = 'public.outbox'\nslot = '{}'\nsilence = '4s'\nstatus_interval = '2s'\nheader = ['tenant']\n",
        scenario.slot
    ));
    let path = config.path().to_str().unwrap();
    let mut command = scenario.outboxd("run");
    command.args(["--config", path, "--silence", "3s"]).env("OUTBOXD_STATUS_INTERVAL", "900ms");
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let ready = loop {
        let line = log.next_line().await.unwrap().unwrap();
        if line.contains("ready: ") {
            break line;
        }
    };
    for part in [
        format!("table=public.outbox [{path}]"),
        "silence=3s [--silence]".to_owned(),
        "status-interval=900ms [OUTBOXD_STATUS_INTERVAL]".to_owned(),
        format!("header=tenant [{path}]"),
    ] {
        assert!(ready.contains(&part), "{part} is missing: {ready}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_records_need_and_that_is_gone_stops_the_relay_with_advice() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, kafka).await;
        let sql = scenario.sql().await;
        sql.batch_execute("alter publication outboxd set table outboxd.outbox").await.unwrap();
        let consumer = scenario.consume();
        let mut relay = scenario.start().await;
        let insert = format!(
            "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) values \
             (gen_random_uuid(), '{}', 'k', 'Happened', '1')",
            scenario.topic
        );
        sql.batch_execute(&insert).await.unwrap();
        until("the record", Duration::from_secs(30), || async {
            if consumer.count() == 1 { Ok(()) } else { Err("not yet") }
        })
        .await;
        sql.batch_execute("alter table outboxd.outbox drop column aggregate_id").await.unwrap();
        sql.batch_execute(&insert.replace(", aggregate_id", "").replace(", 'k'", "")).await.unwrap();
        let status = relay.ended(Duration::from_secs(30)).await;
        assert_eq!(status.code(), Some(78), "{}", relay.log());
        let log = relay.log();
        assert!(log.contains("comes without its column aggregate_id, which it had before"), "{log}");
        assert!(log.contains("correct the table or the publication's column list"), "{log}");
        // That it is gone for good is the user's word once outboxd is started again.
        let relay = scenario.start().await;
        until("the record", Duration::from_secs(30), || async {
            if consumer.count() == 2 { Ok(()) } else { Err("not yet") }
        })
        .await;
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_too_large_is_not_kept_and_stops_only_where_it_is_an_event() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let scenario = Scenario::without_topic(shared_postgres(version).await, &kafka.bootstrap()).await;
        kafka.create_topic(&scenario.topic, PARTITIONS, &[("max.message.bytes", "70000000")]).await;
        let sql = scenario.sql().await;
        // Another table, and updates, in the same publication.
        sql.batch_execute(
            "create table public.other (n int primary key, big text); alter table public.other replica identity full; \
             alter publication outboxd set (publish = 'insert, update'); alter publication outboxd add table public.other",
        )
        .await
        .unwrap();
        let insert = |id: u32, bytes: u32| {
            format!(
                "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) values \
                 ('00000000-0000-4000-8000-00000000000{id}', '{}', 'k', 'Happened', to_json(repeat('x', {bytes})))",
                scenario.topic
            )
        };
        let consumer = scenario.consume();
        let mut relay = scenario.relay().flag("--max-message-bytes", "1MiB").flag("--on-failure", "halt").start();
        relay.ready().await;
        sql.batch_execute(&insert(1, 1_000_000)).await.unwrap();
        let other = "insert into public.other select 1, repeat('x', 60000000); update public.other set n = 2";
        sql.batch_execute(other).await.unwrap();
        sql.batch_execute(&format!("begin; {}; {}; commit", insert(2, 10), insert(3, 60_000_000))).await.unwrap();
        let status = relay.ended(Duration::from_secs(60)).await;
        assert_eq!(status.code(), Some(65), "{}", relay.log());
        let log = relay.log();
        let expected =
            "row 1 of its transaction: payload of the row with the id \"00000000-0000-4000-8000-000000000003\" is too";
        assert!(log.contains(expected) && log.contains("raise --max-message-bytes"), "{log}");
        assert_eq!(consumer.count(), 2, "all before it is published");
        // Left in the table; the columns behind the payload are there all the same.
        sql.batch_execute(
            &insert(4, 10).replace("payload", "headers, payload").replace("to_json(", "'{\"h\": 1}', to_json("),
        )
        .await
        .unwrap();
        let claim = scenario.relay().flag("--max-message-bytes", "1MiB").flag("--claim-check-above", "500kB");
        let mut relay = claim.start();
        relay.ready().await;
        let with = |id: u32| {
            let is = |record: &OwnedMessage| header(record, "id").is_some_and(|text| text.ends_with(&id.to_string()));
            consumer.records().into_iter().find(is)
        };
        until("the event behind it", Duration::from_secs(60), || async {
            with(4).map(drop).ok_or_else(|| relay.log())
        })
        .await;
        let claimed = with(3).unwrap();
        let value: serde_json::Value = serde_json::from_slice(claimed.payload().unwrap()).unwrap();
        let source = format!("{}/outboxd.outbox", scenario.database);
        let id = "00000000-0000-4000-8000-000000000003";
        assert_eq!(value, serde_json::json!({"source": source, "id": id, "column": "payload"}));
        assert_eq!(header(&claimed, "outboxd_claim_check").as_deref(), Some("row"));
        assert_eq!(claimed.key(), Some(&b"k"[..]));
        assert_eq!(header(&with(4).unwrap(), "outboxd_claim_check"), None);
        // Small enough to be read, and too large to travel.
        sql.batch_execute(&insert(5, 600_000)).await.unwrap();
        until("the fifth", Duration::from_secs(60), || async { with(5).map(drop).ok_or_else(|| relay.log()) }).await;
        assert!(with(5).unwrap().payload().unwrap().len() < 200);
        assert!(relay.peak_mib() < 64, "{} MiB", relay.peak_mib());
        scenario.confirmed().await;
        assert!(relay.terminate().await.success());
        sql.batch_execute(&insert(6, 60_000_000)).await.unwrap();
        let relay = scenario.relay().flag("--window-bytes", "1MiB").start();
        until("the large record", Duration::from_secs(60), || async {
            if consumer
                .records()
                .iter()
                .any(|record| record.payload().is_some_and(|payload| payload.len() > 59_000_000))
            {
                Ok(())
            } else {
                Err(relay.log())
            }
        })
        .await;
        scenario.confirmed().await;
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_encodings_are_converted_and_unchecked_bytes_stop_only_at_their_row() {
    let kafka = shared_kafka().await;
    for version in versions() {
        let postgres = shared_postgres(version).await;
        for encoding in ["LATIN1", "SQL_ASCII"] {
            let name = postgres.create_database_in(encoding).await;
            let scenario = Scenario::on(postgres, &name, &kafka.bootstrap());
            scenario.setup(&[]).await;
            kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
            let consumer = scenario.consume();
            let relay = scenario.start().await;
            let sql = scenario.sql().await;
            let insert = |key: &str| {
                format!(
                    "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) values \
                     (gen_random_uuid(), '{}', {key}, 'Happened', '1')",
                    scenario.topic
                )
            };
            sql.batch_execute(&insert("'schlüssel'")).await.unwrap();
            sql.batch_execute(&insert("'key'")).await.unwrap();
            until("the records", Duration::from_secs(30), || async {
                if consumer.count() == 2 { Ok(()) } else { Err(relay.log()) }
            })
            .await;
            let mut keys: Vec<_> = consumer.records().iter().map(|record| record.key().unwrap().to_vec()).collect();
            keys.sort();
            assert_eq!(keys, ["key".as_bytes(), "schlüssel".as_bytes()], "{encoding}");
            if encoding == "LATIN1" {
                assert!(relay.terminate().await.success());
                continue;
            }
            // Bytes that are no text in UTF-8, in a column that nobody checks: the row stops only itself.
            sql.batch_execute(&insert("E'\\xff'")).await.unwrap();
            sql.batch_execute(&insert("'key'")).await.unwrap();
            until("the record behind it", Duration::from_secs(30), || async {
                if consumer.count() == 3 { Ok(()) } else { Err(relay.log()) }
            })
            .await;
            scenario.confirmed().await;
            let held = "select state, class, reason from outboxd.held";
            let row = sql.query_one(held, &[]).await.unwrap();
            let (state, class, reason): (String, String, String) = (row.get(0), row.get(1), row.get(2));
            assert_eq!((state.as_str(), class.as_str()), ("dead", "unmappable"));
            assert!(reason.contains("aggregate_id is not valid UTF-8"), "{reason}");
            assert!(relay.terminate().await.success());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_missing_is_made_if_so_wanted() {
    let kafka = shared_kafka().await;
    let scenario = Scenario::without_topic(shared_postgres(versions()[0]).await, &kafka.bootstrap()).await;
    let mut relay = scenario.relay().flag("--create-topics", &format!("partitions={PARTITIONS}")).start();
    relay.ready().await;
    let plan = crate::harness::writer::Plan { events: Some(100), ..Default::default() };
    scenario.write(&plan).done().await;
    relay.logged("did not exist and was created").await;
    let _consumer = scenario.consume();
    scenario.settle().await;
    assert!(relay.terminate().await.success());
}
