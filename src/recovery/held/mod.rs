//! Held events: rows of `outboxd.held`, one for each event that cannot be published now, with the whole record.
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | a held event as it stands in the table |
//! | [`store`] | the relay's SQL |
//! | [`letters`] | the operators' SQL |
//! | [`keeper`] | a task that does one thing after the other, and tries again until the database takes it |
//!
//! From the moment that its row is committed, a held event no longer keeps the confirmed position back.

pub mod event;
pub mod keeper;
pub mod letters;
pub mod store;

pub use event::{HeldEvent, HeldHeader, Row, Scope, State};
pub use keeper::{Answer, Ask, Keeper};
pub use store::{Failed, Loaded, Next, Settlement};
