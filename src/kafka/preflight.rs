//! What the brokers tell about themselves that decides whether a relay can publish to them: facts, judged elsewhere.
//!
//! Topics are listed all at once and never asked for by name: a broker may create a topic that is asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext};

use super::producer::ProducerSettings;

/// The brokers and all their topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// How many brokers there are.
    pub brokers: usize,
    /// All topics with their partitions.
    pub topics: BTreeMap<String, Vec<Partition>>,
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// It has a leader.
    pub has_leader: bool,
    /// How many copies it shall have.
    pub replicas: usize,
    /// How many of them are in sync.
    pub in_sync: usize,
}

/// The settings of a topic that matter here; `None` where the broker does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicConfig {
    settings: HashMap<String, String>,
}

impl TopicConfig {
    /// Of these settings.
    #[must_use]
    pub fn new(settings: HashMap<String, String>) -> Self {
        Self { settings }
    }

    /// A setting as the broker words it.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// A setting that is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }
}

/// Remembers why no broker can be reached, which the question itself does not tell.
#[derive(Default)]
struct Listener {
    reason: Arc<Mutex<Option<String>>>,
}

impl ClientContext for Listener {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        // What matters of it is among the findings.
        tracing::debug!(target: "librdkafka", facility, "{message}");
    }

    fn error(&self, _: KafkaError, reason: &str) {
        // "All brokers are down" is what follows from the first one.
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.to_owned());
    }
}

/// Nothing is ever produced; but a producer is the client that hands its errors over.
impl ProducerContext for Listener {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Clients that only ask.
pub struct Preflight {
    client: Arc<BaseProducer<Listener>>,
    admin: AdminClient<Listener>,
    reason: Arc<Mutex<Option<String>>>,
    timeout: Duration,
}

impl Preflight {
    /// Opens a client, which connects by itself.
    ///
    /// # Errors
    /// When librdkafka does not take the settings.
    pub fn new(settings: &ProducerSettings) -> Result<Self, KafkaError> {
        let listener = Listener::default();
        let reason = Arc::clone(&listener.reason);
        let config = settings.plain_config();
        let client = BaseProducer::from_config_and_context(&config, listener)?;
        let admin = AdminClient::from_config_and_context(&config, Listener::default())?;
        Ok(Self { client: Arc::new(client), admin, reason, timeout: settings.request_timeout })
    }

    /// Lists all topics.
    ///
    /// # Errors
    /// Why the brokers do not answer, in words.
    pub async fn cluster(&self) -> Result<Cluster, String> {
        let (client, timeout) = (Arc::clone(&self.client), self.timeout);
        let ask = move || {
            let answer = client.client().fetch_metadata(None, timeout);
            // What went wrong on the way waits as events.
            client.poll(Duration::from_millis(if answer.is_ok() { 0 } else { 100 }));
            answer
        };
        let answer = tokio::task::spawn_blocking(ask).await.map_err(|error| error.to_string())?;
        answer.map(|metadata| cluster(&metadata)).map_err(|error| {
            let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            reason.clone().unwrap_or_else(|| error.to_string())
        })
    }

    /// The settings of these topics, in their order.
    ///
    /// # Errors
    /// When the brokers do not answer.
    pub async fn configs(&self, topics: &[String]) -> Result<Vec<Result<TopicConfig, RDKafkaErrorCode>>, KafkaError> {
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let resources: Vec<_> = topics.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let answers = self.admin.describe_configs(&resources, &options).await?;
        Ok(answers.into_iter().map(|answer| answer.map(config)).collect())
    }
}

fn cluster(metadata: &Metadata) -> Cluster {
    let partitions = |topic: &MetadataTopic| {
        let partition = |partition: &rdkafka::metadata::MetadataPartition| Partition {
            has_leader: partition.leader() >= 0,
            replicas: partition.replicas().len(),
            in_sync: partition.isr().len(),
        };
        topic.partitions().iter().map(partition).collect()
    };
    let topics = metadata.topics().iter().filter(|topic| topic.error().is_none());
    Cluster {
        brokers: metadata.brokers().len(),
        topics: topics.map(|topic| (topic.name().to_owned(), partitions(topic))).collect(),
    }
}

fn config(resource: ConfigResource) -> TopicConfig {
    let entries = resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?)));
    TopicConfig::new(entries.collect())
}
