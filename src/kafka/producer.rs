//! One generation of an idempotent producer.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, PurgeConfig};

use super::delivery::{Deliveries, Generation, Reporter};
use super::poller::Poller;
use super::properties::Properties;
use super::topics::Sizes;
use crate::outbox::Record;

/// A batch is kept this much below the topic's `max.message.bytes`: the batch header and the headers of the request.
pub const BATCH_MARGIN: usize = 1024;

/// What every producer of this process is made from.
#[derive(Clone, Debug)]
pub struct ProducerSettings {
    /// `host:port`, separated by commas.
    pub brokers: String,
    /// The user's librdkafka settings.
    pub properties: Properties,
    /// The relay's window, which bounds librdkafka's queue: bytes.
    pub window_bytes: usize,
    /// The relay's window: events.
    pub window_events: usize,
    /// How long a broker may take for one request.
    pub request_timeout: Duration,
}

impl ProducerSettings {
    /// librdkafka's configuration for topics with these limits. librdkafka does not split a batch that was refused.
    #[must_use]
    pub fn client_config(&self, sizes: Sizes) -> ClientConfig {
        let mut config = self.plain_config();
        let limit = sizes.smallest.saturating_sub(BATCH_MARGIN).max(BATCH_MARGIN);
        let batch = self.properties.number("batch.size").unwrap_or(1_000_000).min(limit);
        let message = self.properties.number("message.max.bytes").unwrap_or(sizes.largest).max(BATCH_MARGIN);
        config
            .set("batch.size", batch.to_string())
            .set("message.max.bytes", message.to_string())
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            .set("max.in.flight", "5")
            .set("message.timeout.ms", "0")
            .set("partitioner", "murmur2_random")
            // A topic that was deleted and is created again within this time loses nothing. Above 2,147,483 librdkafka's
            // arithmetic overflows.
            .set("topic.metadata.propagation.max.ms", "2000000")
            .set("queue.buffering.max.messages", self.window_events.saturating_add(1000).min(10_000_000).to_string())
            .set("queue.buffering.max.kbytes", (self.window_bytes / 512 + 65_536).min(2_147_483_647).to_string())
            .set("request.timeout.ms", self.request_timeout.as_millis().to_string());
        config
    }

    /// The settings that every client needs: brokers and the user's own.
    #[must_use]
    pub fn plain_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", "outboxd")
            .set("linger.ms", "1")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set("log.connection.close", "false");
        self.properties.apply(&mut config);
        config.set("bootstrap.servers", &self.brokers);
        config
    }
}

/// What became of an event that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Its report will come.
    Queued,
    /// librdkafka's queue is full: later, and nothing else before it.
    QueueFull,
    /// It was refused at once.
    Refused(RDKafkaErrorCode),
}

/// An idempotent producer. It ends at its first bad report; what follows is a new one.
pub struct Producer {
    inner: Arc<BaseProducer<Reporter>>,
    poller: Poller,
}

impl Producer {
    /// Opens a producer, whose reports go to `deliveries`. It connects by itself.
    ///
    /// # Errors
    /// When librdkafka does not take the settings.
    pub fn create(
        settings: &ProducerSettings,
        sizes: Sizes,
        generation: Generation,
        deliveries: &Deliveries,
    ) -> Result<Self, KafkaError> {
        let config = settings.client_config(sizes);
        let inner: BaseProducer<_> = config.create_with_context(Reporter::new(generation, deliveries.clone()))?;
        let inner = Arc::new(inner);
        let poller =
            Poller::start(Arc::clone(&inner)).map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self { inner, poller })
    }

    /// Hands one event over. Never blocks; `tag` comes back in the report.
    pub fn send(&self, to: (&str, i32), record: &Record<'_>, tag: u64) -> Sent {
        let (topic, partition) = to;
        // Tags are 64 bits and so are the pointers that librdkafka carries them in, on every platform that we build for.
        let mut message = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, tag as usize)
            .partition(partition)
            .timestamp(record.timestamp_ms)
            .headers(headers(record));
        message.key = record.key.as_deref();
        message.payload = record.value.as_deref();
        match self.inner.send(message) {
            Ok(()) => {
                self.poller.wake();
                Sent::Queued
            }
            Err((error, _)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => Sent::QueueFull,
                code => Sent::Refused(code.unwrap_or(RDKafkaErrorCode::Unknown)),
            },
        }
    }

    /// Takes back what is not on its way yet; each record is reported as purged.
    pub fn purge_queue(&self) {
        self.inner.purge(PurgeConfig::default().queue());
        self.poller.wake();
    }

    /// Ends the producer, dropping what it still holds. Takes up to half a second, on a thread of its own.
    ///
    /// A record that was on its way may still land.
    pub async fn retire(self) {
        // The result carries only a panic of librdkafka's destructor, and there is nobody left who needs the producer.
        drop(tokio::task::spawn_blocking(move || drop(self)).await);
    }
}

fn headers(record: &Record<'_>) -> OwnedHeaders {
    let empty = OwnedHeaders::new_with_capacity(record.headers.len());
    record
        .headers
        .iter()
        .fold(empty, |headers, header| headers.insert(Header { key: &header.name, value: header.value.as_bytes() }))
}
