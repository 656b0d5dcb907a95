//! Why bytes are not a message.

use std::fmt;

/// Bytes that are not a message of protocol version 1.
///
/// Says which message, which field and at which offset, never what the bytes were: they may be a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    message: &'static str,
    field: &'static str,
    offset_bytes: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    EndsEarly,
    TrailingBytes,
    UnknownType(u8),
    Unexpected,
    NegativeLength,
    NoTerminator,
    NotUtf8,
}

impl ParseError {
    pub(super) const fn new(message: &'static str, field: &'static str, offset_bytes: usize, kind: Kind) -> Self {
        Self { message, field, offset_bytes, kind }
    }

    /// The message's name in PostgreSQL's documentation, such as `Insert`; `unknown` when its type is.
    #[must_use]
    pub const fn message(&self) -> &'static str {
        self.message
    }

    /// The field that could not be read.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// Where that field starts, in bytes from the beginning of what was parsed.
    #[must_use]
    pub const fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, field, offset_bytes, kind } = self;
        write!(f, "malformed pgoutput message {message}: {field} at byte {offset_bytes}: {kind}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndsEarly => f.write_str("the message ends early"),
            Self::TrailingBytes => f.write_str("more bytes than the message has fields"),
            Self::UnknownType(tag) => {
                write!(f, "type '{}' is not one of protocol version 1", tag.escape_ascii())
            }
            Self::Unexpected => f.write_str("not a value this field can have"),
            Self::NegativeLength => f.write_str("a negative length"),
            Self::NoTerminator => f.write_str("a string without its terminating zero"),
            Self::NotUtf8 => f.write_str("a string that is not UTF-8; the connection must use client_encoding UTF8"),
        }
    }
}

impl std::error::Error for ParseError {}
