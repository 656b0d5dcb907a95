//! When to let bytes gather before reading them.
//!
//! The walsender sends each message with a `send()` of its own, and each of these wakes a waiting reader. A reader that
//! wakes for every message makes the server do a context switch a message, and halves what it can send. One that naps
//! for a fraction of a millisecond and then reads all that has come gets two to three times as much, at a tenth of its
//! own CPU. A quiet stream is read at once, since there a nap would only be latency.

use std::time::{Duration, Instant};

/// How long a nap is unless told otherwise.
pub const DEFAULT_NAP: Duration = Duration::from_micros(200);

/// A read that comes sooner than this after the one before belongs to a busy stream.
const QUICK: Duration = Duration::from_micros(150);

/// So many quick reads in a row show a stream that is worth napping for. A transaction of a few rows is over by then.
const QUICK_READS: u32 = 8;

/// One read of this many bytes shows it at once.
const BUSY_BYTES: usize = 8 * 1024;

/// A read after a nap that brings less than this shows that the stream has become quiet.
const QUIET_BYTES: usize = 1024;

/// Longer than this without anything to read, and the stream is quiet.
const QUIET_AFTER: Duration = Duration::from_millis(1);

/// Decides before each read whether to nap first. Pure: the clock is given.
#[derive(Clone, Debug)]
pub struct Gather {
    nap: Duration,
    busy: bool,
    quick_reads: u32,
    last_read: Option<Instant>,
}

impl Gather {
    /// With naps of this length; zero is never.
    #[must_use]
    pub const fn new(nap: Duration) -> Self {
        Self { nap, busy: false, quick_reads: 0, last_read: None }
    }

    /// How long to nap before the read that is possible `now`, if at all.
    #[must_use]
    pub fn nap(&mut self, now: Instant) -> Option<Duration> {
        let since = self.since_last_read(now);
        self.busy &= since < QUIET_AFTER;
        self.quick_reads = if since < QUICK { self.quick_reads.saturating_add(1) } else { 0 };
        (!self.nap.is_zero() && (self.busy || self.quick_reads >= QUICK_READS)).then_some(self.nap)
    }

    /// Notes that a read ended `now` and what it brought.
    pub fn read(&mut self, bytes: usize, now: Instant, napped: bool) {
        self.last_read = Some(now);
        if bytes >= BUSY_BYTES || (napped && bytes >= QUIET_BYTES) {
            self.busy = true;
        } else if napped {
            self.busy = false;
            self.quick_reads = 0;
        }
    }

    fn since_last_read(&self, now: Instant) -> Duration {
        self.last_read.map_or(Duration::MAX, |last| now.saturating_duration_since(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(20);

    /// Lets reads happen, each `after` the end of the one before; tells before which ones there was a nap.
    fn naps(gather: &mut Gather, now: &mut Instant, reads: &[(Duration, usize)]) -> Vec<bool> {
        let mut naps = Vec::new();
        for (after, bytes) in reads {
            *now += *after;
            let nap = gather.nap(*now);
            *now += nap.unwrap_or_default();
            gather.read(*bytes, *now, nap.is_some());
            naps.push(nap.is_some());
        }
        naps
    }

    #[test]
    fn a_quiet_stream_is_read_at_once() {
        let (mut gather, mut now) = (Gather::new(DEFAULT_NAP), Instant::now());
        let reads = [(Duration::from_millis(2), 20_000); 20];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false; 20]);
    }

    #[test]
    fn a_large_read_starts_it() {
        let (mut gather, mut now) = (Gather::new(DEFAULT_NAP), Instant::now());
        let reads = [(SOON, BUSY_BYTES), (SOON, QUIET_BYTES), (SOON, QUIET_BYTES - 1), (SOON, 100)];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false, true, true, false]);
    }

    #[test]
    fn many_small_reads_in_a_row_start_it() {
        let (mut gather, mut now) = (Gather::new(DEFAULT_NAP), Instant::now());
        let seen = naps(&mut gather, &mut now, &[(SOON, 400); 12]);
        assert_eq!(seen.iter().position(|nap| *nap), Some(8));
        // Quiet again: what the nap brought was little.
        assert!(!seen[9]);
    }

    #[test]
    fn a_small_transaction_is_not_delayed() {
        let (mut gather, mut now) = (Gather::new(DEFAULT_NAP), Instant::now());
        for _ in 0..5 {
            now += Duration::from_millis(1);
            assert_eq!(naps(&mut gather, &mut now, &[(SOON, 400); 3]), [false; 3]);
        }
    }

    #[test]
    fn a_pause_ends_it() {
        let (mut gather, mut now) = (Gather::new(DEFAULT_NAP), Instant::now());
        let reads = [(SOON, BUSY_BYTES), (SOON, BUSY_BYTES), (QUIET_AFTER, 100), (SOON, 100)];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false, true, false, false]);
    }

    #[test]
    fn zero_is_never() {
        let (mut gather, mut now) = (Gather::new(Duration::ZERO), Instant::now());
        assert_eq!(naps(&mut gather, &mut now, &[(SOON, BUSY_BYTES); 9]), [false; 9]);
    }
}
