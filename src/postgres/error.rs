//! What can go wrong between this program and PostgreSQL.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio_postgres::error::SqlState;

/// An error of a connection to PostgreSQL.
///
/// `Display` is the whole message: what was being done, what happened and, where one is known, the remedy. The
/// [`source`](StdError::source) is there for inspection; its text is already in the message.
pub struct Error {
    kind: Kind,
    context: Option<String>,
}

#[derive(Debug)]
enum Kind {
    Io(io::Error),
    Closed,
    TimedOut { after: Duration },
    Server(Box<ServerError>),
    TooLarge { announced: usize, limit: usize },
    Protocol(String),
    Authentication(String),
    Refused(String),
    WrongServer(String),
    Sql(Box<tokio_postgres::Error>),
}

/// The result of anything that talks to PostgreSQL.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    const fn of(kind: Kind) -> Self {
        Self { kind, context: None }
    }

    pub(crate) const fn io(source: io::Error) -> Self {
        Self::of(Kind::Io(source))
    }

    pub(crate) const fn closed() -> Self {
        Self::of(Kind::Closed)
    }

    pub(crate) const fn timed_out(after: Duration) -> Self {
        Self::of(Kind::TimedOut { after })
    }

    pub(crate) fn server(error: ServerError) -> Self {
        Self::of(Kind::Server(Box::new(error)))
    }

    pub(crate) const fn message_too_large(announced: usize, limit: usize) -> Self {
        Self::of(Kind::TooLarge { announced, limit })
    }

    /// Bytes that are not what the protocol says. They come from a broken server, or from one that is no PostgreSQL.
    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::of(Kind::Protocol(what.into()))
    }

    /// An authentication that cannot succeed, found on this side.
    pub(crate) fn authentication(what: impl Into<String>) -> Self {
        Self::of(Kind::Authentication(what.into()))
    }

    /// Something this program declines to do; the text says why and what to do instead.
    /// Something that only a defect of ours, or somebody's hand in our tables, explains.
    #[cfg(feature = "relay")]
    pub(crate) fn internal(what: impl std::fmt::Display) -> Self {
        Self::protocol(what.to_string())
    }

    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::of(Kind::Refused(why.into()))
    }

    /// A server that works and is not the one that `target_session_attrs` wants.
    pub(crate) fn wrong_server(what: impl Into<String>) -> Self {
        Self::of(Kind::WrongServer(what.into()))
    }

    /// Puts `context` in front of the message: what was being done, and to what.
    #[must_use]
    pub(crate) fn context(mut self, context: impl Into<String>) -> Self {
        let context = context.into();
        self.context = Some(match self.context {
            Some(inner) => format!("{context}: {inner}"),
            None => context,
        });
        self
    }

    /// The server's error code, when the server said something.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        match &self.kind {
            Kind::Server(error) => Some(error.sqlstate()),
            _ => None,
        }
    }

    /// What the server said, when it did.
    #[must_use]
    pub fn as_server_error(&self) -> Option<&ServerError> {
        match &self.kind {
            Kind::Server(error) => Some(error),
            _ => None,
        }
    }

    fn is(&self, state: &SqlState) -> bool {
        self.sqlstate() == Some(state)
    }

    /// No connection, or none any more: refused, reset, closed, timed out, unknown host.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        match &self.kind {
            Kind::Io(_) | Kind::Closed | Kind::TimedOut { .. } => true,
            Kind::Sql(error) => error.is_closed() || error.source().is_some_and(<dyn StdError>::is::<io::Error>),
            // Class 08 is "connection exception".
            Kind::Server(error) => error.sqlstate().code().starts_with("08"),
            _ => false,
        }
    }

    /// No server of the list is of the kind that `target_session_attrs` wants, as during a failover.
    #[must_use]
    pub const fn is_wrong_server(&self) -> bool {
        matches!(self.kind, Kind::WrongServer(_))
    }

    /// The server does not let this role in (class 28), or cannot prove who it is.
    #[must_use]
    pub fn is_authentication(&self) -> bool {
        match &self.kind {
            Kind::Authentication(_) => true,
            Kind::Server(error) => error.sqlstate().code().starts_with("28"),
            _ => false,
        }
    }

    /// The slot, or whatever else was named, does not exist (42704).
    #[must_use]
    pub fn is_slot_missing(&self) -> bool {
        self.is(&SqlState::UNDEFINED_OBJECT)
    }

    /// Another connection is reading the slot (55006).
    #[must_use]
    pub fn is_slot_active(&self) -> bool {
        self.is(&SqlState::OBJECT_IN_USE)
    }

    /// The slot was invalidated: the log it needs is gone (55000).
    #[must_use]
    pub fn is_slot_lost(&self) -> bool {
        self.is(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
    }

    /// The role lacks a privilege (42501).
    #[must_use]
    pub fn is_privilege(&self) -> bool {
        self.is(&SqlState::INSUFFICIENT_PRIVILEGE)
    }

    /// A table or a schema that is not there (42P01, 3F000).
    #[must_use]
    pub fn is_undefined(&self) -> bool {
        self.is(&SqlState::UNDEFINED_TABLE) || self.is(&SqlState::INVALID_SCHEMA_NAME)
    }

    /// The server ended this connection: `pg_terminate_backend` or a shutdown (57P01).
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.is(&SqlState::ADMIN_SHUTDOWN)
    }

    /// The server is starting up, shutting down or recovering (57P03).
    #[must_use]
    pub fn is_starting_or_stopping(&self) -> bool {
        self.is(&SqlState::CANNOT_CONNECT_NOW)
    }

    /// The database does not exist (3D000).
    #[must_use]
    pub fn is_database_missing(&self) -> bool {
        self.is(&SqlState::INVALID_CATALOG_NAME)
    }

    /// What to do about it, for what is common and not said by the message.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        if self.is_authentication() {
            Some("give the right role and password (PGPASSWORD, a password file), and let it in by pg_hba.conf")
        } else if self.is_database_missing() {
            Some("name a database that exists, with --database-url or PGDATABASE")
        } else if self.is_privilege() {
            Some("grant it, or use another role; for replication: ALTER ROLE ... REPLICATION")
        } else if self.is_starting_or_stopping() {
            Some("the server is starting or stopping; try again")
        } else if self.is_connection_lost() {
            Some("is the server up, and are host and port right? --database-url and the variables PG* say where it is")
        } else {
            None
        }
    }

    /// A message was announced that is larger than `--max-message-bytes`.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(self.kind, Kind::TooLarge { .. })
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(server) => Self::server(ServerError::from(server)),
            None => Self::of(Kind::Sql(Box::new(error))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(context) = &self.context {
            write!(f, "{context}: ")?;
        }
        self.kind.fmt(f)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(source) => source.fmt(f),
            Self::Closed => f.write_str("the server closed the connection"),
            Self::TimedOut { after } => write!(f, "no answer within {}", humantime::format_duration(*after)),
            Self::Server(error) => error.fmt(f),
            Self::TooLarge { announced, limit } => write!(
                f,
                "the server announced a message of {announced} bytes; the limit is {limit} (raise it with --max-message-bytes)"
            ),
            Self::Protocol(what) => write!(f, "unexpected bytes from the server: {what}"),
            Self::Authentication(what) | Self::Refused(what) | Self::WrongServer(what) => f.write_str(what),
            Self::Sql(error) => {
                error.fmt(f)?;
                // tokio-postgres names the kind of the error in its own text and leaves the cause to the source.
                match error.source() {
                    Some(source) if !error.to_string().contains(&source.to_string()) => write!(f, ": {source}"),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("context", &self.context).field("kind", &self.kind).finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.kind {
            Kind::Io(source) => Some(source),
            Kind::Server(error) => Some(error.as_ref()),
            Kind::Sql(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

/// An error or a notice as the server worded it.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerError {
    severity: String,
    sqlstate: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl ServerError {
    pub(crate) const fn new(
        severity: String,
        sqlstate: SqlState,
        message: String,
        detail: Option<String>,
        hint: Option<String>,
    ) -> Self {
        Self { severity, sqlstate, message, detail, hint }
    }

    /// `ERROR`, `FATAL`, `PANIC`, or a notice's `WARNING`, `NOTICE` and so on; never translated.
    #[must_use]
    pub fn severity(&self) -> &str {
        &self.severity
    }

    /// The five-character code.
    #[must_use]
    pub const fn sqlstate(&self) -> &SqlState {
        &self.sqlstate
    }

    /// One line, in the server's language.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// More about it, where that cannot hold a row's values: details of the classes 22 (data) and 23 (constraints)
    /// quote them, and values of rows belong in no log.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        let quotes_values = matches!(self.sqlstate.code().get(..2), Some("22" | "23"));
        self.detail.as_deref().filter(|_| !quotes_values)
    }

    /// What the server advises.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self::new(
            error.severity().to_owned(),
            error.code().clone(),
            error.message().to_owned(),
            error.detail().map(str::to_owned),
            error.hint().map(str::to_owned),
        )
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate.code())?;
        if let Some(detail) = self.detail() {
            write!(f, "; detail: {detail}")?;
        }
        if let Some(hint) = self.hint() {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({} {self})", self.severity)
    }
}

impl StdError for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_error(code: &str) -> ServerError {
        ServerError::new(
            "ERROR".to_owned(),
            SqlState::from_code(code),
            "it failed".to_owned(),
            Some("the row was (4711)".to_owned()),
            Some("try again".to_owned()),
        )
    }

    #[test]
    fn context_goes_in_front() {
        let error = Error::server(server_error("42704")).context("slot \"a\"").context("host h port 1");
        assert_eq!(
            error.to_string(),
            "host h port 1: slot \"a\": it failed (SQLSTATE 42704); detail: the row was (4711); hint: try again"
        );
        assert!(error.is_slot_missing() && !error.is_slot_active() && !error.is_connection_lost());
    }

    #[test]
    fn values_of_rows_are_not_shown() {
        for code in ["22P02", "23505"] {
            let error = Error::server(server_error(code));
            assert!(!format!("{error} {error:?}").contains("4711"), "{error:?}");
        }
    }

    #[test]
    fn classes_of_codes() {
        assert!(Error::server(server_error("28P01")).is_authentication());
        assert!(Error::server(server_error("28000")).is_authentication());
        assert!(Error::server(server_error("08006")).is_connection_lost());
        assert!(Error::closed().is_connection_lost());
        assert!(Error::message_too_large(2, 1).is_too_large());
    }
}
