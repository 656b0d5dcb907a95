//! The relay: connects the replication stream to the producer and decides what happens on every failure.
//!
//! | module | what it does |
//! |---|---|
//! | [`lane`] | the events of one partition, from arrival to acknowledgement |
//! | [`core`] | the state machine: window, ack frontier, generations; pure |
//! | [`limits`] | what bounds the core |
//! | [`trouble`] | why the core cannot take what the stream sent |
//! | [`resume`] | proves after a reconnect that the server's history is still the one we know; pure |
//! | [`failure`] | from an error to what happens next; total and pure |
//! | [`backoff`] | how long to wait before the next try; pure |

pub mod backoff;
pub mod core;
pub mod failure;
pub mod lane;
pub mod limits;
pub mod resume;
pub mod trouble;
