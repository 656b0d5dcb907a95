//! The servers of the benchmark, and how to reach them.

use std::path::{Path, PathBuf};
use std::process::Command;

use tokio_postgres::{Client, NoTls};

use super::meter;
use super::options::Options;
use super::servers::{Kafka, ProcessPostgres};
use super::way::Way;

const DATABASE: &str = "bench";

/// A backlog shall neither wait for a checkpoint nor for a disk that the next run would find in another state.
const POSTGRES: [(&str, &str); 4] =
    [("shared_buffers", "1GB"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "30min"), ("autovacuum", "off")];

/// As Kafka's own scripts start a broker; the tests' broker is made to start fast, not to run fast.
const KAFKA: [(&str, &str); 5] = [
    ("KAFKA_HEAP_OPTS", "-Xms1g -Xmx1g"),
    (
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35",
    ),
    ("KAFKA_BROKER_SESSION_TIMEOUT_MS", "9000"),
    ("KAFKA_BROKER_HEARTBEAT_INTERVAL_MS", "2000"),
    ("KAFKA_LOG_SEGMENT_DELETE_DELAY_MS", "1000"),
];

/// A PostgreSQL with an empty database, a broker, and the programs. Dropping it removes all.
pub(crate) struct Stage {
    postgres: ProcessPostgres,
    pub(crate) kafka: Kafka,
    pub(crate) sql: Client,
    pub(crate) broker: u32,
    pub(crate) outboxd: PathBuf,
    pub(crate) pg_recvlogical: PathBuf,
}

impl Stage {
    pub(crate) async fn start(options: &Options) -> Self {
        eprintln!("bench: starting PostgreSQL and Kafka");
        let postgres = ProcessPostgres::start(18, &POSTGRES).await;
        postgres.sql("postgres").await.batch_execute(&format!("create database {DATABASE}")).await.unwrap();
        let sql = postgres.sql(DATABASE).await;
        let kafka = Kafka::start_process_with(&KAFKA).await;
        let broker = meter::child_called("java").expect("the broker runs as a child of this process");
        let outboxd = options.outboxd.clone();
        Self { postgres, kafka, sql, broker, outboxd, pg_recvlogical: find_recvlogical() }
    }

    /// A connection string of the superuser.
    pub(crate) fn conninfo(&self, way: Way) -> String {
        match way {
            Way::Unix => self.postgres.socket_conninfo(DATABASE),
            Way::Tcp => self.postgres.conninfo(DATABASE),
        }
    }

    /// A session of its own.
    pub(crate) async fn session(&self, way: Way) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.conninfo(way), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A file in the folder of the server, which is removed with it, however this program ends.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.postgres.data_folder().with_file_name(name)
    }

    /// The process that serves a slot.
    pub(crate) async fn walsender(&self, slot: &str) -> Option<u32> {
        let query = "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
        let row = self.sql.query_opt(query, &[&slot]).await.unwrap()?;
        Some(row.get::<_, i32>(0).cast_unsigned())
    }

    /// Changes a setting of the server, or takes it back.
    pub(crate) async fn set(&self, name: &str, value: Option<&str>) {
        let change = value.map_or(format!("reset {name}"), |value| format!("set {name} = '{value}'"));
        self.sql.execute(&format!("alter system {change}"), &[]).await.unwrap();
        self.sql.execute("select pg_reload_conf()", &[]).await.unwrap();
    }

    /// The value of a setting.
    pub(crate) async fn setting(&self, name: &str) -> String {
        self.sql.query_one("select current_setting($1)", &[&name]).await.unwrap().get(0)
    }
}

/// The newest that the distribution has. Not the one on PATH where that is Debian's wrapper: a script takes longer to start.
fn find_recvlogical() -> PathBuf {
    let by_version = |folder: &PathBuf| folder.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    folders.sort_by_key(by_version);
    let programs = folders.iter().rev().map(|folder| folder.join("bin/pg_recvlogical"));
    programs.into_iter().find(|program| program.exists()).unwrap_or_else(|| "pg_recvlogical".into())
}

/// The version that a program of PostgreSQL prints of itself.
pub(crate) fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().rsplit_once("(PostgreSQL) ").map_or(text.trim(), |(_, version)| version).to_owned()
}
