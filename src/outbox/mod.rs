//! From a row of the outbox table to a record for Kafka. Pure: values in, values out.
//!
//! | module | what it knows |
//! |---|---|
//! | [`position`] | where an event stands: commit LSN and ordinal |
//! | [`shape`] | which column of a relation is what |
//! | [`event`] | one row, mapped without copying it |
//! | [`template`] | the topic of an event |
//! | [`record`] | key, value, headers and timestamp of the Kafka record |

pub mod event;
pub mod position;
pub mod record;
pub mod shape;
pub mod template;
#[cfg(test)]
mod tests;

pub use event::{Event, MappingError};
pub use position::{Ordinal, Position};
pub use record::{Record, Source};
pub use shape::{Role, Shape, ShapeError};
pub use template::{TemplateError, TopicTemplate};
