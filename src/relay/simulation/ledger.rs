//! What was written, what the brokers have, and whether that is what the contract promises.

use fastrand::Rng;

use super::broker::Broker;
use super::server::Server;
use super::trace::{Seen, Tally};
use crate::outbox::Position;
use crate::postgres::Lsn;

/// Aggregate ids.
pub(super) const KEYS: u8 = 6;

/// Partitions; a key goes to the partition with its number modulo this.
pub(super) const PARTITIONS: usize = 3;

/// How a row is refused for ever, until the operator mends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guilt {
    Innocent,
    /// The producer does not take it.
    AtSending,
    /// The broker refuses its whole batch.
    AtBroker,
}

/// A row that was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) key: u8,
    pub(super) bytes: usize,
    pub(super) position: Position,
    pub(super) guilt: Guilt,
    /// The server still has it.
    is_alive: bool,
    is_acknowledged: bool,
    has_landed: bool,
    /// In which life of a relay it landed first.
    first_life: u32,
}

impl Row {
    pub(super) const fn partition(&self) -> usize {
        self.key as usize % PARTITIONS
    }
}

/// Who lands a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landing {
    pub(super) life: u32,
    /// A request of an old producer that lands when the next one is at work already.
    pub(super) is_late: bool,
    /// Where the slot stands.
    pub(super) confirmed: Lsn,
}

/// The rows in the order of their commits. Rows of a successor come behind those that it forgot.
#[derive(Debug)]
pub(super) struct Ledger {
    rows: Vec<Row>,
    /// The next row that may land first, for each key.
    next: [u32; KEYS as usize],
    /// A late landing may have left an old record behind the last one of the key.
    is_overtaken: [bool; KEYS as usize],
    pub(super) tally: Tally,
    /// In 1/65536: how many rows are guilty.
    guilty: u16,
}

impl Ledger {
    pub(super) fn new(guilty: u16) -> Self {
        Self {
            rows: Vec::with_capacity(64),
            next: [0; KEYS as usize],
            is_overtaken: [false; KEYS as usize],
            tally: Tally::default(),
            guilty,
        }
    }

    pub(super) fn next_row(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap()
    }

    pub(super) fn row(&self, row: u32) -> &Row {
        &self.rows[row as usize]
    }

    /// A row is committed. One in a hundred is larger than any window.
    pub(super) fn insert(&mut self, position: Position, rng: &mut Rng) {
        let dice = rng.u32(..);
        let guilt = match (dice & 0xFFFF) as u16 {
            guilty if guilty >= self.guilty => Guilt::Innocent,
            guilty if guilty % 3 == 0 => Guilt::AtSending,
            _ => Guilt::AtBroker,
        };
        self.rows.push(Row {
            key: (dice >> 16) as u8 % KEYS,
            bytes: if dice >> 24 < 3 { 9000 } else { (dice >> 24) as usize },
            position,
            guilt,
            is_alive: true,
            is_acknowledged: false,
            has_landed: false,
            first_life: 0,
        });
        self.tally.count(Seen::Row);
    }

    /// The server lost these rows.
    pub(super) fn forget(&mut self, first: u32, count: u32) {
        self.rows[first as usize..(first + count) as usize].iter_mut().for_each(|row| row.is_alive = false);
    }

    /// The operator mends a row.
    pub(super) fn mend(&mut self, row: u32) {
        self.rows[row as usize].guilt = Guilt::Innocent;
    }

    /// The brokers have stored a record.
    pub(super) fn land(&mut self, id: u32, landing: Landing) {
        let row = &mut self.rows[id as usize];
        let key = usize::from(row.key);
        self.tally.count(if row.has_landed { Seen::Repeat } else { Seen::Landed });
        if landing.is_late {
            self.is_overtaken[key] = true;
            self.tally.count(Seen::LateLanding);
        } else {
            // A process does not know what the one before it published, so a server that crashes after a restart of the
            // relay makes it publish again what its slot had not on disk.
            let is_ours = row.has_landed && row.first_life == landing.life;
            let is_confirmed = row.is_alive && is_ours && row.position.commit() < landing.confirmed;
            assert!(!is_confirmed, "row {id} was confirmed at {} and is sent again", landing.confirmed);
        }
        if !row.has_landed {
            // A late request may still bring what the server has forgotten since; its key has gone on without it.
            let is_excused = landing.is_late && !row.is_alive;
            let is_in_order = id >= self.next[key];
            assert!(is_in_order || is_excused, "row {id} of key {key} is delivered behind a later row of its key");
            self.next[key] = self.next[key].max(id + 1);
            row.has_landed = true;
            row.first_life = landing.life;
        }
    }

    /// The relay has taken the acknowledgement.
    pub(super) fn acknowledge(&mut self, row: u32) {
        let row = &mut self.rows[row as usize];
        assert!(row.has_landed, "an acknowledgement without a record");
        row.is_acknowledged = true;
    }

    pub(super) fn is_acknowledged(&self, row: u32) -> bool {
        self.rows[row as usize].is_acknowledged
    }

    pub(super) fn has_landed(&self, row: u32) -> bool {
        self.rows[row as usize].has_landed
    }

    /// Whether it landed first in this life of the relay.
    pub(super) fn is_of_life(&self, row: u32, life: u32) -> bool {
        let row = &self.rows[row as usize];
        row.has_landed && row.first_life == life
    }

    /// At the end of a history: nothing lost, and the last record of each key is its last row.
    pub(super) fn check_end(&self, server: &Server, broker: &Broker) {
        let mut last = [None; KEYS as usize];
        for transaction in server.log() {
            for id in transaction.first_row..transaction.first_row + transaction.rows {
                assert!(self.has_landed(id), "row {id} is lost");
                last[usize::from(self.row(id).key)] = Some(id);
            }
        }
        let mut found = [None; KEYS as usize];
        for partition in 0..PARTITIONS {
            for id in broker.log(partition) {
                let row = self.row(*id);
                assert_eq!(row.partition(), partition, "row {id} is in the wrong partition");
                if row.is_alive {
                    found[usize::from(row.key)] = Some(*id);
                }
            }
        }
        for (key, (last, found)) in last.into_iter().zip(found).enumerate() {
            assert!(last == found || self.is_overtaken[key], "key {key} ends with row {found:?} instead of {last:?}");
        }
    }
}
