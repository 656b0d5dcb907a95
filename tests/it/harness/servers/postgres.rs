//! A PostgreSQL server with logical replication switched on.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::{Client, NoTls};

use super::container::Container;
use super::machine::{Machine, Recipe, Signal};
use super::process::Process;
use super::session::{free_port, session, unique};
use super::wait::until;
use super::{Kind, kind};

/// The superuser's password; over TCP it is asked for by SCRAM-SHA-256.
const PASSWORD: &str = "outboxd-tests";

/// How long a start (with crash recovery) or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How `pg_ctl stop` names the ways to stop a server that do not wait for its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StopMode {
    /// Ends the sessions, writes a checkpoint and waits for its replication clients to confirm that.
    Fast,
    /// Ends at once; the next start recovers from the log.
    Immediate,
}

/// A PostgreSQL server. It keeps its port and its data over all its lives and vanishes when it is dropped.
pub(crate) struct Postgres {
    machine: Box<dyn Machine>,
    version: u32,
    port: u16,
}

impl Postgres {
    /// Starts a server of this major version with further settings, and waits until it answers.
    pub(crate) async fn start(version: u32, settings: &[(&str, &str)]) -> Self {
        match kind().await {
            Kind::Containers => {
                let recipe = recipe(version, settings);
                let port = recipe.port;
                let machine = Box::new(Container::boot(recipe).await);
                Self::booted(machine, version, port).await
            }
            Kind::Processes => {
                let folder = session().new_folder(&format!("postgres-{version}"));
                Self::start_process(version, settings, folder).await
            }
        }
    }

    /// Starts a server as a process, on the data in the folder if there are any.
    pub(super) async fn start_process(version: u32, settings: &[(&str, &str)], folder: PathBuf) -> Self {
        let path = folder.to_str().unwrap();
        let recipe = recipe(version, settings)
            .with_variable("PGDATA", format!("{path}/data"))
            .with_setting("listen_addresses", "127.0.0.1")
            .with_setting("unix_socket_directories", path);
        let port = recipe.port;
        let machine = Box::new(Process::boot(recipe, folder));
        Self::booted(machine, version, port).await
    }

    async fn booted(machine: Box<dyn Machine>, version: u32, port: u16) -> Self {
        let server = Self { machine, version, port };
        server.ready().await;
        server
    }

    /// The major version.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// The TCP port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A connection string of the superuser, over TCP, in the key=value form.
    pub(crate) fn conninfo(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} user=postgres password={PASSWORD} dbname={database}", self.port)
    }

    /// A session for SQL; it ends when the client is dropped.
    pub(crate) async fn sql(&self, database: &str) -> Client {
        self.connect(database)
            .await
            .unwrap_or_else(|error| panic!("SQL session with PostgreSQL {}: {error:?}", self.version))
    }

    /// Makes an empty database and returns its name.
    pub(crate) async fn create_database(&self) -> String {
        self.create_database_in("UTF8").await
    }

    /// With another encoding.
    pub(crate) async fn create_database_in(&self, encoding: &str) -> String {
        let name = unique("db");
        let statement = format!("create database {name} template template0 encoding '{encoding}' locale 'C'");
        self.sql("postgres").await.batch_execute(&statement).await.unwrap();
        name
    }

    /// Stops the server and returns when all its processes have ended.
    pub(crate) async fn stop(&self, mode: StopMode) {
        let signal = match mode {
            StopMode::Fast => Signal::Interrupt,
            StopMode::Immediate => Signal::Quit,
        };
        self.machine.signal(signal).await;
        until(&format!("PostgreSQL's {mode:?} stop"), PATIENCE, || async {
            if self.is_running().await { Err("it runs") } else { Ok(()) }
        })
        .await;
    }

    /// Kills all processes of the server at once, as a crash does.
    pub(crate) async fn kill(&self) {
        self.machine.kill().await;
    }

    /// Freezes all processes of the server: connections stay open, and nothing is answered.
    pub(crate) async fn pause(&self) {
        self.machine.pause().await;
    }

    /// Lets a paused server go on.
    pub(crate) async fn unpause(&self) {
        self.machine.unpause().await;
    }

    /// Starts the stopped or killed server on the same port and data, and waits until it answers.
    pub(crate) async fn start_again(&self) {
        self.machine.start().await;
        self.ready().await;
    }

    /// Whether any process of the server exists.
    pub(crate) async fn is_running(&self) -> bool {
        self.machine.is_running().await
    }

    async fn connect(&self, database: &str) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.conninfo(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn ready(&self) {
        until("PostgreSQL to answer", PATIENCE, || async {
            let Err(error) = self.connect("postgres").await else { return Ok(()) };
            if !self.is_running().await {
                panic!("PostgreSQL {} ended instead of starting:\n{}", self.version, self.machine.log().await);
            }
            Err(error)
        })
        .await;
    }
}

fn recipe(version: u32, settings: &[(&str, &str)]) -> Recipe {
    let port = free_port();
    let recipe = Recipe {
        image: ("postgres", version.to_string()),
        package: (format!("postgres-{version}"), "entrypoint"),
        variables: vec![],
        arguments: vec![],
        port,
    }
    .with_variable("POSTGRES_PASSWORD", PASSWORD)
    // A cluster that a crash of the machine may spoil while it is made is good enough; the server itself keeps fsync on.
    .with_variable("POSTGRES_INITDB_ARGS", "--no-sync")
    .with_setting("port", &port.to_string())
    .with_setting("wal_level", "logical")
    .with_setting("max_replication_slots", "20")
    .with_setting("max_wal_senders", "20")
    .with_setting("fsync", "on");
    settings.iter().fold(recipe, |recipe, (name, value)| recipe.with_setting(name, value))
}
