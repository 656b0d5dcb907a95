//! Reads fields one after the other and knows where it stands, so that an error can say so.

use super::error::{Kind, ParseError};

/// The unread rest of one message.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    message: &'static str,
    bytes: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self { message, bytes, rest: bytes }
    }

    /// Gives the message its name, once its type byte has been read.
    pub(super) const fn named(self, message: &'static str) -> Self {
        Self { message, ..self }
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, ParseError> {
        self.array(field).map(|[byte]: [u8; 1]| byte)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, ParseError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, ParseError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn i32(&mut self, field: &'static str) -> Result<i32, ParseError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, ParseError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(super) fn i64(&mut self, field: &'static str) -> Result<i64, ParseError> {
        self.array(field).map(i64::from_be_bytes)
    }

    /// A signed 32-bit length or count, which must not be negative.
    pub(super) fn length(&mut self, field: &'static str) -> Result<usize, ParseError> {
        usize::try_from(self.i32(field)?).map_err(|_| self.error_before(4, field, Kind::NegativeLength))
    }

    /// A signed 32-bit length and that many bytes.
    pub(super) fn counted(&mut self, field: &'static str) -> Result<&'a [u8], ParseError> {
        let length = self.length(field)?;
        self.take(length, field)
    }

    /// A zero-terminated string.
    pub(super) fn string(&mut self, field: &'static str) -> Result<&'a str, ParseError> {
        let mut parts = self.rest.splitn(2, |byte| *byte == 0);
        let (Some(text), Some(rest)) = (parts.next(), parts.next()) else {
            return Err(self.error(field, Kind::NoTerminator));
        };
        let text = std::str::from_utf8(text).map_err(|_| self.error(field, Kind::NotUtf8))?;
        self.rest = rest;
        Ok(text)
    }

    pub(super) fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.error(field, Kind::EndsEarly))?;
        self.rest = rest;
        Ok(taken)
    }

    /// What `read` reads, and the bytes it was read from.
    pub(super) fn span<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<(T, &'a [u8]), ParseError> {
        let before = self.rest;
        let value = read(self)?;
        let length = before.len().saturating_sub(self.rest.len());
        Ok((value, before.get(..length).unwrap_or_default()))
    }

    /// The message must end here.
    pub(super) fn end(&self) -> Result<(), ParseError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error("end", Kind::TrailingBytes)) }
    }

    /// An error about the byte that was just read: the field cannot have this value.
    pub(super) const fn unexpected_byte(&self, field: &'static str) -> ParseError {
        self.error_before(1, field, Kind::Unexpected)
    }

    /// An error about the field that starts here.
    pub(super) const fn error(&self, field: &'static str, kind: Kind) -> ParseError {
        self.error_before(0, field, kind)
    }

    /// An error about the field that started `read_bytes` bytes before here.
    pub(super) const fn error_before(&self, read_bytes: usize, field: &'static str, kind: Kind) -> ParseError {
        let offset_bytes = self.bytes.len().saturating_sub(self.rest.len()).saturating_sub(read_bytes);
        ParseError::new(self.message, field, offset_bytes, kind)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ParseError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| self.error(field, Kind::EndsEarly))?;
        self.rest = rest;
        Ok(*taken)
    }
}
