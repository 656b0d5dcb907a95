//! Where an event stands in its database's history.

use std::fmt;
use std::str::FromStr;

use crate::postgres::Lsn;

/// The how-manieth outbox row of its transaction an event is; the first is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(u32);

impl Ordinal {
    /// The first row of a transaction.
    pub const FIRST: Self = Self(0);

    /// The ordinal with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number, counted from 0.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next row's; `None` behind the 2^32nd row of one transaction.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

/// An event's place: the LSN of its transaction's commit record, then its ordinal in the transaction.
///
/// Rows of a multi-row INSERT or of COPY may share one LSN, so a row's own LSN names nothing. Positions of one database
/// are ordered as the events were committed, and so is their text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    commit: Lsn,
    ordinal: Ordinal,
}

impl Position {
    /// Bytes of the text form.
    pub const TEXT_LEN: usize = 16 + 1 + 8;

    /// The place of row `ordinal` of the transaction whose commit record begins at `commit`.
    #[must_use]
    pub const fn new(commit: Lsn, ordinal: Ordinal) -> Self {
        Self { commit, ordinal }
    }

    /// Where the transaction's commit record begins.
    #[must_use]
    pub const fn commit(self) -> Lsn {
        self.commit
    }

    /// The place inside the transaction.
    #[must_use]
    pub const fn ordinal(self) -> Ordinal {
        self.ordinal
    }

    /// The text form without an allocation: 16 hexadecimal digits of the LSN, `-`, 8 of the ordinal.
    #[must_use]
    pub fn to_text(self) -> [u8; Self::TEXT_LEN] {
        let mut text = [b'-'; Self::TEXT_LEN];
        let (lsn, ordinal) = text.split_at_mut(16);
        write_hex(lsn, self.commit.get());
        if let Some(ordinal) = ordinal.get_mut(1..) {
            write_hex(ordinal, u64::from(self.ordinal.get()));
        }
        text
    }
}

/// Fills `digits` with the lower digits of `value`.
fn write_hex(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEF".get((value & 0xF) as usize).copied().unwrap_or(b'0');
        value >>= 4;
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}-{:08X}", self.commit.get(), self.ordinal.get())
    }
}

/// A text that is not a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePositionError;

impl fmt::Display for ParsePositionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an event position; expected 16 and 8 hexadecimal digits such as 00000016B374D848-00000002")
    }
}

impl std::error::Error for ParsePositionError {}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |part: &str, len| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
        match text.split_once('-') {
            Some((lsn, ordinal)) if digits(lsn, 16) && digits(ordinal, 8) => {
                let lsn = u64::from_str_radix(lsn, 16).map_err(|_| ParsePositionError)?;
                let ordinal = u32::from_str_radix(ordinal, 16).map_err(|_| ParsePositionError)?;
                Ok(Self::new(Lsn::new(lsn), Ordinal::new(ordinal)))
            }
            _ => Err(ParsePositionError),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn position(lsn: u64, ordinal: u32) -> Position {
        Position::new(Lsn::new(lsn), Ordinal::new(ordinal))
    }

    proptest! {
        #[test]
        fn text_sorts_as_the_position_does(a: (u64, u32), b: (u64, u32)) {
            let (a, b) = (position(a.0, a.1), position(b.0, b.1));
            prop_assert_eq!(a.cmp(&b), a.to_text().cmp(&b.to_text()));
        }

        #[test]
        fn text_round_trips(lsn: u64, ordinal: u32) {
            let position = position(lsn, ordinal);
            let text = position.to_string();
            prop_assert_eq!(text.as_bytes(), position.to_text());
            prop_assert_eq!(text.parse(), Ok(position));
        }
    }

    #[test]
    fn ordinals_end_in_an_error_not_in_an_overflow() {
        assert_eq!(Ordinal::new(u32::MAX).next(), None);
    }
}
