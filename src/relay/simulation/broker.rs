//! A model of the brokers: partitions that take batches in sequence, by Kafka's rules for idempotent producers.

use std::time::Duration;

use super::ledger::{Guilt, Landing, Ledger, PARTITIONS};

/// An idle producer is forgotten by a partition (`producer.id.expiration.ms`, a day).
const EXPIRATION: Duration = Duration::from_secs(24 * 3600);

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Landed,
    /// A record in it is refused, and with it the batch.
    Invalid,
    /// Its first sequence number is not the next one.
    OutOfOrder,
    /// The broker had some trouble of its own.
    Trouble,
}

#[derive(Debug)]
struct KnownProducer {
    id: u32,
    next: u32,
    at: Duration,
}

#[derive(Debug, Default)]
struct Partition {
    log: Vec<u32>,
    producers: Vec<KnownProducer>,
}

/// The brokers.
#[derive(Debug, Default)]
pub(super) struct Broker {
    partitions: [Partition; PARTITIONS],
}

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) partition: usize,
    pub(super) producer: u32,
    /// The sequence number of its first record.
    pub(super) first: u32,
    pub(super) count: usize,
    pub(super) landing: Landing,
}

impl Broker {
    pub(super) fn log(&self, partition: usize) -> &[u32] {
        &self.partitions[partition].log
    }

    /// A batch arrives. A producer id that the partition does not know may begin with any sequence number.
    pub(super) fn append(
        &mut self,
        request: Request,
        rows: impl Iterator<Item = u32> + Clone,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Fate {
        let Partition { log, producers } = &mut self.partitions[request.partition];
        producers.retain(|known| now.saturating_sub(known.at) < EXPIRATION);
        let known = producers.iter_mut().find(|known| known.id == request.producer);
        if known.as_ref().is_some_and(|known| known.next != request.first) {
            return Fate::OutOfOrder;
        }
        if rows.clone().any(|row| ledger.row(row).guilt == Guilt::AtBroker) {
            return Fate::Invalid;
        }
        for row in rows {
            ledger.land(row, request.landing);
            log.push(row);
        }
        let next = request.first + u32::try_from(request.count).unwrap();
        match known {
            Some(known) => (known.next, known.at) = (next, now),
            None => producers.push(KnownProducer { id: request.producer, next, at: now }),
        }
        Fate::Landed
    }
}
