//! The messages themselves.

use std::fmt;

use super::cursor::Cursor;
use super::error::{Kind, ParseError};
use super::relation::RelationBody;
use super::timestamp::PgTimestamp;
use super::tuple::Tuple;
use crate::postgres::{EndLsn, Lsn};

/// One message of `pgoutput`, protocol version 1. It borrows the bytes it was parsed from.
///
/// Source: [Logical Replication Message Formats][formats].
///
/// [formats]: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction starts.
    Begin {
        /// Where the transaction's commit record starts: its commit LSN.
        final_lsn: Lsn,
        /// When it was committed.
        committed_at: PgTimestamp,
        /// Its transaction id.
        xid: u32,
    },
    /// The transaction ends.
    Commit {
        /// Unused by PostgreSQL so far, so zero.
        flags: u8,
        /// Where the commit record starts, as in Begin.
        commit_lsn: Lsn,
        /// Where the commit record ends: what may be confirmed once the transaction is published.
        end_lsn: EndLsn,
        /// When it was committed.
        committed_at: PgTimestamp,
    },
    /// The transaction was replicated to the server from another one.
    Origin {
        /// Where its commit record is on the origin.
        commit_lsn: Lsn,
        /// The origin's name.
        name: &'a str,
    },
    /// How rows of a table look from here on.
    Relation(RelationBody<'a>),
    /// A type that is not built in, before the relation that uses it.
    Type {
        /// The type's OID.
        id: u32,
        /// The schema; empty for `pg_catalog`.
        namespace: &'a str,
        /// The type's name.
        name: &'a str,
    },
    /// A row was inserted.
    Insert {
        /// The table's OID.
        relation_id: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was updated.
    Update {
        /// The table's OID.
        relation_id: u32,
        /// What it was, when its replica identity changed or is FULL.
        old: Option<OldTuple<'a>>,
        /// What it is now.
        new: Tuple<'a>,
    },
    /// A row was deleted.
    Delete {
        /// The table's OID.
        relation_id: u32,
        /// What it was.
        old: OldTuple<'a>,
    },
    /// Tables were truncated.
    Truncate {
        /// How.
        options: TruncateOptions,
        /// The OIDs of the tables.
        relation_ids: RelationIds<'a>,
    },
    /// What `pg_logical_emit_message` wrote, sent only when the option `messages` was asked for.
    Logical(LogicalMessage<'a>),
}

/// A row before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// The columns of the replica identity; the others are null.
    Key(Tuple<'a>),
    /// All columns: the replica identity is FULL.
    Full(Tuple<'a>),
}

/// The options of a TRUNCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateOptions(u8);

impl TruncateOptions {
    /// Whether it was `TRUNCATE ... CASCADE`.
    #[must_use]
    pub const fn cascade(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it was `TRUNCATE ... RESTART IDENTITY`.
    #[must_use]
    pub const fn restart_identity(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The OIDs of truncated tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationIds<'a>(&'a [[u8; 4]]);

impl<'a> RelationIds<'a> {
    /// The OIDs, in the order in which they came.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.0.iter().map(|id| u32::from_be_bytes(*id))
    }
}

/// A logical decoding message. The `Debug` output leaves out its content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to the transaction around it, and so was committed.
    pub is_transactional: bool,
    /// Where it is in the log.
    pub lsn: Lsn,
    /// The prefix its writer gave it.
    pub prefix: &'a str,
    /// What it says.
    pub content: &'a [u8],
}

impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("is_transactional", &self.is_transactional)
            .field("lsn", &self.lsn)
            .field("content_bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

/// Reads the one message that fills `bytes`.
///
/// # Errors
///
/// When the bytes are not exactly one message of protocol version 1.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, ParseError> {
    let mut cursor = Cursor::new("unknown", bytes);
    let tag = cursor.u8("message type")?;
    let (name, read) = reader(tag).ok_or_else(|| cursor.error_before(1, "message type", Kind::UnknownType(tag)))?;
    let mut cursor = cursor.named(name);
    let message = read(&mut cursor)?;
    cursor.end()?;
    Ok(message)
}

type Reader<'a> = fn(&mut Cursor<'a>) -> Result<Message<'a>, ParseError>;

/// The name and the reader of the message whose type byte is `tag`.
fn reader<'a>(tag: u8) -> Option<(&'static str, Reader<'a>)> {
    Some(match tag {
        b'B' => ("Begin", begin),
        b'C' => ("Commit", commit),
        b'O' => ("Origin", origin),
        b'R' => ("Relation", |cursor| RelationBody::read(cursor).map(Message::Relation)),
        b'Y' => ("Type", type_),
        b'I' => ("Insert", insert),
        b'U' => ("Update", update),
        b'D' => ("Delete", delete),
        b'T' => ("Truncate", truncate),
        b'M' => ("Message", logical),
        _ => return None,
    })
}

fn begin<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    Ok(Message::Begin {
        final_lsn: lsn(cursor, "final LSN")?,
        committed_at: timestamp(cursor)?,
        xid: cursor.u32("transaction id")?,
    })
}

fn commit<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    Ok(Message::Commit {
        flags: cursor.u8("flags")?,
        commit_lsn: lsn(cursor, "commit LSN")?,
        end_lsn: lsn(cursor, "end LSN").map(EndLsn::new)?,
        committed_at: timestamp(cursor)?,
    })
}

fn origin<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    Ok(Message::Origin { commit_lsn: lsn(cursor, "commit LSN")?, name: cursor.string("origin name")? })
}

fn type_<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    Ok(Message::Type {
        id: cursor.u32("type id")?,
        namespace: cursor.string("namespace")?,
        name: cursor.string("type name")?,
    })
}

fn insert<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    let relation_id = cursor.u32("relation id")?;
    Ok(Message::Insert { relation_id, new: new_tuple(cursor)? })
}

fn update<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    let relation_id = cursor.u32("relation id")?;
    let old = match cursor.u8("tuple marker")? {
        b'N' => return Ok(Message::Update { relation_id, old: None, new: Tuple::read(cursor)? }),
        b'K' => OldTuple::Key(Tuple::read(cursor)?),
        b'O' => OldTuple::Full(Tuple::read(cursor)?),
        _ => return Err(cursor.unexpected_byte("tuple marker")),
    };
    Ok(Message::Update { relation_id, old: Some(old), new: new_tuple(cursor)? })
}

fn delete<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    let relation_id = cursor.u32("relation id")?;
    let old = match cursor.u8("old tuple marker")? {
        b'K' => OldTuple::Key(Tuple::read(cursor)?),
        b'O' => OldTuple::Full(Tuple::read(cursor)?),
        _ => return Err(cursor.unexpected_byte("old tuple marker")),
    };
    Ok(Message::Delete { relation_id, old })
}

fn new_tuple<'a>(cursor: &mut Cursor<'a>) -> Result<Tuple<'a>, ParseError> {
    match cursor.u8("new tuple marker")? {
        b'N' => Tuple::read(cursor),
        _ => Err(cursor.unexpected_byte("new tuple marker")),
    }
}

fn truncate<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    let relations = cursor.length("number of relations")?;
    let options = TruncateOptions(cursor.u8("options")?);
    // A count whose size in bytes overflows is longer than any message, as is the largest size.
    let bytes = cursor.take(relations.saturating_mul(4), "relation ids")?;
    let (ids, _) = bytes.as_chunks();
    Ok(Message::Truncate { options, relation_ids: RelationIds(ids) })
}

fn logical<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>, ParseError> {
    Ok(Message::Logical(LogicalMessage {
        is_transactional: cursor.u8("flags")? & 1 != 0,
        lsn: lsn(cursor, "LSN")?,
        prefix: cursor.string("prefix")?,
        content: cursor.counted("content")?,
    }))
}

fn lsn(cursor: &mut Cursor<'_>, field: &'static str) -> Result<Lsn, ParseError> {
    cursor.u64(field).map(Lsn::new)
}

fn timestamp(cursor: &mut Cursor<'_>) -> Result<PgTimestamp, ParseError> {
    cursor.i64("commit time").map(PgTimestamp::from_micros)
}
