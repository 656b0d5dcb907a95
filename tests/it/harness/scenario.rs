//! A database with an outbox, a topic, and everything that works on them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_postgres::Client;

use super::consumer::Consumer;
use super::ledger::{Ledger, Verdict};
use super::relay::{Relay, RelayCommand};
use super::servers::{Kafka, Postgres, unique, until};
use super::writer::{Place, Plan, Writer};

/// Partitions of the topic.
pub(crate) const PARTITIONS: i32 = 6;

/// One outbox and one topic.
pub(crate) struct Scenario {
    pub(crate) conninfo: String,
    pub(crate) database: String,
    pub(crate) slot: String,
    /// The topic, which is also the aggregate type.
    pub(crate) topic: String,
    pub(crate) bootstrap: String,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) seed: u64,
}

impl Scenario {
    /// A new database, set up by `outboxd setup`, and a new topic.
    pub(crate) async fn new(postgres: &Postgres, kafka: &Kafka) -> Self {
        let scenario = Self::without_topic(postgres, &kafka.bootstrap()).await;
        kafka.create_topic(&scenario.topic, PARTITIONS, &[]).await;
        scenario
    }

    /// A new database, set up by `outboxd setup`.
    pub(crate) async fn without_topic(postgres: &Postgres, bootstrap: &str) -> Self {
        let database = postgres.create_database().await;
        let scenario = Self::on(postgres, &database, bootstrap);
        scenario.setup(&[]).await;
        scenario
    }

    /// On a database that is there.
    pub(crate) fn on(postgres: &Postgres, database: &str, bootstrap: &str) -> Self {
        let seed = std::env::var("OUTBOXD_TEST_SEED")
            .ok()
            .map_or_else(|| fastrand::u64(..1_000_000), |seed| seed.parse().unwrap());
        println!("seed {seed} (OUTBOXD_TEST_SEED replays it)");
        Self {
            conninfo: postgres.conninfo(database),
            database: database.to_owned(),
            slot: database.to_owned(),
            topic: unique("topic"),
            bootstrap: bootstrap.to_owned(),
            ledger: Arc::default(),
            seed,
        }
    }

    /// Runs `outboxd setup` and returns what it printed.
    pub(crate) async fn setup(&self, arguments: &[&str]) -> String {
        let output = self.outboxd("setup").args(["--slot", &self.slot]).args(arguments).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {text}", output.status);
        text
    }

    /// The program with a command, on this database.
    pub(crate) fn outboxd(&self, command: &str) -> tokio::process::Command {
        let mut outboxd = tokio::process::Command::new(env!("CARGO_BIN_EXE_outboxd"));
        outboxd.arg(command).env("OUTBOXD_DATABASE_URL", &self.conninfo).kill_on_drop(true);
        outboxd
    }

    /// `outboxd run` with our topics.
    pub(crate) fn relay(&self) -> RelayCommand {
        self.bare_relay().flag("--topic", "{aggregate_type}")
    }

    /// `outboxd run` without more than it needs.
    pub(crate) fn bare_relay(&self) -> RelayCommand {
        let command = RelayCommand {
            database_url: self.conninfo.clone(),
            arguments: vec![],
            failpoints: String::new(),
            variables: vec![],
        };
        command.flag("--slot", &self.slot).flag("--brokers", &self.bootstrap)
    }

    /// Starts `outboxd run` and waits until it streams.
    pub(crate) async fn start(&self) -> Relay {
        let mut relay = self.relay().start();
        relay.ready().await;
        relay
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            conninfo: self.conninfo.clone(),
            table: "outboxd.outbox".to_owned(),
            aggregate_type: self.topic.clone(),
        }
    }

    pub(crate) fn write(&self, plan: &Plan) -> Writer {
        Writer::start(&self.place(), plan, &self.ledger, self.seed)
    }

    pub(crate) fn consume(&self) -> Consumer {
        Consumer::start(&self.bootstrap, &self.topic, PARTITIONS, &self.ledger)
    }

    pub(crate) async fn sql(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.conninfo, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Waits until every committed event has arrived, the relay has confirmed everything (so that it repeats nothing more), and
    /// the consumer has seen the last record of each key.
    pub(crate) async fn settle(&self) {
        let limit = Duration::from_secs(60);
        until("every committed event to arrive", limit, || async { self.ledger.lock().unwrap().settled() }).await;
        self.confirmed().await;
        until("the last record of each key to be its last event", limit, || async {
            let verdict = self.judge();
            if verdict.last_wrong.is_empty() { Ok(()) } else { Err(verdict.to_string()) }
        })
        .await;
    }

    /// Waits until the slot has confirmed everything that was written until now.
    pub(crate) async fn confirmed(&self) {
        let sql = self.sql().await;
        let end: String = sql.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
        until("everything to be confirmed", Duration::from_secs(60), || async {
            let query = "select confirmed_flush_lsn >= $2::text::pg_lsn from pg_replication_slots where slot_name = $1";
            let row = sql.query_one(query, &[&self.slot, &end]).await.unwrap();
            if row.get(0) { Ok(()) } else { Err("not yet") }
        })
        .await;
    }

    /// Waits until so many records have been seen.
    pub(crate) async fn seen(&self, records: usize) {
        until(&format!("{records} records"), Duration::from_secs(60), || async {
            let seen = self.ledger.lock().unwrap().seen().len();
            if seen >= records { Ok(()) } else { Err(format!("there are {seen}")) }
        })
        .await;
    }

    pub(crate) fn judge(&self) -> Verdict {
        self.ledger.lock().unwrap().judge()
    }
}
