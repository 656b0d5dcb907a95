//! What happened in a history, as a hash for the replay twin and as text for whoever looks for the cause of a failure.

/// Everything that a history did, in order.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    is_printed: bool,
}

impl Trace {
    pub(super) const fn new(is_printed: bool) -> Self {
        Self { hash: 0xCBF2_9CE4_8422_2325, is_printed }
    }

    /// Notes that `what` happened to `value`.
    pub(super) fn note(&mut self, what: &'static str, value: u64) {
        let folded = value ^ (what.len() as u64) << 56;
        self.hash = (self.hash ^ folded).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        if self.is_printed {
            println!("{what} {value} ({value:X})");
        }
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }
}

/// What the histories came through, so that a run shows that it tried what it claims to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Transaction,
    Row,
    Landed,
    Repeat,
    Status,
    Pause,
    Disconnect,
    ServerCrash,
    Promotion,
    Restore,
    Proof,
    Refutation,
    Newcomer,
    RelayCrash,
    Drain,
    GuiltyHalt,
    TiredHalt,
    MismatchHalt,
    Rewind,
    QueueFull,
    LateLanding,
    LargeTransaction,
}

impl Seen {
    const COUNT: usize = Self::LargeTransaction as usize + 1;

    /// What every hundred thousand histories come through; the other two are rare, and tried by the core's own tests.
    pub(super) const FREQUENT: [Self; 20] = [
        Self::Transaction,
        Self::Row,
        Self::Landed,
        Self::Repeat,
        Self::Status,
        Self::Pause,
        Self::Disconnect,
        Self::ServerCrash,
        Self::Promotion,
        Self::Restore,
        Self::Proof,
        Self::Refutation,
        Self::Newcomer,
        Self::RelayCrash,
        Self::Drain,
        Self::GuiltyHalt,
        Self::Rewind,
        Self::QueueFull,
        Self::LateLanding,
        Self::LargeTransaction,
    ];
}

/// How often each of them was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally([u64; Seen::COUNT]);

impl Tally {
    pub(super) fn count(&mut self, seen: Seen) {
        self.0[seen as usize] += 1;
    }

    pub(super) const fn of(&self, seen: Seen) -> u64 {
        self.0[seen as usize]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}
