//! PostgreSQL: positions, connections, the replication stream, slots and publications.

pub mod lsn;

pub use lsn::{EndLsn, Lsn};
