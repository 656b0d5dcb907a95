//! The twin of the relay's driver and intake: what they do to the core, without sockets and with virtual time.

use std::time::Duration;

use super::exposure::Exposure;
use super::ledger::PARTITIONS;
use super::publisher::Publisher;
use super::server::{Message, Server, Stream};
use super::trace::Seen;
use super::world::World;
use crate::postgres::{EndLsn, Lsn};
use crate::relay::core::{Arrival, Core};
use crate::relay::lane::LaneId;
use crate::relay::limits::Limits;
use crate::relay::resume::TransactionId;
use crate::relay::trouble::Trouble;

/// How long a drain may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Why the relay stops by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// The brokers refuse this row.
    Guilty(u32),
    /// They refuse again and again, for a reason of their own.
    Tired,
    /// The server sends another row than the one that is known at its place.
    Mismatch,
}

/// A connection that does not stream yet.
#[derive(Clone, Copy, Debug)]
struct Session {
    epoch: u32,
    timeline: u32,
    flushed: Lsn,
    confirmed: Lsn,
}

impl Session {
    const fn open(server: &Server) -> Self {
        Self {
            epoch: server.epoch(),
            timeline: server.timeline(),
            flushed: server.flushed(),
            confirmed: server.confirmed(),
        }
    }
}

/// One process of the relay.
#[derive(Debug)]
pub(super) struct Relay {
    core: Core<u32>,
    pub(super) publisher: Publisher,
    lanes: [Option<LaneId>; PARTITIONS],
    /// Whether the brokers have told of the partition's topic.
    is_known: [bool; PARTITIONS],
    stream: Option<Stream>,
    /// A broken connection whose last statuses are still to arrive.
    stray: Option<Stream>,
    newcomer: Option<Session>,
    /// A row whose topic is not known yet.
    pending: Option<u32>,
    /// The timeline of the server whose history is known.
    system: Option<u32>,
    is_ready: bool,
    retry_at: Duration,
    draining_until: Option<Duration>,
    exposure: Exposure,
    open: Option<TransactionId>,
    /// What must come again before anything may be confirmed.
    awaited: Option<TransactionId>,
    limits: Limits,
}

impl Relay {
    pub(super) fn new(world: &mut World) -> Self {
        let life = world.new_life();
        Self {
            core: Core::new(world.limits),
            publisher: Publisher::new(life, world),
            lanes: [None; PARTITIONS],
            is_known: std::array::from_fn(|_| world.rng.u8(..) < 224),
            stream: None,
            stray: None,
            newcomer: None,
            pending: None,
            system: None,
            is_ready: false,
            retry_at: world.now,
            draining_until: None,
            exposure: Exposure::default(),
            open: None,
            awaited: None,
            limits: world.limits,
        }
    }

    /// One turn of the driver's loop; takes at most `budget` messages.
    pub(super) fn turn(&mut self, world: &mut World, budget: u32) -> Result<(), Halt> {
        self.publisher.proceed(&mut self.core, world)?;
        self.take(world, budget)?;
        self.publisher.send(&mut self.core, world)?;
        self.confirm(world);
        self.connect(world);
        self.welcome(world);
        self.check();
        Ok(())
    }

    // ---- the stream ----------------------------------------------------------------------------------------------

    fn take(&mut self, world: &mut World, budget: u32) -> Result<(), Halt> {
        for _ in 0..budget {
            if self.draining_until.is_some() && !self.core.is_in_transaction() {
                return Ok(());
            }
            if self.pending.is_some_and(|row| !self.enter(row, world)) {
                return Ok(());
            }
            if !self.core.takes_more() {
                world.ledger.tally.count(Seen::Pause);
                return Ok(());
            }
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let Some(message) = stream.next(&world.server, &mut world.rng) else { return Ok(()) };
            self.core.note_stream_bytes(64, |_| {});
            match self.message(message, world) {
                Ok(None) => {}
                Ok(Some(halt)) => return Err(halt),
                Err(Trouble::OtherHistory(other)) => {
                    world.trace.note("other history", other.witness.get());
                    world.ledger.tally.count(Seen::Refutation);
                    self.system = None;
                    self.disconnect(world, 0);
                    return Ok(());
                }
                Err(Trouble::Disorder(disorder)) => panic!("{disorder}"),
            }
        }
        Ok(())
    }

    fn message(&mut self, message: Message, world: &mut World) -> Result<Option<Halt>, Trouble> {
        match message {
            Message::Begin(transaction) => {
                world.trace.note("begin", transaction.commit.get());
                self.core.begin(transaction)?;
                self.open = Some(transaction);
                self.exposure.begin(transaction);
                if self.awaited == Some(transaction) {
                    self.awaited = None;
                    world.ledger.tally.count(Seen::Proof);
                }
            }
            Message::Row(row) => {
                world.trace.note("row", u64::from(row));
                return self.row(row, world);
            }
            Message::Commit(end) => {
                world.trace.note("commit", end.lsn().get());
                self.core.commit(end)?;
                self.exposure.commit(self.open.take(), end.lsn());
            }
            Message::Keepalive { wal_end, reply_requested } => {
                world.trace.note("keepalive", wal_end.get());
                self.core.keepalive(wal_end, reply_requested)?;
            }
        }
        Ok(None)
    }

    fn row(&mut self, row: u32, world: &mut World) -> Result<Option<Halt>, Trouble> {
        match self.core.row()? {
            Arrival::New(position) => {
                assert_eq!(position, world.ledger.row(row).position, "row {row} is stamped wrongly");
                self.exposure.row();
                self.enter(row, world);
                Ok(None)
            }
            Arrival::Unresolved(position, handle) => {
                assert_eq!(position, world.ledger.row(row).position, "row {row} is recognised wrongly");
                let is_same = self.core.event(handle).is_none_or(|known| *known == row);
                if is_same {
                    return Ok(None);
                }
                world.ledger.tally.count(Seen::MismatchHalt);
                Ok(Some(Halt::Mismatch))
            }
            Arrival::Resolved => Ok(None),
        }
    }

    /// Puts a row into its lane, or holds it while its topic is not known.
    fn enter(&mut self, row: u32, world: &mut World) -> bool {
        let facts = world.ledger.row(row);
        let partition = facts.partition();
        self.pending = None;
        if self.lanes[partition].is_none() && (self.is_known[partition] || world.is_quiet) {
            self.lanes[partition] = Some(self.core.add_lane().unwrap());
        }
        match self.lanes[partition] {
            Some(lane) => self.core.push(lane, facts.position, row, facts.bytes, world.now),
            None => self.pending = Some(row),
        }
        self.pending.is_none()
    }

    /// The brokers tell of all topics.
    pub(super) const fn learn_topics(&mut self) {
        self.is_known = [true; PARTITIONS];
    }

    // ---- the connection ------------------------------------------------------------------------------------------

    fn connect(&mut self, world: &mut World) {
        if self.stream.is_some() || self.newcomer.is_some() || world.now < self.retry_at {
            return;
        }
        let session = Session::open(&world.server);
        if let Some(stray) = self.stray.take() {
            let statuses = stray.statuses();
            stray.end(&mut world.server, statuses);
        }
        let is_same = self.system == Some(session.timeline);
        let is_behind = self.core.is_ahead_of(session.flushed);
        if self.is_ready && (!is_same || is_behind) {
            self.newcomer = Some(session);
        } else {
            self.begin(session, world);
        }
    }

    fn welcome(&mut self, world: &mut World) {
        if self.core.unresolved_events() > 0 || self.pending.is_some() {
            return;
        }
        if let Some(session) = self.newcomer.take() {
            world.ledger.tally.count(Seen::Newcomer);
            self.core.forget_history();
            self.exposure = Exposure::default();
            self.publisher.life = world.new_life();
            self.begin(session, world);
        }
    }

    fn begin(&mut self, session: Session, world: &mut World) {
        if session.epoch != world.server.epoch() {
            self.retry_at = world.now + Duration::from_millis(200);
            return;
        }
        world.trace.note("streaming from", session.confirmed.get());
        self.stream = Some(Stream::start(&world.server));
        self.system = Some(session.timeline);
        self.is_ready = true;
        self.awaited = self.exposure.last.filter(|last| session.confirmed <= last.commit);
        self.core.resume(EndLsn::new(session.confirmed));
    }

    /// The connection breaks; `arriving` statuses that are on their way still arrive.
    pub(super) fn disconnect(&mut self, world: &mut World, arriving: usize) {
        if let Some(stream) = self.stream.take() {
            stream.end(&mut world.server, arriving);
        }
        self.stray = None;
        self.open = None;
        self.core.stream_ended();
        self.retry_at = world.now + Duration::from_millis(world.rng.u64(..400));
    }

    /// The connection breaks, and the old walsender takes in its statuses only when the next session has begun.
    pub(super) fn disconnect_with_stray(&mut self, world: &mut World) {
        let stray = self.stream.take();
        self.disconnect(world, 0);
        self.stray = stray;
    }

    pub(super) fn deliver_status(&mut self, world: &mut World) {
        if let Some(stream) = &mut self.stream {
            stream.deliver_status(&mut world.server);
        }
    }

    pub(super) fn statuses(&self) -> usize {
        self.stream.as_ref().map_or(0, Stream::statuses)
    }

    // ---- confirming and ending -----------------------------------------------------------------------------------

    fn confirm(&mut self, world: &mut World) {
        if self.stream.is_some() && self.core.status_due(world.now) {
            self.send_status(world);
            assert!(!self.core.status_due(world.now), "a status is due right after a status");
        }
    }

    fn send_status(&mut self, world: &mut World) {
        let Some(stream) = &mut self.stream else { return };
        let (written, confirmed) = self.core.take_status(world.now);
        world.trace.note("status", confirmed.lsn().get());
        world.ledger.tally.count(Seen::Status);
        assert!(written >= confirmed.lsn(), "flushed {confirmed} is beyond written {written}");
        world.server.check_confirmed(confirmed.lsn(), &world.ledger);
        self.exposure.status(confirmed.lsn());
        stream.send_status(confirmed.lsn());
    }

    /// SIGTERM.
    pub(super) fn drain(&mut self, now: Duration) {
        self.draining_until = self.draining_until.or(Some(now + DRAIN_LIMIT));
    }

    /// A drain is over.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let Some(until) = self.draining_until else { return false };
        let is_whole = self.stream.is_none() || !self.core.is_in_transaction();
        self.core.unresolved_events() == 0 && is_whole || now >= until
    }

    /// Ends in good order: the last status arrives. Nothing is repeated unless something was unresolved.
    pub(super) fn finish(mut self, world: &mut World) {
        self.send_status(world);
        let is_whole = self.core.unresolved_events() == 0 && self.stream.is_some() && self.awaited.is_none();
        assert!(!is_whole || self.core.is_in_transaction() || self.exposure.is_empty(), "a drain leaves repeats");
        let statuses = self.statuses();
        self.disconnect(world, statuses);
        self.publisher.close(world);
    }

    /// The process is killed.
    pub(super) fn crash(mut self, world: &mut World) {
        let arriving = world.rng.usize(..=self.statuses());
        self.disconnect(world, arriving);
        self.exposure.check_repeats(&world.server, world, self.publisher.life);
        self.publisher.close(world);
    }

    // ---- what must hold at any time ------------------------------------------------------------------------------

    fn check(&self) {
        let row_bytes_max = 9000 + Limits::EVENT_OVERHEAD;
        assert!(self.core.unresolved_events() <= self.limits.window_events, "too many unresolved events");
        assert!(self.core.unresolved_bytes() < self.limits.window_bytes + row_bytes_max, "too many unresolved bytes");
        assert!(self.core.outstanding() <= self.core.unresolved_events(), "more is outstanding than unresolved");
        self.exposure.check(&self.core, self.limits.window_events);
    }

    /// Everything that the server has is published and confirmed, and nothing is left over.
    pub(super) fn is_done(&self, world: &World) -> bool {
        let is_idle = self.core.unresolved_events() == 0 && self.core.outstanding() == 0 && self.pending.is_none();
        let is_done = is_idle && self.stream.is_some() && world.server.confirmed() == world.server.flushed();
        if is_done {
            assert_eq!(self.core.unresolved_bytes(), 0);
            assert_eq!(self.core.oldest(), None);
        }
        is_done
    }
}
