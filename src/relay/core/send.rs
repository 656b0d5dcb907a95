//! The core towards the producer: what may be sent, and what became of it.

use std::time::Duration;

use super::Core;
use crate::relay::lane::{Handle, LaneId};

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

impl<E> Core<E> {
    /// Hands over what may be sent now, lane by lane, until `send` says that no more is taken.
    pub fn send_ready(&mut self, now: Duration, mut send: impl FnMut(Handle, &E) -> SendOutcome) {
        while let Some(id) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(id.index()) else { continue };
            while let Some((number, event)) = lane.next_to_send(now, self.limits.cold_after) {
                match send(Handle::new(id, number), event) {
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

    /// There may be something to hand over.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
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

    /// From the next generation on, this event goes alone in its partition.
    pub fn suspect(&mut self, handle: Handle) {
        if let Some(lane) = self.lanes.get_mut(handle.lane().index()) {
            lane.suspect(handle.number());
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

    pub(super) fn make_ready(&mut self, lane: LaneId) {
        if let Some(is_ready) = self.is_ready.get_mut(lane.index()).filter(|is_ready| !**is_ready) {
            *is_ready = true;
            self.ready.push_back(lane);
        }
    }
}
