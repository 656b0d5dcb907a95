//! The frontend/backend protocol, version 3.0, as bytes: no I/O and no clock.
//!
//! `postgres-protocol` does the ordinary messages. This adds what replication needs: the limit on a message's
//! announced length, `CopyBothResponse`, and the messages inside the copy stream.
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

pub mod backend;
pub mod copy;
pub mod frontend;
pub mod quote;

pub use copy::{Block, CopyMessage};
