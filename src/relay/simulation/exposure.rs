//! What a crash of the relay would repeat, counted without the core's help.

use std::collections::VecDeque;

use super::server::Server;
use super::world::World;
use crate::postgres::Lsn;
use crate::relay::core::Core;
use crate::relay::resume::TransactionId;

/// Received and not covered by a status that was sent.
#[derive(Debug, Default)]
pub(super) struct Exposure {
    /// Whole transactions: where they end, and how many events they have.
    whole: VecDeque<(Lsn, u64)>,
    uncovered: u64,
    /// The last transaction that began; it is open where it has not come in whole.
    pub(super) last: Option<TransactionId>,
    is_open: bool,
    /// New events of the open transaction; once it is whole, the size of the last one.
    events: u64,
    covered: Lsn,
}

impl Exposure {
    pub(super) fn begin(&mut self, transaction: TransactionId) {
        if self.last.is_none_or(|last| transaction.commit > last.commit) {
            (self.last, self.is_open, self.events) = (Some(transaction), true, 0);
        }
    }

    pub(super) const fn row(&mut self) {
        self.events += 1;
    }

    pub(super) fn commit(&mut self, commit: Option<TransactionId>, end: Lsn) {
        if self.is_open && commit == self.last {
            self.is_open = false;
            self.whole.push_back((end, self.events));
            self.uncovered += self.events;
        }
    }

    pub(super) fn status(&mut self, confirmed: Lsn) {
        self.covered = self.covered.max(confirmed);
        while let Some((_, events)) = self.whole.pop_front_if(|(end, _)| *end <= confirmed) {
            self.uncovered -= events;
        }
    }

    /// Everything that has come is covered.
    pub(super) const fn is_empty(&self) -> bool {
        self.uncovered == 0 && !self.is_open
    }

    /// Contract 5 by the core's rule: no transaction begins while the window or more is uncovered. So there is less than a
    /// window of events beside the last transaction, whether that is open or whole.
    pub(super) fn check(&self, core: &Core<u32>, window_events: usize) {
        assert_eq!(core.uncovered_events(), self.uncovered, "the core counts the uncovered events wrongly");
        let beside = if self.is_open { self.uncovered } else { self.uncovered.saturating_sub(self.events) };
        assert!(beside < window_events as u64, "{beside} events are uncovered beside the last transaction");
    }

    /// At a crash: what this life has published and will publish again is no more than that, apart from what statuses cover
    /// that the server did not get.
    pub(super) fn check_repeats(&self, server: &Server, world: &World, life: u32) {
        let from = self.covered.max(server.confirmed());
        let repeats = server.log().iter().rev().take_while(|transaction| transaction.id.commit >= from);
        let rows = repeats.flat_map(|transaction| transaction.first_row..transaction.first_row + transaction.rows);
        let repeated = rows.filter(|row| world.ledger.is_of_life(*row, life)).count() as u64;
        let open = if self.is_open { self.events } else { 0 };
        assert!(repeated <= self.uncovered + open, "a crash repeats {repeated} of {} and {open}", self.uncovered);
    }
}
