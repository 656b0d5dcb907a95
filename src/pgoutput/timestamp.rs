//! PostgreSQL's clock.

/// Milliseconds from the Unix epoch to PostgreSQL's epoch, 2000-01-01T00:00:00Z.
const PG_EPOCH_UNIX_MS: i64 = 946_684_800_000;

/// A moment on the server's clock: microseconds since 2000-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// The moment `micros` microseconds after PostgreSQL's epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The moment so many microseconds after the Unix epoch, saturating.
    #[must_use]
    pub const fn from_unix_us(micros: i64) -> Self {
        Self(micros.saturating_sub(PG_EPOCH_UNIX_MS * 1_000))
    }

    /// Microseconds since PostgreSQL's epoch.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Microseconds since the Unix epoch, saturating.
    #[must_use]
    pub const fn unix_us(self) -> i64 {
        self.0.saturating_add(PG_EPOCH_UNIX_MS * 1_000)
    }

    /// Milliseconds since the Unix epoch, rounded down: the unit of Kafka's record timestamps.
    #[must_use]
    pub const fn unix_ms(self) -> i64 {
        // A thousandth of any i64 leaves room for the epoch, so the sum cannot overflow.
        self.0.div_euclid(1_000) + PG_EPOCH_UNIX_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_milliseconds_round_down_and_never_overflow() {
        for (micros, unix_ms) in [
            (0, 946_684_800_000),
            (999, 946_684_800_000),
            (-1, 946_684_799_999),
            (-946_684_800_000_000, 0),
            // 2024-02-29T12:00:00Z
            (762_523_200_000_000, 1_709_208_000_000),
        ] {
            assert_eq!(PgTimestamp::from_micros(micros).unix_ms(), unix_ms, "{micros}");
        }
        assert!(PgTimestamp::from_micros(i64::MIN).unix_ms() < PgTimestamp::from_micros(i64::MAX).unix_ms());
    }
}
