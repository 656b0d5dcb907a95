//! The slow things: silence, a stall, and topics that are missing or change.

use std::time::Duration;

use tokio::time::Instant;

use super::Relay;
use crate::failpoint::{Point, reached};
use crate::kafka::class::Class;
use crate::kafka::topics::Directory;
use crate::relay::halt::{Halt, Reason};
use crate::relay::intake::{Awaits, Pending};
use crate::relay::router::Shrunk;

/// After so long without a report of the producer the brokers are asked.
const LOOK_AFTER: Duration = Duration::from_secs(4);

/// How long an event waits for a topic that is being made before it is held.
const MAKING: Duration = Duration::from_secs(1);

impl Relay {
    /// Whether an event waits for its topic and the topic has just become known.
    pub(super) fn knows_pending_topic(&mut self) -> Result<bool, Halt> {
        let Some(Pending { event, awaits: Awaits::Topic(topic) }) = self.intake.pending() else { return Ok(false) };
        let undecodable = |error| Halt::new(Reason::Undecodable, None, error);
        if self.router.add(topic, &self.directory, &mut self.core).map_err(undecodable)? {
            self.awaited = None;
            return Ok(true);
        }
        match &mut self.awaited {
            // It is not there: its events are held, and the others go on.
            Some(awaited)
                if awaited.topic == *topic
                    && self.directory.is_missing(topic)
                    && self.directory.failure().is_none()
                    && awaited.is_overdue(self.settings.new_topics.is_some())
                    && self.holder.can_hold(event) =>
            {
                let now = self.started_at.elapsed();
                self.awaited = None;
                return Ok(self.holder.close_topic(topic, Class::NoTopic, now));
            }
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

    /// Whether an event waits for its payload to be in the store, and it has just come there. Otherwise sees to it that it is on
    /// its way.
    pub(super) fn has_stored_pending(&mut self, now: Duration) -> bool {
        let Some(Pending { event, awaits: Awaits::Store(object) }) = self.intake.pending() else { return false };
        let Some(receipt) = self.uploads.receipt(event.position(), object, now) else { return false };
        reached(Point::AfterStore);
        self.intake.stored(receipt);
        true
    }

    /// Takes over what has become known of the topics.
    pub(super) fn learn_topics(&mut self) -> Result<(), Halt> {
        let had_failed = self.directory.failure().is_some();
        self.directory = self.topics.directory();
        match self.directory.failure() {
            Some(failure) if !had_failed => tracing::warn!(
                "no answer from the brokers {}: {failure}; events wait. Are they up, and is --brokers right? `outboxd check` \
                 looks closer",
                self.settings.producer.brokers
            ),
            None if had_failed => tracing::info!("the brokers answer"),
            _ => {}
        }
        self.publisher.adapt(self.directory.sizes());
        self.holder.learn_topics(&self.directory);
        self.close_missing();
        let shrunk = self.router.refresh(&self.directory, &mut self.core);
        match shrunk.map_err(|error| Halt::new(Reason::Undecodable, None, error))? {
            Some(Shrunk { topic, before, now }) => {
                let what = format!("the topic {topic} has {now} partitions; it had {before}");
                Err(Halt::new(Reason::TopicShrunk, None, what))
            }
            None => Ok(()),
        }
    }

    /// A topic in use that is gone takes no events.
    fn close_missing(&mut self) {
        if self.directory.failure().is_some() || !self.holder.has_keeper() {
            return;
        }
        let now = self.started_at.elapsed();
        for topic in self.directory.missing() {
            let lanes = self.router.lanes(topic);
            if lanes.iter().any(|lane| self.core.front(*lane).is_some()) {
                self.holder.close_topic(topic, Class::NoTopic, now);
            }
        }
    }

    /// The slow things: silence, a stall, a server that shuts down, a newcomer that waits, and what is measured.
    pub(super) fn tick(&mut self, now: Duration) -> Result<(), Halt> {
        self.look_at_silence();
        self.look_at_producer()?;
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
                self.holder.unfence();
                self.replayer.unfence();
            }
            return;
        }
        if self.is_ready {
            self.holder.fence();
            self.replayer.fence();
        }
        if self.is_ready && self.publisher.fence(self.core.unresolved_events() > 0) {
            tracing::warn!("no word from the server for {quiet:.1?}: nothing is published until it speaks again");
        }
        if self.link.is_up() && quiet >= self.settings.times.receive_timeout {
            tracing::warn!("no word from the server for {quiet:.1?}: connecting again");
            self.disconnected();
        }
    }

    /// A producer that has reported nothing for a while is held against what the brokers say.
    fn look_at_producer(&mut self) -> Result<(), Halt> {
        if self.publisher.silent_since(&self.core).is_some_and(|since| since.elapsed() >= LOOK_AFTER) {
            self.topics.look();
            self.learn_topics()?;
            self.publisher.replace_silent(self.directory.healthy_at());
        }
        Ok(())
    }

    fn look_at_stall(&mut self, now: Duration) {
        // What waits for the store is in no lane yet, and younger than all that is.
        let uploading = self.uploads.oldest();
        let oldest = self.core.oldest().or(uploading);
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
                    is_uploading = uploading.is_some(),
                    "stalled: the oldest event has had no acknowledgement for {age:.0?}"
                ),
                _ => tracing::info!("no longer stalled"),
            }
        }
    }
}

/// A topic that an event waits for.
pub(super) struct Awaited {
    topic: String,
    since: Instant,
    /// Since when the brokers have said that it is not there.
    missing_since: Option<Instant>,
    is_told: bool,
}

impl Awaited {
    fn new(topic: String) -> Self {
        Self { topic, since: Instant::now(), missing_since: None, is_told: false }
    }

    /// Whether it has been waited for long enough. Where topics are made, that one is about to come.
    fn is_overdue(&self, is_being_made: bool) -> bool {
        !is_being_made || self.since.elapsed() >= MAKING
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
