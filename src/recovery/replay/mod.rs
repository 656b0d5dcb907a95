//! Replay: rows of the outbox that are published once more, because an operator asks for it.
//!
//! | module | what it does |
//! |---|---|
//! | [`plan`] | which rows, in which order, as SQL; pure |
//! | [`reader`] | a task that takes a request and reads it page by page |
//! | `record` | the record of a replayed event |
//! | [`store`] | the SQL about a request and its pages |
//!
//! # Replays and live events of the same key
//!
//! - **A replay is never a first delivery.** A page of rows is published only once the slot has confirmed a position behind
//!   everything that the page was read from: then each of its events was published, or stands among the held ones.
//! - **What is held is left out.** An event that waits, is in quarantine or is a dead letter is published by being released,
//!   in its place or behind newer ones, never by a replay.
//! - **Among themselves** replayed records keep the order of the rows ([`plan`] says which that is). Live events go on
//!   meanwhile: a replayed record may come between any two of them. It says so in its header `outboxd_replay`, carries no
//!   position, and has the present as its timestamp, so a consumer that keeps the newest state knows it for an old event.
//! - **Repeats**: how far a replay has come is written down with each page. A crash repeats one page at most.

pub mod plan;
pub mod reader;
mod record;
pub mod store;

pub use plan::{Plan, Wanted};
pub use reader::{Answer, Ask, Page, Reader, Refused};

/// The header that marks a replayed record; its value is the number of the request.
pub const HEADER_REPLAY: &str = "outboxd_replay";
