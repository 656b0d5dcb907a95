//! A consumer: reads a topic from its beginning and writes down in the ledger what it saw.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, Message, OwnedMessage};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::ledger::{Ledger, Seen};

/// A consumer at work. It follows a topic over restarts of the broker; it is in no group.
pub(crate) struct Consumer {
    stop: Arc<AtomicBool>,
    records: Arc<Mutex<Vec<OwnedMessage>>>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Reads all partitions of the topic. Records that the writer's payload is not in are kept, and are not in the ledger.
    pub(crate) fn start(bootstrap: &str, topic: &str, partitions: i32, ledger: &Arc<Mutex<Ledger>>) -> Self {
        let (stop, records) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<OwnedMessage>>>::default());
        let next = vec![Offset::Beginning; partitions as usize];
        let mut reader = Reader::new(bootstrap, topic, next);
        let thread = std::thread::spawn({
            let (stop, records, ledger) = (stop.clone(), records.clone(), ledger.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(message) = reader.next() else { continue };
                    if let Some(seen) = seen(&message) {
                        ledger.lock().unwrap().see(seen);
                    }
                    records.lock().unwrap().push(message);
                }
            }
        });
        Self { stop, records, thread: Some(thread) }
    }

    /// All records so far, in the order of arrival.
    pub(crate) fn records(&self) -> Vec<OwnedMessage> {
        self.records.lock().unwrap().clone()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.records.lock().unwrap().len()
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

/// The consumer with the offsets that it reads next.
struct Reader {
    consumer: BaseConsumer,
    bootstrap: String,
    topic: String,
    next: Vec<Offset>,
    idle_since: Instant,
}

/// After so long without a record a new client takes over. A broker that was frozen can leave a fetch without an answer, and
/// a single broker that was fenced for a moment is in no metadata, after which librdkafka may never look for it again.
const ANEW: Duration = Duration::from_secs(3);

impl Reader {
    fn new(bootstrap: &str, topic: &str, next: Vec<Offset>) -> Self {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("group.id", "outboxd-tests")
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "50")
            .set("reconnect.backoff.max.ms", "250")
            .set("topic.metadata.refresh.interval.ms", "1000")
            .set("log_level", "0")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        for (partition, offset) in (0..).zip(&next) {
            assignment.add_partition_offset(topic, partition, *offset).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        Self { consumer, bootstrap: bootstrap.to_owned(), topic: topic.to_owned(), next, idle_since: Instant::now() }
    }

    /// The next record, if one comes soon. Errors pass: the broker may be away.
    fn next(&mut self) -> Option<OwnedMessage> {
        let message =
            self.consumer.poll(Duration::from_millis(50)).and_then(Result::ok).map(|message| message.detach());
        if let Some(message) = &message {
            self.next[message.partition() as usize] = Offset::Offset(message.offset() + 1);
            self.idle_since = Instant::now();
        } else if self.idle_since.elapsed() >= ANEW {
            *self = Self::new(&self.bootstrap, &self.topic, self.next.clone());
        }
        message
    }
}

/// The value of a header as text.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = headers.iter().find(|header| header.key == name)?;
    Some(String::from_utf8(found.value?.to_vec()).unwrap())
}

fn seen(message: &OwnedMessage) -> Option<Seen> {
    let payload: serde_json::Value = serde_json::from_slice(message.payload()?).ok()?;
    Some(Seen {
        id: header(message, "id")?,
        key: payload.get("key")?.as_str()?.to_owned(),
        seq: payload.get("seq")?.as_u64()?,
        position: header(message, "outboxd_position")?,
    })
}
