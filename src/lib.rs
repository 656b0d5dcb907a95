//! outboxd tails a PostgreSQL write-ahead log and publishes committed outbox rows to Kafka.

#[cfg(feature = "relay")]
pub mod cli;
pub mod config;
#[cfg(feature = "relay")]
pub mod failpoint;
#[cfg(feature = "relay")]
pub mod kafka;
pub mod outbox;
pub mod pgoutput;
pub mod postgres;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "relay")]
pub mod telemetry;
