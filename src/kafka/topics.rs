//! What is known of the topics in use: partitions and size limits, looked up beside the loop and refreshed.
//!
//! Topics are listed all at once and never asked for by name: a broker may create a topic that is asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataTopic;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::creation::NewTopics;
use super::delivery::log;
use super::producer::ProducerSettings;

/// Kafka's default of `max.message.bytes`, where the broker does not tell.
const MESSAGE_BYTES_DEFAULT: usize = 1_048_588;

/// How often a topic that is missing is looked for.
const MISSING_RETRY: Duration = Duration::from_millis(500);

/// A topic as the brokers last described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic {
    /// How many partitions it has.
    pub partitions: u32,
    /// Its `max.message.bytes`.
    pub message_bytes_max: usize,
    /// Its `cleanup.policy` has `compact`: it takes no record without a key.
    pub is_compacted: bool,
}

/// What is known of the topics in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    topics: HashMap<String, Topic>,
    missing: BTreeSet<String>,
    failure: Option<String>,
    /// When the brokers last answered, with a leader for every partition in use.
    healthy_at: Option<Instant>,
}

impl Directory {
    /// The topic, if the brokers have (or had) it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Topic> {
        self.topics.get(name).copied()
    }

    /// The brokers were asked and do not have this topic in use.
    #[must_use]
    pub fn is_missing(&self, name: &str) -> bool {
        self.missing.contains(name)
    }

    /// All topics in use that the brokers do not have.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().map(String::as_str)
    }

    /// Why the brokers could not be asked, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// When the brokers last answered and every partition in use had a leader.
    #[must_use]
    pub const fn healthy_at(&self) -> Option<Instant> {
        self.healthy_at
    }

    /// The size limits of the topics in use.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let limits = || self.topics.values().map(|topic| topic.message_bytes_max);
        match (limits().min(), limits().max()) {
            (Some(smallest), Some(largest)) => Sizes { smallest, largest },
            _ => Sizes::default(),
        }
    }
}

/// The smallest and the largest `max.message.bytes` of the topics in use. A broker checks a whole batch against it, so the
/// smallest bounds a batch; a record of its own may be as large as the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bounds a batch.
    pub smallest: usize,
    /// Bounds a record.
    pub largest: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { smallest: MESSAGE_BYTES_DEFAULT, largest: MESSAGE_BYTES_DEFAULT }
    }
}

impl Sizes {
    /// A producer made for these sizes serves topics with `needed` ones.
    #[must_use]
    pub const fn serves(self, needed: Self) -> bool {
        self.smallest <= needed.smallest && self.largest >= needed.largest
    }
}

struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        // The producer's own client reports the same trouble, loudly.
        tracing::debug!(target: "outboxd::kafka", "{reason}");
    }
}

/// The loop's end of the lookup.
pub struct Topics {
    wanted: mpsc::UnboundedSender<String>,
    directory: watch::Receiver<Arc<Directory>>,
}

impl Topics {
    /// Begins to watch, with a first question at once: brokers that do not answer are to be told before the first event.
    ///
    /// # Errors
    /// When librdkafka does not take the settings.
    pub fn watch(
        settings: &ProducerSettings,
        refresh: Duration,
        new_topics: Option<NewTopics>,
    ) -> Result<Self, KafkaError> {
        let mut config = settings.plain_config();
        config.set("topic.metadata.refresh.interval.ms", "-1");
        let client = AdminClient::from_config_and_context(&config, Quiet)?;
        let (wanted, requests) = mpsc::unbounded_channel();
        let (publish, directory) = watch::channel(Arc::new(Directory::default()));
        let timeout = settings.request_timeout;
        tokio::spawn(Watcher { client: Arc::new(client), publish, timeout, refresh, new_topics }.run(requests));
        Ok(Self { wanted, directory })
    }

    /// From now on this topic is in use. Each name is asked for once by the loop, so what waits is bounded by the topics.
    pub fn want(&self, name: &str) {
        // Fails only when the watcher has ended, which it does with this handle.
        let _ = self.wanted.send(name.to_owned());
    }

    /// Asks the brokers again, soon.
    pub fn look(&self) {
        if let Some(name) = self.directory.borrow().topics.keys().next() {
            self.want(name);
        }
    }

    /// What is known now.
    #[must_use]
    pub fn directory(&mut self) -> Arc<Directory> {
        self.directory.borrow_and_update().clone()
    }

    /// Waits until more is known. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.directory.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A topic in the list of all.
struct Listed {
    partitions: u32,
    has_leaders: bool,
}

struct Watcher {
    client: Arc<AdminClient<Quiet>>,
    publish: watch::Sender<Arc<Directory>>,
    timeout: Duration,
    refresh: Duration,
    new_topics: Option<NewTopics>,
}

impl Watcher {
    /// Asks at once, at once for a topic that is new, and again and again for all of them; ends with the loop's handle.
    async fn run(self, mut requests: mpsc::UnboundedReceiver<String>) {
        let mut in_use = BTreeSet::new();
        let mut ask_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                name = requests.recv() => match name {
                    Some(name) => {
                        in_use.insert(name);
                        ask_at = Instant::now();
                    }
                    None => return,
                },
                () = tokio::time::sleep_until(ask_at) => {
                    self.ask(&in_use).await;
                    ask_at = Instant::now() + self.pause();
                }
            }
        }
    }

    /// Until the next question: short while an answer is missing.
    fn pause(&self) -> Duration {
        let directory = self.publish.borrow();
        let incomplete = directory.failure.is_some() || !directory.missing.is_empty();
        if incomplete { MISSING_RETRY.min(self.refresh) } else { self.refresh }
    }

    async fn ask(&self, in_use: &BTreeSet<String>) {
        let mut directory = Directory::clone(&self.publish.borrow());
        match self.partitions().await {
            Ok(all) => {
                directory.failure = None;
                directory.missing = in_use.iter().filter(|name| !all.contains_key(*name)).cloned().collect();
                self.create(&directory).await;
                let present: Vec<&String> = in_use.iter().filter(|name| all.contains_key(*name)).collect();
                if present.iter().all(|name| all.get(*name).is_some_and(|listed| listed.has_leaders)) {
                    directory.healthy_at = Some(Instant::now());
                }
                let configs = self.configs(&present).await;
                for name in present {
                    let partitions = all.get(name).map_or(0, |listed| listed.partitions);
                    let before = directory.topics.get(name).copied();
                    let message_bytes_max = before.map_or(MESSAGE_BYTES_DEFAULT, |topic| topic.message_bytes_max);
                    let is_compacted = before.is_some_and(|topic| topic.is_compacted);
                    let topic = Topic { partitions, message_bytes_max, is_compacted };
                    let topic = configs.get(name).map_or(topic, |config| with_config(topic, config));
                    directory.topics.insert(name.clone(), topic);
                }
            }
            Err(error) => directory.failure = Some(error),
        }
        self.publish.send_if_modified(|published| {
            // That nothing has changed is no news.
            let is_news = Directory { healthy_at: published.healthy_at, ..directory.clone() } != **published;
            *published = Arc::new(directory);
            is_news
        });
    }

    /// Makes what is missing, if that is wanted. Not what was there before: somebody has deleted it.
    async fn create(&self, directory: &Directory) {
        let Some(new_topics) = self.new_topics else { return };
        let names: Vec<&str> = directory.missing().filter(|name| directory.get(name).is_none()).collect();
        if !names.is_empty() {
            new_topics.create(&self.client, &names, self.timeout).await;
        }
    }

    /// All topics with their partitions. A topic that is being created or deleted has none and is left out.
    async fn partitions(&self) -> Result<BTreeMap<String, Listed>, String> {
        let (client, timeout) = (Arc::clone(&self.client), self.timeout);
        let ask = move || client.inner().fetch_metadata(None, timeout);
        let metadata = match tokio::task::spawn_blocking(ask).await {
            Ok(answer) => answer.map_err(|error| error.to_string())?,
            Err(error) => return Err(error.to_string()),
        };
        let topics = metadata.topics().iter().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
        let listed = |topic: &MetadataTopic| Listed {
            partitions: u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX),
            has_leaders: topic.partitions().iter().all(|partition| partition.leader() >= 0),
        };
        Ok(topics.map(|topic| (topic.name().to_owned(), listed(topic))).collect())
    }

    /// The configuration of each; left out where the broker does not tell (it may not be allowed to us).
    async fn configs(&self, names: &[&String]) -> HashMap<String, ConfigResource> {
        if names.is_empty() {
            return HashMap::new();
        }
        let resources: Vec<_> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        let described = self.client.describe_configs(&resources, &options).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read max.message.bytes of the topics; assuming what is known or Kafka's default");
            Vec::new()
        });
        let described = names.iter().zip(described).filter_map(|(name, config)| match config {
            Ok(config) => Some(((*name).clone(), config)),
            Err(code) => {
                tracing::warn!(
                    topic = name,
                    %code,
                    "cannot read max.message.bytes; assuming what is known or Kafka's default"
                );
                None
            }
        });
        described.collect()
    }
}

/// The topic with what its configuration says.
fn with_config(topic: Topic, config: &ConfigResource) -> Topic {
    let value = |name: &str| config.get(name).and_then(|entry| entry.value.as_deref());
    let limit = value("max.message.bytes").and_then(|text| text.parse().ok());
    let is_compacted = value("cleanup.policy").map(|policy| policy.split(',').any(|word| word.trim() == "compact"));
    Topic {
        message_bytes_max: limit.unwrap_or(topic.message_bytes_max),
        is_compacted: is_compacted.unwrap_or(topic.is_compacted),
        ..topic
    }
}
