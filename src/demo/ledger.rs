//! What was written, what arrived, and the verdict: lost, phantom, order, repeats. Pure.
//!
//! Every key counts its committed events from 1. A record may follow the last one of its key by one (the next event), or go
//! back to any event that came before (a rewind, after which the history of the key runs forward again without a gap). So a
//! first delivery can never overtake another one, and a repeat is always a contiguous replay.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

/// An event as the writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its id.
    pub id: String,
    /// Its key.
    pub key: String,
    /// The how-manieth committed event of its key it is, or would have been.
    pub seq: u64,
}

/// A record as the consumer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The header `id`.
    pub id: String,
    /// The key that its writer gave it.
    pub key: String,
    /// The number that its writer gave it.
    pub seq: u64,
    /// The header `outboxd_position`.
    pub position: String,
}

/// Both sides of the book.
#[derive(Debug, Default)]
pub struct Ledger {
    committed: HashMap<String, Written>,
    rolled_back: HashSet<String>,
    /// In the order of arrival, which for one key is the order in its partition.
    seen: Vec<Seen>,
    seen_ids: HashSet<String>,
    committed_seen: usize,
    /// A server that was restored may commit an event again elsewhere.
    positions_may_change: bool,
}

impl Ledger {
    /// From now on an event may come again with another position, as after the restoration of a server.
    pub fn allow_positions_to_change(&mut self) {
        self.positions_may_change = true;
    }

    /// These are committed, in this order where they have the same key.
    pub fn commit(&mut self, events: impl IntoIterator<Item = Written>) {
        for event in events {
            self.committed_seen += usize::from(self.seen_ids.contains(&event.id));
            self.committed.insert(event.id.clone(), event);
        }
    }

    /// These will never be committed.
    pub fn roll_back(&mut self, events: impl IntoIterator<Item = Written>) {
        self.rolled_back.extend(events.into_iter().map(|event| event.id));
    }

    /// A record arrived, after all others of its partition that were seen before.
    pub fn see(&mut self, record: Seen) {
        if self.seen_ids.insert(record.id.clone()) && self.committed.contains_key(&record.id) {
            self.committed_seen += 1;
        }
        self.seen.push(record);
    }

    /// Every committed event has arrived at least once.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.committed_seen == self.committed.len()
    }

    /// Whether that is so.
    ///
    /// # Errors
    /// The numbers, where it is not.
    pub fn settled(&self) -> Result<(), String> {
        let (seen, committed) = (self.committed_seen, self.committed.len());
        if seen == committed {
            return Ok(());
        }
        // Which they are is looked up only when it can be told in a line.
        let is_few = committed - seen <= 10;
        let missing = self.committed.values().filter(|event| is_few && !self.seen_ids.contains(&event.id));
        Err(format!("{seen} of {committed} have arrived; missing {:?}", missing.collect::<Vec<_>>()))
    }

    /// How many committed events have arrived.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.committed_seen
    }

    /// How many events are committed.
    #[must_use]
    pub fn committed(&self) -> usize {
        self.committed.len()
    }

    /// How many events were written and rolled back.
    #[must_use]
    pub fn rolled_back(&self) -> usize {
        self.rolled_back.len()
    }

    /// The records, in the order of arrival.
    #[must_use]
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// The verdict on what is in the book so far.
    #[must_use]
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict {
            committed: self.committed.len(),
            rolled_back: self.rolled_back.len(),
            delivered: self.seen.len(),
            ..Verdict::default()
        };
        let mut last: HashMap<&str, u64> = HashMap::new();
        let mut high: HashMap<&str, &str> = HashMap::new();
        let mut positions: HashMap<&str, &str> = HashMap::new();
        for record in &self.seen {
            match self.committed.get(&record.id) {
                Some(event) if (&event.key, event.seq) == (&record.key, record.seq) => {}
                _ => {
                    verdict.phantom.push(record.clone());
                    continue;
                }
            }
            let cursor = last.entry(&record.key).or_default();
            if record.seq > *cursor + 1 {
                verdict.out_of_order.push(format!("{} after {cursor}: {record:?}", record.seq));
            }
            *cursor = record.seq;
            match positions.insert(&record.id, &record.position) {
                Some(before) => {
                    verdict.repeats += 1;
                    if before != record.position && !self.positions_may_change {
                        verdict.out_of_order.push(format!("it stood at {before} before: {record:?}"));
                    }
                }
                None => {
                    let before = high.insert(&record.key, &record.position).unwrap_or_default();
                    if before >= record.position.as_str() && !self.positions_may_change {
                        verdict.out_of_order.push(format!("the event before it stood at {before}: {record:?}"));
                    }
                }
            }
        }
        verdict.lost = self.committed.values().filter(|event| !self.seen_ids.contains(&event.id)).cloned().collect();
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for event in self.committed.values() {
            let newest = newest.entry(&event.key).or_default();
            *newest = event.seq.max(*newest);
        }
        let is_wrong = |(key, seq): &(&str, u64)| last.get(key).is_some_and(|last| last != seq);
        verdict.last_wrong = newest.into_iter().filter(is_wrong).map(|(key, _)| key.to_owned()).collect();
        verdict
    }
}

/// What the ledger found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Events that were committed.
    pub committed: usize,
    /// Events that were rolled back.
    pub rolled_back: usize,
    /// Records that arrived, repeats included.
    pub delivered: usize,
    /// Records of events that had arrived before.
    pub repeats: usize,
    /// Committed events that never arrived.
    pub lost: Vec<Written>,
    /// Records of what was never committed.
    pub phantom: Vec<Seen>,
    /// What broke the order of a key, in words.
    pub out_of_order: Vec<String>,
    /// Keys whose last record is not their last event.
    pub last_wrong: Vec<String>,
}

impl Verdict {
    /// Nothing lost, nothing made up, everything in order, and no more repeats than `bound`.
    #[must_use]
    pub fn is_clean(&self, bound: usize) -> bool {
        let is_whole = self.lost.is_empty() && self.phantom.is_empty();
        is_whole && self.out_of_order.is_empty() && self.last_wrong.is_empty() && self.repeats <= bound
    }

    /// The first few of everything that is wrong, for whoever looks for the cause.
    #[must_use]
    pub fn examples(&self) -> String {
        format!(
            "lost {:?}\nphantom {:?}\nout of order {:#?}\nlast wrong {:?}",
            self.lost.iter().take(5).collect::<Vec<_>>(),
            self.phantom.iter().take(5).collect::<Vec<_>>(),
            self.out_of_order.iter().take(5).collect::<Vec<_>>(),
            self.last_wrong.iter().take(5).collect::<Vec<_>>()
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed={} rolled_back={} delivered={} lost={} phantom={} out_of_order={} last_wrong={} repeats={}",
            self.committed,
            self.rolled_back,
            self.delivered,
            self.lost.len(),
            self.phantom.len(),
            self.out_of_order.len(),
            self.last_wrong.len(),
            self.repeats
        )
    }
}

/// What contract 5 allows a relay that was killed to repeat, for each kill: the events of whole transactions that no sent
/// status covered (intake pauses at the window, so the transaction that reaches it may stand over), and the open transaction.
#[must_use]
pub const fn bound(kills: usize, window_events: usize, largest_transaction: usize) -> usize {
    kills * (window_events + 2 * largest_transaction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(key: &str, seq: u64) -> Written {
        Written { id: format!("{key}-{seq}"), key: key.to_owned(), seq }
    }

    fn seen(key: &str, seq: u64) -> Seen {
        Seen { id: format!("{key}-{seq}"), key: key.to_owned(), seq, position: format!("{seq:04}") }
    }

    /// Five events of each of two keys are committed; these records arrive.
    fn judge(records: impl IntoIterator<Item = Seen>) -> Verdict {
        let mut ledger = Ledger::default();
        for key in ["a", "b"] {
            ledger.commit((1..=5).map(|seq| written(key, seq)));
        }
        ledger.roll_back([Written { id: "rolled-back".to_owned(), ..written("a", 3) }]);
        records.into_iter().for_each(|record| ledger.see(record));
        ledger.judge()
    }

    fn all(a: &[u64]) -> Vec<Seen> {
        a.iter().map(|seq| seen("a", *seq)).chain((1..=5).map(|seq| seen("b", seq))).collect()
    }

    #[test]
    fn a_clean_history_with_legal_repeats_is_accepted() {
        let verdict = judge(all(&[1, 2, 3, 1, 2, 3, 3, 4, 5, 2, 3, 4, 5]));
        assert!(verdict.is_clean(8), "{}", verdict.examples());
        assert_eq!(verdict.repeats, 8);
    }

    #[test]
    fn a_lost_event_is_flagged() {
        let verdict = judge(all(&[1, 2, 3, 4]));
        assert_eq!(verdict.lost, [written("a", 5)]);
        let verdict = judge(all(&[1, 2, 4, 5]));
        assert_eq!((verdict.lost.len(), verdict.out_of_order.len()), (1, 1));
    }

    #[test]
    fn swapped_events_are_flagged() {
        assert!(!judge(all(&[1, 3, 2, 4, 5])).out_of_order.is_empty());
    }

    #[test]
    fn a_gap_in_a_replay_is_flagged() {
        assert!(!judge(all(&[1, 2, 3, 4, 5, 1, 3, 4, 5])).out_of_order.is_empty());
    }

    #[test]
    fn a_last_record_that_is_not_the_last_event_is_flagged() {
        let verdict = judge(all(&[1, 2, 3, 4, 5, 4]));
        assert_eq!(verdict.last_wrong, ["a"]);
    }

    #[test]
    fn phantoms_are_flagged() {
        let never = Seen { id: "never".to_owned(), ..seen("a", 6) };
        let rolled_back = Seen { id: "rolled-back".to_owned(), ..seen("a", 3) };
        let forged = Seen { seq: 2, ..seen("a", 1) };
        for phantom in [never, rolled_back, forged] {
            let verdict = judge(all(&[1, 2, 3, 4, 5]).into_iter().chain([phantom.clone()]));
            assert_eq!(verdict.phantom, [phantom]);
        }
    }

    #[test]
    fn a_position_that_changes_is_flagged() {
        let moved = Seen { position: "9999".to_owned(), ..seen("a", 5) };
        assert!(!judge(all(&[1, 2, 3, 4, 5]).into_iter().chain([moved])).out_of_order.is_empty());
        let backwards = Seen { position: "0001".to_owned(), ..seen("a", 5) };
        assert!(!judge(all(&[1, 2, 3, 4]).into_iter().chain([backwards])).out_of_order.is_empty());
    }

    #[test]
    fn more_repeats_than_the_bound_are_flagged() {
        let verdict = judge(all(&[1, 2, 3, 1, 2, 3, 4, 5]));
        assert!(verdict.is_clean(3) && !verdict.is_clean(2));
    }

    #[test]
    fn settled_means_every_committed_event_was_seen() {
        let mut ledger = Ledger::default();
        ledger.see(seen("a", 1));
        ledger.commit([written("a", 1), written("a", 2)]);
        assert!(!ledger.is_settled());
        ledger.see(seen("a", 2));
        assert!(ledger.is_settled());
    }
}
