//! The core towards the server: what may be confirmed and when, and what is asked about the state.

use std::time::Duration;

use super::{Core, Mark};
use crate::outbox::Position;
use crate::postgres::{EndLsn, Lsn};
use crate::relay::lane::{Handle, Lane};

impl<E> Core<E> {
    /// Everything before this point is resolved.
    #[must_use]
    pub fn frontier(&self) -> Mark {
        let in_lanes = self.lanes.iter().filter_map(Lane::front).map(|entry| entry.floor);
        // Floors are ordered as positions are.
        let on_shelf = self.shelf.values().next().map(|shelved| shelved.floor);
        in_lanes.chain(on_shelf).min().unwrap_or(self.received)
    }

    /// When a status is due, given that nothing else happens.
    #[must_use]
    pub fn status_deadline(&self) -> Duration {
        let Some(at) = self.status_at else { return Duration::ZERO };
        let pace = if self.is_moved { self.limits.status_pace } else { self.limits.status_interval };
        at + pace.min(self.limits.status_interval)
    }

    /// Whether a status is to be sent now.
    #[must_use]
    pub fn status_due(&self, now: Duration) -> bool {
        let is_quarter = self.acknowledged_bytes >= self.limits.window_bytes / 4
            || self.uncovered_events() >= (self.limits.window_events / 2) as u64;
        self.status_requested || now >= self.status_deadline() || self.is_moved && is_quarter
    }

    /// The status to send: what is received, and what is confirmed. It counts as sent. Never goes backwards.
    pub fn take_status(&mut self, now: Duration) -> (Lsn, EndLsn) {
        self.status_at = Some(now);
        self.status_requested = false;
        self.is_moved = false;
        self.acknowledged_bytes = 0;
        if let Some(resend) = &self.resend {
            // Before the proof nothing is confirmed; after it the frontier is far ahead of what is being sent again.
            if !resend.is_proven() {
                return (resend.confirmed().lsn(), resend.confirmed());
            }
        }
        self.confirmed = self.confirmed.max(self.frontier());
        (self.received.end.lsn().max(self.confirmed.end.lsn()), self.confirmed.end)
    }

    /// The event, while it is unresolved.
    #[must_use]
    pub fn event(&self, handle: Handle) -> Option<&E> {
        self.lanes.get(handle.lane().index())?.get(handle.number())?.event.as_ref()
    }

    /// The oldest unresolved event, and since when it waits.
    #[must_use]
    pub fn oldest(&self) -> Option<(Position, Duration)> {
        let in_lanes = self.lanes.iter().filter_map(Lane::front).map(|entry| (entry.position, entry.arrived));
        let on_shelf = self.shelf.values().next().map(|shelved| (shelved.position, shelved.arrived));
        in_lanes.chain(on_shelf).min()
    }

    /// Events in the window.
    #[must_use]
    pub const fn unresolved_events(&self) -> usize {
        self.unresolved_events
    }

    /// Bytes of the events in the window.
    #[must_use]
    pub const fn unresolved_bytes(&self) -> usize {
        self.unresolved_bytes
    }

    /// Events that are with the producer and have no report.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Events that are to be handed to the producer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.unresolved_events.saturating_sub(self.outstanding + self.shelf.len())
    }

    /// Events of whole transactions that the last status did not cover: what a crash repeats, beside the open transaction.
    #[must_use]
    pub const fn uncovered_events(&self) -> u64 {
        self.received.events - self.confirmed.events
    }

    /// A server whose log ends at `flushed` lacks something of what has come from it, so its history is another one.
    #[must_use]
    pub fn is_ahead_of(&self, flushed: Lsn) -> bool {
        flushed < self.received.end.lsn() || self.witness.is_some_and(|witness| flushed <= witness.commit)
    }

    /// The end of what has come in whole.
    #[must_use]
    pub const fn received(&self) -> EndLsn {
        self.received.end
    }

    /// What the last status confirmed.
    #[must_use]
    pub const fn confirmed(&self) -> EndLsn {
        self.confirmed.end
    }
}
