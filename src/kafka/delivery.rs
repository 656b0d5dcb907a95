//! Delivery reports, gathered on librdkafka's thread and handed to the loop in batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::Notify;

/// Which producer a report comes from; every new one counts one up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// What a producer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every in-sync replica has the record with this tag.
    Acknowledged(u64),
    /// The record with this tag was not acknowledged.
    Refused(u64, RDKafkaErrorCode),
    /// The producer itself is of no more use.
    Fatal(RDKafkaErrorCode),
}

/// One report of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The producer's generation.
    pub generation: Generation,
    /// What it reports.
    pub outcome: Outcome,
}

#[derive(Default)]
struct Shared {
    reports: Mutex<Vec<Report>>,
    arrived: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Report>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of reports between librdkafka's thread and the loop. It is bounded by what the window lets be produced.
#[derive(Clone, Default)]
pub struct Deliveries(Arc<Shared>);

impl Deliveries {
    /// Waits until there are reports. Cancel-safe.
    pub async fn wait(&self) {
        while self.0.lock().is_empty() {
            self.0.arrived.notified().await;
        }
    }

    /// Swaps the reports that have come for the (empty) `batch`, so that both vectors keep their memory.
    pub fn take(&self, batch: &mut Vec<Report>) {
        batch.clear();
        std::mem::swap(&mut *self.0.lock(), batch);
    }

    /// Adds a report, as a producer does.
    pub fn push(&self, report: Report) {
        let mut reports = self.0.lock();
        // Whoever waits was woken by the first report and takes all that have come by then.
        let is_first = reports.is_empty();
        reports.push(report);
        drop(reports);
        if is_first {
            self.0.arrived.notify_one();
        }
    }
}

/// What librdkafka calls back into: one for each producer.
pub struct Reporter {
    generation: Generation,
    deliveries: Deliveries,
}

impl Reporter {
    pub(super) const fn new(generation: Generation, deliveries: Deliveries) -> Self {
        Self { generation, deliveries }
    }

    fn report(&self, outcome: Outcome) {
        self.deliveries.push(Report { generation: self.generation, outcome });
    }
}

impl ProducerContext for Reporter {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        let tag = tag as u64;
        self.report(match result {
            // librdkafka takes "duplicate sequence" for a success and then knows no offset. A partition that was created again
            // says it of records that it never had, so it proves nothing, and a repeat is better than a loss.
            Ok(message) if message.offset() < 0 => Outcome::Refused(tag, RDKafkaErrorCode::DuplicateSequenceNumber),
            Ok(_) => Outcome::Acknowledged(tag),
            Err((error, _)) => Outcome::Refused(tag, error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        });
    }
}

impl ClientContext for Reporter {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        if code == RDKafkaErrorCode::Fatal {
            self.report(Outcome::Fatal(code));
        }
        // It follows from what was told of each broker, comes with every attempt, and the watch over the topics says it once.
        if code == RDKafkaErrorCode::AllBrokersDown {
            tracing::debug!(target: "outboxd::kafka", "{reason}");
            return;
        }
        tracing::warn!(target: "outboxd::kafka", code = %code, "{reason}");
    }
}

/// librdkafka's log lines, by its level. It never logs what a record contains.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    // That this setting is experimental is known, and it is only a belt. A connection that failed is told by the error
    // callback as well.
    let is_known = facility == "CONFWARN" && message.contains("enable.gapless.guarantee");
    if is_known || facility == "FAIL" {
        tracing::debug!(target: "librdkafka", facility, "{message}");
        return;
    }
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::warn!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice => {
            tracing::info!(target: "librdkafka", facility, "{message}");
        }
        RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        }
    }
}
