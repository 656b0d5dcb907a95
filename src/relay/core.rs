//! The relay's state: what has come, what is acknowledged, and what may be confirmed. Pure: no I/O, no clock, no log.
//!
//! Inputs are the messages of the stream, delivery reports and the time since the start; outputs are asked for: what to
//! produce ([`Core::send_ready`]), what to confirm ([`Core::status_due`], [`Core::frontier`]), whether more may come
//! ([`Core::takes_more`]).
//!
//! # The ack frontier without a queue of transactions
//!
//! Every event carries its *floor*: the end of the last transaction (or transaction-free stretch) before its own. The
//! frontier is the lowest floor of an unresolved event, or, where there is none, the end of what has come. So the state is
//! bounded by the unresolved events, however much is acknowledged behind a slow partition, and a keepalive is an empty
//! transaction for free.

mod confirm;
mod send;
mod shelf;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lane::{Entry, Handle, Lane, LaneId, Shelved};
use super::limits::Limits;
use super::resume::{OtherHistory, Resend, TransactionId};
use super::trouble::{Disorder, Trouble};
use crate::outbox::{Ordinal, Position};
use crate::postgres::{EndLsn, Lsn};

pub use send::SendOutcome;

/// A point between transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// What may be confirmed once everything before this point is resolved.
    pub end: EndLsn,
    /// How many events had come in whole transactions by this point.
    pub events: u64,
}

/// What the next row is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It comes for the first time.
    New(Position),
    /// The server sends it again; it is still in the window under this handle.
    Unresolved(Position, Handle),
    /// The server sends it again, and it is acknowledged.
    Resolved,
}

#[derive(Clone, Copy, Debug)]
struct OpenTransaction {
    commit: Lsn,
    /// The next row's ordinal; `None` behind the last possible one.
    next: Option<Ordinal>,
    events: u64,
}

/// The relay's state. `E` is the event; the core never looks into it.
#[derive(Debug)]
pub struct Core<E> {
    limits: Limits,
    lanes: Vec<Lane<E>>,
    /// Lanes that may have something to send, each at most once.
    ready: VecDeque<LaneId>,
    is_ready: Vec<bool>,
    /// Events that cannot be published now and wait to be stored among the held ones.
    shelf: BTreeMap<Position, Shelved>,
    open: Option<OpenTransaction>,
    /// The last transaction that began, as the proof of a common history after a reconnect.
    witness: Option<TransactionId>,
    resend: Option<Resend>,
    last_position: Option<Position>,
    /// The end of what has come in whole.
    received: Mark,
    /// The same without keepalives: the end of the last whole transaction, or where the stream first began.
    whole: EndLsn,
    /// What the last status covered.
    confirmed: Mark,
    unresolved_events: usize,
    unresolved_bytes: usize,
    outstanding: usize,
    /// Bytes acknowledged since the last status.
    acknowledged_bytes: usize,
    /// Something happened that may have moved the frontier since the last status.
    is_moved: bool,
    status_requested: bool,
    status_at: Option<Duration>,
    stream_bytes: u64,
    detach_at: u64,
}

impl<E> Core<E> {
    /// A core that has seen nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: Vec::new(),
            ready: VecDeque::new(),
            is_ready: Vec::new(),
            shelf: BTreeMap::new(),
            open: None,
            witness: None,
            resend: None,
            last_position: None,
            received: Mark::default(),
            whole: EndLsn::ZERO,
            confirmed: Mark::default(),
            unresolved_events: 0,
            unresolved_bytes: 0,
            outstanding: 0,
            acknowledged_bytes: 0,
            is_moved: false,
            status_requested: false,
            status_at: None,
            stream_bytes: 0,
            detach_at: 0,
        }
    }

    /// Adds a partition.
    ///
    /// # Errors
    /// Beyond [`LaneId::MAX`] partitions.
    pub fn add_lane(&mut self) -> Result<LaneId, Disorder> {
        let id = LaneId::new(self.lanes.len()).ok_or(Disorder::TooManyLanes)?;
        self.lanes.push(Lane::default());
        self.is_ready.push(false);
        Ok(id)
    }

    /// The stream begins (again) at what the slot has confirmed. What is known stays known: the server sends from
    /// `confirmed` on, and what comes again is recognised.
    ///
    /// What keepalives told is forgotten: the proof reaches as far as the last transaction, and a server that lost the end of
    /// its log may commit something new before the position that an earlier keepalive had.
    pub fn resume(&mut self, confirmed: EndLsn) {
        self.open = None;
        self.status_requested = false;
        self.status_at = None;
        self.resend = match self.witness {
            // The server sends the witness again, and with it the proof.
            Some(witness) if confirmed.lsn() <= witness.commit => Some(Resend::new(witness, confirmed, self.known())),
            _ => None,
        };
        if self.witness.is_none() {
            // Nothing is known that could be proved.
            self.whole = confirmed;
        }
        self.received.end = self.whole.max(confirmed);
        self.confirmed.end = self.confirmed.end.min(self.received.end).max(confirmed);
    }

    fn known(&self) -> impl Iterator<Item = (Position, Handle)> {
        let lanes = (0..).zip(&self.lanes).filter_map(|(index, lane)| Some((LaneId::new(index)?, lane)));
        let lanes = lanes.flat_map(|(id, lane)| lane.iter().map(move |(number, entry)| (id, number, entry)));
        let present = lanes.filter(|(_, _, entry)| entry.event.is_some());
        present.map(|(id, number, entry)| (entry.position, Handle::new(id, number)))
    }

    /// The stream has ended, perhaps inside of a transaction, which will come again as a whole.
    pub fn stream_ended(&mut self) {
        self.open = None;
    }

    /// Forgets the stream's history: another server, or another history of the same. Only once nothing is unresolved.
    pub fn forget_history(&mut self) {
        self.open = None;
        self.witness = None;
        self.resend = None;
        self.last_position = None;
        self.whole = EndLsn::ZERO;
        self.received.end = EndLsn::ZERO;
        self.confirmed = self.received;
    }

    /// BEGIN.
    ///
    /// # Errors
    /// When the stream is in disorder, or the server has another history than the one that is known.
    pub fn begin(&mut self, transaction: TransactionId) -> Result<(), Trouble> {
        if self.open.is_some() {
            return Err(Disorder::Transaction("BEGIN inside of a transaction").into());
        }
        match (&mut self.resend, self.witness) {
            (Some(resend), _) => resend.begin(transaction)?,
            (None, Some(witness)) if transaction.commit <= witness.commit => {
                return Err(Disorder::Backwards { known: witness.commit, came: transaction.commit }.into());
            }
            _ => {}
        }
        if self.witness.is_none_or(|witness| transaction.commit > witness.commit) {
            self.witness = Some(transaction);
        }
        self.open = Some(OpenTransaction { commit: transaction.commit, next: Some(Ordinal::FIRST), events: 0 });
        Ok(())
    }

    /// The next row of the open transaction has come: what is it to us?
    ///
    /// # Errors
    /// Outside of a transaction.
    pub fn row(&mut self) -> Result<Arrival, Disorder> {
        let open = self.open.as_mut().ok_or(Disorder::Transaction("a row outside of a transaction"))?;
        let ordinal = open.next.ok_or(Disorder::TooManyEvents)?;
        open.next = ordinal.next();
        open.events += 1;
        let position = Position::new(open.commit, ordinal);
        // Before the proof nothing is new: a server with another history will send it again from its slot.
        if !self.awaits_proof() && self.last_position.is_none_or(|last| position > last) {
            self.last_position = Some(position);
            return Ok(Arrival::New(position));
        }
        let handle = self.resend.as_ref().and_then(|resend| resend.unresolved(position));
        Ok(match handle.filter(|handle| self.event(*handle).is_some()) {
            Some(handle) => Arrival::Unresolved(position, handle),
            None => Arrival::Resolved,
        })
    }

    /// Puts a new event into the window. `bytes` is the size of its row.
    pub fn push(&mut self, lane: LaneId, position: Position, event: E, bytes: usize, now: Duration) {
        let floor = self.received;
        let stream_bytes = self.stream_bytes;
        let Some(queue) = self.lanes.get_mut(lane.index()) else { return };
        let bytes = bytes + Limits::EVENT_OVERHEAD;
        queue.push(Entry::new(event, position, floor).arrived(bytes, now, stream_bytes));
        self.unresolved_events += 1;
        self.unresolved_bytes += bytes;
        self.make_ready(lane);
    }

    /// COMMIT.
    ///
    /// # Errors
    /// Outside of a transaction.
    pub fn commit(&mut self, end: EndLsn) -> Result<(), Disorder> {
        let open = self.open.take().ok_or(Disorder::Transaction("COMMIT outside of a transaction"))?;
        if self.awaits_proof() {
            return Ok(());
        }
        if end > self.received.end {
            self.received = Mark { end, events: self.received.events + open.events };
            self.whole = end;
            self.is_moved = true;
        }
        if self.last_position.is_none_or(|last| open.commit >= last.commit()) {
            self.resend = None;
        }
        Ok(())
    }

    /// Until the witness comes again, the server may have another history, and nothing that it sends counts.
    fn awaits_proof(&self) -> bool {
        self.resend.as_ref().is_some_and(|resend| !resend.is_proven())
    }

    /// The server has read up to `wal_end` and has nothing more for us: an empty transaction, unless one is open.
    ///
    /// # Errors
    /// When this shows another history than the one that is known.
    pub fn keepalive(&mut self, wal_end: Lsn, reply_requested: bool) -> Result<(), OtherHistory> {
        self.status_requested |= reply_requested;
        match &self.resend {
            Some(resend) => resend.keepalive(wal_end)?,
            None if self.open.is_none() && wal_end > self.received.end.lsn() => {
                self.received.end = EndLsn::new(wal_end);
                self.is_moved = true;
            }
            None => {}
        }
        Ok(())
    }

    /// Bytes of stream have come. Events that stayed behind while a part of the window passed give up their block: `detach`
    /// copies them out, so that one late event does not keep a whole block in memory.
    pub fn note_stream_bytes(&mut self, bytes: usize, mut detach: impl FnMut(&mut E)) {
        self.stream_bytes += bytes as u64;
        let stride = (self.limits.window_bytes / 8) as u64;
        if self.stream_bytes >= self.detach_at {
            self.detach_at = self.stream_bytes + stride;
            let before = self.stream_bytes.saturating_sub(stride);
            self.lanes.iter_mut().for_each(|lane| lane.detach_older(before, &mut detach));
        }
    }

    /// The window has room for more of the stream.
    ///
    /// What has to be confirmed first does not count before the proof of the history: nothing can be confirmed until the
    /// witness has come, and what comes until then is known.
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.unresolved_bytes < self.limits.window_bytes
            && self.unresolved_events < self.limits.window_events
            && (self.awaits_proof() || self.uncovered_events() < self.limits.window_events as u64)
    }

    /// A transaction has begun and not ended.
    #[must_use]
    pub const fn is_in_transaction(&self) -> bool {
        self.open.is_some()
    }
}
