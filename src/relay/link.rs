//! The connection to the database: it comes, it goes, and it comes again.

use std::future::Future;
use std::pin::Pin;

use tokio::time::Instant;
use tokio_postgres::Client;

use super::backoff::Backoff;
use super::halt::{Halt, Reason};
use super::sentinel::{Sentinel, Word};
use crate::config::run::RunSettings;
use crate::outbox::ShapeError;
use crate::postgres::wire::quote;
use crate::postgres::{
    self, Block, EndLsn, Lsn, QualifiedName, ReplicationConnection, ReplicationStream, Status, StreamSettings,
    SystemIdentity, publication, sql,
};
use crate::recovery::held::store;

/// A connection that has not begun to stream, and what the server said about itself.
pub(super) struct Session {
    connection: ReplicationConnection,
    /// Which system and timeline it is, and where its log stands.
    pub(super) identity: SystemIdentity,
    /// Where the slot stands.
    pub(super) confirmed: EndLsn,
    /// The server process that serves the connection.
    pub(super) pid: i32,
    /// Who read the slot when it was looked at, in words.
    reader: Option<String>,
    /// The tables that inherit from the outbox.
    pub(super) heirs: Vec<QualifiedName>,
    /// Why events cannot be held, if so.
    pub(super) held_table: Option<String>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may come by itself.
    Retry(postgres::Error),
    /// It will not, unless somebody is just rotating credentials or setting things up.
    Halt(Halt),
}

/// What happened on the link.
pub(super) enum LinkEvent {
    /// A server is there.
    Connected(Box<Session>),
    /// There is none.
    Failed(Failure),
    /// Messages came.
    Block(Block),
    /// The stream has ended.
    Lost(postgres::Error),
    /// The second connection heard something.
    Word(Word),
    /// An operator asks for something.
    Called,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Session, Failure>>>>;

enum State {
    Down {
        until: Instant,
    },
    Connecting(Connecting),
    /// Connected, and the driver decides whether and where to begin.
    Held,
    Up {
        stream: Box<ReplicationStream>,
        sentinel: Sentinel,
    },
}

/// The link to the database.
pub(super) struct Link {
    settings: RunSettings,
    state: State,
    backoff: Backoff,
}

impl Link {
    pub(super) fn new(settings: RunSettings, backoff: Backoff) -> Self {
        Self { settings, state: State::Down { until: Instant::now() }, backoff }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Waits for the next thing that happens. Without `read` nothing is read from the stream, so the server waits; that it
    /// closes the connection is noticed all the same. Cancel-safe.
    pub(super) async fn event(&mut self, read: bool) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Down { until } => {
                    tokio::time::sleep_until(*until).await;
                    self.state = State::Connecting(Box::pin(connect(self.settings.clone())));
                }
                State::Connecting(connecting) => {
                    let connected = connecting.await;
                    self.state = State::Held;
                    return match connected {
                        Ok(session) => LinkEvent::Connected(Box::new(session)),
                        Err(failure) => LinkEvent::Failed(failure),
                    };
                }
                State::Held => std::future::pending().await,
                State::Up { stream, sentinel } => {
                    let block = async {
                        if read {
                            return stream.readable_block().await;
                        }
                        // A status may wait for room in the socket.
                        stream.flush().await?;
                        stream.closed().await;
                        Err(postgres::Error::closed())
                    };
                    return tokio::select! {
                        biased;
                        heard = sentinel.heard() => heard.map_or(LinkEvent::Called, LinkEvent::Word),
                        block = block => block.map_or_else(LinkEvent::Lost, LinkEvent::Block),
                    };
                }
            }
        }
    }

    /// Begins to stream from where the slot stands.
    pub(super) async fn start(&mut self, session: Session) -> Result<(), Failure> {
        let Session { connection, pid, reader, .. } = session;
        let publications = [self.settings.publication.as_str()];
        let started = connection.start(&self.settings.slot, Lsn::ZERO, &publications).await;
        let stream = started.map_err(|error| match reader {
            Some(reader) if error.is_slot_active() => classify(error.context(reader)),
            _ => classify(error),
        })?;
        let sentinel = Sentinel::watch(self.settings.database.clone(), self.settings.slot.clone(), pid);
        self.state = State::Up { stream: Box::new(stream), sentinel };
        Ok(())
    }

    /// There was progress: the next failure waits shortly again.
    pub(super) const fn progressed(&mut self) {
        self.backoff.reset();
    }

    /// Drops the connection and connects again after a while; returns how long.
    pub(super) fn retry(&mut self) -> std::time::Duration {
        let pause = self.backoff.next(fastrand::f64());
        self.state = State::Down { until: Instant::now() + pause };
        pause
    }

    /// Sends a status, if there is a stream.
    pub(super) fn send_status(&mut self, status: Status) {
        if let State::Up { stream, .. } = &mut self.state {
            stream.send_status(status);
        }
    }

    /// Ends the stream in good order: the last status, then the server's word that it has taken it in.
    pub(super) async fn finish(&mut self, last: Status, within: std::time::Duration) -> Result<(), postgres::Error> {
        let now = Instant::now();
        match std::mem::replace(&mut self.state, State::Down { until: now }) {
            State::Up { stream, .. } => stream.finish(last, within).await,
            _ => Ok(()),
        }
    }
}

/// Connects, and looks whether slot, publication and table are there.
async fn connect(settings: RunSettings) -> Result<Session, Failure> {
    let stream = StreamSettings { max_message_bytes: settings.message_bytes_max, gather: settings.gather };
    let mut connection = ReplicationConnection::connect(&settings.database, &stream).await.map_err(classify)?;
    let identity = connection.identify_system().await.map_err(classify)?;
    look_at_server(&mut connection).await?;
    let (confirmed, reader) = look_at_slot(&mut connection, &settings).await?;
    let client = sql::connect_and_spawn(&connection.same_host(&settings.database)).await.map_err(classify)?;
    let heirs = look_at_publication(&settings, &client).await?;
    let held_table = store::problem(&client).await.map_err(classify)?;
    let pid = connection.backend_pid();
    Ok(Session { connection, identity, confirmed, pid, reader, heirs, held_table })
}

/// Whether the server can do what is needed. In the middle of a failover there may be a standby only, which is waited for.
async fn look_at_server(connection: &mut ReplicationConnection) -> Result<(), Failure> {
    let query = "select pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('wal_level')";
    let rows = connection.simple_query(query).await.map_err(classify)?;
    match rows.into_iter().next().as_deref() {
        Some([Some(standby), _]) if standby == "t" => Err(Failure::Retry(postgres::Error::wrong_server(
            "this server is a standby; name the primary, or name all servers and set target_session_attrs=primary",
        ))),
        Some([_, Some(level)]) if level != "logical" => {
            let what = format!("wal_level is {level}; ALTER SYSTEM SET wal_level = 'logical' and restart the server");
            Err(Failure::Halt(Halt::new(Reason::Server, None, what)))
        }
        _ => Ok(()),
    }
}

/// Where the slot stands, and who reads it, in words.
async fn look_at_slot(
    connection: &mut ReplicationConnection,
    settings: &RunSettings,
) -> Result<(EndLsn, Option<String>), Failure> {
    let slot = &settings.slot;
    let halt = |reason, what: String| Err(Failure::Halt(Halt::new(reason, None, what)));
    // The reader of a role that we may not see has no application and no age.
    let query = format!(
        "select plugin, database, coalesce(wal_status, ''), confirmed_flush_lsn, \
         'it is read by the server process ' || active_pid || coalesce((select ' (' || application_name || coalesce(' from ' || \
         pg_catalog.host(client_addr), '') || '), connected for ' || pg_catalog.date_trunc('second', pg_catalog.now() - \
         backend_start) from pg_catalog.pg_stat_activity where pid = active_pid), '') \
         from pg_catalog.pg_replication_slots where slot_name = {}",
        quote::literal(slot)
    );
    let rows = connection.simple_query(&query).await.map_err(classify)?;
    let row: Option<[Option<String>; 5]> = rows.into_iter().next().and_then(|row| row.try_into().ok());
    let Some([plugin, database, wal_status, confirmed, reader]) = row else {
        return halt(Reason::Slot, format!("the replication slot {slot:?} does not exist"));
    };
    if plugin.as_deref() != Some("pgoutput") {
        let plugin = plugin.unwrap_or_else(|| "none (it is physical)".to_owned());
        return halt(
            Reason::Slot,
            format!(
                "the replication slot {slot:?} has the plugin {plugin} instead of pgoutput; choose another with --slot"
            ),
        );
    }
    if database.as_deref() != Some(settings.database.dbname()) {
        let database = database.unwrap_or_default();
        return halt(
            Reason::Slot,
            format!("the replication slot {slot:?} belongs to the database {database:?}; choose another with --slot"),
        );
    }
    if wal_status.as_deref() == Some("lost") {
        return halt(
            Reason::Slot,
            format!("the replication slot {slot:?} is lost: the server removed the log it needs"),
        );
    }
    let confirmed = confirmed.and_then(|text| text.parse::<Lsn>().ok()).unwrap_or(Lsn::ZERO);
    Ok((EndLsn::new(confirmed), reader))
}

/// Whether the publication covers the table, and which tables inherit from that. Over a connection of its own, since the replication connection must not know
/// today's definitions: see [`ReplicationConnection::simple_query`].
async fn look_at_publication(settings: &RunSettings, client: &Client) -> Result<Vec<QualifiedName>, Failure> {
    let (name, table) = (&settings.publication, &settings.table);
    let alter = format!("ALTER PUBLICATION {}", quote::identifier(name));
    let (reason, what) = match publication::inspect(client, name, table).await.map_err(classify)? {
        Some(found) if found.inserts && found.covers => {
            look_at_columns(settings, &found)?;
            return Ok(found.heirs);
        }
        Some(found) if found.inserts => {
            let remedy = format!("{alter} ADD TABLE {}", table.quoted());
            (Reason::Publication, format!("the publication {name:?} does not cover the table {table}; {remedy}"))
        }
        Some(_) => {
            let remedy = format!("{alter} SET (publish = 'insert')");
            (Reason::Publication, format!("the publication {name:?} does not publish inserts; {remedy}"))
        }
        None => (Reason::Slot, format!("the publication {name:?} does not exist")),
    };
    Err(Failure::Halt(Halt::new(reason, None, what)))
}

/// Whether everything that records are made of is there and is published.
fn look_at_columns(settings: &RunSettings, found: &publication::Publication) -> Result<(), Failure> {
    let table = settings.table.to_string();
    match ShapeError::among(&table, &found.table_columns, &found.columns, &settings.mapping) {
        Some(error) => Err(Failure::Halt(Halt::new(Reason::Shape, None, error))),
        None => Ok(()),
    }
}

/// What an error of the connection leads to. Total: what is not known halts.
fn classify(error: postgres::Error) -> Failure {
    let code = error.sqlstate().map(|state| state.code().to_owned()).unwrap_or_default();
    let reason = match code.as_str() {
        _ if error.is_connection_lost() => return Failure::Retry(error),
        // In the middle of a failover there may be a standby only.
        _ if error.is_wrong_server() => return Failure::Retry(error),
        // Terminated, crashed, starting or stopping, too many connections, out of memory, the slot in use.
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "53200" | "53100" | "55006" => return Failure::Retry(error),
        "42704" | "55000" => Reason::Slot,
        _ if error.is_database_missing() => Reason::NoDatabase,
        _ if error.is_authentication() => Reason::Forbidden,
        "42501" => Reason::Forbidden,
        _ if error.is_too_large() => Reason::TooLarge,
        _ => Reason::Server,
    };
    Failure::Halt(Halt::new(reason, None, error))
}

/// What an error that ended the stream leads to. Once it streams, only a publication can be undefined.
pub(super) fn classify_lost(error: postgres::Error, settings: &RunSettings) -> Failure {
    if error.is_slot_missing() {
        let what = format!(
            "{error}; when the publication {:?} was created after the slot {:?}, the slot never sees it: drop the slot and \
             create it again",
            settings.publication, settings.slot
        );
        return Failure::Halt(Halt::new(Reason::Slot, None, what));
    }
    classify(error)
}
