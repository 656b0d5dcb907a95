//! Positions in the write-ahead log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte position in the write-ahead log, written as PostgreSQL writes it: `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The position that no record has: "unknown" or "from where the slot stands".
    pub const ZERO: Self = Self(0);

    /// The position `bytes` bytes into the log.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes from the beginning of the log.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Bytes from `earlier` to here; zero when `earlier` is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// As its text.
impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A text that is not a log position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseLsnError;

impl fmt::Display for ParseLsnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a log position; expected two hexadecimal numbers such as 16/B374D848")
    }
}

impl std::error::Error for ParseLsnError {}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        let half = |digits: &str| {
            let hex = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten().map(u64::from).ok_or(ParseLsnError)
        };
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

/// The end of a transaction's commit record, or of a log stretch without transactions: what may be confirmed.
///
/// A type of its own, because a row's LSN or a transaction's commit LSN must never be confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndLsn(Lsn);

impl EndLsn {
    /// Nothing confirmed yet.
    pub const ZERO: Self = Self(Lsn::ZERO);

    /// Marks a position as one behind which nothing is missing.
    #[must_use]
    pub const fn new(lsn: Lsn) -> Self {
        Self(lsn)
    }

    /// The position itself.
    #[must_use]
    pub const fn lsn(self) -> Lsn {
        self.0
    }
}

impl fmt::Display for EndLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for bytes in [0, 1, 0xFFFF_FFFF, 0x16_B374_D848, u64::MAX] {
            let lsn = Lsn::new(bytes);
            assert_eq!(lsn.to_string().parse(), Ok(lsn));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "/", "1", "1/", "/1", "1/2/3", "+1/2", "1/G", "1/100000000"] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text}");
        }
    }
}
