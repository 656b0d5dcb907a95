//! The messages of PostgreSQL's `pgoutput` plugin, protocol version 1.
//!
//! Bytes in, messages out: nothing here reads a socket, a clock or writes a log. [`parse`] is total: any bytes give
//! a [`Message`] or a [`ParseError`], never a panic. Columns are never copied; a [`Tuple`] borrows the bytes it came in.
//!
//! The formats are those of PostgreSQL's page [Logical Replication Message Formats][formats]. Protocol version 1 has
//! neither streamed nor two-phase messages, so their types are unknown here.
//!
//! [formats]: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

mod cursor;
mod error;
mod message;
mod relation;
#[cfg(test)]
mod tests;
mod timestamp;
mod tuple;

pub use error::ParseError;
pub use message::{LogicalMessage, Message, OldTuple, RelationIds, TruncateOptions, parse};
pub use relation::{ColumnBodies, ColumnBody, Relation, RelationBody, RelationCache, RelationColumn, ReplicaIdentity};
pub use timestamp::PgTimestamp;
pub use tuple::{Column, Columns, Tuple, encode};
