//! From the stream and from the producer: events that cannot be published now, and what becomes of them.

use std::time::Duration;

use super::{Holder, RawRow, Surroundings, Why, holding};
use crate::kafka::class::Class;
use crate::kafka::topics::Directory;
use crate::outbox::{Event, OnFailure, Position, Record, Role};
use crate::recovery::held::{HeldEvent, HeldHeader, Scope, State};
use crate::relay::core::Core;
use crate::relay::failure::{Fate, fate};
use crate::relay::halt::{Halt, Reason};
use crate::relay::lane::Handle;
use crate::relay::router::Router;

impl Holder {
    /// The event has a row already, from before the relay or the server was started.
    pub(in crate::relay) fn is_durable(&mut self, position: Position) -> bool {
        !self.durable.is_empty() && self.durable.remove(&position)
    }

    /// What happens to the event when it cannot be published.
    fn policy(&self, event: Option<&Event>) -> OnFailure {
        if self.keeper.is_none() {
            return OnFailure::Halt;
        }
        event.and_then(Event::on_failure).or(self.settings.on_failure).unwrap_or_default()
    }

    /// Whether an event of this topic has to go behind held ones. The key is only made where there is something held.
    pub(in crate::relay) fn holds(&self, topic: &str, event: &Event) -> Option<Scope> {
        if self.holds.is_empty() || self.policy(Some(event)) == OnFailure::Halt {
            return None;
        }
        let key = event.key().ok().flatten();
        self.holds.holds(topic, key.as_deref())
    }

    /// An event goes behind held ones.
    pub(in crate::relay) fn park(
        &mut self,
        event: &Event,
        topic: &str,
        scope: Scope,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let why = Why { class: "behind", reason: "behind a held event".to_owned(), halt: Reason::Refused };
        let held = self.held(event, Some(topic), &why, State::Parked, scope, 0);
        to.0.shelve(event.position(), event.len(), to.1);
        self.put(held)
    }

    /// An event can never be published as it is.
    pub(in crate::relay) fn refuse(
        &mut self,
        event: &Event,
        topic: Option<&str>,
        why: &Why,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let held = self.judged(event, topic, why)?;
        to.0.shelve(event.position(), event.len(), to.1);
        self.put(held)
    }

    /// No event can be made of a row.
    pub(in crate::relay) fn refuse_row(
        &mut self,
        position: Position,
        row: RawRow,
        why: &Why,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let (state, policy) = self.judge(None, why, position)?;
        let held = HeldEvent {
            event_id: row.id,
            columns: Some(row.columns),
            committed_us: row.committed_us,
            on_failure: policy,
            ..self.blank(position, why, state, Scope::Event, 1, self.settings.max_attempts)
        };
        to.0.shelve(position, held.len(), to.1);
        self.put(held)
    }

    /// State and policy of an event that is refused for good.
    fn judge(&self, event: Option<&Event>, why: &Why, position: Position) -> Result<(State, OnFailure), Halt> {
        let policy = self.policy(event);
        match fate(true, 1, 1, policy) {
            Fate::Dead => Ok((State::Dead, policy)),
            Fate::Quarantined => Ok((State::Quarantined, policy)),
            Fate::Halt | Fate::Retry(_) => Err(Halt::new(why.halt, Some(position), &why.reason)),
        }
    }

    fn judged(&self, event: &Event, topic: Option<&str>, why: &Why) -> Result<HeldEvent, Halt> {
        let (state, _) = self.judge(Some(event), why, event.position())?;
        Ok(self.held(event, topic, why, state, Scope::Event, 1))
    }

    fn blank(&self, position: Position, why: &Why, state: State, scope: Scope, attempts: u32, max: u32) -> HeldEvent {
        let retry = self.settings.dead_retry.filter(|_| state == State::Dead);
        HeldEvent {
            id: 0,
            commit_lsn: position.commit(),
            ordinal: position.ordinal().get(),
            source: self.source.as_str().to_owned(),
            event_id: None,
            event_type: None,
            topic: None,
            key: None,
            value: None,
            headers: Vec::new(),
            partition: None,
            timestamp_ms: None,
            committed_us: 0,
            columns: None,
            state,
            scope,
            on_failure: OnFailure::default(),
            class: why.class.to_owned(),
            reason: why.reason.clone(),
            attempts,
            max_attempts: max,
            retry_in: retry.map(|retry| retry.as_secs_f64()),
            released: false,
        }
    }

    /// The whole record of an event; its columns where there is none.
    fn held(
        &self,
        event: &Event,
        topic: Option<&str>,
        why: &Why,
        state: State,
        scope: Scope,
        attempts: u32,
    ) -> HeldEvent {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let committed_us = event.committed_at().unix_us();
        let max_attempts = event.max_attempts().unwrap_or(self.settings.max_attempts);
        let mut held = HeldEvent {
            event_id: Some(text(event.id())),
            event_type: event.role(Role::EventType).map(text),
            committed_us,
            on_failure: self.policy(Some(event)),
            ..self.blank(event.position(), why, state, scope, attempts, max_attempts)
        };
        match (topic, Record::of(event, &self.source, committed_us / 1000)) {
            (Some(topic), Ok(record)) => {
                held.topic = Some(topic.to_owned());
                held.headers = record.headers.iter().map(HeldHeader::from).collect();
                held.partition = event.partition(u32::MAX).ok().flatten().and_then(|number| i32::try_from(number).ok());
                held.timestamp_ms = event.has_own_timestamp().then_some(record.timestamp_ms);
                held.key = record.key.map(std::borrow::Cow::into_owned);
                held.value = record.value.map(std::borrow::Cow::into_owned);
            }
            _ => held.columns = Some(event.columns()),
        }
        held
    }

    /// Puts an event on the shelf, from where it is stored.
    fn put(&mut self, held: HeldEvent) -> Result<(), Halt> {
        if let Some(holding) = holding(&held)
            && !self.holds.add(&holding)
        {
            let what = format!("more than {} keys are held", self.settings.max_keys);
            return Err(Halt::new(Reason::TooManyHeld, Some(held.position()), what));
        }
        self.metrics.held.inc();
        let told = self.told.entry(held.class.clone()).or_default();
        *told += 1;
        if told.is_power_of_two() {
            tracing::warn!(
                of_this_class = *told,
                position = %held.position(),
                class = held.class,
                state = %held.state,
                "an event cannot be published and is held: {}",
                held.reason
            );
        }
        self.shelf.insert(held.position(), held);
        Ok(())
    }

    /// The brokers refuse this event for good.
    pub(in crate::relay) fn refused(
        &mut self,
        handle: Handle,
        code: &str,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Halt> {
        let lane = handle.lane();
        let topic = around.router.target(lane).map(|(topic, _)| topic.to_owned()).unwrap_or_default();
        let why = Why { class: "record", reason: format!("topic {topic} refuses it: {code}"), halt: Reason::Refused };
        let Some(event) = around.core.event(handle).cloned() else { return Ok(()) };
        let held = self.judged(&event, Some(&topic), &why)?;
        let is_keeping = held.state.holds() && held.key.is_some();
        let (key, position) = (held.key.clone(), held.position());
        around.core.take_out(lane, |this, _| this == handle);
        self.put(held)?;
        if is_keeping {
            let behind = around.core.take_out(lane, |_, other| {
                other.position() > position && other.key().ok().flatten().as_deref() == key.as_deref()
            });
            self.park_all(behind, &topic, Scope::Event)?;
        }
        Ok(())
    }

    fn park_all(&mut self, events: Vec<(Position, Event)>, topic: &str, scope: Scope) -> Result<(), Halt> {
        let why = Why { class: "behind", reason: "behind a held event".to_owned(), halt: Reason::Refused };
        for (position, event) in events {
            if self.policy(Some(&event)) == OnFailure::Halt {
                let what = format!("the topic {topic} does not take it");
                return Err(Halt::new(Reason::Refused, Some(position), what));
            }
            let held = self.held(&event, Some(topic), &why, State::Parked, scope, 0);
            self.put(held)?;
        }
        Ok(())
    }

    /// A topic takes no events. False where nothing can be held.
    pub(in crate::relay) fn close_topic(&mut self, topic: &str, class: Class, now: Duration) -> bool {
        if self.keeper.is_none() {
            return false;
        }
        if self.holds.holds(topic, None).is_none() {
            tracing::warn!(topic, %class, "the topic does not take events; they are held until it does");
            self.holds.close(topic, class == Class::NoTopic, now);
        }
        true
    }

    /// There are topics that take no events.
    pub(in crate::relay) fn has_closed(&self) -> bool {
        self.holds.has_closed()
    }

    /// Whether the policy for this event lets it wait among the held ones.
    pub(in crate::relay) fn can_hold(&self, event: &Event) -> bool {
        self.policy(Some(event)) != OnFailure::Halt
    }

    /// What is in the lanes of closed topics goes to the held ones, where nothing of it is with the producer: at the beginning of
    /// a generation, or where nothing was sent yet.
    pub(in crate::relay) fn drain_closed(&mut self, around: &mut Surroundings<'_>) -> Result<(), Halt> {
        for topic in self.holds.blocked() {
            for lane in around.router.lanes(&topic) {
                if around.core.is_unsent(*lane) {
                    let events = around.core.take_out(*lane, |_, _| true);
                    self.park_all(events, &topic, Scope::Topic)?;
                }
            }
        }
        Ok(())
    }

    /// A closed topic has events with the producer, which only a rewind gets back.
    pub(in crate::relay) fn wants_rewind(&self, core: &Core<Event>, router: &Router) -> bool {
        let mut missing = self.holds.missing();
        missing.any(|topic| router.lanes(topic).iter().any(|lane| !core.is_unsent(*lane)))
    }

    /// The brokers have told of topics. Whether one that was waited for is there.
    pub(in crate::relay) fn learn_topics(&mut self, directory: &Directory) {
        let there: Vec<String> = self.holds.missing().map(str::to_owned).collect();
        for topic in there.iter().filter(|topic| directory.get(topic).is_some() && !directory.is_missing(topic)) {
            tracing::info!(topic, "the topic is there; what was held for it goes first");
            self.holds.open(topic);
            self.look_at = Some(Duration::ZERO);
        }
    }
}
