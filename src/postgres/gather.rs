//! When to let bytes gather before reading them.
//!
//! The walsender sends each message with a `send()` of its own, and each of these wakes a waiting reader. A reader that
//! wakes for every message makes the server do a context switch a message, and halves what it can send. One that naps
//! for a fraction of a millisecond and then reads all that has come gets two to three times as much, at a tenth of its
//! own CPU. A quiet stream is read at once, since there a nap would only be latency.
//!
//! How long to nap depends on the socket. A unix socket holds some 160 messages, since each counts with its buffer; a longer nap
//! lets it run full, and the server waits. TCP holds thousands, and it sends only so many packets until the reader has read and
//! thereby acknowledged some: what the walsender writes meanwhile is joined to few large packets, which cost it less than many
//! small ones. So over TCP naps grow while they bring much, which only a backlog does.

use std::time::{Duration, Instant};

/// A read that comes sooner than this after the one before belongs to a busy stream.
const QUICK: Duration = Duration::from_micros(150);

/// So many quick reads in a row show a stream that is worth napping for. A transaction of a few rows is over by then.
const QUICK_READS: u32 = 8;

/// One read of this many bytes shows it at once.
const BUSY_BYTES: usize = 8 * 1024;

/// A nap that brings less than this for each microsecond shows that the stream has become quiet.
const QUIET_BYTES_PER_US: u128 = 5;

/// A nap that brings as much as this for each microsecond may be longer the next time: about 35,000 rows a second.
const FLOOD_BYTES_PER_US: u128 = 16;

/// A reader that wants more and gets nothing for longer than this has a quiet stream.
const QUIET_AFTER: Duration = Duration::from_millis(1);

/// How long naps are in a busy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naps {
    /// The first; zero is none at all.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Naps {
    /// What suits a unix socket.
    pub const LOCAL: Self = Self::of(Duration::from_micros(200));

    /// What suits TCP.
    pub const TCP: Self = Self { first: Duration::from_millis(1), longest: Duration::from_millis(16) };

    /// All of the same length.
    #[must_use]
    pub const fn of(nap: Duration) -> Self {
        Self { first: nap, longest: nap }
    }
}

/// Decides before each read whether to nap first. Pure: the clock is given.
#[derive(Clone, Debug)]
pub struct Gather {
    naps: Naps,
    nap: Duration,
    busy: bool,
    /// The last read took all that it had room for, so there is more.
    was_full: bool,
    quick_reads: u32,
    last_read: Option<Instant>,
    /// Since when more is wanted.
    wanted: Option<Instant>,
}

impl Gather {
    /// With naps of these lengths.
    #[must_use]
    pub const fn new(naps: Naps) -> Self {
        Self { naps, nap: naps.first, busy: false, was_full: false, quick_reads: 0, last_read: None, wanted: None }
    }

    /// Notes that more is wanted. What a reader does between its reads says nothing about the stream.
    pub fn wants(&mut self, now: Instant) {
        self.wanted.get_or_insert(now);
    }

    /// How long to nap before the read that is possible `now`, if at all.
    #[must_use]
    pub fn nap(&mut self, now: Instant) -> Option<Duration> {
        let since = self.last_read.map_or(Duration::MAX, |last| now.saturating_duration_since(last));
        let waited = self.wanted.take().map_or(Duration::ZERO, |wanted| now.saturating_duration_since(wanted));
        self.busy &= waited < QUIET_AFTER;
        self.quick_reads = if since < QUICK { self.quick_reads.saturating_add(1) } else { 0 };
        let is_worth_it = self.busy || self.quick_reads >= QUICK_READS;
        (!self.nap.is_zero() && is_worth_it && !self.was_full).then_some(self.nap)
    }

    /// Notes that a read ended `now`, what it brought and how much it had room for.
    pub fn read(&mut self, bytes: usize, room: usize, now: Instant, napped: bool) {
        self.last_read = Some(now);
        self.was_full = bytes >= room;
        let brings = |bytes_per_us| bytes as u128 >= self.nap.as_micros() * bytes_per_us;
        let (is_worth_it, is_flood) = (brings(QUIET_BYTES_PER_US), brings(FLOOD_BYTES_PER_US));
        if napped {
            self.nap = if is_flood { (self.nap * 2).min(self.naps.longest) } else { self.naps.first };
        }
        if bytes >= BUSY_BYTES || (napped && is_worth_it) {
            self.busy = true;
        } else if napped {
            self.busy = false;
            self.quick_reads = 0;
        }
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
            gather.wants(*now);
            *now += *after;
            let nap = gather.nap(*now);
            *now += nap.unwrap_or_default();
            gather.read(*bytes, usize::MAX, *now, nap.is_some());
            naps.push(nap.is_some());
        }
        naps
    }

    #[test]
    fn a_quiet_stream_is_read_at_once() {
        let (mut gather, mut now) = (Gather::new(Naps::LOCAL), Instant::now());
        let reads = [(Duration::from_millis(2), 20_000); 20];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false; 20]);
    }

    #[test]
    fn a_large_read_starts_it() {
        let (mut gather, mut now) = (Gather::new(Naps::LOCAL), Instant::now());
        let reads = [(SOON, BUSY_BYTES), (SOON, 1000), (SOON, 999), (SOON, 100)];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false, true, true, false]);
    }

    #[test]
    fn many_small_reads_in_a_row_start_it() {
        let (mut gather, mut now) = (Gather::new(Naps::LOCAL), Instant::now());
        let seen = naps(&mut gather, &mut now, &[(SOON, 400); 12]);
        assert_eq!(seen.iter().position(|nap| *nap), Some(8));
        // Quiet again: what the nap brought was little.
        assert!(!seen[9]);
    }

    #[test]
    fn a_small_transaction_is_not_delayed() {
        let (mut gather, mut now) = (Gather::new(Naps::LOCAL), Instant::now());
        for _ in 0..5 {
            now += Duration::from_millis(1);
            assert_eq!(naps(&mut gather, &mut now, &[(SOON, 400); 3]), [false; 3]);
        }
    }

    #[test]
    fn a_pause_ends_it() {
        let (mut gather, mut now) = (Gather::new(Naps::LOCAL), Instant::now());
        let reads = [(SOON, BUSY_BYTES), (SOON, BUSY_BYTES), (QUIET_AFTER, 100), (SOON, 100)];
        assert_eq!(naps(&mut gather, &mut now, &reads), [false, true, false, false]);
    }

    #[test]
    fn over_tcp_naps_grow_in_a_flood_and_end_with_it() {
        let (mut gather, mut now) = (Gather::new(Naps::TCP), Instant::now());
        let mut lengths = Vec::new();
        for bytes in [BUSY_BYTES, 16_000, 32_000, 64_000, 128_000, 256_000, 255_999, 5_000, 4_999, 100] {
            now += SOON;
            let nap = gather.nap(now);
            lengths.push(nap.map_or(0, |nap| nap.as_millis()));
            now += nap.unwrap_or_default();
            gather.read(bytes, usize::MAX, now, nap.is_some());
        }
        assert_eq!(lengths, [0, 1, 2, 4, 8, 16, 16, 1, 1, 0]);
    }

    #[test]
    fn a_read_that_filled_its_room_is_followed_at_once() {
        let (mut gather, mut now) = (Gather::new(Naps::TCP), Instant::now());
        gather.read(100_000, 100_000, now, false);
        now += SOON;
        assert_eq!(gather.nap(now), None);
        gather.read(99_999, 100_000, now, false);
        assert_eq!(gather.nap(now + SOON), Some(Naps::TCP.first));
    }

    #[test]
    fn a_reader_that_was_at_work_has_not_waited() {
        let (mut gather, mut now) = (Gather::new(Naps::TCP), Instant::now());
        gather.read(BUSY_BYTES, usize::MAX, now, false);
        now += 10 * QUIET_AFTER;
        gather.wants(now);
        assert_eq!(gather.nap(now + SOON), Some(Naps::TCP.first));
    }

    #[test]
    fn zero_is_never() {
        let (mut gather, mut now) = (Gather::new(Naps::of(Duration::ZERO)), Instant::now());
        assert_eq!(naps(&mut gather, &mut now, &[(SOON, BUSY_BYTES); 9]), [false; 9]);
    }
}
