//! The columns of one row.

use std::fmt;
use std::iter::FusedIterator;

use super::cursor::Cursor;
use super::error::ParseError;

/// One row as the server sent it: checked when it is parsed, never copied.
///
/// Two tuples are equal when their bytes are. The `Debug` output shows sizes only: the columns may be secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    columns: u16,
    bytes: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Reads a tuple that fills `bytes`, as [`as_bytes`](Self::as_bytes) gives them.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly one tuple.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new("TupleData", bytes);
        let tuple = Self::read(&mut cursor)?;
        cursor.end()?;
        Ok(tuple)
    }

    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, ParseError> {
        let (columns, bytes) = cursor.span(|cursor| {
            let columns = cursor.u16("number of columns")?;
            for _ in 0..columns {
                Column::read(cursor)?;
            }
            Ok(columns)
        })?;
        Ok(Self { columns, bytes })
    }

    /// How many columns the row has, those without a value included.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.columns)
    }

    /// Whether the row has no column at all, which a table without columns has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns == 0
    }

    /// The columns, in the order of the relation's columns.
    #[must_use]
    pub fn columns(&self) -> Columns<'a> {
        let mut cursor = Cursor::new("TupleData", self.bytes);
        // Parsed before, so the count is there; without one there would be no column.
        let left = cursor.u16("number of columns").unwrap_or_default();
        Columns { cursor, left }
    }

    /// The row as it came, from which [`parse`](Self::parse) makes it again.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Column<'a>;
    type IntoIter = Columns<'a>;

    fn into_iter(self) -> Columns<'a> {
        self.columns()
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tuple({} columns, {} bytes)", self.columns, self.bytes.len())
    }
}

/// The bytes of a row with these values as text, as a server would send it; [`Tuple::parse`] reads them. For rows that did not
/// come from a stream. A value is at most 1 GiB, which is PostgreSQL's limit.
#[must_use]
pub fn encode(values: &[Option<&[u8]>]) -> Vec<u8> {
    let mut bytes = u16::try_from(values.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
    for value in values {
        match value {
            None => bytes.push(b'n'),
            Some(text) => {
                bytes.push(b't');
                bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
                bytes.extend_from_slice(text);
            }
        }
    }
    bytes
}

/// One column's value. The `Debug` output shows its size only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// SQL NULL.
    Null,
    /// A value stored out of line that the statement did not change, so the server did not send it. Never in an insert.
    UnchangedToast,
    /// The value in its type's text form, in the connection's `client_encoding`.
    Text(&'a [u8]),
    /// The value in its type's binary form, sent only when the option `binary` was asked for.
    Binary(&'a [u8]),
}

impl<'a> Column<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, ParseError> {
        match cursor.u8("kind of column")? {
            b'n' => Ok(Self::Null),
            b'u' => Ok(Self::UnchangedToast),
            b't' => cursor.counted("column as text").map(Self::Text),
            b'b' => cursor.counted("column as binary").map(Self::Binary),
            _ => Err(cursor.unexpected_byte("kind of column")),
        }
    }
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::UnchangedToast => f.write_str("UnchangedToast"),
            Self::Text(value) => write!(f, "Text({} bytes)", value.len()),
            Self::Binary(value) => write!(f, "Binary({} bytes)", value.len()),
        }
    }
}

/// The columns of a [`Tuple`], first to last.
#[derive(Clone)]
pub struct Columns<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    fn next(&mut self) -> Option<Column<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The tuple was checked when it was parsed, so this never fails.
        Column::read(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.left);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Columns<'_> {}
impl FusedIterator for Columns<'_> {}

impl fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Columns({} left)", self.left)
    }
}
