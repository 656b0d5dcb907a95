//! What the table answers, and what is asked of it next; batches of releases.

use std::time::Duration;

use super::{Holder, Surroundings, holding};
use crate::failpoint::{Point, reached};
use crate::kafka::class::Class;
use crate::outbox::Position;
use crate::recovery::held::{Answer, Ask, Loaded, Next};
use crate::relay::halt::{Halt, Reason};
use crate::relay::holds::Holding;
use crate::relay::releases::{Closed, Ended, Releases};

/// The most events, and about the most bytes of them, that are stored at once.
const INSERT_EVENTS: usize = 500;
const INSERT_BYTES: usize = 8 << 20;

/// How often operators' requests are looked for though nobody has called, and what is due.
const SERVE_INTERVAL: Duration = Duration::from_secs(2);

/// So few events that hold something are let go without more of them joining: two batches.
const CLOSING: u64 = 1000;

/// Between two looks for what may be published, where the last one led to nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

impl Holder {
    pub(super) fn answered(
        &mut self,
        answer: Answer,
        around: &mut Surroundings<'_>,
        want: &impl Fn(&str),
    ) -> Result<(), Halt> {
        match answer {
            Answer::Loaded(loaded) => {
                self.durable = loaded.durable.iter().copied().collect();
                self.is_loaded = true;
                self.load(&loaded, around.now)
            }
            Answer::Inserted(positions) => {
                reached(Point::AfterHold);
                self.is_inserting = false;
                self.inserting.clear();
                for position in positions {
                    around.core.stored(position);
                }
                // Events behind those that are being released are to follow them; copies are to be made.
                self.look_soon(around.now);
                Ok(())
            }
            Answer::Next(next) => {
                self.is_looking = false;
                self.release(next, around, want)
            }
            Answer::Settled(loaded) => {
                reached(Point::AfterSettle);
                self.is_settling = false;
                for holding in std::mem::take(&mut self.batch).values().filter(|_| loaded.is_none()) {
                    self.holds.remove(holding);
                }
                self.look_at = Some(self.look_at.unwrap_or(around.now).min(around.now));
                loaded.map_or(Ok(()), |loaded| self.load(&loaded, around.now))
            }
            Answer::TopicFailed(loaded, halts) => {
                if halts {
                    let what = "the topic of held events does not take them";
                    return Err(Halt::new(Reason::Refused, None, what));
                }
                self.load(&loaded, around.now)
            }
            Answer::Served(loaded) => {
                self.is_serving = false;
                self.serve_at = around.now + SERVE_INTERVAL;
                loaded.map_or(Ok(()), |loaded| self.load(&loaded, around.now))
            }
        }
    }

    /// What the table has, and what is still on its way there.
    fn load(&mut self, loaded: &Loaded, now: Duration) -> Result<(), Halt> {
        let shelf: Vec<Holding> = self.shelf.values().filter_map(holding).collect();
        if loaded.has_work {
            self.look_at = Some(now);
        }
        match self.holds.load(loaded, shelf.iter().chain(&self.inserting)) {
            true => Ok(()),
            false => {
                let what = format!("more than {} keys are held", self.settings.max_keys);
                Err(Halt::new(Reason::TooManyHeld, None, what))
            }
        }
    }

    /// Sends what is on the shelf to the table.
    pub(super) fn store(&mut self) {
        if self.is_inserting || self.shelf.is_empty() || !self.is_loaded {
            return;
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < INSERT_EVENTS && bytes < INSERT_BYTES {
            let Some((_, held)) = self.shelf.pop_first() else { break };
            bytes += held.len();
            self.inserting.extend(holding(&held));
            events.push(held);
        }
        self.is_inserting = true;
        reached(Point::BeforeHold);
        self.ask(Ask::Insert(events));
    }

    fn look_soon(&mut self, now: Duration) {
        let soon = now + LOOK_INTERVAL;
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// Asks what may be published, where there may be something and nothing is under way.
    pub(super) fn look(&mut self, now: Duration) {
        if !self.is_free() {
            return;
        }
        if let Some((topic, is_missing)) = self.holds.due(now) {
            if is_missing {
                // The brokers have been asked about it again and again, and it is still not there.
                self.fail_topic(
                    Closed { topic, class: Class::NoTopic, reason: "the topic does not exist".into() },
                    now,
                );
                return;
            }
            self.holds.probe(&topic);
            let blocked = self.holds.blocked().into_iter().filter(|other| *other != topic).collect();
            self.probing = Some(topic.clone());
            self.is_looking = true;
            self.ask(Ask::Next { blocked, probe: Some(topic) });
        } else if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.is_looking = true;
            self.ask(Ask::Next { blocked: self.holds.blocked(), probe: None });
        }
    }

    fn fail_topic(&mut self, closed: Closed, now: Duration) {
        let Closed { topic, class, reason } = closed;
        let attempts = self.holds.close(&topic, class == Class::NoTopic, now);
        tracing::warn!(topic, %class, attempts, "the topic still does not take events: {reason}");
        self.ask(Ask::FailTopic { topic, class: class.to_string(), reason, confirmed: self.confirmed });
    }

    fn release(&mut self, next: Next, around: &mut Surroundings<'_>, want: &impl Fn(&str)) -> Result<(), Halt> {
        let Next { events, copies, due_in } = next;
        if let Some(due_in) = due_in {
            let at = around.now + due_in;
            self.look_at = Some(self.look_at.map_or(at, |look| look.min(at)));
        }
        self.is_closing = false;
        if events.is_empty() && copies.is_empty() {
            if let Some(topic) = self.probing.take() {
                // Nothing of it is left.
                self.holds.open(&topic);
            }
            return Ok(());
        }
        let releases = match &mut self.releases {
            Some(releases) => releases,
            none => none.insert(Releases::new(self.releasing.clone(), self.limits, self.metrics.clone())?),
        };
        self.batch = events.iter().filter_map(|held| Some((held.id, holding(held)?))).collect();
        self.is_closing = self.batch.values().any(|holding| self.holds.count(holding) <= CLOSING);
        let (core, router) = (&*around.core, around.router);
        let is_clear = |topic: &str, partition: u32, position: Position| {
            let front = router.lane(topic, partition).and_then(|lane| core.front(lane));
            // What was taken out of a lane may still be on its way to the table.
            front.into_iter().chain(core.first_shelved()).all(|before| before > position)
        };
        releases.begin((events, copies), around.directory, want, is_clear, around.now)
    }

    pub(super) fn ended(&mut self, ended: Ended, now: Duration) {
        let Ended { settlement, closed, is_progress } = ended;
        reached(Point::AfterRelease);
        self.metrics.released.inc_by(settlement.delivered.len() as u64);
        // What was not delivered goes on holding.
        self.batch.retain(|id, _| settlement.delivered.iter().any(|row| row.id == *id));
        if let Some(topic) = self.probing.take() {
            match is_progress && closed.is_empty() {
                true => {
                    tracing::info!(topic, "the topic takes events again; what was held for it goes first");
                    self.holds.open(&topic);
                }
                false if closed.is_empty() => self.holds.close_again(&topic, now + LOOK_INTERVAL),
                false => {}
            }
        }
        self.is_closing &= is_progress && closed.is_empty() && settlement.failed.is_empty();
        for closed in closed {
            self.fail_topic(closed, now);
        }
        match is_progress {
            true => {
                self.is_settling = true;
                self.ask(Ask::Settle(settlement, self.confirmed));
            }
            false => {
                self.batch.clear();
                self.look_soon(now);
            }
        }
    }
}
