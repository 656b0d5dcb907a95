//! The core towards the held events: what leaves its lane, or never comes into one, and waits to be stored.

use std::time::Duration;

use super::Core;
use crate::outbox::Position;
use crate::relay::lane::{Handle, Lane, LaneId, Shelved};
use crate::relay::limits::Limits;

impl<E> Core<E> {
    /// A new event goes to the held ones instead of into a lane. `bytes` is the size of its row. It counts as unresolved until
    /// [`Core::stored`].
    pub fn shelve(&mut self, position: Position, bytes: usize, now: Duration) {
        let bytes = bytes + Limits::EVENT_OVERHEAD;
        self.shelf.insert(position, Shelved { position, floor: self.received, bytes, arrived: now });
        self.unresolved_events += 1;
        self.unresolved_bytes += bytes;
    }

    /// The event stands durably among the held ones. False where it does not wait for that.
    pub fn stored(&mut self, position: Position) -> bool {
        let Some(shelved) = self.shelf.remove(&position) else { return false };
        self.unresolved_events -= 1;
        self.unresolved_bytes -= shelved.bytes;
        self.acknowledged_bytes += shelved.bytes;
        self.is_moved = true;
        true
    }

    /// Takes those events out of a lane that are not with the producer and that `wanted` is true for. Each then counts as unresolved until
    /// [`Core::stored`].
    pub fn take_out(&mut self, lane: LaneId, mut wanted: impl FnMut(Handle, &E) -> bool) -> Vec<(Position, E)> {
        let Some(queue) = self.lanes.get_mut(lane.index()) else { return Vec::new() };
        let taken = queue.take_out(|number, event| wanted(Handle::new(lane, number), event));
        if queue.has_waiting() {
            self.make_ready(lane);
        }
        let shelve = |(event, shelved): (E, Shelved)| {
            self.shelf.insert(shelved.position, shelved);
            (shelved.position, event)
        };
        taken.into_iter().map(shelve).collect()
    }

    /// Nothing of the lane has been handed to the present producer.
    #[must_use]
    pub fn is_unsent(&self, lane: LaneId) -> bool {
        self.lanes.get(lane.index()).is_none_or(Lane::is_unsent)
    }

    /// The first unresolved event of a lane.
    #[must_use]
    pub fn front(&self, lane: LaneId) -> Option<Position> {
        self.lanes.get(lane.index())?.front().map(|entry| entry.position)
    }

    /// The first event that waits to be stored.
    #[must_use]
    pub fn first_shelved(&self) -> Option<Position> {
        self.shelf.keys().next().copied()
    }

    /// Events that wait to be stored.
    #[must_use]
    pub fn shelved(&self) -> usize {
        self.shelf.len()
    }
}
