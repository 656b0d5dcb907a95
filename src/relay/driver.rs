//! The loop: it owns every part and connects them.
//!
//! One turn takes reports, takes what the stream has brought, hands over what may be sent, and sends a status where one is
//! due; then it waits for whatever comes first. Everything runs on one thread; librdkafka has threads of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::backoff::Backoff;
use super::core::Core;
use super::halt::{Halt, Reason};
use super::intake::{Intake, Pending, Taken};
use super::link::{Failure, Link, LinkEvent, Session, classify_lost};
use super::publisher::Publisher;
use super::router::{Router, Shrunk};
use super::sentinel::Word;
use super::signals::Signals;
use crate::config::run::RunSettings;
use crate::failpoint::{Point, reached};
use crate::kafka::topics::{Directory, Topics};
use crate::outbox::{Event, Source};
use crate::postgres::{self, EndLsn, Status, SystemIdentity};
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
    publisher: Publisher,
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
        let topics = Topics::watch(&settings.producer, settings.times.topic_refresh)
            .map_err(|error| Halt::new(Reason::Settings, None, error))?;
        if let Some(name) = settings.topic.fixed() {
            topics.want(name);
        }
        let now = Instant::now();
        Ok(Self {
            core: Core::new(settings.limits),
            router: Router::new(settings.topic.clone()),
            intake: Intake::new(settings.table.clone(), metrics.clone()),
            publisher: Publisher::new(settings.producer.clone(), source, metrics.clone())?,
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
        self.take(now)?;
        self.publisher.send(&mut self.core, &self.router, now)?;
        self.confirm(now);
        if Instant::now() >= self.tick_at {
            self.tick_at = Instant::now() + TICK;
            self.tick(now)?;
        }
        Ok(())
    }

    /// Takes what the stream has brought, as far as there is room.
    fn take(&mut self, now: Duration) -> Result<(), Halt> {
        if !self.may_take() {
            return Ok(());
        }
        let to_boundary = matches!(self.mode, Mode::Draining { .. });
        loop {
            match self.intake.proceed(&mut self.core, &mut self.router, now, to_boundary)? {
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
            if !self.knows_pending_topic()? {
                return Ok(());
            }
        }
    }

    /// Whether an event waits for its topic and the topic has just become known.
    fn knows_pending_topic(&mut self) -> Result<bool, Halt> {
        let Some(Pending { topic, .. }) = self.intake.pending() else { return Ok(false) };
        let undecodable = |error| Halt::new(Reason::Undecodable, None, error);
        if self.router.add(topic, &self.directory, &mut self.core).map_err(undecodable)? {
            self.awaited = None;
            return Ok(true);
        }
        match &mut self.awaited {
            Some(awaited) if awaited.topic == *topic => {
                awaited.check(&self.directory, self.settings.times.topic_wait)?
            }
            _ => {
                self.topics.want(topic);
                self.awaited = Some(Awaited::new(topic.clone()));
            }
        }
        Ok(false)
    }

    /// Takes over what has become known of the topics.
    fn learn_topics(&mut self) -> Result<(), Halt> {
        self.directory = self.topics.directory();
        self.publisher.adapt(self.directory.sizes());
        let shrunk = self.router.refresh(&self.directory, &mut self.core);
        match shrunk.map_err(|error| Halt::new(Reason::Undecodable, None, error))? {
            Some(Shrunk { topic, before, now }) => {
                let what = format!("the topic {topic} has {now} partitions; it had {before}");
                Err(Halt::new(Reason::TopicShrunk, None, what))
            }
            None => Ok(()),
        }
    }

    /// Nothing is taken after a halt, nor between transactions once the relay is to end.
    fn may_take(&self) -> bool {
        match &self.mode {
            Mode::Running => true,
            Mode::Draining { halt, .. } => halt.is_none() && self.core.is_in_transaction(),
        }
    }

    fn wants_to_read(&self) -> bool {
        self.may_take() && !self.intake.has_block() && self.intake.pending().is_none() && self.core.takes_more()
    }

    /// Waits for the next thing that happens. Earlier branches go first: a signal, reports (they make room), what is known
    /// of topics, the clock, and last the stream.
    async fn wait(&mut self) {
        let read = self.wants_to_read();
        let status_at = self.started_at + self.core.status_deadline();
        let mut deadline = if self.link.is_up() { self.tick_at.min(status_at) } else { self.tick_at };
        deadline = self.stopping_until.map_or(deadline, |until| until.min(deadline));
        tokio::select! {
            biased;
            () = self.signals.next() => self.signalled(),
            () = self.publisher.wait() => {}
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

    async fn linked(&mut self, event: LinkEvent) -> Result<(), Halt> {
        match event {
            LinkEvent::Block(block) => {
                self.last_word = Instant::now();
                self.intake.put(block, &mut self.core);
                self.link.progressed();
                Ok(())
            }
            LinkEvent::Connected(session) => self.connected(session).await,
            LinkEvent::Failed(failure) => self.failed(failure),
            LinkEvent::Lost(error) => self.lost(error),
            LinkEvent::Word(word) => {
                self.heard(word);
                Ok(())
            }
        }
    }

    /// A server is there. It goes on with what is known only if it is the same system on the same timeline and not behind;
    /// the proof that its history is the same then comes with the stream.
    async fn connected(&mut self, session: Box<Session>) -> Result<(), Halt> {
        let is_same = self.system.as_ref().is_some_and(|known| {
            (known.system_id, known.timeline) == (session.identity.system_id, session.identity.timeline)
        });
        let is_behind = session.identity.flushed < self.core.received().lsn();
        if self.is_ready && (!is_same || is_behind) {
            if self.core.unresolved_events() > 0 || self.intake.pending().is_some() {
                tracing::warn!(
                    timeline = session.identity.timeline,
                    "the server has another history; waiting until what came before is published"
                );
            }
            self.newcomer = Some(session);
            return self.welcome().await;
        }
        self.begin(session).await
    }

    /// A server with another history is begun with once nothing of the old one is under way.
    async fn welcome(&mut self) -> Result<(), Halt> {
        if self.core.unresolved_events() > 0 || self.intake.pending().is_some() {
            return Ok(());
        }
        match self.newcomer.take() {
            Some(session) => {
                self.core.forget_history();
                self.begin(session).await
            }
            None => Ok(()),
        }
    }

    async fn begin(&mut self, session: Box<Session>) -> Result<(), Halt> {
        let identity = session.identity.clone();
        let confirmed = session.confirmed;
        if let Err(failure) = self.link.start(*session).await {
            return self.failed(failure);
        }
        tracing::info!(%confirmed, timeline = identity.timeline, "streaming from slot {:?}", self.settings.slot);
        self.system = Some(identity);
        self.core.resume(confirmed);
        self.last_word = Instant::now();
        self.publisher.unfence();
        if !self.is_ready {
            self.is_ready = true;
            tracing::info!("ready: {}", self.settings);
        }
        Ok(())
    }

    fn failed(&mut self, failure: Failure) -> Result<(), Halt> {
        let error = match failure {
            Failure::Retry(error) => error,
            // While it runs, a role may be about to get a new password; a slot that is gone stays gone.
            Failure::Halt(halt) if self.is_ready && halt.reason() == Reason::Forbidden => {
                let pause = self.link.retry();
                tracing::error!("{halt}; trying again in {pause:.1?}");
                return Ok(());
            }
            Failure::Halt(halt) => return Err(halt),
        };
        self.metrics.reconnects.inc();
        if !self.is_ready && self.started_at.elapsed() >= self.settings.times.start_limit {
            return Err(Halt::new(Reason::Unreachable, None, error));
        }
        let pause = self.link.retry();
        tracing::warn!("no connection to PostgreSQL: {error}; trying again in {pause:.1?}");
        Ok(())
    }

    /// The stream has ended. What is in the window stays there and is published.
    fn lost(&mut self, error: postgres::Error) -> Result<(), Halt> {
        self.disconnected();
        match classify_lost(error, &self.settings) {
            Failure::Retry(error) => {
                tracing::warn!("the connection to PostgreSQL was lost: {error}");
                Ok(())
            }
            Failure::Halt(halt) => Err(halt),
        }
    }

    fn disconnected(&mut self) {
        self.metrics.reconnects.inc();
        self.stopping_until = None;
        self.intake.stream_ended();
        self.core.stream_ended();
        self.link.retry();
    }

    /// A server in fast shutdown waits until everything that it sent is confirmed. What is not acknowledged by now comes again
    /// after its restart, unless its report comes before that.
    async fn let_server_stop(&mut self) {
        let status = self.status(self.started_at.elapsed());
        if let Err(error) = self.link.finish(status, FINISH_LIMIT / 2).await {
            tracing::debug!(%error, "the server did not answer the end of the stream");
        }
        tracing::info!(
            events = self.core.unresolved_events(),
            "the connection is closed so that the server can shut down"
        );
        self.disconnected();
    }

    fn heard(&mut self, word: Word) {
        match word {
            Word::Nothing => {}
            Word::Ours(at) => {
                self.last_word = self.last_word.max(at);
                self.stopping_until = None;
            }
            Word::NotOurs => {
                tracing::warn!("slot {:?} is no longer read by this connection", self.settings.slot);
                self.publisher.fence(self.core.unresolved_events() > 0);
                self.disconnected();
            }
            Word::Stopping if self.stopping_until.is_none() => {
                tracing::info!("the server is shutting down; publishing what has come");
                self.stopping_until = Some(Instant::now() + self.settings.times.shutdown_grace);
            }
            Word::Stopping => {}
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
        (self.core.unresolved_events() == 0 && is_whole) || Instant::now() >= *until
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
        tracing::info!(
            confirmed = %summary.confirmed,
            received = self.metrics.received.get(),
            published = self.metrics.published.get(),
            recognised = self.metrics.recognised.get(),
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

    /// The slow things: silence, a stall, a server that shuts down, a newcomer that waits, and what is measured.
    fn tick(&mut self, now: Duration) -> Result<(), Halt> {
        self.look_at_silence();
        self.look_at_stall(now);
        self.metrics.window_events.set(self.core.unresolved_events() as u64);
        self.metrics.window_bytes.set(self.core.unresolved_bytes() as u64);
        self.metrics.received_lsn.set(self.core.received().lsn().get());
        Ok(())
    }

    fn look_at_silence(&mut self) {
        let quiet = self.last_word.elapsed();
        if quiet < self.settings.times.silence {
            if self.link.is_up() {
                self.publisher.unfence();
            }
            return;
        }
        if self.is_ready && self.publisher.fence(self.core.unresolved_events() > 0) {
            tracing::warn!("no word from the server for {quiet:.1?}: nothing is published until it speaks again");
        }
        if self.link.is_up() && quiet >= self.settings.times.receive_timeout {
            tracing::warn!("no word from the server for {quiet:.1?}: connecting again");
            self.disconnected();
        }
    }

    fn look_at_stall(&mut self, now: Duration) {
        let oldest = self.core.oldest();
        let age = oldest.map_or(Duration::ZERO, |(_, arrived)| now.saturating_sub(arrived));
        let is_stalled = age >= self.settings.times.publish_stall;
        self.metrics.oldest_seconds.set(age.as_secs());
        self.metrics.stalled.set(u64::from(is_stalled));
        if is_stalled != self.is_stalled {
            self.is_stalled = is_stalled;
            let missing: Vec<&str> = self.directory.missing().collect();
            match (is_stalled, oldest) {
                (true, Some((at, _))) => tracing::warn!(
                    position = %at,
                    events = self.core.unresolved_events(),
                    missing_topics = ?missing,
                    brokers = self.directory.failure().unwrap_or("answer"),
                    "stalled: the oldest event has had no acknowledgement for {age:.0?}"
                ),
                _ => tracing::info!("no longer stalled"),
            }
        }
    }
}

/// The server's clock counts microseconds from 2000-01-01 UTC.
fn now_us() -> i64 {
    const POSTGRES_EPOCH_S: u64 = 946_684_800;
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S);
    let since = SystemTime::now().duration_since(epoch).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A topic that an event waits for.
struct Awaited {
    topic: String,
    /// Since when the brokers have said that it is not there.
    missing_since: Option<Instant>,
    is_told: bool,
}

impl Awaited {
    const fn new(topic: String) -> Self {
        Self { topic, missing_since: None, is_told: false }
    }

    /// Tells once that the topic is missing, and halts when that lasts. Brokers that cannot be asked are waited for.
    fn check(&mut self, directory: &Directory, limit: Duration) -> Result<(), Halt> {
        if !directory.is_missing(&self.topic) || directory.failure().is_some() {
            self.missing_since = None;
            return Ok(());
        }
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= limit {
            return Err(Halt::new(Reason::NoTopic, None, format!("the topic {} does not exist", self.topic)));
        }
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(topic = self.topic, "the topic does not exist; create it within {limit:.0?}");
        }
        Ok(())
    }
}
