//! PostgreSQL: positions, connections, the replication stream, slots and publications.
//!
//! `conninfo` says where and as whom; `connection` opens a replication connection and `stream` reads it; `sql` opens an
//! ordinary one. `wire`, `auth` and `gather` hold what needs no I/O.

mod attempts;
mod auth;
mod condense;
pub mod connection;
pub mod conninfo;
mod error;
pub mod gather;
pub mod lsn;
pub mod migration;
pub mod name;
mod oversized;
pub mod preflight;
pub mod publication;
pub mod row;
mod session;
pub mod setup;
pub mod slot;
pub mod sql;
pub mod status;
pub mod stream;
mod transport;
pub mod wire;

pub use connection::{ReplicationConnection, SystemIdentity};
pub use conninfo::{Conninfo, InvalidConninfo};
pub use error::{Error, Result, ServerError};
pub use lsn::{EndLsn, Lsn};
pub use name::QualifiedName;
pub use session::TargetSession;
pub use stream::{ReplicationStream, StreamSettings};
pub use wire::frontend::Status;
pub use wire::{Block, CopyMessage};
