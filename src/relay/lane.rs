//! The events of one partition, in order, from their arrival to their acknowledgement.

use std::collections::VecDeque;
use std::time::Duration;

use super::core::Mark;
use crate::outbox::Position;

/// Names an event while it is in the window: its lane, and its number in the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    lane: LaneId,
    number: u64,
}

/// Bits of a tag that hold the number; the lane has the rest.
const NUMBER_BITS: u32 = 44;

impl Handle {
    pub(super) const fn new(lane: LaneId, number: u64) -> Self {
        Self { lane, number }
    }

    /// The lane that the event is in.
    #[must_use]
    pub const fn lane(self) -> LaneId {
        self.lane
    }

    /// The event's number in its lane, from 0 at the start of the process.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// One integer, to travel with the record and come back in its report.
    #[must_use]
    pub const fn to_tag(self) -> u64 {
        (self.lane.0 as u64) << NUMBER_BITS | self.number & ((1 << NUMBER_BITS) - 1)
    }

    /// The handle in a tag.
    #[must_use]
    pub const fn from_tag(tag: u64) -> Self {
        // The lane's part has 20 bits, so nothing is cut off.
        Self { lane: LaneId((tag >> NUMBER_BITS) as u32), number: tag & ((1 << NUMBER_BITS) - 1) }
    }
}

/// A partition of a topic, as the core knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u32);

impl LaneId {
    /// How many lanes there can be: 2^20.
    pub const MAX: usize = 1 << (64 - NUMBER_BITS);

    pub(super) fn new(index: usize) -> Option<Self> {
        (index < Self::MAX).then(|| u32::try_from(index).ok().map(Self)).flatten()
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not handed to the present producer.
    Waiting,
    /// Handed over; its report is to come.
    Outstanding,
    /// Reported as not delivered; the next generation sends it again.
    Returned,
    /// Acknowledged, while an earlier event of the lane is not.
    Acknowledged,
    /// Taken out; only its number is still there.
    Gone,
}

/// An event in the window.
#[derive(Debug)]
pub(super) struct Entry<E> {
    /// `None` once it is taken out.
    pub(super) event: Option<E>,
    pub(super) position: Position,
    /// Everything before this event's transaction: what may be confirmed while the event is unresolved.
    pub(super) floor: Mark,
    pub(super) bytes: usize,
    /// When it came.
    pub(super) arrived: Duration,
    /// How many bytes of stream had come by then.
    pub(super) stream_bytes: u64,
    /// Its batch was refused, perhaps because of it: it goes alone until it is acknowledged or refused.
    is_suspect: bool,
    state: State,
}

impl<E> Entry<E> {
    pub(super) const fn new(event: E, position: Position, floor: Mark) -> Self {
        Self {
            event: Some(event),
            position,
            floor,
            bytes: 0,
            arrived: Duration::ZERO,
            stream_bytes: 0,
            is_suspect: false,
            state: State::Waiting,
        }
    }

    /// With its size, the time of its arrival, and how much of the stream had come by then.
    pub(super) const fn arrived(mut self, bytes: usize, now: Duration, stream_bytes: u64) -> Self {
        self.bytes = bytes;
        self.arrived = now;
        self.stream_bytes = stream_bytes;
        self
    }
}

/// The place in the frontier of an event that is in no lane, but waits to be stored as a held one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shelved {
    pub(super) position: Position,
    pub(super) floor: Mark,
    pub(super) bytes: usize,
    pub(super) arrived: Duration,
}

/// The unresolved events of one partition.
///
/// An event leaves only when it and all before it are acknowledged: if an event is refused and a later one lands, both are
/// sent again, in order, so that the last record of a key is always its last event.
#[derive(Debug)]
pub(super) struct Lane<E> {
    queue: VecDeque<Entry<E>>,
    /// The number of the queue's front.
    first: u64,
    /// How many from the front have been handed to the present producer, or are gone.
    sent: usize,
    /// How many of those are without a report.
    outstanding: usize,
    /// The last acknowledgement from the present producer; `None` while the partition is cold.
    acknowledged_at: Option<Duration>,
    /// How many from the front own their bytes.
    detached: usize,
}

impl<E> Default for Lane<E> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), first: 0, sent: 0, outstanding: 0, acknowledged_at: None, detached: 0 }
    }
}

impl<E> Lane<E> {
    pub(super) fn front(&self) -> Option<&Entry<E>> {
        self.queue.front()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Entry<E>)> {
        (self.first..).zip(&self.queue)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Entry<E>> {
        self.queue.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn push(&mut self, entry: Entry<E>) {
        self.queue.push_back(entry);
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.sent < self.queue.len()
    }

    /// The next event to hand over, unless something is outstanding and the lane is cold or one of the two is a suspect.
    pub(super) fn next_to_send(&mut self, now: Duration, cold_after: Duration) -> Option<(u64, &E)> {
        let is_warm = self.acknowledged_at.is_some_and(|at| now.saturating_sub(at) < cold_after);
        loop {
            // A suspect is handed over when all before it have left, so it can only be the front.
            let is_open = is_warm && !self.queue.front().is_some_and(|front| front.is_suspect);
            let entry = self.queue.get(self.sent)?;
            if self.sent > 0 && (!is_open || entry.is_suspect) {
                return None;
            }
            if entry.state != State::Gone {
                break;
            }
            self.sent += 1;
        }
        let number = self.first + self.sent as u64;
        self.queue.get(self.sent).and_then(|entry| Some((number, entry.event.as_ref()?)))
    }

    /// The event that `next_to_send` named was handed over.
    pub(super) fn mark_sent(&mut self) {
        if let Some(entry) = self.queue.get_mut(self.sent) {
            entry.state = State::Outstanding;
            self.sent += 1;
            self.outstanding += 1;
        }
    }

    /// Takes the report of an outstanding event; false if it was not outstanding.
    fn report(&mut self, number: u64, state: State) -> bool {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| self.queue.get_mut(index)) {
            Some(entry) if entry.state == State::Outstanding => {
                entry.state = state;
                self.outstanding -= 1;
                true
            }
            _ => false,
        }
    }

    /// An event is acknowledged. Calls `resolved` for each event that thereby leaves; false if it was not outstanding.
    pub(super) fn acknowledge(&mut self, number: u64, now: Duration, mut resolved: impl FnMut(Entry<E>)) -> bool {
        if !self.report(number, State::Acknowledged) {
            return false;
        }
        self.acknowledged_at = Some(now);
        self.leave(&mut resolved);
        true
    }

    /// Lets go of what is at the front and over. Calls `resolved` for each event that is acknowledged.
    fn leave(&mut self, mut resolved: impl FnMut(Entry<E>)) {
        while let Some(entry) = self.pop_if(|state| matches!(state, State::Acknowledged | State::Gone)) {
            if entry.state == State::Acknowledged {
                resolved(entry);
            }
        }
    }

    fn pop_if(&mut self, is_over: impl FnOnce(State) -> bool) -> Option<Entry<E>> {
        let entry = match self.queue.front() {
            Some(front) if is_over(front.state) => self.queue.pop_front(),
            _ => None,
        };
        if entry.is_some() {
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.detached = self.detached.saturating_sub(1);
        }
        entry
    }

    /// Takes out those of the events that are not with the producer and that `wanted` is true for, in order. Their numbers stay
    /// taken.
    pub(super) fn take_out(&mut self, mut wanted: impl FnMut(u64, &E) -> bool) -> Vec<(E, Shelved)> {
        let mut taken = Vec::new();
        for (number, entry) in (self.first..).zip(&mut self.queue) {
            let is_with_us = matches!(entry.state, State::Waiting | State::Returned);
            if is_with_us && entry.event.as_ref().is_some_and(|event| wanted(number, event)) {
                entry.state = State::Gone;
                entry.is_suspect = false;
                let Some(event) = entry.event.take() else { continue };
                let Entry { position, floor, bytes, arrived, .. } = *entry;
                taken.push((event, Shelved { position, floor, bytes, arrived }));
            }
        }
        // What is acknowledged behind them was never alone, so there is none: events are taken out where nothing behind them
        // has been handed over.
        while self.pop_if(|state| state == State::Gone).is_some() {}
        taken
    }

    /// Nothing of the lane has been handed to the present producer.
    pub(super) const fn is_unsent(&self) -> bool {
        self.sent == 0
    }

    /// An event came back without being delivered; false if it was not outstanding.
    pub(super) fn give_back(&mut self, number: u64) -> bool {
        self.report(number, State::Returned)
    }

    /// From now on this event goes alone.
    pub(super) fn suspect(&mut self, number: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.queue.get_mut(index)) {
            entry.is_suspect = true;
        }
    }

    /// Nothing but this event of the lane was with the producer, so a refusal concerns it alone.
    pub(super) fn is_alone(&self, number: u64) -> bool {
        self.sent == 1 && number == self.first
    }

    /// Nothing of the lane is with the producer, and this event is the next.
    pub(super) const fn is_next(&self, number: u64) -> bool {
        self.sent == 0 && number == self.first
    }

    /// A new producer: everything is to be sent again, and the partition is cold. Returns what was still outstanding.
    pub(super) fn restart(&mut self) -> usize {
        for entry in self.queue.iter_mut().take(self.sent).filter(|entry| entry.state != State::Gone) {
            entry.state = State::Waiting;
        }
        self.sent = 0;
        self.acknowledged_at = None;
        std::mem::take(&mut self.outstanding)
    }

    /// Calls `detach` once for each event that came before `stream_bytes` and still shares its block.
    pub(super) fn detach_older(&mut self, stream_bytes: u64, mut detach: impl FnMut(&mut E)) {
        while let Some(entry) = self.queue.get_mut(self.detached).filter(|entry| entry.stream_bytes < stream_bytes) {
            entry.event.as_mut().map(&mut detach);
            self.detached += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip() {
        for (lane, number) in [(0, 0), (1, 7), (LaneId::MAX - 1, (1 << NUMBER_BITS) - 1)] {
            let handle = Handle::new(LaneId::new(lane).unwrap(), number);
            assert_eq!(Handle::from_tag(handle.to_tag()), handle);
        }
        assert_eq!(LaneId::new(LaneId::MAX), None);
    }
}
