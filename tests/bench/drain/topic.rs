//! The topic of one run, and its consumer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::failure::Failure;
use super::servers::{Kafka, unique};

const PARTITIONS: i32 = 6;

/// A topic that only one relay publishes to.
pub(crate) struct Topic {
    name: String,
    bootstrap: String,
    client: BaseConsumer,
}

impl Topic {
    pub(crate) async fn create(kafka: &Kafka) -> Self {
        let name = unique("bench");
        kafka.create_topic(&name, PARTITIONS, &[]).await;
        let bootstrap = kafka.bootstrap();
        Self { name, client: client(&bootstrap), bootstrap }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The sum of the end offsets: how many records there are. One request.
    pub(crate) fn count(&self) -> Result<u64, Failure> {
        let asked = self.partitions(Offset::End);
        let ends = self.client.offsets_for_times(asked, Duration::from_secs(10));
        let ends = ends.map_err(|error| Failure::new(format!("end offsets of {}: {error}", self.name)))?;
        let end = |offset: Offset| match offset {
            Offset::Offset(end) => u64::try_from(end).ok(),
            _ => None,
        };
        let sum = ends.elements().iter().map(|element| end(element.offset())).sum::<Option<u64>>();
        sum.ok_or_else(|| Failure::new(format!("end offsets of {}: {ends:?}", self.name)))
    }

    /// Reads all that is and comes, until it is dropped.
    pub(crate) fn consume(&self) -> Consumer {
        let client = client(&self.bootstrap);
        client.assign(&self.partitions(Offset::Beginning)).unwrap();
        Consumer::start(client)
    }

    /// Deletes it, so that runs that follow find the same disk.
    pub(crate) async fn delete(self, kafka: &Kafka) {
        kafka.delete_topic(&self.name).await;
    }

    fn partitions(&self, offset: Offset) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition_offset(&self.name, partition, offset).unwrap();
        }
        list
    }
}

fn client(bootstrap: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "outboxd-bench")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        // A fetch is answered when its first byte is there; so this is no delay of a record.
        .set("fetch.min.bytes", "1")
        .set("fetch.wait.max.ms", "20")
        .create()
        .unwrap()
}

/// A record's value, and when it was received.
pub(crate) struct Received {
    pub(crate) at_unix: f64,
    pub(crate) value: Vec<u8>,
}

/// A consumer at work.
pub(crate) struct Consumer {
    stop: Arc<AtomicBool>,
    received: Arc<Mutex<Vec<Received>>>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    fn start(client: BaseConsumer) -> Self {
        let (stop, received) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Received>>>::default());
        let thread = std::thread::spawn({
            let (stop, received) = (stop.clone(), received.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(Ok(message)) = client.poll(Duration::from_millis(50)) else { continue };
                    let at_unix = unix_now();
                    let value = message.payload().unwrap_or_default().to_vec();
                    received.lock().unwrap().push(Received { at_unix, value });
                }
            }
        });
        Self { stop, received, thread: Some(thread) }
    }

    pub(crate) fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// Hands over what has come so far.
    pub(crate) fn take(&self) -> Vec<Received> {
        std::mem::take(&mut *self.received.lock().unwrap())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// As PostgreSQL's `extract(epoch from clock_timestamp())` has it.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
