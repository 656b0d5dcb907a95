//! The integration tests: one binary, real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod check;
mod claims;
mod cli;
mod content;
mod demo;
mod errors;
mod golden;
mod harness;
mod held;
mod large;
mod replay;
mod restart;
mod servers;
mod shapes;
mod shorter;
mod status;
mod topics;
