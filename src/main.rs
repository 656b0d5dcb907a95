//! The `outboxd` binary.
fn main() {}
