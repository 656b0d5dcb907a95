//! When to hand events over while many come. Pure: the clock is given.
//!
//! librdkafka makes requests of what it has: handed over one by one, a hundred thousand events a second become ten thousand
//! requests, which cost the broker and us more than the events do. Its own `linger.ms` cannot tell a flood from a trickle,
//! and would delay both. So a flood is handed over in bursts, and a trickle at once.

use std::time::Duration;

/// Between two bursts, and the stretch over which events are counted.
const INTERVAL: Duration = Duration::from_millis(5);

/// So many events in one stretch are a flood: about 13,000 a second.
const FLOOD: usize = 64;

/// So many waiting events do not wait for the next burst.
const WAITING_MAX: usize = 4_096;

/// Counts what is handed over, and says when more may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Burst {
    /// When the present stretch began, and what was handed over in it and in the one before.
    began: Duration,
    events: usize,
    events_before: usize,
    sent_at: Duration,
}

impl Burst {
    /// Whether `waiting` events are to be handed over `now`.
    pub(super) fn is_due(&self, waiting: usize, now: Duration) -> bool {
        !self.is_flood(now) || waiting >= WAITING_MAX || now >= self.deadline()
    }

    /// When the next burst is due at the latest.
    pub(super) fn deadline(&self) -> Duration {
        self.sent_at + INTERVAL
    }

    /// Notes that `events` were handed over `now`.
    pub(super) fn sent(&mut self, events: usize, now: Duration) {
        if now.saturating_sub(self.began) >= INTERVAL {
            // After a pause the stretch before this one was empty.
            self.events_before = if now.saturating_sub(self.began) < 2 * INTERVAL { self.events } else { 0 };
            self.events = 0;
            self.began = now;
        }
        self.events += events;
        self.sent_at = now;
    }

    fn is_flood(&self, now: Duration) -> bool {
        let is_recent = now.saturating_sub(self.began) < 2 * INTERVAL;
        is_recent && self.events.max(self.events_before) >= FLOOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_trickle_goes_at_once() {
        let mut burst = Burst::default();
        for step in 0..100 {
            let now = MS * step;
            assert!(burst.is_due(1, now), "{step} ms");
            burst.sent(5, now);
        }
    }

    #[test]
    fn a_flood_goes_in_bursts() {
        let mut burst = Burst::default();
        let mut bursts = 0;
        for step in 0..100 {
            if burst.is_due(100, MS * step) {
                burst.sent(100, MS * step);
                bursts += 1;
            }
        }
        assert!((20..=22).contains(&bursts), "{bursts} bursts in 100 ms");
        assert!(burst.is_due(WAITING_MAX, MS * 100));
    }

    #[test]
    fn after_a_pause_it_is_a_trickle_again() {
        let mut burst = Burst::default();
        burst.sent(1000, MS);
        assert!(!burst.is_due(1, MS * 2) && burst.is_due(1, MS * 11));
    }
}
