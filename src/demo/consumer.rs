//! A consumer: reads the topic from its beginning and writes down in the ledger what it sees.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::error::Error;
use super::ledger::{Ledger, Seen};
use super::locked;
use crate::outbox::header::{HEADER_ID, HEADER_POSITION};

/// How long the brokers may take to say where the topic ends, and to hand out what is before that.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A consumer at work, on a thread of its own; it is in no group.
pub(super) struct Consumer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), String>>,
}

impl Consumer {
    /// Begins to read all partitions of the topic.
    pub(super) fn start(
        mut config: ClientConfig,
        topic: &str,
        partitions: i32,
        ledger: Arc<Mutex<Ledger>>,
    ) -> Result<Self, Error> {
        config
            .set("group.id", topic)
            .set("enable.auto.commit", "false")
            // A broker that has forgotten what was not read yet must not pass for a loss.
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", "50");
        let consumer = assigned(&config, topic, partitions).map_err(|error| Error::failed("the consumer", error))?;
        let (stop, topic) = (Arc::<AtomicBool>::default(), topic.to_owned());
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    read_one(&consumer, &ledger)?;
                }
                read_to_end(&consumer, &topic, partitions, &ledger)
            }
        });
        Ok(Self { stop, thread })
    }

    /// Whether it ended because it could not go on.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Reads what the topic has now, to its end.
    pub(super) async fn finish(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        match tokio::task::spawn_blocking(move || self.thread.join()).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Error::failed("the consumer", error)),
            Ok(Err(_)) | Err(_) => Err(Error::Failed("the consumer's thread broke".to_owned())),
        }
    }
}

fn assigned(config: &ClientConfig, topic: &str, partitions: i32) -> KafkaResult<BaseConsumer> {
    let consumer: BaseConsumer = config.create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    Ok(consumer)
}

fn read_one(consumer: &BaseConsumer, ledger: &Mutex<Ledger>) -> Result<(), String> {
    match consumer.poll(Duration::from_millis(20)) {
        Some(Ok(message)) => {
            let seen = seen(&message).ok_or("a record came that the demo has not written; is the topic its own?")?;
            locked(ledger).see(seen);
        }
        Some(Err(error)) if is_final(&error) => return Err(error.to_string()),
        // Others pass: librdkafka connects again by itself.
        Some(Err(_)) | None => {}
    }
    Ok(())
}

fn is_final(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    code == Some(RDKafkaErrorCode::AutoOffsetReset) || code == Some(RDKafkaErrorCode::Fatal)
}

fn read_to_end(consumer: &BaseConsumer, topic: &str, partitions: i32, ledger: &Mutex<Ledger>) -> Result<(), String> {
    for partition in 0..partitions {
        let (_, end) = consumer.fetch_watermarks(topic, partition, END_LIMIT).map_err(|error| error.to_string())?;
        let until = Instant::now() + END_LIMIT;
        while position(consumer, topic, partition) < end {
            if Instant::now() >= until {
                return Err(format!("the end of partition {partition} of {topic} does not come"));
            }
            read_one(consumer, ledger)?;
        }
    }
    Ok(())
}

/// The offset after the last record that was read.
fn position(consumer: &BaseConsumer, topic: &str, partition: i32) -> i64 {
    let offset = |list: TopicPartitionList| list.find_partition(topic, partition).map(|element| element.offset());
    match consumer.position().ok().and_then(offset) {
        Some(Offset::Offset(offset)) => offset,
        _ => 0,
    }
}

fn seen(message: &BorrowedMessage<'_>) -> Option<Seen> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let headers = message.headers()?;
    let header = |name| headers.iter().find(|header| header.key == name).and_then(|header| text(header.value?));
    let payload: serde_json::Value = serde_json::from_slice(message.payload()?).ok()?;
    Some(Seen {
        id: header(HEADER_ID)?,
        key: text(message.key()?)?,
        seq: payload.get("version")?.as_u64()?,
        position: header(HEADER_POSITION)?,
    })
}
