//! `outboxd demo`: its verdict, and that nothing is left however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::harness::servers::{postgres_programs, shared_kafka, shared_postgres, until, versions};

/// A folder for temporary files of its own, so that demos of other people are out of the picture.
struct Temporary(tempfile::TempDir);

impl Temporary {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The private server runs as another user when the tests run as root.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboxd"));
        command
            .args(["demo", "--json", "--postgres-bin"])
            .arg(postgres_programs(18))
            .args(arguments)
            .env("TMPDIR", self.0.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.demo(arguments).stderr(Stdio::piped()).output().await.unwrap();
        let (text, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {log}\n{text}", output.status);
        let line = text.lines().last().unwrap();
        println!("{line}");
        // The order of the names is part of the promise.
        let names = ["committed", "rolled_back", "delivered", "repeats", "repeats_bound", "lost", "phantom"];
        let places = names.iter().chain(&["out_of_order", "kills"]).map(|name| line.find(&format!("\"{name}\":")));
        assert!(places.collect::<Option<Vec<_>>>().unwrap().is_sorted(), "{line}");
        serde_json::from_str(line).unwrap()
    }

    /// Starts one whose relay streams, and returns it with its folder.
    async fn streaming(&self) -> (Child, PathBuf) {
        let child = self.demo(&["--events", "100000"]).stderr(Stdio::null()).spawn().unwrap();
        until("the relay to stream", Duration::from_secs(60), || async {
            let names = processes(self.0.path());
            // Its sessions name what they do in their command line.
            if names.iter().any(|name| name.contains("START_REPLICATION")) { Ok(()) } else { Err(format!("{names:?}")) }
        })
        .await;
        (child, self.folders()[0].clone())
    }

    fn folders(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    async fn no_process_is_left(&self) {
        until("the end of all processes", Duration::from_secs(20), || async {
            let left = processes(self.0.path());
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }
}

/// What the processes are called that work in the folder, or that have it in their arguments or their environment.
fn processes(folder: &Path) -> Vec<String> {
    let text = folder.to_str().unwrap();
    let has = |path: PathBuf| fs::read(path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text));
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
    let inside = entries.filter(|process| {
        let works_there = fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        works_there || has(process.join("cmdline")) || has(process.join("environ"))
    });
    inside
        .filter_map(|process| fs::read(process.join("cmdline")).ok())
        .map(name)
        .filter(|name| !name.is_empty())
        .collect()
}

fn name(command_line: Vec<u8>) -> String {
    String::from_utf8_lossy(&command_line).replace('\0', " ").trim().to_owned()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
}

#[track_caller]
fn assert_clean(report: &serde_json::Value, events: u64, kills: u64) {
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((number("committed"), number("kills")), (events, kills), "{report}");
    assert_eq!((number("lost"), number("phantom"), number("out_of_order")), (0, 0, 0), "{report}");
    assert!(number("rolled_back") > 0 && number("repeats") <= number("repeats_bound"), "{report}");
    assert_eq!(number("repeats_bound"), kills * (2_000 + 20), "{report}");
    assert_eq!(number("delivered"), events + number("repeats"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_kills_lose_nothing_and_nothing_is_left() {
    let temporary = Temporary::new();
    let report = temporary.run(&["--kills", "10", "--events", "20000"]).await;
    assert_clean(&report, 20_000, 10);
    assert_eq!(temporary.folders(), Vec::<PathBuf>::new());
    assert_eq!(processes(temporary.0.path()), Vec::<String>::new());
}

/// The last kill comes when everything has arrived, so the last relay has only repeats to publish; they belong to the outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_demo_waits_for_the_repeats_of_its_last_relay() {
    let temporary = Temporary::new();
    for kills in [1, 3, 3] {
        let report = temporary.run(&["--kills", &kills.to_string(), "--events", "100"]).await;
        assert_clean(&report, 100, kills);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_leaves_nothing() {
    let temporary = Temporary::new();
    let (mut child, _) = temporary.streaming().await;
    signal(&child, Signal::INT);
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(temporary.folders(), Vec::<PathBuf>::new());
    assert_eq!(processes(temporary.0.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_was_killed_leaves_no_process_and_the_next_one_removes_its_folder() {
    let temporary = Temporary::new();
    let (mut child, folder) = temporary.streaming().await;
    child.kill().await.unwrap();
    temporary.no_process_is_left().await;
    assert_eq!(temporary.folders(), [folder]);
    assert_clean(&temporary.run(&["--kills", "1", "--events", "1000"]).await, 1_000, 1);
    assert_eq!(temporary.folders(), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn ones_own_servers_are_left_as_they_were() {
    let (postgres, kafka) = (shared_postgres(versions()[0]).await, shared_kafka().await);
    let database = postgres.create_database().await;
    let sql = postgres.sql(&database).await;
    let there = || async {
        let query = "select (select count(*) from pg_publication) + (select count(*) from pg_replication_slots where \
                     database = current_database()) + (select count(*) from pg_namespace where nspname ~ '^outboxd')";
        sql.query_one(query, &[]).await.unwrap().get::<_, i64>(0)
    };
    let url = format!("host=127.0.0.1 port={} user=postgres dbname={database}", postgres.port());
    let bootstrap = kafka.bootstrap();
    let own = ["--database-url", &url, "--brokers", &bootstrap, "--events", "3000", "--kills", "2"];
    let temporary = Temporary::new();
    let demo = || {
        let mut demo = temporary.demo(&own);
        demo.env("PGPASSWORD", "outboxd-tests").stderr(Stdio::null());
        demo
    };
    // One that is killed leaves its things, and the next one removes them too.
    let mut child = demo().spawn().unwrap();
    until("the demo's slot", Duration::from_secs(30), || async {
        let active = "select from pg_replication_slots where database = current_database() and active";
        if sql.query_opt(active, &[]).await.unwrap().is_some() { Ok(()) } else { Err("not there") }
    })
    .await;
    child.kill().await.unwrap();
    temporary.no_process_is_left().await;
    assert_eq!(there().await, 4);

    let output = demo().output().await.unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}");
    assert_clean(&serde_json::from_str(&line).unwrap(), 3_000, 2);
    assert_eq!(there().await, 0);
    kafka.no_topic_begins_with("outboxd_demo_").await;
    assert_eq!(temporary.folders(), Vec::<PathBuf>::new());
}
