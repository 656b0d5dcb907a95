//! A row that is too large, without its large columns.
//!
//! It reads an Insert message of pgoutput as the bytes come, and leaves out the values that are large: in their place stands what
//! the protocol has for a value that was not sent (`u`), which an Insert never has otherwise. So the id is there, and the key, and
//! whatever else is small, wherever it stands in the row.

/// A value of at least so many bytes is large.
const LARGE_BYTES: usize = 64 * 1024;

/// So many bytes of a row are kept at most, but for single bytes that say what kind of value is next.
const KEPT_BYTES: usize = 1024 * 1024;

/// `I`, the table's OID, `N`, and the number of columns.
const FRONT_BYTES: usize = 1 + 4 + 1 + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// So many bytes are to be kept before the first column.
    Front(usize),
    /// The byte that says what kind of value comes.
    Kind,
    /// The length of a value of this kind, as far as it has come: how many bytes, and their number.
    Length { kind: u8, come: usize, bytes: usize },
    /// So many bytes of a value, kept or not.
    Value { left: usize, is_kept: bool },
    /// No Insert: nothing is kept.
    Nothing,
}

/// Takes a message and keeps what is small.
#[derive(Debug)]
pub(super) struct Condenser {
    next: Next,
    kept: Vec<u8>,
}

impl Condenser {
    pub(super) const fn new() -> Self {
        Self { next: Next::Front(FRONT_BYTES), kept: Vec::new() }
    }

    /// Takes the next bytes.
    pub(super) fn take(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            match self.next {
                Next::Nothing => return,
                Next::Value { left, is_kept } => {
                    let (value, rest) = bytes.split_at(left.min(bytes.len()));
                    if is_kept {
                        self.kept.extend_from_slice(value);
                    }
                    self.next = value_or_kind(left - value.len(), is_kept);
                    bytes = rest;
                }
                _ => {
                    self.step(*first);
                    bytes = rest;
                }
            }
        }
    }

    /// What was kept: the whole message but for its large values, once all of it has come.
    pub(super) fn into_kept(self) -> Vec<u8> {
        self.kept
    }

    /// One byte outside of a value.
    fn step(&mut self, byte: u8) {
        match self.next {
            Next::Front(left) => {
                self.kept.push(byte);
                self.next = match left {
                    FRONT_BYTES if byte != b'I' => Next::Nothing,
                    1 => Next::Kind,
                    _ => Next::Front(left - 1),
                };
            }
            Next::Kind if matches!(byte, b't' | b'b') => self.next = Next::Length { kind: byte, come: 0, bytes: 0 },
            Next::Kind => self.kept.push(byte),
            Next::Length { kind, come, bytes } => {
                let bytes = bytes << 8 | usize::from(byte);
                self.next = Next::Length { kind, come: come + 1, bytes };
                if come + 1 == 4 {
                    self.value(kind, bytes);
                }
            }
            Next::Value { .. } | Next::Nothing => {}
        }
    }

    /// A value of so many bytes begins.
    fn value(&mut self, kind: u8, bytes: usize) {
        let is_kept = bytes < LARGE_BYTES && self.kept.len() + bytes < KEPT_BYTES;
        if is_kept {
            self.kept.push(kind);
            // It came as four bytes.
            self.kept.extend_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes());
        } else {
            self.kept.push(b'u');
        }
        self.next = value_or_kind(bytes, is_kept);
    }
}

const fn value_or_kind(left: usize, is_kept: bool) -> Next {
    if left == 0 { Next::Kind } else { Next::Value { left, is_kept } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert(values: &[Option<usize>]) -> Vec<u8> {
        let mut bytes = b"I\0\0\0\x07N".to_vec();
        bytes.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
        for value in values {
            match value {
                None => bytes.push(b'n'),
                Some(len) => {
                    bytes.push(b't');
                    bytes.extend(u32::try_from(*len).unwrap().to_be_bytes());
                    bytes.extend(vec![b'x'; *len]);
                }
            }
        }
        bytes
    }

    fn condensed(message: &[u8], piece: usize) -> Vec<u8> {
        let mut condenser = Condenser::new();
        message.chunks(piece).for_each(|piece| condenser.take(piece));
        condenser.into_kept()
    }

    #[test]
    fn large_values_are_left_out_and_small_ones_kept_on_both_sides() {
        let message = insert(&[Some(3), Some(LARGE_BYTES), None, Some(0), Some(LARGE_BYTES - 1)]);
        let mut expected = insert(&[Some(3)]);
        expected[7] = 5;
        expected.push(b'u');
        expected.extend(&insert(&[None, Some(0), Some(LARGE_BYTES - 1)])[FRONT_BYTES..]);
        assert_eq!(condensed(&message, 7), expected);
    }

    #[test]
    fn many_values_that_are_not_large_do_not_fill_memory_either() {
        let message = insert(&[Some(LARGE_BYTES - 1); 100]);
        assert!(condensed(&message, 8192).len() < KEPT_BYTES + 1000);
    }

    #[test]
    fn of_another_message_nothing_is_kept() {
        assert_eq!(condensed(b"U\0\0\0\x07Nxxxx", 3), b"U");
    }

    proptest! {
        #[test]
        fn small_rows_pass_unchanged(values in prop::collection::vec(prop::option::of(0usize..300), 0..20), piece in 1usize..50) {
            let message = insert(&values);
            prop_assert_eq!(condensed(&message, piece), message);
        }

        #[test]
        fn nothing_panics(bytes: Vec<u8>, piece in 1usize..10) {
            let _ = condensed(&[b"I".as_slice(), &bytes].concat(), piece);
        }
    }
}
