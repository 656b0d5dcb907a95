//! What is kept in the database so that nothing is lost: events that could not be published.

pub mod held;
