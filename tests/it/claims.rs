//! Payloads that are too large to travel, in a folder and in a bucket.

use std::path::PathBuf;
use std::time::Duration;

use rdkafka::message::{Message as _, OwnedMessage};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio_postgres::Client;

use crate::harness::consumer::{Consumer, header};
use crate::harness::relay::RelayCommand;
use crate::harness::scenario::{PARTITIONS, Scenario};
use crate::harness::servers::{Moto, shared_kafka, shared_postgres, until, versions};

const LIMIT: Duration = Duration::from_secs(60);

/// In no log.
const SECRET: &str = "hunter2-the-secret-key";

/// What a bucket takes beside its name.
fn variables(endpoint: &str) -> [(&'static str, String); 4] {
    [
        ("AWS_ENDPOINT", endpoint.to_owned()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "tests".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
    ]
}

fn with_endpoint(command: RelayCommand, endpoint: &str) -> RelayCommand {
    variables(endpoint).iter().fold(command, |command, (name, value)| command.variable(name, value))
}

/// A place for payloads, and the way to look into it.
enum Place {
    Folder(tempfile::TempDir),
    Bucket(Moto),
}

impl Place {
    async fn all() -> [Self; 2] {
        [Self::Folder(tempfile::tempdir().unwrap()), Self::Bucket(Moto::start("bucket").await)]
    }

    fn url(&self) -> String {
        match self {
            Self::Folder(folder) => format!("file://{}", folder.path().display()),
            Self::Bucket(_) => "s3://bucket/claims/here".to_owned(),
        }
    }

    fn moto(&self) -> &Moto {
        match self {
            Self::Bucket(moto) => moto,
            Self::Folder(_) => panic!("a folder has no server"),
        }
    }

    fn relay(&self, scenario: &Scenario) -> RelayCommand {
        let command = scenario.relay().flag("--claim-check-above", "1000B").flag("--claim-check-to", &self.url());
        match self {
            Self::Folder(_) => command,
            Self::Bucket(moto) => with_endpoint(command, &moto.endpoint()),
        }
    }

    /// What lies where a record's URL points to, as a consumer would read it.
    async fn fetch(&self, url: &str) -> Option<Vec<u8>> {
        match self {
            Self::Folder(_) => {
                let path = percent_encoding::percent_decode_str(url.strip_prefix("file://").unwrap()).decode_utf8();
                std::fs::read(PathBuf::from(path.unwrap().into_owned())).ok()
            }
            Self::Bucket(moto) => moto.object(&url.strip_prefix("s3://").unwrap().replace('%', "%25")).await,
        }
    }
}

/// A table with a payload of this type, with all that it takes.
async fn scenario_with(version: u32, payload: &str) -> (Scenario, Client) {
    let (postgres, kafka) = (shared_postgres(version).await, shared_kafka().await);
    let scenario = Scenario::on(postgres, &postgres.create_database().await, &kafka.bootstrap());
    let sql = scenario.sql().await;
    let columns = "id text primary key, aggregate_type text, aggregate_id text, event_type text";
    sql.batch_execute(&format!("create table public.outbox ({columns}, payload {payload})")).await.unwrap();
    scenario.setup(&["--table", "public.outbox"]).await;
    kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
    (scenario, sql)
}

/// Commits an event; `payload` is an expression that gives the table's type, of `$1`.
async fn insert(scenario: &Scenario, sql: &Client, (id, key): (&str, &str), payload: &str, bytes: &[u8]) {
    let statement = format!(
        "insert into public.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         values ('{id}', '{}', '{key}', 'Happened', {payload})",
        scenario.topic
    );
    sql.execute(&statement, &[&bytes]).await.unwrap();
}

/// The expression that makes a value of a type from bytes.
fn expression(payload: &str) -> String {
    match payload {
        "bytea" => "$1::bytea".to_owned(),
        other => format!("convert_from($1::bytea, 'UTF8')::{other}"),
    }
}

async fn arrived(consumer: &Consumer, relay: &crate::harness::relay::Relay, count: usize) -> Vec<OwnedMessage> {
    until(&format!("{count} records"), LIMIT, || async {
        let records = consumer.records();
        if records.len() >= count { Ok(records) } else { Err(relay.log()) }
    })
    .await
}

fn by_id<'r>(records: &'r [OwnedMessage], id: &str) -> &'r OwnedMessage {
    records.iter().find(|record| header(record, "id").as_deref() == Some(id)).unwrap()
}

fn value(record: &OwnedMessage) -> Value {
    serde_json::from_slice(record.payload().unwrap()).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_payload_is_stored_byte_for_byte_and_a_small_one_travels() {
    for version in versions() {
        for place in Place::all().await {
            for (payload, small, large) in [
                ("json", b"{\"a\":  1.10}".to_vec(), format!("{{\"a\":  \"{}\"}}", "ö".repeat(3000)).into_bytes()),
                ("text", b"small".to_vec(), "line\nnext \\ ö\t".repeat(1000).into_bytes()),
                ("bytea", vec![0, 255], (0..=255).cycle().take(70_000).collect()),
            ] {
                stores(version, &place, payload, &small, &large).await;
            }
        }
    }
}

async fn stores(version: u32, place: &Place, payload: &str, small: &[u8], large: &[u8]) {
    let (scenario, sql) = scenario_with(version, payload).await;
    let consumer = scenario.consume();
    let mut relay = place.relay(&scenario).flag("--table", "public.outbox").flag("--max-message-bytes", "1MiB").start();
    relay.ready().await;
    let from = expression(payload);
    let beyond = [b"\"", "x".repeat(2_000_000).as_bytes(), b"\""].concat();
    for (id, bytes) in [("small", small), ("a/b %2F", large), ("beyond", beyond.as_slice())] {
        insert(&scenario, &sql, (id, "k"), &from, bytes).await;
    }
    let records = arrived(&consumer, &relay, 3).await;
    let ids: Vec<_> = records.iter().map(|record| header(record, "id").unwrap()).collect();
    assert_eq!(ids, ["small", "a/b %2F", "beyond"]);
    assert_eq!(records[0].payload(), Some(small));
    assert_eq!(header(&records[0], "outboxd_claim_check"), None);

    let source = format!("{}/public.outbox", scenario.database);
    let name = if matches!(place, Place::Folder(_)) { "a%252Fb%2520%25252F" } else { "a%2Fb%20%252F" };
    let url = format!("{}/{source}/{name}", place.url());
    let expected = json!({"source": source, "id": "a/b %2F", "column": "payload", "url": url,
        "bytes": large.len(), "sha256": sha256(large)});
    assert_eq!(value(&records[1]), expected);
    assert_eq!(header(&records[1], "outboxd_claim_check").as_deref(), Some(url.as_str()));
    assert!(place.fetch(&url).await.as_deref() == Some(large), "{payload}: not the bytes that were committed");

    // The stream leaves out what is beyond --max-message-bytes, so it stays in the table.
    assert_eq!(value(&records[2]), json!({"source": source, "id": "beyond", "column": "payload"}));
    assert_eq!(header(&records[2], "outboxd_claim_check").as_deref(), Some("row"));
    scenario.confirmed().await;
    assert!(!relay.log().contains(SECRET));
    assert!(relay.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_down_is_waited_for_and_the_order_stays() {
    for version in versions() {
        let (scenario, sql) = scenario_with(version, "text").await;
        let place = Place::Bucket(Moto::start("bucket").await);
        place.moto().kill().await;
        let consumer = scenario.consume();
        let patience = "set wal_sender_timeout = '2s'";
        sql.batch_execute(&format!("alter database {} {patience}", scenario.database)).await.unwrap();
        let relay = place.relay(&scenario).flag("--table", "public.outbox").flag("--publish-stall", "1s");
        let mut relay = relay.flag("--silence", "900ms").start();
        relay.ready().await;
        let reader = async || -> Option<i32> {
            let query = "select active_pid from pg_replication_slots where slot_name = $1";
            sql.query_one(query, &[&scenario.slot]).await.unwrap().get(0)
        };
        let pid = reader().await;
        let large = "x".repeat(100_000);
        let from = expression("text");
        for (id, key, payload) in [
            ("1", "k", "small"),
            ("2", "k", &large),
            ("3", "k", "small"),
            ("4", "other", "small"),
            ("5", "k", &large),
            ("6", "k", "small"),
        ] {
            insert(&scenario, &sql, (id, key), &from, payload.as_bytes()).await;
        }
        relay.logged("s3://bucket/claims/here does not take the payload: ").await;
        relay.logged("is the store up, and is AWS_ENDPOINT").await;
        relay.logged("stalled: ").await;
        let records = arrived(&consumer, &relay, 1).await;
        assert_eq!((records.len(), header(&records[0], "id").as_deref()), (1, Some("1")), "what is behind it waits");
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(pid.is_some() && reader().await == pid, "the server is answered all the while: {}", relay.log());

        place.moto().start_again().await;
        relay.logged("NoSuchBucket").await;
        relay.logged("create the bucket").await;
        place.moto().create_bucket("bucket").await;
        let records = arrived(&consumer, &relay, 6).await;
        let of_key = records.iter().filter(|record| record.key() == Some(b"k"));
        let ids: Vec<_> = of_key.map(|record| header(record, "id").unwrap()).collect();
        assert_eq!(ids, ["1", "2", "3", "5", "6"]);
        for id in ["2", "5"] {
            let url = header(by_id(&records, id), "outboxd_claim_check").unwrap();
            assert!(place.fetch(&url).await.as_deref() == Some(large.as_bytes()), "{url}");
        }
        relay.logged("no longer stalled").await;
        scenario.confirmed().await;
        let log = relay.log();
        assert_eq!(log.matches("does not take the payload: ").count(), 2, "each kind once: {log}");
        assert!(!log.contains(SECRET));
        assert!(relay.terminate().await.success());
        assert_eq!(consumer.count(), 6, "nothing twice");
    }
}

/// A server that takes connections and never answers; the receiver gets a word for each that has sent something.
async fn mute() -> (String, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (heard, hears) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heard = heard.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while stream.read(&mut bytes).await.is_ok_and(|bytes| bytes > 0) {
                    let _ = heard.send(());
                }
            });
        }
    });
    (endpoint, hears)
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_in_the_middle_of_an_upload_it_comes_again_the_same() {
    for version in versions() {
        let (scenario, sql) = scenario_with(version, "bytea").await;
        let place = Place::Bucket(Moto::start("bucket").await);
        let consumer = scenario.consume();
        let large: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
        let (endpoint, mut heard) = mute().await;
        let uploading = || {
            let relay = place.relay(&scenario).flag("--table", "public.outbox").flag("--drain-limit", "1s");
            with_endpoint(relay, &endpoint).start()
        };
        let mut relay = uploading();
        relay.ready().await;
        insert(&scenario, &sql, ("1", "k"), "$1", &large).await;
        insert(&scenario, &sql, ("2", "k"), "$1", b"small").await;
        heard.recv().await.unwrap();
        relay.kill().await;

        // A signal does not wait for the store either.
        let mut relay = uploading();
        while heard.try_recv().is_ok() {}
        relay.ready().await;
        heard.recv().await.unwrap();
        assert!(relay.terminate().await.success());
        assert_eq!(consumer.count(), 0);

        let mut relay = place.relay(&scenario).flag("--table", "public.outbox").start();
        relay.ready().await;
        let records = arrived(&consumer, &relay, 2).await;
        let ids: Vec<_> = records.iter().map(|record| header(record, "id").unwrap()).collect();
        assert_eq!(ids, ["1", "2"]);
        let url = value(&records[0])["url"].as_str().unwrap().to_owned();
        assert!(place.fetch(&url).await.as_deref() == Some(&large[..]));
        assert_eq!(place.moto().listing("bucket").await.matches("<Key>").count(), 1);
        scenario.confirmed().await;
        assert!(relay.terminate().await.success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_store_and_kafka_it_overwrites_the_same() {
    for version in versions() {
        for place in Place::all().await {
            let (scenario, sql) = scenario_with(version, "text").await;
            let consumer = scenario.consume();
            let large = "x".repeat(50_000);
            insert(&scenario, &sql, ("1", "k"), &expression("text"), large.as_bytes()).await;
            let command = place.relay(&scenario).flag("--table", "public.outbox");
            let mut relay = command.clone().failpoints("after_store=kill:1").start();
            assert_eq!(relay.ended(LIMIT).await.code(), None, "killed: {}", relay.log());
            assert_eq!(consumer.count(), 0);
            let url = format!("{}/{}/public.outbox/1", place.url(), scenario.database);
            assert!(place.fetch(&url).await.as_deref() == Some(large.as_bytes()), "it was stored first");
            let mut relay = command.start();
            relay.ready().await;
            let records = arrived(&consumer, &relay, 1).await;
            assert_eq!(header(&records[0], "outboxd_claim_check").as_deref(), Some(url.as_str()));
            assert!(place.fetch(&url).await.as_deref() == Some(large.as_bytes()));
            if let Place::Folder(folder) = &place {
                let objects = folder.path().join(&scenario.database).join("public.outbox");
                assert_eq!(std::fs::read_dir(objects).unwrap().count(), 1);
            }
            scenario.confirmed().await;
            assert!(relay.terminate().await.success());
        }
    }
}

/// What a command printed, and its exit code.
type Output = (Option<i32>, String, String);

/// Runs a command to its end: the exit code, standard output, standard error.
async fn run(scenario: &Scenario, command: &str, arguments: &[&str], variables: &[(&str, String)]) -> Output {
    let mut command = scenario.outboxd(command);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_before_anything_runs() {
    let (scenario, _sql) = scenario_with(versions()[0], "text").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let in_file = format!("file://{}", file.path().display());
    let none: &[(&str, String)] = &[];
    let plain = [("AWS_ENDPOINT", "http://127.0.0.1:1".to_owned())];
    let half = [("AWS_ACCESS_KEY_ID", "tests".to_owned())];
    for (url, variables, parts) in [
        ("gs://bucket", none, &["expected file:///folder or s3://bucket/prefix"][..]),
        ("file:///no/such/folder", none, &["/no/such/folder cannot be used: No such file", "create it"]),
        (&in_file, none, &["is no folder"]),
        ("file://relative", none, &["expected the absolute path"]),
        ("s3://", none, &["the bucket is missing"]),
        (&format!("s3://key:{SECRET}@bucket"), none, &["the bucket's name may have", "AWS_SECRET_ACCESS_KEY"]),
        ("s3://bucket", &plain, &["AWS_ENDPOINT is an http:// URL", "AWS_ALLOW_HTTP=true"]),
        ("s3://bucket", &half, &["see the variables AWS_*"]),
    ] {
        let (code, _, err) = run(&scenario, "run", &["--claim-check-to", url, "--window-bytes", "1"], variables).await;
        assert_eq!(code, Some(64), "{url}: {err}");
        let with_others = ["--claim-check-to: ", "does nothing without --claim-check-above", "--window-bytes: must be"];
        for part in parts.iter().chain(&with_others) {
            assert!(err.contains(part), "{url}: {part} is missing: {err}");
        }
        assert!(!err.contains(SECRET), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tries_the_store_and_explain_shows_the_record_and_stores_nothing() {
    let (scenario, sql) = scenario_with(versions()[0], "text").await;
    let moto = Moto::start("bucket").await;
    let environment = variables(&moto.endpoint());
    let options = ["--table", "public.outbox", "--json", "--claim-check-above", "5B", "--claim-check-to"];
    for (url, grade, part) in [
        ("s3://bucket/claims", "ok", "s3://bucket/claims takes payloads"),
        ("s3://missing", "error", "NoSuchBucket"),
        ("file:///no/such", "error", "cannot be used"),
    ] {
        let more = [url, "--brokers", &scenario.bootstrap, "--slot", &scenario.slot];
        let (_, out, err) = run(&scenario, "check", &[&options[..], &more].concat(), &environment).await;
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out} {err}"));
        let findings = report["findings"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["check"] == "claim_store").unwrap();
        assert_eq!(found["grade"], grade, "{found}");
        assert!(found["what"].as_str().unwrap().contains(part), "{found}");
        assert_eq!(found["remedy"].is_string(), grade == "error", "{found}");
        assert!(!moto.listing("bucket").await.contains("<Key>"), "what was tried is removed");
    }
    insert(&scenario, &sql, ("7", "k"), &expression("text"), b"a payload").await;
    let explain = [&options[..], &["s3://bucket/claims", "--id", "7"]].concat();
    let (code, out, err) = run(&scenario, "explain", &explain, &environment).await;
    assert_eq!(code, Some(0), "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    let url = format!("s3://bucket/claims/{}/public.outbox/7", scenario.database);
    let value: Value = serde_json::from_str(shown["value"].as_str().unwrap()).unwrap();
    assert_eq!((&value["url"], &value["bytes"]), (&json!(url), &json!(9)));
    assert_eq!(value["sha256"], sha256(b"a payload"));
    assert!(shown["headers"].as_array().unwrap().contains(&json!({"name": "outboxd_claim_check", "value": url})));
    assert!(!moto.listing("bucket").await.contains("<Key>"), "explain stores nothing");
}
