//! From an error to what happens next: one total function for each side, and what is unknown halts. Pure.

use crate::kafka::class::Class;

/// What happens to a producer that did not deliver an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the event will be sent again with its generation.
    Ignore,
    /// A new producer sends everything unresolved again, in order.
    Rewind {
        /// The refused event's partition gets one record at a time, to find the guilty one.
        isolate: bool,
    },
    /// The relay stops before this event.
    Halt,
}

/// How often a new producer is tried without an acknowledgement in between before an unforeseen refusal halts the relay.
pub const MAX_ATTEMPTS: u32 = 5;

/// What a refusal leads to. `is_alone`: nothing else of the partition was with the producer, so the event is guilty.
/// `attempts`: generations that ended without an acknowledgement of this partition.
#[must_use]
pub const fn on_refusal(class: Class, is_alone: bool, attempts: u32) -> Verdict {
    match class {
        Class::Purged => Verdict::Ignore,
        Class::Innocent => Verdict::Rewind { isolate: true },
        Class::Record if is_alone => Verdict::Halt,
        Class::Record => Verdict::Rewind { isolate: true },
        // The topic may come back, and meanwhile nothing is lost: the watch over the topics says that it is missing.
        Class::NoTopic => Verdict::Rewind { isolate: false },
        Class::Forbidden | Class::Unforeseen if attempts >= MAX_ATTEMPTS => Verdict::Halt,
        Class::Forbidden | Class::Unforeseen => Verdict::Rewind { isolate: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lone_record_is_guilty() {
        assert_eq!(on_refusal(Class::Record, false, 9), Verdict::Rewind { isolate: true });
        assert_eq!(on_refusal(Class::Record, true, 0), Verdict::Halt);
        assert_eq!(on_refusal(Class::Innocent, true, 0), Verdict::Rewind { isolate: true });
    }

    #[test]
    fn what_is_unforeseen_halts_in_the_end() {
        assert_eq!(on_refusal(Class::Unforeseen, false, 0), Verdict::Rewind { isolate: false });
        assert_eq!(on_refusal(Class::Unforeseen, false, MAX_ATTEMPTS), Verdict::Halt);
        assert_eq!(on_refusal(Class::Purged, true, MAX_ATTEMPTS), Verdict::Ignore);
    }
}
