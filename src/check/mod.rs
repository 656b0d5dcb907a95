//! `outboxd check`: everything on both ends that a relay needs, looked at once, each finding with its remedy.
//!
//! Facts come from `postgres::preflight` and `kafka::preflight`; what they mean is decided here, without I/O, by
//! `server`, `slot`, `table` and `topics`.

mod finding;
mod look;
mod routes;
mod server;
mod slot;
mod table;
#[cfg(test)]
mod tests;
mod topics;

use crate::kafka::producer::ProducerSettings;
use crate::outbox::Mapping;
use crate::postgres::{Conninfo, QualifiedName};

pub use finding::{Finding, Grade};
pub use look::check;

/// What is to be looked at: the settings that `outboxd run` would have.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database.
    pub database: Conninfo,
    /// The slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// The outbox table.
    pub table: QualifiedName,
    /// What is made of rows.
    pub mapping: Mapping,
    /// The brokers.
    pub producer: ProducerSettings,
}
