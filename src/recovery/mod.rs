//! What is kept in the database so that nothing is lost, and what is published from there: events that could not be published,
//! and rows that are to be published once more.
//!
//! | module | what it does |
//! |---|---|
//! | [`held`] | events that could not be published |
//! | [`replay`] | rows of the outbox that are published once more |
//! | [`request`] | what operators ask of the relay that owns the slot |
//! | [`row`] | an event from a row of the table |

pub mod held;
mod patience;
pub mod replay;
pub mod request;
pub mod row;
