//! How long to wait before the next try: exponential, with jitter, capped, reset on progress. Pure.

use std::time::Duration;

/// The waits between tries.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    /// Waits from about `first` on, doubling, of at most `max`.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, attempts: 0 }
    }

    /// How many waits there were since the last progress.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// There was progress: the next wait is the first again.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The next wait. `random` in [0, 1) takes up to half of it away, so that many relays do not come back at once.
    pub fn next(&mut self, random: f64) -> Duration {
        let factor = 1u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(1);
        let whole = self.first.saturating_mul(factor).min(self.max);
        whole.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_begins_again_after_progress() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let waits: Vec<u128> = (0..6).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next(0.0).as_millis(), 100);
    }

    #[test]
    fn never_overflows_and_keeps_at_least_half() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        assert!((0..100).all(|_| backoff.next(1.0) >= Duration::from_millis(50)));
        assert_eq!(backoff.next(1.0), Duration::from_secs(5));
    }
}
