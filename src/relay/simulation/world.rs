//! Everything around the relay: the servers, the producers that are gone and may still land something, time and chance.

use std::time::Duration;

use fastrand::Rng;

use super::broker::Broker;
use super::ledger::{Ledger, PARTITIONS};
use super::producer::{Outcome, Producer};
use super::server::Server;
use super::trace::Trace;
use crate::relay::limits::Limits;

/// The world of one history.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) rng: Rng,
    pub(super) trace: Trace,
    pub(super) server: Server,
    pub(super) broker: Broker,
    pub(super) ledger: Ledger,
    pub(super) limits: Limits,
    /// Producers that were destroyed, or whose process was killed, with requests in flight.
    ghosts: Vec<Producer>,
    next_producer: u32,
    next_life: u32,
    queue_max: usize,
    batch_max: usize,
    /// Requests of a producer may land even when its successor is at work.
    allows_late: bool,
    /// Nothing answers from these partitions.
    pub(super) is_stuck: [bool; PARTITIONS],
    /// Everything has healed.
    pub(super) is_quiet: bool,
}

impl World {
    pub(super) fn new(seed: u64, is_printed: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits =
            Limits { window_bytes: rng.usize(1000..8000), window_events: rng.usize(1..12), ..Limits::default() };
        let guilty = if rng.u8(..) < 32 { 1000 } else { 0 };
        Self {
            now: Duration::ZERO,
            trace: Trace::new(is_printed),
            server: Server::new(&mut rng),
            broker: Broker::default(),
            ledger: Ledger::new(guilty),
            limits,
            ghosts: Vec::new(),
            next_producer: 0,
            next_life: 0,
            queue_max: rng.usize(2..20),
            batch_max: rng.usize(1..6),
            allows_late: rng.u8(..) < 32,
            is_stuck: [false; PARTITIONS],
            is_quiet: false,
            rng,
        }
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    pub(super) const fn new_life(&mut self) -> u32 {
        self.next_life += 1;
        self.next_life
    }

    /// A new producer comes only when the requests of those before have landed or are lost, but for the rare late ones.
    pub(super) fn new_producer(&mut self, life: u32) -> Producer {
        let mut ghosts = std::mem::take(&mut self.ghosts);
        ghosts.retain_mut(|ghost| {
            if self.allows_late && self.rng.bool() {
                ghost.is_late = true;
                return true;
            }
            for partition in 0..PARTITIONS {
                (0..self.rng.u8(..4)).for_each(|_| self.arrive(ghost, partition));
            }
            false
        });
        self.ghosts = ghosts;
        self.next_producer += 1;
        Producer::new(self.next_producer, life, self.queue_max, self.batch_max)
    }

    /// A producer is gone; what it has in flight may still land.
    pub(super) fn abandon(&mut self, producer: Producer) {
        if !producer.is_spent() {
            self.ghosts.push(producer);
        }
    }

    /// A request of a producer that is gone lands.
    pub(super) fn haunt(&mut self) {
        if let Some(mut ghost) = self.ghosts.pop() {
            let partition = self.rng.usize(..PARTITIONS);
            self.arrive(&mut ghost, partition);
            self.abandon(ghost);
        }
    }

    fn arrive(&mut self, producer: &mut Producer, partition: usize) {
        let trouble = !self.is_quiet && self.rng.u8(..) == 0;
        let circumstances = (self.now, self.server.confirmed(), trouble);
        producer.arrive(partition, &mut self.broker, &mut self.ledger, circumstances);
    }

    /// The network and the brokers work on one partition for a moment.
    pub(super) fn work(&mut self, producer: &mut Producer, reports: &mut Vec<Outcome>) {
        let partition = self.rng.usize(..PARTITIONS);
        if self.is_stuck[partition] {
            return;
        }
        let dice = self.rng.u8(..);
        if dice & 3 != 0 {
            producer.transmit(partition, &mut self.rng);
        }
        if dice & 12 != 0 {
            self.arrive(producer, partition);
        }
        if dice & 48 != 0 {
            producer.respond(partition, &self.ledger, reports);
        }
    }
}
