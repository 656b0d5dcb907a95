//! From a row of the outbox table to a record for Kafka. Pure: values in, values out.
//!
//! | module | what it knows |
//! |---|---|
//! | [`position`] | where an event stands: commit LSN and ordinal |
//! | [`mapping`] | what the user wants to be made of rows |
//! | [`columns`] | which column is what |
//! | [`template`] | texts made from columns |
//! | [`rule`] | exceptions for rows that look like this |
//! | [`shape`] | all of that bound to one table |
//! | [`shape_error`] | why nothing can be made of a table, in words |
//! | [`tables`] | which of the tables that a stream describes is the outbox |
//! | [`event`] | one row, mapped without copying it |
//! | [`claim`] | where payloads are kept that are too large to travel |
//! | [`record`] | key, value, headers and timestamp of the Kafka record |
//! | [`header`] | the headers, ours and the row's |
//! | [`topic`] | what Kafka takes as a topic's name |
//! | [`timestamp`] | times as PostgreSQL prints them |

pub mod claim;
pub mod columns;
pub mod event;
pub mod header;
pub mod mapping;
pub mod position;
pub mod record;
pub mod rule;
pub mod shape;
pub mod shape_error;
pub mod tables;
pub mod template;
#[cfg(test)]
mod tests;
pub mod timestamp;
pub mod topic;
mod value;

pub use claim::{ClaimStore, Object, Receipt};
pub use columns::{Columns, Role};
pub use event::{Event, Filtered, MappingError};
pub use header::{HEADER_COMMIT_TIME, HEADER_ID, HEADER_POSITION, Header, HeaderValue};
pub use mapping::{Mapping, OnFailure};
pub use position::{Ordinal, Position};
pub use record::{Record, Source, is_recent};
pub use shape::{Shape, TypeNames};
pub use shape_error::ShapeError;
pub use tables::{Tables, TablesError};
pub use template::{Template, TemplateError};
