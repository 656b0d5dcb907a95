//! The way of held events to Kafka: a producer and lanes of their own, so that what is refused again disturbs nobody.
//!
//! One batch is under way at a time: it was read from the table, is handed over in the order of its commits, and is written
//! down when every event of it is acknowledged, refused or put back.

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;

use super::core::Core;
use super::failure::{Fate, fate};
use super::halt::{Halt, Reason};
use super::lane::Handle;
use super::publisher::{Publish, Publisher, Refusal};
use super::router::Router;
use crate::kafka::class::Class;
use crate::kafka::partition::partition_of;
use crate::kafka::producer::ProducerSettings;
use crate::kafka::topics::{Directory, Topic};
use crate::outbox::{
    HEADER_COMMIT_TIME, HEADER_ID, HEADER_POSITION, Header, HeaderValue, MappingError, OnFailure, Ordinal, Position,
    Record, Source, is_recent,
};
use crate::postgres::Lsn;
use crate::recovery::held::{Failed, HeldEvent, Row, Settlement, State};
use crate::telemetry::Metrics;

/// The header that marks a record which an operator, or the scheduler for dead letters, has released.
pub const HEADER_RELEASED: &str = "outboxd_released";

/// Why a record stands in the dead-letter topic.
const HEADER_REASON: &str = "outboxd_reason";
const HEADER_CLASS: &str = "outboxd_class";
const HEADER_TOPIC: &str = "outboxd_topic";
const HEADER_ATTEMPTS: &str = "outboxd_attempts";

/// What a record of the batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A held event.
    Event,
    /// A dead letter's copy for the dead-letter topic.
    Copy,
}

/// An event of the batch.
#[derive(Debug)]
pub(super) struct Release {
    number: u64,
    kind: Kind,
    held: HeldEvent,
}

impl Release {
    fn place(&self) -> Position {
        Position::new(Lsn::new(self.number), Ordinal::FIRST)
    }

    /// The record's timestamp, in Unix milliseconds: a column's, the commit time while that is recent, else the present.
    fn timestamp(&self, now_ms: i64) -> i64 {
        let committed_ms = self.held.committed_us / 1000;
        let of_commit = if is_recent(committed_ms, now_ms) { committed_ms } else { now_ms };
        self.held.timestamp_ms.unwrap_or(of_commit)
    }

    fn headers(&self, timestamp_ms: i64) -> SmallVec<[Header<'_>; 8]> {
        let text = |name: &'static str, text: String| Header {
            name: name.into(),
            value: HeaderValue::Bytes(Cow::Owned(text.into_bytes())),
        };
        let mut headers: SmallVec<_> = self.held.headers.iter().map(|header| header.to_header()).collect();
        let has = |name: &str| self.held.headers.iter().any(|header| header.name == name);
        // Where the timestamp is not the commit time and the records are ours, the true one goes with it.
        let is_late = self.held.timestamp_ms.is_none() && timestamp_ms != self.held.committed_us / 1000;
        if is_late && has(HEADER_POSITION) && !has(HEADER_COMMIT_TIME) {
            headers.push(text(HEADER_COMMIT_TIME, (self.held.committed_us / 1000).to_string()));
        }
        if self.held.released && self.kind == Kind::Event {
            headers.push(text(HEADER_RELEASED, "true".to_owned()));
        }
        if self.kind == Kind::Copy {
            if let Some(id) = self.held.event_id.clone().filter(|_| !has(HEADER_ID)) {
                headers.push(text(HEADER_ID, id));
            }
            headers.push(text(HEADER_CLASS, self.held.class.clone()));
            headers.push(text(HEADER_REASON, self.held.reason.clone()));
            headers.push(text(HEADER_TOPIC, self.held.topic.clone().unwrap_or_default()));
            headers.push(text(HEADER_ATTEMPTS, self.held.attempts.to_string()));
        }
        headers
    }
}

impl Publish for Release {
    fn record<'a>(&'a self, _: &'a Source, now_ms: i64) -> Result<Record<'a>, MappingError> {
        let timestamp_ms = self.timestamp(now_ms);
        // Of a row that is no event there are only its columns.
        let columns = self.held.columns.as_ref().and_then(|columns| serde_json::to_vec(columns).ok());
        Ok(Record {
            key: self.held.key.as_deref().map(Cow::Borrowed),
            value: self.held.value.as_deref().map(Cow::Borrowed).or(columns.map(Cow::Owned)),
            timestamp_ms,
            headers: self.headers(timestamp_ms),
        })
    }

    fn position(&self) -> Position {
        self.held.position()
    }
}

/// What is under way, by the numbers of the events.
#[derive(Debug, Default)]
struct Batch {
    /// Handed over, or to be.
    sent: Vec<(u64, Kind, Row)>,
    settlement: Settlement,
    /// Topics that took nothing: class and reason.
    closed: Vec<Closed>,
}

/// A topic that took no held event.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    pub(super) topic: String,
    pub(super) class: Class,
    pub(super) reason: String,
}

/// How a batch ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) settlement: Settlement,
    pub(super) closed: Vec<Closed>,
    /// Something was acknowledged or refused, so it is worth asking for more.
    pub(super) is_progress: bool,
}

/// How held events are published.
#[derive(Clone, Debug)]
pub(super) struct ReleaseSettings {
    pub(super) producer: ProducerSettings,
    pub(super) source: Source,
    pub(super) dead_letter_topic: Option<String>,
    pub(super) dead_retry: Option<Duration>,
}

/// The producer of held events, and what it has to do.
pub(super) struct Releases {
    settings: ReleaseSettings,
    core: Core<Release>,
    router: Router,
    publisher: Publisher,
    batch: Batch,
    is_busy: bool,
    number: u64,
}

impl Releases {
    pub(super) fn new(
        settings: ReleaseSettings,
        limits: super::limits::Limits,
        metrics: Metrics,
    ) -> Result<Self, Halt> {
        let mut publisher = Publisher::new(settings.producer.clone(), settings.source.clone(), metrics)?;
        publisher.set_can_hold(true);
        Ok(Self {
            settings,
            core: Core::new(limits),
            router: Router::default(),
            publisher,
            batch: Batch::default(),
            is_busy: false,
            number: 0,
        })
    }

    /// A batch is under way.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Waits for reports. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        self.publisher.wait().await;
    }

    pub(super) fn send_deadline(&self) -> Option<Duration> {
        self.publisher.send_deadline(&self.core)
    }

    pub(super) fn publisher(&mut self) -> &mut Publisher {
        &mut self.publisher
    }

    /// Whether something is with the producer.
    pub(super) fn is_under_way(&self) -> bool {
        self.core.unresolved_events() > 0
    }

    pub(super) async fn close(mut self) {
        self.publisher.close().await;
    }

    /// Begins a batch. `is_clear` says for topic, partition and position whether all live events before it are through.
    pub(super) fn begin(
        &mut self,
        (events, copies): (Vec<HeldEvent>, Vec<HeldEvent>),
        directory: &Directory,
        want: impl Fn(&str),
        is_clear: impl Fn(&str, u32, Position) -> bool,
        now: Duration,
    ) -> Result<(), Halt> {
        self.is_busy = true;
        self.publisher.adapt(directory.sizes());
        let of_kind = |kind: Kind| move |held: HeldEvent| (kind, held);
        let all = events.into_iter().map(of_kind(Kind::Event)).chain(copies.into_iter().map(of_kind(Kind::Copy)));
        // Keys of which an event has to wait: those behind it do, too.
        let mut waiting: Vec<(String, Option<Vec<u8>>)> = Vec::new();
        for (kind, held) in all {
            let topic = match kind {
                Kind::Event => held.topic.clone(),
                Kind::Copy => self.settings.dead_letter_topic.clone(),
            };
            let Some(topic) = topic else { continue };
            let key = (topic.clone(), held.key.clone());
            let is_behind = kind == Kind::Event && held.key.is_some() && waiting.contains(&key);
            if is_behind || !self.enter(kind, held, &topic, directory, (&want, &is_clear), now)? {
                waiting.push(key);
            }
        }
        Ok(())
    }

    /// Puts an event into its lane, or notes why not; false where it waits.
    fn enter(
        &mut self,
        kind: Kind,
        held: HeldEvent,
        topic: &str,
        directory: &Directory,
        (want, is_clear): (&impl Fn(&str), &impl Fn(&str, u32, Position) -> bool),
        now: Duration,
    ) -> Result<bool, Halt> {
        let undecodable = |error| Halt::new(Reason::Undecodable, None, error);
        self.router.refresh(directory, &mut self.core).map_err(undecodable)?;
        let is_known = self.router.add(topic, directory, &mut self.core).map_err(undecodable)?;
        let Some(known) = self.router.find(topic).filter(|_| is_known && !directory.is_missing(topic)) else {
            want(topic);
            if directory.is_missing(topic) {
                self.no_topic(kind, &held, topic);
            }
            return Ok(false);
        };
        let asked = held.partition.and_then(|partition| u32::try_from(partition).ok());
        let seed = held.key.as_deref().or(held.event_id.as_deref().map(str::as_bytes)).unwrap_or_default();
        let partition = asked.filter(|_| kind == Kind::Event).unwrap_or_else(|| partition_of(seed, known.partitions));
        if kind == Kind::Event && held.state == State::Parked && !is_clear(topic, partition, held.position()) {
            return Ok(false);
        }
        self.number += 1;
        let release = Release { number: self.number, kind, held };
        match (self.refuse(&release, known, asked), self.router.lane(topic, partition)) {
            (Some((class, reason)), _) => {
                self.refused(&release, class, reason, true);
                // If it keeps its place, those behind it wait.
                return Ok(kind == Kind::Copy || !self.keeps_its_place());
            }
            (None, None) => return Ok(false),
            (None, Some(lane)) => {
                self.batch.sent.push((release.number, kind, release.held.row()));
                let bytes = release.held.len();
                self.core.push(lane, release.place(), release, bytes, now);
            }
        }
        Ok(true)
    }

    /// Why a topic would not take it for certain.
    fn refuse(&self, release: &Release, topic: Topic, partition: Option<u32>) -> Option<(&'static str, String)> {
        let size = release.record(&self.settings.source, 0).map_or(0, |record| record.size_min());
        if size > topic.message_bytes_max {
            return Some((
                "too_large",
                format!("{size} bytes and more, and the topic takes {}", topic.message_bytes_max),
            ));
        }
        if topic.is_compacted && release.held.key.is_none() {
            return Some(("no_key", "it has no key, and the topic is compacted".to_owned()));
        }
        let is_beyond = partition.is_some_and(|partition| partition >= topic.partitions);
        is_beyond.then(|| ("unmappable", format!("the topic has {} partitions", topic.partitions)))
    }

    /// The topic of an event is not there.
    fn no_topic(&mut self, kind: Kind, held: &HeldEvent, topic: &str) {
        let reason = "the topic does not exist".to_owned();
        match (kind, held.state) {
            // It is tried with the next batch that there is.
            (Kind::Copy, _) => {}
            (Kind::Event, State::Requeued) => {
                let release = Release { number: 0, kind, held: held.clone() };
                self.refused(&release, &Class::NoTopic.to_string(), reason, true);
            }
            (Kind::Event, _) => self.closed(topic, Class::NoTopic, reason),
        }
    }

    fn closed(&mut self, topic: &str, class: Class, reason: String) {
        if !self.batch.closed.iter().any(|closed| closed.topic == topic) {
            self.batch.closed.push(Closed { topic: topic.to_owned(), class, reason });
        }
    }

    /// An event was refused for good, or once more.
    fn refused(&mut self, release: &Release, class: &str, reason: String, is_final: bool) {
        let Release { kind, held, .. } = release;
        if *kind == Kind::Copy {
            tracing::warn!(class, "a dead letter cannot be copied to the dead-letter topic: {reason}");
            // The dead letter itself is in the table; a copy that nobody takes is not tried for ever.
            self.batch.settlement.copied.push(held.row());
            return;
        }
        let attempts = held.attempts + 1;
        // A dead letter has no place to keep.
        let policy = if held.state == State::Requeued { OnFailure::DeadLetter } else { held.on_failure };
        let is_final = is_final || held.state == State::Requeued;
        let (state, retry_in) = match fate(is_final, attempts, held.max_attempts, policy) {
            Fate::Retry(wait) => (State::Parked, Some(wait)),
            Fate::Dead => (State::Dead, self.settings.dead_retry),
            // It was stored to be decided later, so the relay need not stop for it now.
            Fate::Quarantined | Fate::Halt => (State::Quarantined, None),
        };
        let retry_in = retry_in.map(|wait| wait.as_secs_f64());
        self.batch.settlement.failed.push(Failed {
            row: held.row(),
            state,
            class: class.to_owned(),
            reason,
            attempts,
            retry_in,
        });
    }

    /// Moves on. The batch's end, once it has come.
    pub(super) fn proceed(&mut self, now: Duration) -> Result<Option<Ended>, Halt> {
        if !self.is_busy {
            return Ok(None);
        }
        self.publisher.proceed(&mut self.core, &self.router, now)?;
        for refusal in self.publisher.take_refusals() {
            self.see_to(refusal);
        }
        if self.publisher.take_is_new() {
            let closed: Vec<String> = self.batch.closed.iter().map(|closed| closed.topic.clone()).collect();
            closed.iter().for_each(|topic| self.put_back(topic));
        }
        self.publisher.send(&mut self.core, &self.router, now)?;
        if self.core.unresolved_events() > 0 {
            return Ok(None);
        }
        self.is_busy = false;
        let Batch { sent, mut settlement, closed } = std::mem::take(&mut self.batch);
        for (_, kind, row) in sent {
            match kind {
                Kind::Event => settlement.delivered.push(row),
                Kind::Copy => settlement.copied.push(row),
            }
        }
        let is_progress =
            !settlement.delivered.is_empty() || !settlement.copied.is_empty() || !settlement.failed.is_empty();
        Ok(Some(Ended { settlement, closed, is_progress }))
    }

    /// Whether the event that was refused last keeps its place.
    fn keeps_its_place(&self) -> bool {
        self.batch.settlement.failed.last().is_some_and(|failed| failed.state.holds())
    }

    /// The brokers refused an event, or its topic.
    fn see_to(&mut self, Refusal { handle, class, code }: Refusal) {
        if matches!(class, Class::NoTopic | Class::Forbidden) {
            let topic = self.router.target(handle.lane()).map(|(topic, _)| topic.to_owned()).unwrap_or_default();
            self.closed(&topic, class, code.to_string());
            return;
        }
        let taken = self.take_out(handle.lane(), |this, _| this == handle);
        for release in taken {
            let key = release.held.key.clone();
            let position = release.held.position();
            self.refused(&release, &class.to_string(), code.to_string(), true);
            if self.keeps_its_place() && key.is_some() {
                self.take_out(handle.lane(), |_, other| {
                    other.kind == Kind::Event && other.held.key == key && other.held.position() > position
                });
            }
        }
    }

    /// What is not with the producer of a topic that takes nothing stays in the table.
    fn put_back(&mut self, topic: &str) {
        for lane in self.router.lanes(topic).to_vec() {
            let taken = self.take_out(lane, |_, _| true);
            for release in taken.iter().filter(|release| release.held.state == State::Requeued) {
                let found = self.batch.closed.iter().find(|closed| closed.topic == topic);
                let (class, reason) =
                    found.map_or((Class::NoTopic, String::new()), |closed| (closed.class, closed.reason.clone()));
                self.refused(release, &class.to_string(), reason, true);
            }
        }
    }

    fn take_out(&mut self, lane: super::lane::LaneId, wanted: impl FnMut(Handle, &Release) -> bool) -> Vec<Release> {
        let taken = self.core.take_out(lane, wanted);
        let release = |(place, release): (Position, Release)| {
            self.core.stored(place);
            self.batch.sent.retain(|(number, ..)| *number != release.number);
            release
        };
        taken.into_iter().map(release).collect()
    }
}
