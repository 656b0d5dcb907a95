//! Apache Kafka through librdkafka: the producer, its reports, and what is known of the topics.
//!
//! | module | what it does |
//! |---|---|
//! | [`properties`] | librdkafka's settings: ours, the user's, and which may not be touched |
//! | [`partition`] | which partition a key belongs to |
//! | [`producer`] | one generation of an idempotent producer |
//! | [`delivery`] | gathers delivery reports and wakes the loop once a batch |
//! | [`creation`] | topics that are made where they are missing |
//! | [`topics`] | partitions and size limits of the topics in use |
//! | [`class`] | what an error of the broker means |
//! | [`preflight`] | what `outboxd check` wants to know of the brokers |

pub mod class;
pub mod creation;
pub mod delivery;
pub mod partition;
mod poller;
pub mod preflight;
pub mod producer;
pub mod properties;
pub mod topics;
