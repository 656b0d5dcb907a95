//! A replication connection before it streams: connect, log in, ask.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message};
use tokio::io::Interest;

use super::attempts::Attempts;
use super::auth::{Authentication, Progress};
use super::conninfo::{Conninfo, Host};
use super::error::{Error, Result};
use super::lsn::Lsn;
use super::session::{FIXED_SETTINGS, ServerRole};
use super::stream::{ReplicationStream, StreamSettings};
use super::transport::{Address, Transport};
use super::wire::backend::{Backend, server_error, split_message};
use super::wire::{frontend, quote};

/// Room for an answer; it grows for a larger one.
const BUFFER_BYTES: usize = 8 * 1024;

/// A row of an answer: texts as the server writes them.
pub type TextRow = Vec<Option<String>>;

/// A connection in replication mode to one database (`replication=database`): it takes replication commands and
/// simple queries.
///
/// Its methods have no time limit of their own, but for [`connect`](Self::connect), and are not cancel-safe: a
/// connection whose method was given up must be dropped.
#[derive(Debug)]
pub struct ReplicationConnection {
    transport: Transport,
    buf: BytesMut,
    parameters: BTreeMap<String, String>,
    backend_pid: i32,
    place: String,
    /// Which of the hosts it is.
    host: usize,
    settings: StreamSettings,
}

/// What `IDENTIFY_SYSTEM` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The number that `initdb` drew; copies and standbys have it too.
    pub system_id: u64,
    /// It grows by one with each promotion.
    pub timeline: u32,
    /// How far the server's log is safe on its disk.
    pub flushed: Lsn,
    /// The database of this connection.
    pub dbname: String,
}

impl ReplicationConnection {
    /// Connects to the first host that will do, each address within the `connect_timeout`.
    ///
    /// # Errors
    /// When no host will do: with what happened at each. When a host answers and does not let one in: with that.
    pub async fn connect(conninfo: &Conninfo, settings: &StreamSettings) -> Result<Self> {
        let mut attempts = Attempts::new(conninfo);
        while let Some((host, index, pass)) = attempts.next() {
            match Self::connect_host(conninfo, host, pass, settings).await {
                Ok(connection) => return Ok(Self { host: index, ..connection }),
                Err(error) => attempts.failed(host, error)?,
            }
        }
        Err(attempts.all_failed())
    }

    /// The server process that serves this connection, as in `pg_stat_activity.pid` and `pg_replication_slots.active_pid`.
    #[must_use]
    pub const fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// The server's version as in its setting `server_version_num`: 180004 is 18.4. Zero when it says nothing readable.
    #[must_use]
    pub fn server_version_num(&self) -> u32 {
        self.parameters.get("server_version").map_or(0, |version| version_num(version))
    }

    /// How to reach the server of this connection, given how it was reached.
    #[must_use]
    pub fn same_host(&self, conninfo: &Conninfo) -> Conninfo {
        conninfo.only(self.host)
    }

    /// The host this is connected to, in words.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Asks which system this is and where its log stands.
    ///
    /// # Errors
    /// When the connection is lost, or the answer is not what the protocol says.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity> {
        let rows = self.simple_query("IDENTIFY_SYSTEM").await?;
        rows.into_iter()
            .next()
            .and_then(system_identity)
            .ok_or_else(|| Error::protocol("an answer to IDENTIFY_SYSTEM that cannot be read"))
    }

    /// Runs SQL or a replication command and returns the rows. Columns come in the order of the question.
    ///
    /// Nothing may be asked here about publications and tables that are streamed afterwards: the server process would keep
    /// today's definitions in its caches and decode yesterday's log with them. Seen with 14: a publication that is younger
    /// than the slot was no error any more, and its rows were left out.
    ///
    /// # Errors
    /// When the server refuses it or the connection is lost.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<TextRow>> {
        self.send(|out| frontend::query(sql, out)).await?;
        let mut rows = Vec::new();
        let mut refusal = None;
        loop {
            match self.receive().await {
                Ok(Backend::Known(Message::DataRow(row))) => rows.push(text_row(&row)?),
                Ok(Backend::Known(Message::ErrorResponse(error))) => {
                    refusal = Some(Error::server(server_error(error.fields())?));
                }
                Ok(Backend::Known(Message::ReadyForQuery(_))) => return refusal.map_or(Ok(rows), Err),
                Ok(Backend::Known(message)) => self.note(&message)?,
                Ok(Backend::CopyBoth) => return Err(Error::protocol("a copy stream that nobody asked for")),
                // After a fatal error there is no "ready"; the error says more than the end.
                Err(error) => return Err(refusal.unwrap_or(error)),
            }
        }
    }

    /// Starts to stream the slot's changes of the publications, with pgoutput's protocol 1: whole committed transactions, in
    /// the order of their commits.
    ///
    /// It begins at `start` or where the slot stands, whichever is later. A `start` ahead of the server's own log is
    /// accepted by the server, which then silently leaves out what is committed next: the caller must know better.
    ///
    /// # Errors
    /// [`is_slot_missing`](Error::is_slot_missing), [`is_slot_active`](Error::is_slot_active),
    /// [`is_slot_lost`](Error::is_slot_lost), or a lost connection. The publications are not looked at before the first change.
    pub async fn start<S: AsRef<str>>(
        mut self,
        slot: &str,
        start: Lsn,
        publications: &[S],
    ) -> Result<ReplicationStream> {
        let command = start_command(slot, start, publications);
        self.send(|out| frontend::query(&command, out)).await?;
        loop {
            match self.receive().await.map_err(|error| error.context(format!("slot {slot:?}")))? {
                Backend::CopyBoth => return Ok(ReplicationStream::new(self.transport, self.buf, self.settings)),
                Backend::Known(Message::ErrorResponse(error)) => {
                    let error = Error::server(server_error(error.fields())?);
                    return Err(error.context(format!("{}: slot {slot:?}", self.place)));
                }
                Backend::Known(message) => self.note(&message)?,
            }
        }
    }

    /// Says good-bye, so that the server need not find out by itself.
    pub async fn close(mut self) {
        // The connection is given up either way.
        let _ = self
            .send(|out| {
                frontend::terminate(out);
                Ok(())
            })
            .await;
    }

    async fn connect_host(conninfo: &Conninfo, host: &Host, pass: usize, settings: &StreamSettings) -> Result<Self> {
        let addresses = within(conninfo.connect_timeout(), Address::of(host)).await?;
        let mut outcome = Err(Error::closed());
        for address in &addresses {
            outcome =
                within(conninfo.connect_timeout(), Self::connect_address(conninfo, host, address, settings)).await;
            // Another address of the same host is no better at passwords.
            if !outcome.as_ref().is_err_and(Error::is_connection_lost) {
                break;
            }
        }
        let mut connection = outcome?;
        within(conninfo.connect_timeout(), connection.take_unchecked_texts()).await?;
        let role = ServerRole::reported(|name| connection.parameters.get(name).map(String::as_str));
        if !conninfo.target_session().accepts(role, pass) {
            let target = conninfo.target_session();
            connection.close().await;
            return Err(Error::wrong_server(format!("the server is not what target_session_attrs={target} wants")));
        }
        Ok(connection)
    }

    async fn connect_address(
        conninfo: &Conninfo,
        host: &Host,
        address: &Address,
        settings: &StreamSettings,
    ) -> Result<Self> {
        let mut connection = Self {
            transport: Transport::connect(address, conninfo).await?,
            buf: BytesMut::with_capacity(BUFFER_BYTES),
            parameters: BTreeMap::new(),
            backend_pid: 0,
            place: host.to_string(),
            host: 0,
            settings: settings.clone(),
        };
        connection.send(|out| frontend::startup_message(startup_parameters(conninfo), out)).await?;
        connection.log_in(conninfo, host).await?;
        Ok(connection)
    }

    /// A database that does not say what its bytes mean sends them as they are. As UTF-8 it would check them, and end the stream
    /// with an error at one row that is none: here that row can be told from the others.
    async fn take_unchecked_texts(&mut self) -> Result<()> {
        if self.parameters.get("server_encoding").is_some_and(|encoding| encoding == "SQL_ASCII") {
            self.simple_query("SET client_encoding = 'SQL_ASCII'").await?;
        }
        Ok(())
    }

    async fn log_in(&mut self, conninfo: &Conninfo, host: &Host) -> Result<()> {
        let mut authentication = Authentication::new(conninfo.user(), host.password());
        loop {
            let mut answer = BytesMut::new();
            let message = self.receive_known().await?;
            if authentication.step(&message, &mut answer)? == Progress::Done {
                break;
            }
            self.write(&mut answer).await?;
        }
        loop {
            match self.receive_known().await? {
                Message::ReadyForQuery(_) => return Ok(()),
                Message::BackendKeyData(key) => self.backend_pid = key.process_id(),
                message => self.note(&message)?,
            }
        }
    }

    /// Takes in what the server may send at any time.
    fn note(&mut self, message: &Message) -> Result<()> {
        if let Message::ParameterStatus(parameter) = message {
            let text =
                |text: io::Result<&str>| text.map(str::to_owned).map_err(|error| Error::protocol(error.to_string()));
            self.parameters.insert(text(parameter.name())?, text(parameter.value())?);
        }
        Ok(())
    }

    /// The next message; an error of the server is an error here.
    async fn receive_known(&mut self) -> Result<Message> {
        match self.receive().await? {
            Backend::Known(Message::ErrorResponse(error)) => Err(Error::server(server_error(error.fields())?)),
            Backend::Known(message) => Ok(message),
            Backend::CopyBoth => Err(Error::protocol("a copy stream that nobody asked for")),
        }
    }

    async fn receive(&mut self) -> Result<Backend> {
        loop {
            if let Some(message) = split_message(&mut self.buf, self.settings.max_message_bytes)? {
                return Ok(message);
            }
            self.transport.ready(Interest::READABLE).await.map_err(Error::io)?;
            self.buf.reserve(BUFFER_BYTES);
            match self.transport.try_read(&mut self.buf) {
                Ok(0) => return Err(Error::closed()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Error::io(error)),
            }
        }
    }

    async fn send(&mut self, message: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<()> {
        let mut out = BytesMut::new();
        message(&mut out).map_err(Error::io)?;
        self.write(&mut out).await
    }

    async fn write(&mut self, out: &mut BytesMut) -> Result<()> {
        loop {
            match self.transport.try_write(out) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.transport.ready(Interest::WRITABLE).await.map_err(Error::io)?;
                }
                Err(error) => return Err(Error::io(error)),
            }
        }
    }
}

/// Gives up after the limit, if there is one.
pub(crate) async fn within<T>(limit: Option<Duration>, work: impl Future<Output = Result<T>>) -> Result<T> {
    match limit {
        None => work.await,
        Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(Error::timed_out(limit))),
    }
}

fn startup_parameters(conninfo: &Conninfo) -> impl Iterator<Item = (&str, &str)> {
    let ours = [
        ("user", conninfo.user()),
        ("database", conninfo.dbname()),
        ("replication", "database"),
        ("application_name", conninfo.application_name()),
    ];
    // The server applies these after `options`, so the fixed ones win.
    let options = Some(("options", conninfo.options())).filter(|(_, options)| !options.is_empty());
    ours.into_iter().chain(options).chain(FIXED_SETTINGS)
}

fn start_command<S: AsRef<str>>(slot: &str, start: Lsn, publications: &[S]) -> String {
    format!(
        "START_REPLICATION SLOT {} LOGICAL {start} (proto_version '1', publication_names {})",
        quote::identifier(slot),
        quote::replication_name_list(publications)
    )
}

fn text_row(row: &DataRowBody) -> Result<TextRow> {
    let malformed = |_| Error::protocol("a row that cannot be read");
    let mut texts = TextRow::new();
    let mut ranges = row.ranges();
    while let Some(range) = ranges.next().map_err(malformed)? {
        texts.push(match range {
            None => None,
            Some(range) => {
                let bytes = row.buffer().get(range).ok_or_else(|| Error::protocol("a row that cannot be read"))?;
                let text = std::str::from_utf8(bytes).map_err(|_| Error::protocol("a text that is not UTF-8"))?;
                Some(text.to_owned())
            }
        });
    }
    Ok(texts)
}

fn system_identity(row: TextRow) -> Option<SystemIdentity> {
    let mut columns = row.into_iter();
    Some(SystemIdentity {
        system_id: columns.next()??.parse().ok()?,
        timeline: columns.next()??.parse().ok()?,
        flushed: columns.next()??.parse().ok()?,
        dbname: columns.next()??,
    })
}

/// `server_version_num` of a `server_version` such as `18.4 (Debian 18.4-1)` or `19beta1`.
fn version_num(version: &str) -> u32 {
    let (major, rest) = leading_number(version);
    let (minor, _) = rest.strip_prefix('.').map_or((0, rest), leading_number);
    major.saturating_mul(10_000).saturating_add(minor)
}

fn leading_number(text: &str) -> (u32, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.parse().unwrap_or(0), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, number) in [
            ("18.4 (Debian 18.4-1)", 180_004),
            ("14.23", 140_023),
            ("19beta1", 190_000),
            ("17devel", 170_000),
            ("x", 0),
        ] {
            assert_eq!(version_num(text), number, "{text}");
        }
    }

    #[test]
    fn names_in_the_start_command_are_quoted() {
        assert_eq!(
            start_command("a\"b", Lsn::new(0x1_0000_00AB), &["p", "q'r"]),
            "START_REPLICATION SLOT \"a\"\"b\" LOGICAL 1/AB (proto_version '1', publication_names '\"p\",\"q''r\"')"
        );
    }

    #[test]
    fn the_system_is_identified() {
        let row = ["7300000000000000001", "2", "0/16B3748", "db"].map(|text| Some(text.to_owned())).to_vec();
        let identity = system_identity(row).unwrap();
        assert_eq!((identity.system_id, identity.timeline), (7_300_000_000_000_000_001, 2));
        assert_eq!((identity.flushed, identity.dbname.as_str()), (Lsn::new(0x16B_3748), "db"));
        assert_eq!(system_identity(vec![Some("x".to_owned())]), None);
    }
}
