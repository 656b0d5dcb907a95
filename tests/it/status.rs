//! `outboxd status`, and outputs that nobody reads.

use std::time::Duration;

use serde_json::Value;

use crate::check::insert;
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, StopMode, shared_kafka, shared_postgres, until, versions};

#[tokio::test(flavor = "multi_thread")]
async fn people_and_programs_are_told_how_the_slot_stands() {
    for version in versions() {
        let scenario = Scenario::new(shared_postgres(version).await, shared_kafka().await).await;
        let status = |arguments: &'static [&'static str]| {
            let mut command = scenario.outboxd("status");
            command.args(["--slot", &scenario.slot]).args(arguments);
            async move {
                let output = command.output().await.unwrap();
                (output.status.code(), String::from_utf8(output.stdout).unwrap())
            }
        };
        let json = || async { serde_json::from_str::<Value>(&status(&["--json"]).await.1).unwrap() };
        let alone = json().await;
        assert_eq!((&alone["reader"], &alone["lag_seconds"]), (&Value::Null, &Value::Null), "{alone}");
        insert(&scenario.sql().await, &scenario.topic, 100_000, "now()").await;
        let behind = json().await;
        let bytes = |status: &Value, name: &str| status[name].as_u64().unwrap();
        assert!(bytes(&behind, "lag_bytes") > 1_000, "{behind}");
        assert!(bytes(&behind, "retained_bytes") >= bytes(&behind, "lag_bytes"), "{behind}");

        let relay = scenario.start().await;
        until("the lag to be measured", Duration::from_secs(30), || async {
            insert(&scenario.sql().await, &scenario.topic, 1, "now()").await;
            let status = json().await;
            let is_known = status["reader"]["application"] == "outboxd" && status["lag_seconds"].is_number();
            if is_known && bytes(&status, "lag_bytes") < 100_000 { Ok(()) } else { Err(status) }
        })
        .await;
        let (code, text) = status(&[]).await;
        assert_eq!(code, Some(0));
        for part in ["slot ", "reader     outboxd, pid ", "streaming", "confirmed ", "lag ", "retained "] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(relay.terminate().await.success());

        let missing = scenario.outboxd("status").args(["--slot", "absent"]).output().await.unwrap();
        assert_eq!(missing.status.code(), Some(78));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("outboxd setup --slot absent"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_outlives_the_server() {
    let postgres = Postgres::start(versions()[0], &[]).await;
    let scenario = Scenario::without_topic(&postgres, "127.0.0.1:1").await;
    let mut command = scenario.outboxd("status");
    command.args(["--slot", &scenario.slot, "--watch=200ms"]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stdout.take().unwrap()));
    let mut seen = async |text: &str| {
        let found = tokio::time::timeout(Duration::from_secs(30), async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
            }
            panic!("the watch has ended");
        });
        found.await.unwrap_or_else(|_| panic!("no line with {text:?}"));
    };
    seen("behind, lag unknown").await;
    postgres.stop(StopMode::Immediate).await;
    seen("refused").await;
    postgres.start_again().await;
    seen("behind, lag unknown").await;
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_closed_or_full_is_no_panic() {
    let scenario = Scenario::without_topic(shared_postgres(versions()[0]).await, "127.0.0.1:1").await;
    let shell = async |line: &str| {
        let mut command = tokio::process::Command::new("bash");
        command.arg("-c").arg(format!("set -o pipefail; {line}")).env("OUTBOXD", env!("CARGO_BIN_EXE_outboxd"));
        command.env("OUTBOXD_DATABASE_URL", &scenario.conninfo).env("OUTBOXD_SLOT", &scenario.slot);
        let output = command.output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(shell("$OUTBOXD status --watch=50ms | head -1").await, (Some(141), String::new()));
    for line in ["status", "status --json", "check --brokers 127.0.0.1:1 --request-timeout 1s --json"] {
        let (code, text) = shell(&format!("$OUTBOXD {line} >/dev/full")).await;
        assert_eq!(code, Some(74), "{text}");
        assert!(text.starts_with("outboxd: standard output: "), "{text}");
    }
    let (code, text) = shell("$OUTBOXD setup >/dev/full").await;
    assert_eq!(code, Some(0), "{text}");
}
