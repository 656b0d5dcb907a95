//! What can go wrong with a demo.

use std::fmt;

use crate::postgres;

/// Why a demo has no verdict.
#[derive(Debug)]
pub enum Error {
    /// A signal ended it.
    Interrupted,
    /// Something that it needs is not on this machine: what, and how to get it.
    Missing(String),
    /// The database refused something.
    Database(postgres::Error),
    /// A server, the relay or a broker did not do what it should: what, and its last words.
    Failed(String),
}

impl Error {
    pub(super) fn failed(what: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Missing(what) | Self::Failed(what) => f.write_str(what),
            Self::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

impl From<postgres::Error> for Error {
    fn from(error: postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}
