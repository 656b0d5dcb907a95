//! Why the core cannot take what the stream sent.

use std::fmt;

use super::lane::LaneId;
use super::resume::OtherHistory;
use crate::postgres::Lsn;

/// What the stream must not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// A row or COMMIT outside of a transaction, or BEGIN inside of one.
    Transaction(&'static str),
    /// More than 2^32 events in one transaction.
    TooManyEvents,
    /// A commit before one that has come already.
    Backwards {
        /// What has come.
        known: Lsn,
        /// What came now.
        came: Lsn,
    },
    /// More partitions than 2^20.
    TooManyLanes,
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transaction(what) => write!(f, "the replication stream has {what}"),
            Self::TooManyEvents => f.write_str("a transaction has more than 4,294,967,296 events"),
            Self::Backwards { known, came } => write!(f, "the replication stream went back from {known} to {came}"),
            Self::TooManyLanes => write!(f, "events go to more than {} partitions", LaneId::MAX),
        }
    }
}

impl std::error::Error for Disorder {}

/// Why a transaction is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The stream is not what the protocol promises: stop.
    Disorder(Disorder),
    /// The server has another history: start anew from its slot.
    OtherHistory(OtherHistory),
}

impl From<Disorder> for Trouble {
    fn from(disorder: Disorder) -> Self {
        Self::Disorder(disorder)
    }
}

impl From<OtherHistory> for Trouble {
    fn from(other: OtherHistory) -> Self {
        Self::OtherHistory(other)
    }
}
