//! The producer's life: it sends what the core gives out, and ends and begins again after a failure.
//!
//! A generation ends at the first bad report, since later events of a partition could land behind the refused one. Then
//! nothing more is sent, what is not on its way is taken back, the reports of what is on its way are awaited for at most
//! the request timeout, and a new producer sends everything unresolved again.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::types::RDKafkaErrorCode;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::burst::Burst;
use super::core::{Core, SendOutcome};
use super::failure::{Verdict, on_refusal};
use super::halt::{Halt, Reason};
use super::lane::{Handle, LaneId};
use super::router::Router;
use crate::failpoint::{Point, reached};
use crate::kafka::class::Class;
use crate::kafka::delivery::{Deliveries, Generation, Outcome, Report};
use crate::kafka::producer::{Producer, ProducerSettings, Sent};
use crate::kafka::topics::Sizes;
use crate::outbox::{Event, MappingError, Position, Record, Source};
use crate::telemetry::Metrics;

/// How long a producer may report nothing while the brokers are healthy, at first and at most.
const PATIENCE: Duration = Duration::from_secs(6);
const PATIENCE_MAX: Duration = Duration::from_secs(300);

/// How long what the brokers said counts as what they say now.
const FRESH: Duration = Duration::from_secs(3);

/// What can be published.
pub(super) trait Publish {
    /// The record; `now_ms` is the Unix time in milliseconds.
    fn record<'a>(&'a self, source: &'a Source, now_ms: i64) -> Result<Record<'a>, MappingError>;

    /// Where it stands.
    fn position(&self) -> Position;
}

impl Publish for Event {
    fn record<'a>(&'a self, source: &'a Source, now_ms: i64) -> Result<Record<'a>, MappingError> {
        Record::of(self, source, now_ms)
    }

    fn position(&self) -> Position {
        Self::position(self)
    }
}

/// An event that is to be held, or whose topic is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) handle: Handle,
    pub(super) class: Class,
    pub(super) code: RDKafkaErrorCode,
}

/// What the producer is doing.
enum Phase {
    /// It sends.
    Running,
    /// It is to be replaced once the reports are in, or at the given time.
    Ending { until: Option<Instant> },
    /// The old producer is being destroyed.
    Retiring(JoinHandle<()>),
    /// The next one is made at the given time.
    Waiting { until: Instant },
}

/// The sending side.
pub(super) struct Publisher {
    settings: ProducerSettings,
    source: Source,
    deliveries: Deliveries,
    producer: Option<Producer>,
    generation: Generation,
    sizes: Sizes,
    phase: Phase,
    /// The server has been silent: nothing may be sent until it speaks again.
    is_fenced: bool,
    backoff: Backoff,
    burst: Burst,
    /// When the present producer last reported something, or began.
    reported_at: Instant,
    /// Since when the brokers have been seen healthy while it reported nothing.
    healthy_since: Option<Instant>,
    /// How long a producer may report nothing while the brokers are healthy; doubles until there is an acknowledgement.
    patience: Duration,
    /// librdkafka took no more; the next report says that it does.
    is_full: bool,
    /// Generations in a row that ended with a refusal in this partition and without an acknowledgement there.
    attempts: HashMap<LaneId, u32>,
    reports: Vec<Report>,
    /// Refusals that the driver has to see to before anything more is sent.
    refusals: Vec<Refusal>,
    /// A new generation has begun and nothing of it has been sent.
    is_new: bool,
    /// There is a place for events that cannot be published.
    can_hold: bool,
    metrics: Metrics,
}

impl Publisher {
    pub(super) fn new(settings: ProducerSettings, source: Source, metrics: Metrics) -> Result<Self, Halt> {
        let mut publisher = Self {
            settings,
            source,
            deliveries: Deliveries::default(),
            producer: None,
            generation: Generation::default(),
            sizes: Sizes::default(),
            phase: Phase::Running,
            is_fenced: false,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
            burst: Burst::default(),
            reported_at: Instant::now(),
            healthy_since: None,
            patience: PATIENCE,
            is_full: false,
            attempts: HashMap::new(),
            reports: Vec::new(),
            refusals: Vec::new(),
            is_new: false,
            can_hold: false,
            metrics,
        };
        publisher.create()?;
        Ok(publisher)
    }

    /// From now on there is a place, or none, for events that cannot be published.
    pub(super) const fn set_can_hold(&mut self, can_hold: bool) {
        self.can_hold = can_hold;
    }

    /// What is to be held. Nothing more is sent until this is taken.
    pub(super) fn take_refusals(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refusals)
    }

    /// Whether a new generation has begun since the last time. Nothing of it is sent until this is asked.
    pub(super) const fn take_is_new(&mut self) -> bool {
        std::mem::replace(&mut self.is_new, false)
    }

    /// Ends the generation because of something that was learnt elsewhere.
    pub(super) fn rewind(&mut self) {
        self.end(true);
    }

    fn create(&mut self) -> Result<(), Halt> {
        self.generation = self.generation.next();
        let created = Producer::create(&self.settings, self.sizes, self.generation, &self.deliveries);
        self.producer = Some(created.map_err(|error| Halt::new(Reason::Settings, None, error))?);
        self.phase = Phase::Running;
        self.reported_at = Instant::now();
        Ok(())
    }

    /// Waits until there are reports, or a phase is over. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        let deadline = match &mut self.phase {
            Phase::Running => None,
            Phase::Ending { until } => *until,
            Phase::Waiting { until } if !self.is_fenced => Some(*until),
            Phase::Waiting { .. } => None,
            Phase::Retiring(retired) => {
                tokio::select! {
                    biased;
                    () = self.deliveries.wait() => {}
                    _ = retired => self.phase = Phase::Waiting { until: Instant::now() + self.pause() },
                }
                return;
            }
        };
        let over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.deliveries.wait() => {}
            () = over => {}
        }
    }

    /// Before the next producer: a moment, longer after each failure without progress.
    fn pause(&mut self) -> Duration {
        self.backoff.next(fastrand::f64())
    }

    /// Hands over what may be sent.
    pub(super) fn send<E: Publish>(&mut self, core: &mut Core<E>, router: &Router, now: Duration) -> Result<(), Halt> {
        let (Phase::Running, Some(producer)) = (&self.phase, &self.producer) else { return Ok(()) };
        if self.is_fenced || !self.refusals.is_empty() || self.is_new || !self.burst.is_due(core.waiting(), now) {
            return Ok(());
        }
        let now_ms = unix_ms();
        let (mut sent_events, mut is_full) = (0, false);
        let mut refused = None;
        let mut is_broken = false;
        core.send_ready(now, |handle, event| {
            let sent = match (router.target(handle.lane()), event.record(&self.source, now_ms)) {
                (Some(target), Ok(record)) => producer.send(target, &record, handle.to_tag()),
                // Both were checked when the event came.
                _ => Sent::Refused(RDKafkaErrorCode::InvalidRecord),
            };
            match sent {
                Sent::Queued => {
                    sent_events += 1;
                    is_broken |= reached(Point::AfterProduce);
                    SendOutcome::Queued
                }
                Sent::QueueFull => {
                    is_full = true;
                    SendOutcome::Full
                }
                Sent::Refused(code) => {
                    refused = Some((handle, code));
                    SendOutcome::Refused
                }
            }
        });
        self.is_full = is_full;
        if sent_events > 0 {
            self.burst.sent(sent_events, now);
        }
        if is_broken {
            self.fatal(RDKafkaErrorCode::Fatal);
        }
        match refused {
            // It never came to the producer, so it takes nothing with it.
            Some((handle, code)) if self.can_hold && Class::of(code) == Class::Record => {
                self.refusals.push(Refusal { handle, class: Class::Record, code });
                Ok(())
            }
            Some((handle, code)) => self.refused(handle, code, core.is_front(handle), core, router),
            None => Ok(()),
        }
    }

    /// Takes the reports that have come and moves on to the next phase where one is over.
    pub(super) fn proceed<E: Publish>(
        &mut self,
        core: &mut Core<E>,
        router: &Router,
        now: Duration,
    ) -> Result<(), Halt> {
        let mut reports = std::mem::take(&mut self.reports);
        self.deliveries.take(&mut reports);
        if !reports.is_empty() {
            self.is_full = false;
            self.reported_at = Instant::now();
            self.healthy_since = None;
        }
        for report in &reports {
            if report.generation == self.generation {
                self.report(report.outcome, core, router, now)?;
            }
        }
        self.reports = reports;
        match &self.phase {
            Phase::Ending { until }
                if core.outstanding() == 0 || until.is_some_and(|until| Instant::now() >= until) =>
            {
                self.phase = match self.producer.take() {
                    Some(producer) => Phase::Retiring(tokio::spawn(producer.retire())),
                    None => Phase::Waiting { until: Instant::now() },
                };
            }
            Phase::Waiting { until } if Instant::now() >= *until && !self.is_fenced => {
                core.restart_generation();
                self.is_new = true;
                self.create()?;
                tracing::info!(
                    generation = self.generation.0,
                    events = core.unresolved_events(),
                    "a new producer sends again"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// When events are to be handed over at the latest; `None` where none can be.
    pub(super) fn send_deadline<E>(&self, core: &Core<E>) -> Option<Duration> {
        let is_sending = matches!(self.phase, Phase::Running) && !self.is_fenced && !self.is_full;
        (is_sending && core.has_ready()).then(|| self.burst.deadline())
    }

    fn report<E: Publish>(
        &mut self,
        outcome: Outcome,
        core: &mut Core<E>,
        router: &Router,
        now: Duration,
    ) -> Result<(), Halt> {
        match outcome {
            Outcome::Acknowledged(tag) => {
                let handle = Handle::from_tag(tag);
                if core.acknowledge(handle, now) {
                    self.metrics.published.inc();
                    self.backoff.reset();
                    self.patience = PATIENCE;
                    if !self.attempts.is_empty() {
                        self.attempts.remove(&handle.lane());
                    }
                    reached(Point::AfterAck);
                }
                Ok(())
            }
            Outcome::Refused(tag, code) => {
                let handle = Handle::from_tag(tag);
                match core.give_back(handle) {
                    Some(is_alone) => self.refused(handle, code, is_alone, core, router),
                    None => Ok(()),
                }
            }
            Outcome::Fatal(code) => {
                self.fatal(code);
                Ok(())
            }
        }
    }

    fn refused<E: Publish>(
        &mut self,
        handle: Handle,
        code: RDKafkaErrorCode,
        is_alone: bool,
        core: &mut Core<E>,
        router: &Router,
    ) -> Result<(), Halt> {
        let attempts = self.attempts.get(&handle.lane()).copied().unwrap_or_default();
        let topic = router.target(handle.lane()).map_or("", |(topic, _)| topic);
        let class = Class::of(code);
        let is_held = match on_refusal(class, is_alone, attempts, self.can_hold) {
            Verdict::Ignore => return Ok(()),
            Verdict::Rewind { suspect } => {
                if suspect {
                    core.suspect(handle);
                }
                false
            }
            Verdict::Hold | Verdict::HoldTopic => true,
            Verdict::Halt => {
                let position = core.event(handle).map(Publish::position);
                return Err(Halt::new(Reason::Refused, position, format!("topic {topic} refuses it: {code}")));
            }
        };
        if is_held {
            self.refusals.push(Refusal { handle, class, code });
        }
        if self.end(true) {
            *self.attempts.entry(handle.lane()).or_default() += 1;
            tracing::warn!(topic, %code, "an event was not accepted; everything unresolved is sent again, in order");
        }
        Ok(())
    }

    /// Since when the producer has reported nothing, though it should have; `None` where it need not have.
    pub(super) fn silent_since<E>(&self, core: &Core<E>) -> Option<Instant> {
        let is_sending = matches!(self.phase, Phase::Running) && !self.is_fenced && core.outstanding() > 0;
        is_sending.then_some(self.reported_at)
    }

    /// Replaces a producer that reports nothing for too long although the brokers have been healthy all that time; they were
    /// last seen so at the given time. A client can lose its way: librdkafka does when a single broker, fenced for a moment,
    /// is in no metadata.
    pub(super) fn replace_silent(&mut self, healthy_at: Option<Instant>) {
        if healthy_at.is_none_or(|at| at.elapsed() > FRESH) {
            self.healthy_since = None;
            return;
        }
        let since = *self.healthy_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience && self.end(true) {
            self.healthy_since = None;
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            tracing::warn!(
                "the producer reports nothing though the brokers answer; everything unresolved is sent again, in order"
            );
        }
    }

    fn fatal(&mut self, code: RDKafkaErrorCode) {
        if self.end(true) {
            tracing::warn!(%code, "the producer failed; everything unresolved is sent again, in order");
        }
    }

    /// Ends the generation. With `purge` at once, and what is not on its way is taken back; else after all reports.
    /// False where it is ending already.
    fn end(&mut self, purge: bool) -> bool {
        let may_end = match self.phase {
            Phase::Running => true,
            // A graceful end becomes a hasty one.
            Phase::Ending { until: None } => purge,
            _ => false,
        };
        if !may_end {
            return false;
        }
        if purge {
            self.metrics.rewinds.inc();
            if let Some(producer) = &self.producer {
                producer.purge_queue();
            }
        }
        self.phase = Phase::Ending { until: purge.then(|| Instant::now() + self.settings.request_timeout) };
        true
    }

    /// No word from the server for too long: whoever took the slot over may be publishing by now, so nothing more is sent,
    /// and what is under way is taken back. False where it is so already.
    pub(super) fn fence(&mut self, is_under_way: bool) -> bool {
        if self.is_fenced {
            return false;
        }
        self.is_fenced = true;
        if is_under_way {
            self.end(true);
        }
        true
    }

    /// The server has spoken, and the slot is ours.
    pub(super) const fn unfence(&mut self) {
        self.is_fenced = false;
    }

    /// Ends the last producer.
    pub(super) async fn close(&mut self) {
        if let Some(producer) = self.producer.take() {
            producer.retire().await;
        }
    }

    /// The limits of the topics in use. When a batch or a record of the present producer does not fit them, a new producer
    /// follows it once all its reports are in: nothing is repeated.
    pub(super) fn adapt(&mut self, sizes: Sizes) {
        if !self.sizes.serves(sizes) {
            self.sizes = sizes;
            if self.end(false) {
                tracing::info!(
                    batch = sizes.smallest,
                    record = sizes.largest,
                    "the topics' size limits need a new producer"
                );
            }
        }
    }
}

/// The Unix time in milliseconds.
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
