//! The Kafka side: a broker inside this process, or one's own brokers.

use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::error::Error;

/// Partitions of the topic.
pub(super) const PARTITIONS: i32 = 6;

/// The topic on the in-process broker: what `outboxd run` makes of the aggregate type by default.
const TOPIC: &str = "outbox.event.order";

/// How long the brokers may take to create or delete a topic.
const LIMIT: Duration = Duration::from_secs(20);

/// The brokers.
pub(super) enum Broker {
    /// librdkafka's mock cluster. It keeps records in memory, the last 5 MB of each partition.
    InProcess(MockCluster<'static, DefaultProducerContext>),
    /// One's own, with a topic of the demo's own.
    Own { config: ClientConfig, topic: String },
}

impl Broker {
    /// Starts the in-process one, with a topic.
    pub(super) fn in_process() -> Result<Self, Error> {
        let failed = |error| Error::failed("the in-process broker", error);
        let cluster = MockCluster::new(1).map_err(failed)?;
        cluster.create_topic(TOPIC, PARTITIONS, 1).map_err(failed)?;
        Ok(Self::InProcess(cluster))
    }

    /// One's own; the settings hold `bootstrap.servers` and what else it takes to be let in.
    pub(super) fn own(config: &ClientConfig, topic: &str) -> Self {
        Self::Own { config: config.clone(), topic: topic.to_owned() }
    }

    /// Creates the topic where it is not there already.
    pub(super) async fn create_topic(&self) -> Result<(), Error> {
        let Self::Own { config, topic } = self else { return Ok(()) };
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(-1));
        let results = admin(config)?.create_topics([&new], &options()).await;
        match results.map_err(|error| cannot("create", topic, error))?.into_iter().next() {
            Some(Err((_, code))) => Err(cannot("create", topic, code)),
            _ => Ok(()),
        }
    }

    /// The settings of a client.
    pub(super) fn config(&self) -> ClientConfig {
        match self {
            Self::Own { config, .. } => config.clone(),
            Self::InProcess(cluster) => {
                let mut config = ClientConfig::new();
                config.set("bootstrap.servers", cluster.bootstrap_servers()).set("log_level", "0");
                config
            }
        }
    }

    /// Where the relay begins.
    pub(super) fn bootstrap(&self) -> String {
        self.config().get("bootstrap.servers").unwrap_or_default().to_owned()
    }

    /// The topic.
    pub(super) fn topic(&self) -> &str {
        match self {
            Self::InProcess(_) => TOPIC,
            Self::Own { topic, .. } => topic,
        }
    }

    /// Whether they are one's own.
    pub(super) const fn is_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }

    /// Deletes the topic, or ends the in-process broker.
    pub(super) async fn remove(self) -> Result<(), Error> {
        match self {
            Self::InProcess(_) => Ok(()),
            Self::Own { config, topic } => delete(&config, &topic).await,
        }
    }
}

/// Deletes a topic; that it is not there is no error.
pub(super) async fn delete(config: &ClientConfig, topic: &str) -> Result<(), Error> {
    let results = admin(config)?.delete_topics(&[topic], &options()).await;
    match results.map_err(|error| cannot("delete", topic, error))?.into_iter().next() {
        Some(Err((_, code))) if code != RDKafkaErrorCode::UnknownTopicOrPartition => Err(cannot("delete", topic, code)),
        _ => Ok(()),
    }
}

fn admin(config: &ClientConfig) -> Result<AdminClient<DefaultClientContext>, Error> {
    config.create().map_err(|error| Error::failed("--brokers", error))
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(LIMIT)).operation_timeout(Some(LIMIT))
}

fn cannot(what: &str, topic: &str, why: impl fmt::Display) -> Error {
    Error::failed(format_args!("--brokers: cannot {what} the topic {topic}"), why)
}
