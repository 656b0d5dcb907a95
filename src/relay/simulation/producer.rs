//! A model of librdkafka: queues, batches in flight, and reports that come late, or only when it is destroyed.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::broker::{Broker, Fate, Request};
use super::ledger::{Guilt, Landing, Ledger, PARTITIONS};

/// Requests in flight for a partition.
const FLYING_MAX: usize = 5;

/// A record with the tag that comes back in its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) tag: u64,
    pub(super) row: u32,
}

/// A delivery report, or an event of the producer as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Acknowledged(Record),
    Refused(Record, Code),
    Fatal,
}

#[derive(Debug)]
struct Batch {
    count: usize,
    first: u32,
    fate: Option<Fate>,
}

/// What is on its way to a partition: first the records of the batches in flight, then those that wait.
#[derive(Debug, Default)]
struct Outbound {
    records: VecDeque<Record>,
    batches: VecDeque<Batch>,
    flying: usize,
    sequence: u32,
}

/// One producer, with an id of its own.
#[derive(Debug)]
pub(super) struct Producer {
    pub(super) id: u32,
    /// The life of the relay that it belongs to.
    life: u32,
    outbound: [Outbound; PARTITIONS],
    queued: usize,
    queue_max: usize,
    batch_max: usize,
    is_broken: bool,
    /// Its successor is at work.
    pub(super) is_late: bool,
}

impl Producer {
    pub(super) fn new(id: u32, life: u32, queue_max: usize, batch_max: usize) -> Self {
        Self {
            id,
            life,
            outbound: Default::default(),
            queued: 0,
            queue_max,
            batch_max,
            is_broken: false,
            is_late: false,
        }
    }

    /// Takes a record; else the error.
    pub(super) fn send(&mut self, partition: usize, record: Record, guilt: Guilt) -> Result<(), Code> {
        if self.is_broken {
            return Err(Code::Fatal);
        }
        if guilt == Guilt::AtSending {
            return Err(Code::MessageSizeTooLarge);
        }
        if self.queued >= self.queue_max {
            return Err(Code::QueueFull);
        }
        self.queued += 1;
        self.outbound[partition].records.push_back(record);
        Ok(())
    }

    /// A batch for the partition leaves.
    pub(super) fn transmit(&mut self, partition: usize, rng: &mut Rng) {
        let outbound = &mut self.outbound[partition];
        let waiting = outbound.records.len() - outbound.flying;
        if waiting == 0 || outbound.batches.len() >= FLYING_MAX || self.is_broken {
            return;
        }
        let count = rng.usize(1..=waiting.min(self.batch_max));
        outbound.batches.push_back(Batch { count, first: outbound.sequence, fate: None });
        outbound.flying += count;
        outbound.sequence += u32::try_from(count).unwrap();
    }

    /// The broker gets the first batch that it has not got yet. `trouble`: it has some of its own.
    pub(super) fn arrive(
        &mut self,
        partition: usize,
        broker: &mut Broker,
        ledger: &mut Ledger,
        (now, confirmed, trouble): (Duration, crate::postgres::Lsn, bool),
    ) {
        let Outbound { records, batches, .. } = &mut self.outbound[partition];
        let mut skip = 0;
        let Some(batch) = batches.iter_mut().find(|batch| {
            skip += if batch.fate.is_some() { batch.count } else { 0 };
            batch.fate.is_none()
        }) else {
            return;
        };
        if trouble {
            batch.fate = Some(Fate::Trouble);
            return;
        }
        let landing = Landing { life: self.life, is_late: self.is_late, confirmed };
        let request = Request { partition, producer: self.id, first: batch.first, count: batch.count, landing };
        let rows = records.range(skip..skip + batch.count).map(|record| record.row);
        batch.fate = Some(broker.append(request, rows, now, ledger));
    }

    /// The response to the oldest batch comes, if the broker has given it.
    pub(super) fn respond(&mut self, partition: usize, ledger: &Ledger, reports: &mut Vec<Outcome>) {
        let outbound = &mut self.outbound[partition];
        let Some(fate) = outbound.batches.front().and_then(|batch| batch.fate) else { return };
        let Some(batch) = outbound.batches.pop_front() else { return };
        outbound.flying -= batch.count;
        self.queued -= batch.count;
        for record in outbound.records.drain(..batch.count) {
            let is_guilty = ledger.row(record.row).guilt == Guilt::AtBroker;
            reports.push(match fate {
                Fate::Landed => Outcome::Acknowledged(record),
                Fate::Invalid if is_guilty => Outcome::Refused(record, Code::InvalidRecord),
                // Old brokers fail every record of the batch in the same way.
                Fate::Invalid if self.id.is_multiple_of(2) => Outcome::Refused(record, Code::InvalidRecord),
                Fate::Invalid => Outcome::Refused(record, Code::InvalidDifferentRecord),
                Fate::OutOfOrder => Outcome::Refused(record, Code::OutOfOrderSequenceNumber),
                Fate::Trouble => Outcome::Refused(record, Code::KafkaStorageError),
            });
        }
    }

    /// A fatal error: nothing more is taken or sent; what is in flight may still arrive.
    pub(super) fn break_down(&mut self, reports: &mut Vec<Outcome>) {
        if !self.is_broken {
            self.is_broken = true;
            reports.push(Outcome::Fatal);
        }
    }

    /// Takes back what is not in flight.
    pub(super) fn purge_queue(&mut self, reports: &mut Vec<Outcome>) {
        for outbound in &mut self.outbound {
            self.queued -= outbound.records.len() - outbound.flying;
            let purged = outbound.records.drain(outbound.flying..);
            reports.extend(purged.map(|record| Outcome::Refused(record, Code::PurgeQueue)));
        }
    }

    /// The producer is destroyed: what is in flight is reported as purged, and may land all the same.
    pub(super) fn purge_flying(&self, reports: &mut Vec<Outcome>) {
        let flying = self.outbound.iter().flat_map(|outbound| outbound.records.range(..outbound.flying));
        reports.extend(flying.map(|record| Outcome::Refused(*record, Code::PurgeInflight)));
    }

    /// Nothing of it is in flight any more.
    pub(super) fn is_spent(&self) -> bool {
        self.outbound.iter().all(|outbound| outbound.batches.iter().all(|batch| batch.fate.is_some()))
    }
}
