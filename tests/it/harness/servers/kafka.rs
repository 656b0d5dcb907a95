//! A Kafka broker that creates no topics by itself.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::metadata::Metadata;

use super::container::Container;
use super::machine::{Machine, Recipe};
use super::process::Process;
use super::session::{free_port, session};
use super::wait::until;
use super::{Kind, kind};

/// How long a start or a change of topics may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A Kafka broker, its own controller. It keeps its port and its data over all its lives and vanishes when it is dropped.
pub(crate) struct Kafka {
    machine: Box<dyn Machine>,
    port: u16,
}

impl Kafka {
    /// Starts a broker and waits until it serves clients.
    pub(crate) async fn start() -> Self {
        Self::start_as(kind().await, &[]).await
    }

    /// Starts a broker as a process, also when servers are containers by default.
    pub(crate) async fn start_process() -> Self {
        Self::start_process_with(&[]).await
    }

    /// Starts a broker as a process, with variables in place of those of the tests.
    pub(crate) async fn start_process_with(variables: &[(&str, &str)]) -> Self {
        Self::start_as(Kind::Processes, variables).await
    }

    async fn start_as(kind: Kind, variables: &[(&str, &str)]) -> Self {
        let recipe = variables.iter().fold(recipe(kind), |recipe, (name, value)| recipe.with_variable(name, *value));
        let port = recipe.port;
        let machine: Box<dyn Machine> = match kind {
            Kind::Containers => Box::new(Container::boot(recipe).await),
            Kind::Processes => Box::new(Process::boot(recipe, session().new_folder("kafka"))),
        };
        let broker = Self { machine, port };
        broker.ready().await;
        broker
    }

    /// The address that clients begin with; it stays the same.
    pub(crate) fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Freezes the broker: connections stay open, and nothing is answered.
    pub(crate) async fn pause(&self) {
        self.machine.pause().await;
    }

    /// Lets a paused broker go on.
    pub(crate) async fn unpause(&self) {
        self.machine.unpause().await;
    }

    /// Kills the broker, as a crash does.
    pub(crate) async fn kill(&self) {
        self.machine.kill().await;
    }

    /// Starts the killed broker on the same port and data, and waits until all its partitions have a leader again.
    pub(crate) async fn start_again(&self) {
        self.machine.start().await;
        self.ready().await;
    }

    /// Whether the broker's process exists, paused or not.
    pub(crate) async fn is_running(&self) -> bool {
        self.machine.is_running().await
    }

    /// Creates a topic with settings of its own (such as `max.message.bytes`), and waits until clients can use it.
    pub(crate) async fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topic = config.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let results = self.admin().create_topics([&topic], &AdminOptions::new()).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "topic {name}: {results:?}");
        let expected = usize::try_from(partitions).unwrap();
        self.until_metadata(&format!("topic {name}"), Some(name), move |metadata| {
            metadata.topics().iter().all(|topic| topic.partitions().len() == expected) && all_led(metadata)
        })
        .await;
    }

    /// Gives a topic more partitions, and waits until clients can use them.
    pub(crate) async fn create_partitions(&self, name: &str, partitions: i32) {
        let expected = usize::try_from(partitions).unwrap();
        let more = NewPartitions::new(name, expected);
        let results = self.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "topic {name}: {results:?}");
        self.until_metadata(&format!("topic {name}"), Some(name), move |metadata| {
            metadata.topics().iter().all(|topic| topic.partitions().len() == expected) && all_led(metadata)
        })
        .await;
    }

    /// Changes settings of a topic.
    pub(crate) async fn alter_topic(&self, name: &str, config: &[(&str, &str)]) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name));
        let change = config.iter().fold(change, |change, (name, value)| change.set(name, value));
        let results = self.admin().alter_configs([&change], &AdminOptions::new()).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "topic {name}: {results:?}");
    }

    /// Deletes a topic, and waits until the broker does not know it any more.
    pub(crate) async fn delete_topic(&self, name: &str) {
        let results = self.admin().delete_topics(&[name], &AdminOptions::new()).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "topic {name}: {results:?}");
        let gone = name.to_owned();
        self.until_metadata(&format!("the end of topic {name}"), None, move |metadata| {
            metadata.topics().iter().all(|topic| topic.name() != gone)
        })
        .await;
    }

    /// Waits until the broker knows no topic whose name begins with this.
    pub(crate) async fn no_topic_begins_with(&self, prefix: &str) {
        let gone = prefix.to_owned();
        self.until_metadata(&format!("the end of topics {prefix}..."), None, move |metadata| {
            metadata.topics().iter().all(|topic| !topic.name().starts_with(&gone))
        })
        .await;
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client_config().create().unwrap()
    }

    fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap()).set("reconnect.backoff.max.ms", "250");
        // A broker that is not there yet is no news.
        config.set("log_level", "0");
        config
    }

    async fn ready(&self) {
        self.until_metadata("Kafka to serve clients", None, |metadata| {
            !metadata.brokers().is_empty() && all_led(metadata)
        })
        .await;
    }

    /// Waits until the description of a topic, or of all, is as wished.
    async fn until_metadata(
        &self,
        what: &str,
        topic: Option<&str>,
        wished: impl Fn(&Metadata) -> bool + Clone + Send + 'static,
    ) {
        let client: std::sync::Arc<BaseConsumer> = std::sync::Arc::new(self.client_config().create().unwrap());
        until(what, PATIENCE, || async {
            let (client, topic, wished) = (client.clone(), topic.map(str::to_owned), wished.clone());
            let fetch = move || {
                client.fetch_metadata(topic.as_deref(), Duration::from_millis(500)).map(|metadata| wished(&metadata))
            };
            let answer = tokio::task::spawn_blocking(fetch).await.unwrap();
            if answer.is_err() && !self.is_running().await {
                panic!("Kafka ended while waiting for {what}:\n{}", self.machine.log().await);
            }
            match answer {
                Ok(true) => Ok(()),
                Ok(false) => Err("not yet".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }
}

fn all_led(metadata: &Metadata) -> bool {
    let mut topics = metadata.topics().iter();
    topics.all(|topic| topic.error().is_none() && topic.partitions().iter().all(|partition| partition.leader() >= 0))
}

fn recipe(kind: Kind) -> Recipe {
    let (port, controller) = (free_port(), free_port());
    let (listen, data) = match kind {
        Kind::Containers => ("0.0.0.0", "/tmp/kafka/data"),
        // In the server's own folder.
        Kind::Processes => ("127.0.0.1", "data"),
    };
    let recipe = Recipe {
        image: ("apache/kafka", "4.1.1".to_owned()),
        package: ("kafka".to_owned(), "run"),
        variables: vec![],
        arguments: vec![],
        port,
    };
    let recipe = match kind {
        Kind::Containers => recipe,
        Kind::Processes => recipe.with_variable("KAFKA_HOME", super::session::package("kafka").to_str().unwrap()),
    };
    let variables = [
        ("KAFKA_NODE_ID", "1"),
        ("KAFKA_PROCESS_ROLES", "broker,controller"),
        ("KAFKA_LISTENERS", &format!("PLAINTEXT://{listen}:{port},CONTROLLER://127.0.0.1:{controller}")),
        ("KAFKA_ADVERTISED_LISTENERS", &format!("PLAINTEXT://127.0.0.1:{port}")),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER"),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", &format!("1@127.0.0.1:{controller}")),
        ("KAFKA_LOG_DIRS", data),
        ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false"),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1"),
        ("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "1"),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
        // A broker that was killed is not let in again before its old session has timed out, by default after 9 s.
        ("KAFKA_BROKER_SESSION_TIMEOUT_MS", "1000"),
        ("KAFKA_BROKER_HEARTBEAT_INTERVAL_MS", "250"),
        ("KAFKA_HEAP_OPTS", "-Xms128m -Xmx512m"),
        ("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"),
    ];
    variables.into_iter().fold(recipe, |recipe, (name, value)| recipe.with_variable(name, value))
}
