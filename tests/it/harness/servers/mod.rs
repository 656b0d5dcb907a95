//! Real PostgreSQL and Kafka servers for the tests: as containers, and as plain processes where no container engine can run.
//!
//! A test takes a shared server ([`shared_postgres`], [`shared_kafka`]) and makes its own database or topic in it. A test that stops, kills or
//! pauses a server starts its own ([`Postgres::start`], [`Kafka::start`]). What only a process allows, such as a copy of the data
//! folder, is on [`ProcessPostgres`]. [`Moto`], which speaks S3, is a process always. Everything in here panics when a server does not do what it shall.

pub(crate) mod acl;
mod container;
mod kafka;
mod machine;
mod moto;
mod postgres;
mod process;
mod process_postgres;
mod session;
mod wait;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, OnceLock};
use std::{env, io};

use tokio::sync::OnceCell;

pub(crate) use kafka::Kafka;
pub(crate) use moto::Moto;
pub(crate) use postgres::{Postgres, StopMode};
pub(crate) use process_postgres::{DataCopy, ProcessPostgres};
pub(crate) use session::unique;
pub(crate) use wait::until;

/// How servers are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Containers,
    Processes,
}

/// How servers are run unless a test asks for processes; said once, on standard error.
///
/// `OUTBOXD_TEST_SERVERS` (containers or processes) decides; without it, whether a container engine answers.
pub(crate) async fn kind() -> Kind {
    static KIND: OnceCell<Kind> = OnceCell::const_new();
    *KIND
        .get_or_init(|| async {
            let (kind, why) = match env::var("OUTBOXD_TEST_SERVERS").as_deref() {
                Ok("containers") => (Kind::Containers, "OUTBOXD_TEST_SERVERS"),
                Ok("processes") => (Kind::Processes, "OUTBOXD_TEST_SERVERS"),
                Ok(other) => panic!("OUTBOXD_TEST_SERVERS is {other:?}; it can be containers or processes"),
                Err(_) if container::engine_answers().await => (Kind::Containers, "a container engine answers"),
                Err(_) => (Kind::Processes, "no container engine answers"),
            };
            // Not eprintln!, which the test runner hides while tests pass.
            let _ = writeln!(io::stderr(), "servers of this run: {kind:?} ({why}), PostgreSQL {:?}", versions());
            kind
        })
        .await
}

/// The PostgreSQL versions that a test of the restart family runs on: `OUTBOXD_TEST_PG_VERSIONS`, such as `14,18`.
pub(crate) fn versions() -> Vec<u32> {
    let text = env::var("OUTBOXD_TEST_PG_VERSIONS").unwrap_or_else(|_| "14,18".to_owned());
    let parsed: Result<_, _> = text.split(',').map(|version| version.trim().parse()).collect();
    parsed.unwrap_or_else(|_| panic!("OUTBOXD_TEST_PG_VERSIONS is {text:?}; expected versions such as 14,18"))
}

/// The folder with the server programs of this PostgreSQL version.
pub(crate) fn postgres_programs(version: u32) -> std::path::PathBuf {
    session::package(&format!("postgres-{version}")).join("bin")
}

/// The PostgreSQL server of this version that all tests of the process share; make a database of your own in it. It has slots for all.
pub(crate) async fn shared_postgres(version: u32) -> &'static Postgres {
    static SHARED: Mutex<BTreeMap<u32, &'static OnceCell<Postgres>>> = Mutex::new(BTreeMap::new());
    let cell = *SHARED.lock().unwrap().entry(version).or_insert_with(|| Box::leak(Box::default()));
    let settings = [("max_replication_slots", "200"), ("max_wal_senders", "100"), ("max_connections", "300")];
    cell.get_or_init(|| async move { Postgres::start(version, &settings).await }).await
}

/// The Kafka broker that all tests of the process share; make topics of your own in it.
pub(crate) async fn shared_kafka() -> &'static Kafka {
    static SHARED: OnceLock<OnceCell<Kafka>> = OnceLock::new();
    SHARED.get_or_init(OnceCell::new).get_or_init(Kafka::start).await
}
