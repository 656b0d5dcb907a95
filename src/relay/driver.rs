//! The loop: it owns every part and connects them.
//!
//! One turn takes reports, takes what the stream has brought, hands over what may be sent, and sends a status where one is
//! due; then it waits for whatever comes first. Everything runs on one thread; librdkafka has threads of its own.

mod connection;
mod watch;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use watch::Awaited;

use super::backoff::Backoff;
use super::core::Core;
use super::halt::{Halt, Reason};
use super::holder::{Holder, Surroundings};
use super::intake::{Intake, Taken, Ways};
use super::link::{Link, Session};
use super::publisher::{Publisher, Refusal};
use super::releases::ReleaseSettings;
use super::replayer::Replayer;
use super::router::Router;
use super::signals::Signals;
use super::upload::Uploads;
use crate::config::run::RunSettings;
use crate::failpoint::{Point, reached};
use crate::kafka::class::Class;
use crate::kafka::topics::{Directory, Topics};
use crate::outbox::{Event, Source, Template};
use crate::postgres::{self, EndLsn, Status, SystemIdentity};
use crate::recovery::replay::reader::ReaderSettings;
use crate::telemetry::Metrics;

/// How often the slow things are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How long the end of the stream may take.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// What the relay is doing.
enum Mode {
    /// It relays.
    Running,
    /// It is to end: what has come is published and confirmed until the time is over.
    Draining { until: Instant, halt: Option<Halt> },
}

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What is confirmed.
    pub confirmed: EndLsn,
    /// Events that had no acknowledgement at the end; they come again at the next start.
    pub unresolved_events: usize,
}

/// A relay: one slot, one table.
pub struct Relay {
    settings: RunSettings,
    core: Core<Event>,
    router: Router,
    intake: Intake,
    uploads: Uploads,
    publisher: Publisher,
    source: Source,
    holder: Holder,
    replayer: Replayer,
    topics: Topics,
    directory: Arc<Directory>,
    link: Link,
    signals: Signals,
    metrics: Metrics,
    mode: Mode,
    started_at: Instant,
    tick_at: Instant,
    /// The system whose history the core knows.
    system: Option<SystemIdentity>,
    /// A server with another history waits until nothing of the old one is outstanding.
    newcomer: Option<Box<Session>>,
    /// The server is shutting down; the connection is closed at this time.
    stopping_until: Option<Instant>,
    last_word: Instant,
    is_ready: bool,
    is_stalled: bool,
    awaited: Option<Awaited>,
}

impl Relay {
    /// Puts the parts together. Nothing is opened but librdkafka's clients, which connect by themselves.
    ///
    /// # Errors
    /// When librdkafka does not take the settings, or the process cannot listen to signals.
    pub fn new(settings: RunSettings, metrics: Metrics) -> Result<Self, Halt> {
        let source = Source::new(&settings.source, &settings.table.to_string());
        let topics = Topics::watch(&settings.producer, settings.times.topic_refresh, settings.new_topics)
            .map_err(|error| Halt::new(Reason::Settings, None, error))?;
        if let Some(name) = settings.mapping.topic.as_ref().and_then(Template::fixed) {
            topics.want(name);
        }
        if let Some(name) = &settings.held.dead_letter_topic {
            topics.want(name);
        }
        let holder = Self::holder(&settings, &source, &metrics);
        let replayer = Self::replayer(&settings, &source, &metrics);
        let now = Instant::now();
        Ok(Self {
            core: Core::new(settings.limits),
            router: Router::default(),
            intake: Intake::new(settings.table.clone(), settings.mapping.clone(), source.clone(), metrics.clone()),
            uploads: Uploads::new(settings.claims.clone()),
            publisher: Publisher::new(settings.producer.clone(), source.clone(), metrics.clone())?,
            source,
            holder,
            replayer,
            topics,
            directory: Arc::default(),
            link: Link::new(settings.clone(), Backoff::new(Duration::from_millis(200), Duration::from_secs(10))),
            signals: Signals::listen().map_err(|error| Halt::new(Reason::Settings, None, error))?,
            metrics,
            mode: Mode::Running,
            started_at: now,
            tick_at: now,
            system: None,
            newcomer: None,
            stopping_until: None,
            last_word: now,
            is_ready: false,
            is_stalled: false,
            awaited: None,
            settings,
        })
    }

    fn releasing(settings: &RunSettings, source: &Source) -> ReleaseSettings {
        ReleaseSettings {
            producer: settings.producer.clone(),
            source: source.clone(),
            dead_letter_topic: settings.held.dead_letter_topic.clone(),
            dead_retry: settings.held.dead_retry,
        }
    }

    /// A holder that knows of nothing yet.
    fn holder(settings: &RunSettings, source: &Source, metrics: &Metrics) -> Holder {
        Holder::new(settings.held.clone(), Self::releasing(settings, source), settings.limits, metrics.clone())
    }

    /// A replayer that knows of nothing yet.
    fn replayer(settings: &RunSettings, source: &Source, metrics: &Metrics) -> Replayer {
        let reading = ReaderSettings {
            database: settings.database.clone(),
            slot: settings.slot.clone(),
            publication: settings.publication.clone(),
            table: settings.table.clone(),
            mapping: settings.mapping.clone(),
            source: source.clone(),
            claims: settings.claims.clone(),
            row_bytes_max: settings.message_bytes_max,
        };
        Replayer::new(reading, Self::releasing(settings, source), settings.limits, metrics.clone())
    }

    /// Relays until a signal comes or something halts it.
    ///
    /// # Errors
    /// What halted it, after everything before that is published and confirmed as far as the time allows.
    pub async fn run(mut self) -> Result<Summary, Halt> {
        loop {
            if let Err(halt) = self.turn() {
                self.halt(halt);
            }
            if self.is_over() {
                return self.finish().await;
            }
            if self.stopping_until.is_some_and(|until| Instant::now() >= until) {
                self.let_server_stop().await;
            }
            if let Err(halt) = self.welcome().await {
                self.halt(halt);
            }
            self.wait().await;
        }
    }

    /// Everything that can be done without waiting.
    fn turn(&mut self) -> Result<(), Halt> {
        let now = self.started_at.elapsed();
        self.publisher.proceed(&mut self.core, &self.router, now)?;
        self.hold(now)?;
        self.take(now)?;
        self.publisher.send(&mut self.core, &self.router, now)?;
        self.confirm(now);
        if Instant::now() >= self.tick_at {
            self.tick_at = Instant::now() + TICK;
            self.tick(now)?;
        }
        Ok(())
    }

    /// Sees to what cannot be published, and to what is held.
    fn hold(&mut self, now: Duration) -> Result<(), Halt> {
        self.publisher.take_is_new();
        let may_release = self.may_release();
        let mut around = Surroundings { core: &mut self.core, router: &self.router, directory: &self.directory, now };
        for Refusal { handle, class, code } in self.publisher.take_refusals() {
            let topic = self.router.target(handle.lane()).map_or("", |(topic, _)| topic);
            match class {
                Class::NoTopic | Class::Forbidden => {
                    self.topics.look();
                    self.holder.close_topic(topic, class, now);
                }
                _ => self.holder.refused(handle, &code.to_string(), &mut around)?,
            }
        }
        if self.holder.has_closed() {
            self.holder.drain_closed(&mut around)?;
            if self.holder.wants_rewind(around.core, &self.router) {
                self.publisher.rewind();
            }
        }
        let confirmed = around.core.confirmed().lsn();
        let want = |topic: &str| self.topics.want(topic);
        self.holder.turn(&mut around, confirmed, may_release, want)?;
        self.replayer.turn(now, (confirmed, may_release), &self.directory, want)
    }

    /// The slot is surely ours, and the relay is to go on: what is in the table may be published.
    fn may_release(&self) -> bool {
        let is_ours = self.link.is_up() && self.last_word.elapsed() < self.settings.times.silence;
        is_ours && matches!(self.mode, Mode::Running)
    }

    /// Takes what the stream has brought, as far as there is room.
    fn take(&mut self, now: Duration) -> Result<(), Halt> {
        if !self.may_take() {
            return Ok(());
        }
        let to_boundary = matches!(self.mode, Mode::Draining { .. });
        loop {
            let ways = &mut Ways { core: &mut self.core, router: &mut self.router, holder: &mut self.holder, now };
            match self.intake.proceed(ways, to_boundary)? {
                Taken::Whole | Taken::Part => {}
                Taken::Done => return self.lost(postgres::Error::closed()),
                Taken::Lost(error) => return self.lost(error),
                Taken::OtherHistory(other) => {
                    tracing::warn!("{other}: it was restored or lost the end of its log; starting anew from the slot");
                    // Without a known system the next session counts as another history.
                    self.system = None;
                    self.disconnected();
                    return Ok(());
                }
            }
            if !self.knows_pending_topic()? && !self.has_stored_pending(now) {
                return Ok(());
            }
        }
    }

    /// Nothing is taken after a halt, nor between transactions once the relay is to end.
    fn may_take(&self) -> bool {
        if !self.holder.is_loaded() || self.holder.is_closing() {
            return false;
        }
        match &self.mode {
            Mode::Running => true,
            Mode::Draining { halt, .. } => halt.is_none() && self.core.is_in_transaction(),
        }
    }

    fn wants_to_read(&self) -> bool {
        self.may_take() && !self.intake.has_block() && self.intake.pending().is_none() && self.core.takes_more()
    }

    /// Waits for the next thing that happens. Earlier branches go first: a signal, reports (they make room), a payload
    /// that is stored, what is known of topics, the clock, and last the stream.
    async fn wait(&mut self) {
        let read = self.wants_to_read();
        let status_at = self.started_at + self.core.status_deadline();
        let mut deadline = if self.link.is_up() { self.tick_at.min(status_at) } else { self.tick_at };
        if let Some(send_at) = self.publisher.send_deadline(&self.core) {
            deadline = deadline.min(self.started_at + send_at);
        }
        if let Some(at) = self.holder.deadline() {
            deadline = deadline.min(self.started_at + at);
        }
        if let Some(at) = self.replayer.deadline(self.may_release()) {
            deadline = deadline.min(self.started_at + at);
        }
        deadline = self.stopping_until.map_or(deadline, |until| until.min(deadline));
        tokio::select! {
            biased;
            () = self.signals.next() => self.signalled(),
            () = self.publisher.wait() => {}
            () = self.holder.wait() => {}
            () = self.replayer.wait() => {}
            () = self.uploads.wait() => {}
            () = self.topics.changed() => {
                if let Err(halt) = self.learn_topics() {
                    self.halt(halt);
                }
            }
            () = tokio::time::sleep_until(deadline) => {}
            event = self.link.event(read) => {
                if let Err(halt) = self.linked(event).await {
                    self.halt(halt);
                }
            }
        }
    }

    /// A first signal drains, a second one ends at once.
    fn signalled(&mut self) {
        let limit = match self.mode {
            Mode::Running => self.settings.times.drain_limit,
            Mode::Draining { .. } => Duration::ZERO,
        };
        tracing::info!(events = self.core.unresolved_events(), "stopping: publishing and confirming what has come");
        let halt = match std::mem::replace(&mut self.mode, Mode::Running) {
            Mode::Running => None,
            Mode::Draining { halt, .. } => halt,
        };
        self.mode = Mode::Draining { until: Instant::now() + limit, halt };
    }

    /// Stops because of `halt`. What came before is published and confirmed, unless it is what the brokers refuse.
    fn halt(&mut self, halt: Halt) {
        if let Mode::Draining { halt: Some(_), .. } = self.mode {
            return;
        }
        tracing::info!(events = self.core.unresolved_events(), "halting: publishing and confirming what came before");
        let is_refusal = matches!(halt.reason(), Reason::Refused | Reason::Settings);
        let limit = if is_refusal { Duration::ZERO } else { self.settings.times.drain_limit };
        self.mode = Mode::Draining { until: Instant::now() + limit, halt: Some(halt) };
    }

    fn is_over(&self) -> bool {
        let Mode::Draining { until, halt } = &self.mode else { return false };
        let is_whole = halt.is_some() || !self.link.is_up() || !self.core.is_in_transaction();
        let is_done = self.core.unresolved_events() == 0 && self.holder.is_idle() && self.replayer.is_idle();
        (is_done && is_whole) || Instant::now() >= *until
    }

    async fn finish(mut self) -> Result<Summary, Halt> {
        let status = self.status(self.started_at.elapsed());
        if let Err(error) = self.link.finish(status, FINISH_LIMIT).await {
            tracing::warn!("the last status may not have arrived: {error}");
        }
        let unresolved_events = self.core.unresolved_events() + usize::from(self.intake.pending().is_some());
        let summary = Summary { confirmed: self.core.confirmed(), unresolved_events };
        if unresolved_events > 0 {
            tracing::warn!(events = unresolved_events, "stopped without an acknowledgement for events that come again");
        }
        self.publisher.close().await;
        self.holder.close().await;
        self.replayer.close().await;
        tracing::info!(
            confirmed = %summary.confirmed,
            received = self.metrics.received.get(),
            published = self.metrics.published.get(),
            recognised = self.metrics.recognised.get(),
            filtered = self.metrics.filtered.get(),
            held = self.metrics.held.get(),
            released = self.metrics.released.get(),
            replayed = self.metrics.replayed.get(),
            rewinds = self.metrics.rewinds.get(),
            "stopped"
        );
        match self.mode {
            Mode::Draining { halt: Some(halt), .. } => Err(halt),
            _ => Ok(summary),
        }
    }

    /// Sends a status where one is due.
    fn confirm(&mut self, now: Duration) {
        if !self.link.is_up() || !self.core.status_due(now) {
            return;
        }
        let before = self.core.confirmed();
        let status = self.status(now);
        self.link.send_status(status);
        self.metrics.uncovered_events.set(self.core.uncovered_events());
        if self.core.confirmed() > before {
            self.metrics.confirmations.inc();
            self.metrics.confirmed_lsn.set(self.core.confirmed().lsn().get());
            reached(Point::AfterConfirm);
        }
    }

    fn status(&mut self, now: Duration) -> Status {
        let (written, flushed) = self.core.take_status(now);
        let is_quiet = self.last_word.elapsed() >= self.settings.limits.status_interval;
        Status { written, flushed, applied: flushed, clock_us: now_us(), reply_requested: is_quiet }
    }
}

/// The server's clock counts microseconds from 2000-01-01 UTC.
fn now_us() -> i64 {
    const POSTGRES_EPOCH_S: u64 = 946_684_800;
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S);
    let since = SystemTime::now().duration_since(epoch).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
