//! One committed row of the outbox, mapped without copying it.

use std::fmt;

use bytes::Bytes;

use super::position::Position;
use super::shape::{Role, Shape};
use crate::pgoutput::{Column, PgTimestamp, Tuple};

/// Where a column's value lies in the row's bytes; row and column are at most 1 GiB.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    len: u32,
}

/// A row of the outbox and its place in history. Cloning shares the row's bytes.
#[derive(Clone)]
pub struct Event {
    position: Position,
    committed_at: PgTimestamp,
    row: Bytes,
    id: Span,
    aggregate_type: Span,
    aggregate_id: Option<Span>,
    event_type: Span,
    payload: Option<Span>,
    headers: Option<Span>,
    payload_is_bytea: bool,
}

impl Event {
    /// Maps a row. `own` makes an owned slice of the tuple's bytes.
    ///
    /// # Errors
    /// When a column that every event needs is NULL, or was not sent as text.
    pub fn map(
        shape: &Shape,
        tuple: &Tuple<'_>,
        own: impl FnOnce(&[u8]) -> Bytes,
        position: Position,
        committed_at: PgTimestamp,
    ) -> Result<Self, MappingError> {
        let row = tuple.as_bytes();
        let mut found: [Option<Span>; Role::COUNT] = [None; Role::COUNT];
        for (index, column) in tuple.columns().enumerate() {
            let Some(span) = shape.role(index).and_then(|role| found.get_mut(role as usize)) else { continue };
            *span = match column {
                Column::Null => None,
                Column::Text(value) => Some(span_of(row, value)?),
                Column::UnchangedToast | Column::Binary(_) => return Err(MappingError::NotText { column: index }),
            };
        }
        let [id, aggregate_type, aggregate_id, event_type, payload, headers] = found;
        let needed = |span: Option<Span>, role| span.ok_or(MappingError::Null { role });
        let event = Self {
            position,
            committed_at,
            id: needed(id, "id")?,
            aggregate_type: needed(aggregate_type, "aggregate_type")?,
            aggregate_id,
            event_type: needed(event_type, "event_type")?,
            payload,
            headers,
            payload_is_bytea: shape.payload_is_bytea(),
            row: Bytes::new(),
        };
        Ok(Self { row: own(row), ..event })
    }

    /// Where the event stands.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.position
    }

    /// When its transaction was committed, by the server's clock.
    #[must_use]
    pub const fn committed_at(&self) -> PgTimestamp {
        self.committed_at
    }

    /// The id as text.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        self.bytes(self.id)
    }

    /// What kind of thing it is about, as text.
    #[must_use]
    pub fn aggregate_type(&self) -> &[u8] {
        self.bytes(self.aggregate_type)
    }

    /// Which thing it is about, as text; `None` where the column is NULL.
    #[must_use]
    pub fn aggregate_id(&self) -> Option<&[u8]> {
        self.aggregate_id.map(|span| self.bytes(span))
    }

    /// What happened, as text.
    #[must_use]
    pub fn event_type(&self) -> &[u8] {
        self.bytes(self.event_type)
    }

    /// The payload as the stream carries it; `None` where the column is NULL.
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        self.payload.map(|span| self.bytes(span))
    }

    /// The payload is `bytea`, in hexadecimal digits behind `\x`.
    #[must_use]
    pub const fn payload_is_bytea(&self) -> bool {
        self.payload_is_bytea
    }

    /// Further headers as the text of a JSON object; `None` where there are none.
    #[must_use]
    pub fn headers(&self) -> Option<&[u8]> {
        self.headers.map(|span| self.bytes(span))
    }

    /// Bytes of the row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.row.len()
    }

    /// A row without bytes does not exist; for the sake of the convention beside [`Event::len`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Copies the row out of the block that it came in, so that one late event does not keep a whole block in memory.
    pub fn detach(&mut self) {
        self.row = Bytes::copy_from_slice(&self.row);
    }

    fn bytes(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        self.row.get(start..start + span.len as usize).unwrap_or_default()
    }
}

/// Neither a row's contents nor its id belong into a log.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("position", &self.position).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The place of `value`, which is a part of `row`.
fn span_of(row: &[u8], value: &[u8]) -> Result<Span, MappingError> {
    let start = (value.as_ptr() as usize).wrapping_sub(row.as_ptr() as usize);
    match (u32::try_from(start), u32::try_from(value.len())) {
        (Ok(start), Ok(len)) if start as usize + len as usize <= row.len() => Ok(Span { start, len }),
        _ => Err(MappingError::TooLarge),
    }
}

/// A row that is no event. Never carries the row's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingError {
    /// A column that every event needs is NULL.
    Null {
        /// The column's role.
        role: &'static str,
    },
    /// A column that did not come as text.
    NotText {
        /// The column's place in the published row, from 0.
        column: usize,
    },
    /// A row beyond what a position in it can express.
    TooLarge,
    /// A `bytea` payload that is not in the hexadecimal form.
    Bytea,
    /// The headers are not a JSON object.
    Headers,
    /// The column that names the topic holds what a topic's name cannot.
    TopicCharacters {
        /// The column's role.
        role: &'static str,
    },
    /// The topic's name is empty or longer than 249 characters.
    TopicName,
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { role } => write!(f, "{role} is NULL; declare the column NOT NULL"),
            Self::NotText { column } => write!(f, "column {column} did not come as text"),
            Self::TooLarge => f.write_str("the row is too large"),
            Self::Bytea => f.write_str("the bytea payload is not in hexadecimal form"),
            Self::Headers => f.write_str("headers is not a JSON object"),
            Self::TopicCharacters { role } => {
                write!(f, "{role} names the topic but has characters other than letters, digits, '.', '_' and '-'")
            }
            Self::TopicName => f.write_str("the topic's name is empty, '.', '..' or longer than 249 characters"),
        }
    }
}

impl std::error::Error for MappingError {}
