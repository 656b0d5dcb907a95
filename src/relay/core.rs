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

use std::collections::VecDeque;
use std::time::Duration;

use super::lane::{Entry, Handle, Lane, LaneId};
use super::limits::Limits;
use super::resume::{OtherHistory, Resend, TransactionId};
use super::trouble::{Disorder, Trouble};
use crate::outbox::{Ordinal, Position};
use crate::postgres::{EndLsn, Lsn};

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

/// How a send ended, as the core needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The producer has it.
    Queued,
    /// The producer takes no more for now.
    Full,
    /// The producer refused it; the generation is to end.
    Refused,
}

/// The relay's state. `E` is the event; the core never looks into it.
#[derive(Debug)]
pub struct Core<E> {
    limits: Limits,
    lanes: Vec<Lane<E>>,
    /// Lanes that may have something to send, each at most once.
    ready: VecDeque<LaneId>,
    is_ready: Vec<bool>,
    open: Option<OpenTransaction>,
    /// The last transaction that began, as the proof of a common history after a reconnect.
    witness: Option<TransactionId>,
    resend: Option<Resend>,
    last_position: Option<Position>,
    /// The end of what has come in whole.
    received: Mark,
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
            open: None,
            witness: None,
            resend: None,
            last_position: None,
            received: Mark::default(),
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

    // ---- the stream ----------------------------------------------------------------------------------------------

    /// The stream begins (again) at what the slot has confirmed. What is known stays known: the server sends from
    /// `confirmed` on, and what comes again is recognised.
    pub fn resume(&mut self, confirmed: EndLsn) {
        self.open = None;
        self.status_requested = false;
        self.status_at = None;
        self.resend = match self.witness {
            // The server sends the witness again, and with it the proof.
            Some(witness) if confirmed.lsn() <= witness.commit => Some(Resend::new(witness, confirmed, self.known())),
            _ => None,
        };
        if self.resend.is_none() {
            self.received.end = self.received.end.max(confirmed);
            self.confirmed.end = self.confirmed.end.max(confirmed);
        }
    }

    fn known(&self) -> impl Iterator<Item = (Position, Handle)> {
        let lanes = (0..).zip(&self.lanes).filter_map(|(index, lane)| Some((LaneId::new(index)?, lane)));
        lanes.flat_map(|(id, lane)| lane.iter().map(move |(number, entry)| (entry.position, Handle::new(id, number))))
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
        if self.last_position.is_none_or(|last| position > last) {
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
        if end > self.received.end {
            self.received = Mark { end, events: self.received.events + open.events };
            self.is_moved = true;
        }
        if self.resend.as_ref().is_some_and(|resend| resend.is_proven())
            && self.last_position.is_none_or(|last| open.commit >= last.commit())
        {
            self.resend = None;
        }
        Ok(())
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
    #[must_use]
    pub fn takes_more(&self) -> bool {
        self.unresolved_bytes < self.limits.window_bytes
            && self.unresolved_events < self.limits.window_events
            && self.uncovered_events() < self.limits.window_events as u64
    }

    /// A transaction has begun and not ended.
    #[must_use]
    pub const fn is_in_transaction(&self) -> bool {
        self.open.is_some()
    }

    // ---- the producer --------------------------------------------------------------------------------------------

    /// Hands over what may be sent now, lane by lane, until `send` says that no more is taken.
    pub fn send_ready(&mut self, now: Duration, mut send: impl FnMut(Handle, &E) -> SendOutcome) {
        while let Some(id) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(id.index()) else { continue };
            while let Some((number, entry)) = lane.next_to_send(now, self.limits.cold_after) {
                match send(Handle::new(id, number), &entry.event) {
                    SendOutcome::Queued => {
                        lane.mark_sent();
                        self.outstanding += 1;
                    }
                    SendOutcome::Full | SendOutcome::Refused => {
                        self.ready.push_front(id);
                        return;
                    }
                }
            }
            if let Some(is_ready) = self.is_ready.get_mut(id.index()) {
                *is_ready = false;
            }
        }
    }

    /// The broker has an event. False for a report that concerns nothing outstanding.
    pub fn acknowledge(&mut self, handle: Handle, now: Duration) -> bool {
        let Some(lane) = self.lanes.get_mut(handle.lane().index()) else { return false };
        let (mut events, mut bytes) = (0, 0);
        let is_known = lane.acknowledge(handle.number(), now, |entry| {
            events += 1;
            bytes += entry.bytes;
        });
        if lane.has_waiting() {
            self.make_ready(handle.lane());
        }
        self.outstanding -= usize::from(is_known);
        self.unresolved_events -= events;
        self.unresolved_bytes -= bytes;
        self.acknowledged_bytes += bytes;
        self.is_moved |= events > 0;
        is_known
    }

    /// An event came back undelivered. Returns whether nothing else of its partition was with the producer, so that the
    /// refusal concerns it alone; `None` for a report that concerns nothing outstanding.
    pub fn give_back(&mut self, handle: Handle) -> Option<bool> {
        let lane = self.lanes.get_mut(handle.lane().index())?;
        let is_alone = lane.is_alone(handle.number());
        lane.give_back(handle.number()).then(|| {
            self.outstanding -= 1;
            is_alone
        })
    }

    /// The event is the first of its partition and nothing of that partition is with the producer.
    #[must_use]
    pub fn is_front(&self, handle: Handle) -> bool {
        self.lanes.get(handle.lane().index()).is_some_and(|lane| lane.is_next(handle.number()))
    }

    /// From the next generation on, this event's partition gets one record at a time until what it holds has passed.
    pub fn isolate(&mut self, handle: Handle) {
        if let Some(lane) = self.lanes.get_mut(handle.lane().index()) {
            lane.isolate();
        }
    }

    /// A new producer: everything unresolved is to be sent again, each partition in order.
    pub fn restart_generation(&mut self) {
        for index in 0..self.lanes.len() {
            let Some((lane, id)) = self.lanes.get_mut(index).zip(LaneId::new(index)) else { continue };
            self.outstanding -= lane.restart();
            if lane.has_waiting() {
                self.make_ready(id);
            }
        }
    }

    fn make_ready(&mut self, lane: LaneId) {
        if let Some(is_ready) = self.is_ready.get_mut(lane.index()).filter(|is_ready| !**is_ready) {
            *is_ready = true;
            self.ready.push_back(lane);
        }
    }

    // ---- what is confirmed -----------------------------------------------------------------------------------------

    /// Everything before this point is resolved.
    #[must_use]
    pub fn frontier(&self) -> Mark {
        self.lanes.iter().filter_map(Lane::front).map(|entry| entry.floor).min().unwrap_or(self.received)
    }

    /// When a status is due, given that nothing else happens.
    #[must_use]
    pub fn status_deadline(&self) -> Duration {
        let Some(at) = self.status_at else { return Duration::ZERO };
        let pace = if self.is_moved { self.limits.status_pace } else { self.limits.status_interval };
        at + pace.min(self.limits.status_interval)
    }

    /// Whether a status is to be sent now.
    #[must_use]
    pub fn status_due(&self, now: Duration) -> bool {
        let is_quarter = self.acknowledged_bytes >= self.limits.window_bytes / 4
            || self.uncovered_events() >= (self.limits.window_events / 2) as u64;
        self.status_requested || now >= self.status_deadline() || self.is_moved && is_quarter
    }

    /// The status to send: what is received, and what is confirmed. It counts as sent. Never goes backwards.
    pub fn take_status(&mut self, now: Duration) -> (Lsn, EndLsn) {
        self.status_at = Some(now);
        self.status_requested = false;
        self.is_moved = false;
        self.acknowledged_bytes = 0;
        if let Some(resend) = &self.resend {
            // Before the proof nothing is confirmed; after it the frontier is far ahead of what is being sent again.
            if !resend.is_proven() {
                return (resend.confirmed().lsn(), resend.confirmed());
            }
        }
        self.confirmed = self.confirmed.max(self.frontier());
        (self.received.end.lsn().max(self.confirmed.end.lsn()), self.confirmed.end)
    }

    // ---- what is asked about the state --------------------------------------------------------------------------------

    /// The event, while it is unresolved.
    #[must_use]
    pub fn event(&self, handle: Handle) -> Option<&E> {
        self.lanes.get(handle.lane().index())?.get(handle.number()).map(|entry| &entry.event)
    }

    /// The oldest unresolved event, and since when it waits.
    #[must_use]
    pub fn oldest(&self) -> Option<(Position, Duration)> {
        self.lanes.iter().filter_map(Lane::front).map(|entry| (entry.position, entry.arrived)).min()
    }

    /// Events in the window.
    #[must_use]
    pub const fn unresolved_events(&self) -> usize {
        self.unresolved_events
    }

    /// Bytes of the events in the window.
    #[must_use]
    pub const fn unresolved_bytes(&self) -> usize {
        self.unresolved_bytes
    }

    /// Events that are with the producer and have no report.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Events of whole transactions that the last status did not cover: what a crash repeats, beside the open transaction.
    #[must_use]
    pub const fn uncovered_events(&self) -> u64 {
        self.received.events - self.confirmed.events
    }

    /// The end of what has come in whole.
    #[must_use]
    pub const fn received(&self) -> EndLsn {
        self.received.end
    }

    /// What the last status confirmed.
    #[must_use]
    pub const fn confirmed(&self) -> EndLsn {
        self.confirmed.end
    }
}
