//! From an error to what happens next: one total function for each side, and what is unknown halts. Pure.
//!
//! | class of the refusal | the event was alone | not alone |
//! |---|---|---|
//! | purged | nothing: it is sent again with its generation | the same |
//! | innocent | rewind | rewind |
//! | record | held | rewind, and it goes alone |
//! | no topic, forbidden | the topic is held | the same |
//! | access | rewind, for as long as it lasts | the same |
//! | passing | rewind; halt when that repeats without progress | the same |
//! | unforeseen | rewind; halt when that repeats without progress | the same |
//!
//! Where nothing can be held (`--on-failure halt`, or a database without the table of held events), a held event halts the
//! relay, a missing topic is waited for, and a forbidden one is tried again before it halts.

use std::time::Duration;

use crate::kafka::class::Class;
use crate::outbox::OnFailure;

/// What happens to a producer that did not deliver an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the event will be sent again with its generation.
    Ignore,
    /// A new producer sends everything unresolved again, in order.
    Rewind {
        /// The refused event goes alone, to find out whether it is the guilty one.
        suspect: bool,
    },
    /// The event is held, and the others go on with a new producer.
    Hold,
    /// Every event of the topic is held until it takes them again; the others go on with a new producer.
    HoldTopic,
    /// The relay stops before this event.
    Halt,
}

/// How often a new producer is tried without an acknowledgement in between before an unforeseen refusal halts the relay.
pub const MAX_ATTEMPTS: u32 = 5;

/// What a refusal leads to. `is_alone`: nothing else of the partition was with the producer, so the event is guilty.
/// `attempts`: generations that ended without an acknowledgement of this partition. `can_hold`: there is a place for events
/// that cannot be published.
#[must_use]
pub const fn on_refusal(class: Class, is_alone: bool, attempts: u32, can_hold: bool) -> Verdict {
    let is_tired = attempts >= MAX_ATTEMPTS;
    match class {
        Class::Purged => Verdict::Ignore,
        // Somebody else of the batch is guilty; where nobody is named, each of them is tried alone.
        Class::Innocent if is_alone && is_tired => Verdict::Halt,
        Class::Innocent => Verdict::Rewind { suspect: attempts >= 2 },
        Class::Record if is_alone && can_hold => Verdict::Hold,
        Class::Record if is_alone => Verdict::Halt,
        Class::Record => Verdict::Rewind { suspect: true },
        Class::NoTopic | Class::Forbidden if can_hold => Verdict::HoldTopic,
        // The topic may come back, and meanwhile nothing is lost: the watch over the topics says that it is missing.
        Class::NoTopic => Verdict::Rewind { suspect: false },
        // Credentials are being rotated, and no event is better off than another.
        Class::Access => Verdict::Rewind { suspect: false },
        Class::Forbidden | Class::Passing | Class::Unforeseen if is_tired => Verdict::Halt,
        Class::Forbidden | Class::Passing | Class::Unforeseen => Verdict::Rewind { suspect: false },
    }
}

/// What becomes of a held event that was refused once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is tried again after this time; its key waits.
    Retry(Duration),
    /// It gives up its place: a dead letter.
    Dead,
    /// It keeps its place until an operator releases it; its key waits.
    Quarantined,
    /// The relay stops.
    Halt,
}

/// The longest wait between two attempts.
pub const RETRY_MAX: Duration = Duration::from_secs(300);

/// The wait after so many attempts: 2^n s, at most [`RETRY_MAX`].
#[must_use]
pub fn retry_after(attempts: u32) -> Duration {
    let seconds = 1u64.checked_shl(attempts).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(RETRY_MAX)
}

/// What becomes of an event that has been refused `attempts` times. `is_final`: trying again cannot help.
#[must_use]
pub fn fate(is_final: bool, attempts: u32, max_attempts: u32, on_failure: OnFailure) -> Fate {
    if !is_final && attempts < max_attempts {
        return Fate::Retry(retry_after(attempts.saturating_sub(1)));
    }
    match on_failure {
        OnFailure::DeadLetter => Fate::Dead,
        OnFailure::Quarantine => Fate::Quarantined,
        OnFailure::Halt => Fate::Halt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REWIND: Verdict = Verdict::Rewind { suspect: false };
    const SUSPECT: Verdict = Verdict::Rewind { suspect: true };

    #[test]
    fn the_table_row_by_row() {
        // class, [alone, not alone] where events can be held, the same where they cannot, and at the last attempt.
        let rows = [
            (Class::Purged, [Verdict::Ignore; 2], [Verdict::Ignore; 2], [Verdict::Ignore; 2]),
            (Class::Innocent, [REWIND; 2], [REWIND; 2], [Verdict::Halt, SUSPECT]),
            (Class::Record, [Verdict::Hold, SUSPECT], [Verdict::Halt, SUSPECT], [Verdict::Hold, SUSPECT]),
            (Class::NoTopic, [Verdict::HoldTopic; 2], [REWIND; 2], [Verdict::HoldTopic; 2]),
            (Class::Forbidden, [Verdict::HoldTopic; 2], [REWIND; 2], [Verdict::HoldTopic; 2]),
            (Class::Access, [REWIND; 2], [REWIND; 2], [REWIND; 2]),
            (Class::Passing, [REWIND; 2], [REWIND; 2], [Verdict::Halt; 2]),
            (Class::Unforeseen, [REWIND; 2], [REWIND; 2], [Verdict::Halt; 2]),
        ];
        for (class, can_hold, cannot_hold, tired) in rows {
            for (index, is_alone) in [true, false].into_iter().enumerate() {
                assert_eq!(on_refusal(class, is_alone, 0, true), can_hold[index], "{class:?} {is_alone}");
                assert_eq!(on_refusal(class, is_alone, 0, false), cannot_hold[index], "{class:?} {is_alone}");
                assert_eq!(on_refusal(class, is_alone, MAX_ATTEMPTS, true), tired[index], "{class:?} {is_alone}");
            }
        }
    }

    #[test]
    fn attempts_double_their_waits_and_end_in_the_policy() {
        let waits: Vec<u64> = (0..11).map(|attempts| retry_after(attempts).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(retry_after(u32::MAX), RETRY_MAX);
        assert_eq!(fate(false, 1, 5, OnFailure::DeadLetter), Fate::Retry(Duration::from_secs(1)));
        assert_eq!(fate(false, 4, 5, OnFailure::Halt), Fate::Retry(Duration::from_secs(8)));
        assert_eq!(fate(false, 5, 5, OnFailure::DeadLetter), Fate::Dead);
        assert_eq!(fate(true, 1, 5, OnFailure::Quarantine), Fate::Quarantined);
        assert_eq!(fate(true, 1, 5, OnFailure::Halt), Fate::Halt);
        assert_eq!(fate(false, 0, 0, OnFailure::DeadLetter), Fate::Dead);
    }
}
