//! One committed row of the outbox, mapped without copying it.

mod claimed;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use claimed::Claim;
use smallvec::SmallVec;

use super::columns::Role;
use super::mapping::OnFailure;
use super::position::Position;
use super::shape::{BoundKey, BoundRule, Kind, Shape, Slot, Text, Then, Topic};
use super::topic;
use super::value::decode_bytea;
use crate::pgoutput::{Column, PgTimestamp, Tuple};

/// Where a column's value lies in the row's bytes; row and column are at most 1 GiB.
#[derive(Clone, Copy, Debug)]
struct Field {
    start: u32,
    len: u32,
}

impl Field {
    /// SQL NULL. No value is so long.
    const NULL: Self = Self { start: 0, len: u32::MAX };
}

/// Most tables have no more columns that are used.
const FIELDS: usize = 8;

/// A row of the outbox and its place in history. Cloning shares the row's bytes.
#[derive(Clone)]
pub struct Event {
    position: Position,
    committed_at: PgTimestamp,
    row: Bytes,
    shape: Arc<Shape>,
    /// By slot.
    fields: SmallVec<[Field; FIELDS]>,
    /// The rule that fits.
    rule: Option<u16>,
    claim: Claim,
}

/// Why a row is not to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filtered {
    /// Its status is none of those that are wanted.
    Status,
    /// The rule with this number, from 0, says so.
    Rule(usize),
}

impl Event {
    /// Maps a row. `own` makes an owned slice of the tuple's bytes.
    ///
    /// # Errors
    /// When a column that every event needs is NULL, or was not sent as text.
    pub fn map(
        shape: &Arc<Shape>,
        tuple: &Tuple<'_>,
        own: impl FnOnce(&[u8]) -> Bytes,
        position: Position,
        committed_at: PgTimestamp,
    ) -> Result<Self, MappingError> {
        let row = tuple.as_bytes();
        let mut fields = SmallVec::from_elem(Field::NULL, shape.width());
        let mut claim = Claim::Travels;
        for (index, column) in tuple.columns().enumerate() {
            let Some((slot, field)) = shape.slot(index).and_then(|slot| Some((slot, fields.get_mut(slot)?))) else {
                continue;
            };
            if matches!(column, Column::Text(value) if shape.is_claimed(slot, value.len())) {
                claim = if shape.claim_check_to.is_some() { Claim::Store(None) } else { Claim::Row };
            }
            *field = match column {
                Column::Null => Field::NULL,
                Column::UnchangedToast if shape.is_claimable(slot) => {
                    claim = Claim::Row;
                    Field::NULL
                }
                // A database in SQL_ASCII sends whatever was written.
                Column::Text(value) if std::str::from_utf8(value).is_err() => {
                    return Err(MappingError::Encoding { column: shape.name(slot).to_owned() });
                }
                Column::Text(value) => field_of(row, value)
                    .ok_or_else(|| MappingError::TooLarge { column: shape.name(slot).to_owned() })?,
                Column::UnchangedToast => {
                    return Err(MappingError::TooLarge { column: shape.name(slot).to_owned() });
                }
                Column::Binary(_) => return Err(MappingError::NotText { column: shape.name(slot).to_owned() }),
            };
        }
        let shape = Arc::clone(shape);
        let mut event = Self { position, committed_at, row: own(row), shape, fields, rule: None, claim };
        if event.role(Role::Id).is_none() {
            return Err(event.null(Role::Id));
        }
        event.rule =
            event.shape.rules.iter().position(|rule| event.fits(rule)).and_then(|number| u16::try_from(number).ok());
        Ok(event)
    }

    fn fits(&self, rule: &BoundRule) -> bool {
        rule.when.iter().all(|(condition, slot)| condition.fits(slot.and_then(|slot| self.text(slot)).as_deref()))
    }

    /// Whether the row is left out, and why.
    #[must_use]
    pub fn filtered(&self) -> Option<Filtered> {
        let statuses = &self.shape.statuses;
        let status = || self.role(Role::Status).unwrap_or_default();
        if !statuses.is_empty() && !statuses.iter().any(|wanted| wanted.as_bytes() == status()) {
            return Some(Filtered::Status);
        }
        match self.then() {
            Some(Then::Drop) => self.rule.map(|number| Filtered::Rule(usize::from(number))),
            _ => None,
        }
    }

    /// The number of the rule that fits, from 0.
    #[must_use]
    pub fn rule(&self) -> Option<usize> {
        self.rule.map(usize::from)
    }

    pub(super) fn then(&self) -> Option<&Then> {
        self.shape.rules.get(usize::from(self.rule?)).map(|rule| &rule.then)
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
        self.role(Role::Id).unwrap_or_default()
    }

    /// What the column of this role holds, as text; `None` where it is NULL or there is none.
    #[must_use]
    pub fn role(&self, role: Role) -> Option<&[u8]> {
        self.field(self.shape.role(role)?)
    }

    /// Writes the topic over `name`.
    ///
    /// # Errors
    /// When a column that the topic needs is NULL, or the name is one that Kafka does not take.
    pub fn topic(&self, name: &mut String) -> Result<(), MappingError> {
        name.clear();
        match (self.then(), &self.shape.topic) {
            (Some(Then::Change { topic: Some(text), .. }), _) | (_, Topic::Text(text)) => {
                self.render(text, name).map_err(|column| MappingError::NoTopic { column: column.to_owned() })?;
            }
            (_, Topic::Rewrite(rewrite, slot)) => match slot.and_then(|slot| self.text(slot)) {
                Some(text) => name.push_str(&rewrite.apply(&text)),
                None => return Err(MappingError::NoTopic { column: rewrite.column.clone() }),
            },
        }
        match topic::is_name(name) {
            true => Ok(()),
            false if name.chars().all(topic::is_legal) => Err(MappingError::TopicName),
            false => Err(MappingError::TopicCharacters),
        }
    }

    /// The record's key; `None` is a record without one.
    ///
    /// # Errors
    /// When a `bytea` is not in the hexadecimal form.
    pub fn key(&self) -> Result<Option<Cow<'_, [u8]>>, MappingError> {
        let key = match self.then() {
            Some(Then::Change { key: Some(key), .. }) => key,
            _ => &self.shape.key,
        };
        match key {
            BoundKey::None => Ok(None),
            BoundKey::Column(slot) => slot.map_or(Ok(None), |slot| self.bytes(slot)),
            BoundKey::Text(text) => {
                let mut key = String::new();
                Ok(self.render(text, &mut key).is_ok().then(|| Cow::Owned(key.into_bytes())))
            }
        }
    }

    /// The partition that the row asks for, of so many; `None` where the key decides.
    ///
    /// # Errors
    /// When the topic has no such partition.
    pub fn partition(&self, partitions: u32) -> Result<Option<u32>, MappingError> {
        let Some(slot) = self.shape.partition else { return Ok(None) };
        let Some(text) = self.field(slot) else { return Ok(None) };
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        match number.filter(|number| *number < partitions) {
            Some(number) => Ok(Some(number)),
            None => Err(MappingError::Partition { column: self.shape.name(slot).to_owned(), partitions }),
        }
    }

    /// What its rule wants to happen when it cannot be published.
    #[must_use]
    pub fn on_failure(&self) -> Option<OnFailure> {
        match self.then() {
            Some(Then::Change { on_failure, .. }) => *on_failure,
            _ => None,
        }
    }

    /// How often the row wants it to be tried: its column `max_retries`, where that is a number.
    #[must_use]
    pub fn max_attempts(&self) -> Option<u32> {
        std::str::from_utf8(self.role(Role::MaxRetries)?).ok()?.parse().ok()
    }

    /// The columns that are used, as text.
    #[must_use]
    pub fn columns(&self) -> BTreeMap<String, Option<String>> {
        let column = |slot| (self.shape.name(slot).to_owned(), self.text(slot).map(Cow::into_owned));
        (0..self.shape.width()).map(column).collect()
    }

    /// The record's timestamp is that of a column.
    #[must_use]
    pub fn has_own_timestamp(&self) -> bool {
        self.shape.timestamp.is_some_and(|slot| self.field(slot).is_some())
    }

    /// What a column holds, decoded where it is `bytea`.
    pub(super) fn bytes(&self, slot: Slot) -> Result<Option<Cow<'_, [u8]>>, MappingError> {
        match (self.field(slot), self.shape.kind(slot)) {
            (None, _) => Ok(None),
            (Some(text), Kind::Bytea) => decode_bytea(text)
                .map(|bytes| Some(Cow::Owned(bytes)))
                .ok_or_else(|| MappingError::Bytea { column: self.shape.name(slot).to_owned() }),
            (Some(text), _) => Ok(Some(Cow::Borrowed(text))),
        }
    }

    /// What a column holds, as text.
    pub(super) fn text(&self, slot: Slot) -> Option<Cow<'_, str>> {
        self.field(slot).map(String::from_utf8_lossy)
    }

    /// Appends a text made from columns; the name of the one that is NULL where that makes it impossible.
    pub(super) fn render<'t>(&self, text: &'t Text, to: &mut String) -> Result<(), &'t str> {
        text.template.render(to, |part, _| text.slots.get(part).copied().flatten().and_then(|slot| self.text(slot)))
    }

    pub(super) fn null(&self, role: Role) -> MappingError {
        let column = self.shape.role(role).map_or(role.name(), |slot| self.shape.name(slot));
        MappingError::Null { column: column.to_owned() }
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
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

    pub(super) fn field(&self, slot: Slot) -> Option<&[u8]> {
        let Field { start, len } = *self.fields.get(slot)?;
        self.row.get(start as usize..start as usize + len as usize).filter(|_| len != u32::MAX)
    }
}

/// Neither a row's contents nor its id belong into a log.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("position", &self.position).field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The place of `value`, which is a part of `row`.
fn field_of(row: &[u8], value: &[u8]) -> Option<Field> {
    let start = (value.as_ptr() as usize).wrapping_sub(row.as_ptr() as usize);
    match (u32::try_from(start), u32::try_from(value.len())) {
        (Ok(start), Ok(len)) if start as usize + len as usize <= row.len() => Some(Field { start, len }),
        _ => None,
    }
}

/// A row that is no event. Never carries the row's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingError {
    /// A column that the event needs is NULL.
    Null {
        /// The column.
        column: String,
    },
    /// The column that names the topic is NULL.
    NoTopic {
        /// The column.
        column: String,
    },
    /// A column that did not come as text.
    NotText {
        /// The column.
        column: String,
    },
    /// A value that is too large to be read, or to be counted.
    TooLarge {
        /// The column.
        column: String,
    },
    /// A `bytea` that is not in the hexadecimal form.
    Bytea {
        /// The column.
        column: String,
    },
    /// The headers are not a JSON object, or not an hstore.
    Headers,
    /// The topic's name has what Kafka does not take.
    TopicCharacters,
    /// The topic's name is empty or longer than 249 characters.
    TopicName,
    /// The topic has no such partition.
    Partition {
        /// The column.
        column: String,
        /// How many the topic has.
        partitions: u32,
    },
    /// Not UTF-8: the database's encoding is SQL_ASCII, so the server does not check it.
    Encoding {
        /// The column.
        column: String,
    },
    /// JSON that is none.
    Json {
        /// The column.
        column: String,
    },
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { column } => write!(f, "{column} is NULL; declare the column NOT NULL"),
            Self::NoTopic { column } => {
                write!(f, "{column}, which names the topic, is NULL; declare it NOT NULL, or give --topic a default")
            }
            Self::NotText { column } => write!(f, "{column} did not come as text"),
            Self::TooLarge { column } => write!(f, "{column} is too large"),
            Self::Bytea { column } => write!(f, "{column} is bytea and not in hexadecimal form"),
            Self::Headers => f.write_str("the headers are not a JSON object"),
            Self::TopicCharacters => {
                f.write_str("the topic's name has characters other than letters, digits, '.', '_' and '-'")
            }
            Self::TopicName => f.write_str("the topic's name is empty, '.', '..' or longer than 249 characters"),
            Self::Partition { column, partitions } => {
                write!(f, "{column} is no number of a partition: the topic has {partitions}")
            }
            Self::Encoding { column } => {
                write!(f, "{column} is not valid UTF-8, and the database, in SQL_ASCII, does not check that")
            }
            Self::Json { column } => write!(f, "{column} is not valid JSON"),
        }
    }
}

impl std::error::Error for MappingError {}
