//! After a reconnect: proof that the server's history is still the one we know, and what of it has come already. Pure.
//!
//! The system identifier and the timeline do not prove it: a restored copy of a data folder has both, may have written
//! past the position that we know, and would have its new transactions skipped as if they were the old ones. So nothing is
//! confirmed after a reconnect until the last transaction that we know, the witness, has come again from the server with
//! the same commit LSN, transaction id and commit time; what the log says up to there is then the same. Streaming always
//! starts from the slot's own position, which never is ahead of the server.

use std::collections::HashMap;
use std::fmt;

use super::lane::Handle;
use crate::outbox::Position;
use crate::pgoutput::PgTimestamp;
use crate::postgres::{EndLsn, Lsn};

/// What identifies a transaction in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionId {
    /// Where its commit record begins.
    pub commit: Lsn,
    /// Its transaction id, without epoch.
    pub xid: u32,
    /// When it was committed.
    pub committed_at: PgTimestamp,
}

/// The server's history is not the one that we know: it was restored from a copy, or lost its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherHistory {
    /// Where the transaction that should have come again was committed.
    pub witness: Lsn,
}

impl fmt::Display for OtherHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server no longer has the transaction that was committed at {}", self.witness)
    }
}

impl std::error::Error for OtherHistory {}

/// What the server is expected to send again.
#[derive(Debug)]
pub(super) struct Resend {
    witness: TransactionId,
    /// What the slot has confirmed: nothing beyond may be confirmed before the proof.
    confirmed: EndLsn,
    is_proven: bool,
    unresolved: HashMap<Position, Handle>,
}

impl Resend {
    pub(super) fn new(
        witness: TransactionId,
        confirmed: EndLsn,
        unresolved: impl Iterator<Item = (Position, Handle)>,
    ) -> Self {
        Self { witness, confirmed, is_proven: false, unresolved: unresolved.collect() }
    }

    pub(super) const fn confirmed(&self) -> EndLsn {
        self.confirmed
    }

    pub(super) const fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// A transaction begins. Proves the history, or refutes it.
    pub(super) fn begin(&mut self, transaction: TransactionId) -> Result<(), OtherHistory> {
        if transaction == self.witness {
            self.is_proven = true;
        }
        if !self.is_proven && transaction.commit >= self.witness.commit {
            return Err(self.refuted());
        }
        Ok(())
    }

    /// The server has read up to `wal_end`. It reads in order, so the witness had to come before.
    pub(super) fn keepalive(&self, wal_end: Lsn) -> Result<(), OtherHistory> {
        if !self.is_proven && wal_end > self.witness.commit { Err(self.refuted()) } else { Ok(()) }
    }

    /// The event at this position, if it was in the window at the reconnect. It may have been acknowledged since.
    pub(super) fn unresolved(&self, position: Position) -> Option<Handle> {
        self.unresolved.get(&position).copied()
    }

    const fn refuted(&self) -> OtherHistory {
        OtherHistory { witness: self.witness.commit }
    }
}
