//! The relay: connects the replication stream to the producer and decides what happens on every failure.
//!
//! | module | what it does |
//! |---|---|
//! | [`driver`] | the loop that owns every part |
//! | `link`, `sentinel` | the connection to the database, and a second one that watches over it |
//! | `intake`, `router` | from blocks of the stream to events in their lanes |
//! | `upload` | payloads on their way into the store, before their events |
//! | `publisher`, `burst` | the producer's life, and when it gets events |
//! | [`core`] | the state machine: window, ack frontier, generations; pure |
//! | [`lane`] | the events of one partition, from arrival to acknowledgement; pure |
//! | `holder`, [`holds`] | events that cannot be published, on their way to their rows; which keys and topics wait (pure) |
//! | [`releases`] | the way of held events to Kafka |
//! | [`limits`] | what bounds the core |
//! | [`trouble`] | why the core cannot take what the stream sent |
//! | [`resume`] | proves after a reconnect that the server's history is still the one we know; pure |
//! | [`failure`] | from an error to what happens next; total and pure |
//! | [`halt`] | why the relay stops by itself |
//! | [`backoff`] | how long to wait before the next try; pure |

pub mod backoff;
mod burst;
pub mod core;
pub mod driver;
pub mod failure;
pub mod halt;
mod holder;
pub mod holds;
mod intake;
pub mod lane;
pub mod limits;
mod link;
mod publisher;
pub mod releases;
mod replayer;
pub mod resume;
mod router;
mod sentinel;
mod signals;
#[cfg(test)]
mod simulation;
pub mod trouble;
mod upload;

pub use driver::{Relay, Summary};
pub use halt::{Halt, Reason};
