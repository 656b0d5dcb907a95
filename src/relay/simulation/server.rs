//! A model of the database: its log of committed transactions, one slot, one walsender, and what a crash, a promoted
//! standby or a restored copy does to them.

use std::collections::VecDeque;

use fastrand::Rng;

use super::ledger::Ledger;
use crate::outbox::{Ordinal, Position};
use crate::pgoutput::PgTimestamp;
use crate::postgres::{EndLsn, Lsn};
use crate::relay::resume::TransactionId;

/// A committed transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transaction {
    pub(super) id: TransactionId,
    pub(super) end: Lsn,
    /// Its rows in the ledger: the first, and how many.
    pub(super) first_row: u32,
    pub(super) rows: u32,
}

/// What another server may come back with: a beginning of the log.
#[derive(Clone, Copy, Debug)]
struct Copy {
    timeline: u32,
    transactions: usize,
    flushed: Lsn,
    next_xid: u32,
    slot: Lsn,
}

/// Whether the successor with a shorter log can be told apart at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    /// A promoted standby is on a timeline of its own.
    Standby,
    /// A restored copy of the data folder has the same timeline, and gives out the same transaction ids again.
    RestoredCopy,
}

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    timeline: u32,
    last_timeline: u32,
    log: Vec<Transaction>,
    flushed: Lsn,
    next_xid: u32,
    /// Commit times go on, whatever a successor has lost.
    clock_us: i64,
    /// The slot's `confirmed_flush_lsn`, and what a crash puts back.
    confirmed: Lsn,
    on_disk: Lsn,
    copy: Option<Copy>,
    /// Connections of an earlier epoch are dead.
    epoch: u32,
    /// PostgreSQL 15 and later send nothing of transactions without rows.
    skips_empty: bool,
    /// How many transactions from the start are known to be acknowledged below the confirmed position.
    verified: usize,
}

impl Server {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let start = Lsn::new(1000);
        Self {
            timeline: 1,
            last_timeline: 1,
            log: Vec::new(),
            flushed: start,
            next_xid: 700,
            clock_us: 0,
            confirmed: start,
            on_disk: start,
            copy: None,
            epoch: 0,
            skips_empty: rng.bool(),
            verified: 0,
        }
    }

    /// Commits a transaction of `count` rows. Sizes in the log are few, so that positions of two histories often coincide.
    pub(super) fn commit(&mut self, count: u32, ledger: &mut Ledger, rng: &mut Rng) {
        let commit = Lsn::new(self.flushed.get() + 16 + 16 * u64::from(count));
        let end = Lsn::new(commit.get() + 32);
        self.clock_us += 1;
        let committed_at = PgTimestamp::from_micros(self.clock_us);
        let id = TransactionId { commit, xid: self.next_xid, committed_at };
        let first_row = ledger.next_row();
        for ordinal in 0..count {
            ledger.insert(Position::new(commit, Ordinal::new(ordinal)), rng);
        }
        self.next_xid += 1;
        self.flushed = end;
        self.log.push(Transaction { id, end, first_row, rows: count });
    }

    /// Other tables are written.
    pub(super) const fn write_elsewhere(&mut self, bytes: u64) {
        self.flushed = Lsn::new(self.flushed.get() + bytes);
    }

    /// The slot goes to disk.
    pub(super) const fn checkpoint(&mut self) {
        self.on_disk = self.confirmed;
    }

    /// The server comes back with the slot that it had on disk. What was sent had been flushed, so no transaction is lost.
    pub(super) const fn crash(&mut self) {
        self.confirmed = self.on_disk;
        self.epoch += 1;
    }

    /// The connection breaks.
    pub(super) const fn disconnect(&mut self) {
        self.epoch += 1;
    }

    /// A copy of the data folder is made, or a standby gets this far.
    pub(super) const fn copy(&mut self) {
        self.copy = Some(Copy {
            timeline: self.timeline,
            transactions: self.log.len(),
            flushed: self.flushed,
            next_xid: self.next_xid,
            slot: self.on_disk,
        });
    }

    /// The copy takes the place of the server; the transactions that it lacks are forgotten. False without a copy.
    pub(super) fn succeed(&mut self, by: Successor, ledger: &mut Ledger) -> bool {
        let Some(copy) = self.copy else { return false };
        for lost in self.log.drain(copy.transactions..) {
            ledger.forget(lost.first_row, lost.rows);
        }
        self.verified = self.verified.min(copy.transactions);
        self.flushed = copy.flushed;
        self.next_xid = copy.next_xid;
        self.confirmed = copy.slot;
        self.on_disk = copy.slot;
        self.timeline = match by {
            Successor::RestoredCopy => copy.timeline,
            Successor::Standby => {
                self.last_timeline += 1;
                self.last_timeline
            }
        };
        self.epoch += 1;
        // A later standby follows the new timeline.
        self.copy = Some(Copy { timeline: self.timeline, ..copy });
        true
    }

    /// A status arrives. Older ones change nothing.
    pub(super) fn confirm(&mut self, confirmed: Lsn) {
        assert!(confirmed <= self.flushed, "confirmed {confirmed}, and the server has only {}", self.flushed);
        self.confirmed = self.confirmed.max(confirmed);
    }

    /// Contract 4: what is confirmed is acknowledged. What PostgreSQL would skip is what commits below `confirmed`.
    pub(super) fn check_confirmed(&mut self, confirmed: Lsn, ledger: &Ledger) {
        assert!(confirmed <= self.flushed, "confirms {confirmed}, and the server has only {}", self.flushed);
        while let Some(next) = self.log.get(self.verified).filter(|next| next.id.commit < confirmed) {
            for row in next.first_row..next.first_row + next.rows {
                assert!(ledger.is_acknowledged(row), "row {row} is confirmed by {confirmed} and not acknowledged");
            }
            self.verified += 1;
        }
    }

    pub(super) fn log(&self) -> &[Transaction] {
        &self.log
    }

    pub(super) const fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    pub(super) const fn flushed(&self) -> Lsn {
        self.flushed
    }

    pub(super) const fn timeline(&self) -> u32 {
        self.timeline
    }

    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }
}

/// What the walsender sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Begin(TransactionId),
    Row(u32),
    Commit(EndLsn),
    Keepalive { wal_end: Lsn, reply_requested: bool },
}

/// A replication connection that streams.
#[derive(Debug)]
pub(super) struct Stream {
    /// The next transaction, and the next row of it once it has begun.
    next: usize,
    row: Option<u32>,
    /// The last keepalive's position.
    told: Lsn,
    /// Statuses on their way to the server.
    statuses: VecDeque<Lsn>,
    last_status: Lsn,
}

impl Stream {
    /// START_REPLICATION at 0/0: the server sends every transaction whose commit record does not begin before the slot's
    /// position.
    pub(super) fn start(server: &Server) -> Self {
        Self {
            next: server.log.partition_point(|transaction| transaction.id.commit < server.confirmed),
            row: None,
            told: Lsn::ZERO,
            statuses: VecDeque::new(),
            last_status: Lsn::ZERO,
        }
    }

    /// The next message; `None` while there is nothing to say.
    pub(super) fn next(&mut self, server: &Server, rng: &mut Rng) -> Option<Message> {
        if rng.u8(..) < 24 {
            return Some(self.keepalive(server, rng));
        }
        while let Some(transaction) = server.log.get(self.next) {
            match self.row {
                None if transaction.rows == 0 && server.skips_empty => self.next += 1,
                None => {
                    self.row = Some(0);
                    return Some(Message::Begin(transaction.id));
                }
                Some(row) if row < transaction.rows => {
                    self.row = Some(row + 1);
                    return Some(Message::Row(transaction.first_row + row));
                }
                Some(_) => {
                    self.row = None;
                    self.next += 1;
                    return Some(Message::Commit(EndLsn::new(transaction.end)));
                }
            }
        }
        (self.told < server.flushed).then(|| self.keepalive(server, rng))
    }

    /// It tells how far the walsender has read: up to the next commit record at most, and after a start also further back.
    fn keepalive(&mut self, server: &Server, rng: &mut Rng) -> Message {
        let last = self.next.checked_sub(1).and_then(|last| server.log.get(last)).map_or(Lsn::ZERO, |last| last.end);
        let wal_end = match server.log.get(self.next) {
            Some(next) if self.row.is_some() || rng.bool() => next.id.commit,
            Some(_) => last,
            None => server.flushed,
        };
        self.told = wal_end;
        Message::Keepalive { wal_end, reply_requested: rng.u8(..) < 64 }
    }

    /// The relay sends a status. It must not go back on a connection.
    pub(super) fn send_status(&mut self, confirmed: Lsn) {
        assert!(confirmed >= self.last_status, "a status went back from {} to {confirmed}", self.last_status);
        self.last_status = confirmed;
        self.statuses.push_back(confirmed);
    }

    /// One status arrives.
    pub(super) fn deliver_status(&mut self, server: &mut Server) {
        if let Some(confirmed) = self.statuses.pop_front() {
            server.confirm(confirmed);
        }
    }

    /// The connection ends; of the statuses that are on their way, some still arrive.
    pub(super) fn end(mut self, server: &mut Server, arriving: usize) {
        (0..arriving).for_each(|_| self.deliver_status(server));
    }

    pub(super) fn statuses(&self) -> usize {
        self.statuses.len()
    }
}
