//! outboxd tails a PostgreSQL write-ahead log and publishes committed outbox rows to Kafka.

pub mod pgoutput;
pub mod postgres;
