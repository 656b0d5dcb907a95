//! Which keys and topics are held. Pure: the clock is given.
//!
//! A key is held while an event of it waits among the held ones, and so is a topic that does not take events: what comes for
//! either goes behind those. It is free when the last of them is acknowledged and its row is gone.

use std::collections::HashMap;
use std::time::Duration;

use super::failure::retry_after;
use crate::recovery::held::{Loaded, Scope};

/// An event's part in what is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Whether its key is held with it, or its topic.
    pub scope: Scope,
    /// Its topic.
    pub topic: String,
    /// Its key; without one it holds nothing but itself, unless it is its topic.
    pub key: Option<Vec<u8>>,
}

/// What a held topic is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// It is looked at again at this time.
    Closed { probe_at: Duration },
    /// Its first event is being tried.
    Probing,
    /// It takes events: those that were held go first.
    Open,
}

#[derive(Clone, Debug)]
struct HeldTopic {
    events: u64,
    attempts: u32,
    gate: Gate,
    /// The brokers did not have it, so it opens as soon as they do.
    is_missing: bool,
}

/// What is held.
#[derive(Clone, Debug)]
pub struct Holds {
    /// By topic, then by key: how many events.
    keys: HashMap<String, HashMap<Vec<u8>, u64>>,
    key_count: usize,
    max_keys: usize,
    topics: HashMap<String, HeldTopic>,
}

impl Holds {
    /// Nothing is held; at most `max_keys` keys may be.
    #[must_use]
    pub fn new(max_keys: usize) -> Self {
        Self { keys: HashMap::new(), key_count: 0, max_keys, topics: HashMap::new() }
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.topics.is_empty()
    }

    /// Keys that are held.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.key_count
    }

    /// Topics that are held.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// Whether an event of this topic and key has to go behind held ones, and why.
    #[must_use]
    pub fn holds(&self, topic: &str, key: Option<&[u8]>) -> Option<Scope> {
        let is_key = key.is_some_and(|key| self.keys.get(topic).is_some_and(|keys| keys.contains_key(key)));
        match is_key {
            true => Some(Scope::Event),
            false => self.topics.contains_key(topic).then_some(Scope::Topic),
        }
    }

    /// An event joins the held ones. False where there would be too many keys.
    pub fn add(&mut self, holding: &Holding) -> bool {
        let Holding { scope, topic, key } = holding;
        match (scope, key) {
            (Scope::Topic, _) => {
                let closed = HeldTopic {
                    events: 0,
                    attempts: 0,
                    gate: Gate::Closed { probe_at: Duration::ZERO },
                    is_missing: false,
                };
                self.topics.entry(topic.clone()).or_insert(closed).events += 1;
            }
            (Scope::Event, None) => {}
            (Scope::Event, Some(key)) => {
                let keys = self.keys.entry(topic.clone()).or_default();
                match keys.get_mut(key) {
                    Some(events) => *events += 1,
                    None => {
                        keys.insert(key.clone(), 1);
                        self.key_count += 1;
                    }
                }
            }
        }
        self.key_count <= self.max_keys
    }

    /// An event is no longer among those that hold.
    pub fn remove(&mut self, holding: &Holding) {
        let Holding { scope, topic, key } = holding;
        match (scope, key) {
            (Scope::Topic, _) => {
                if let Some(held) = self.topics.get_mut(topic) {
                    held.events = held.events.saturating_sub(1);
                    if held.events == 0 && held.gate == Gate::Open {
                        self.topics.remove(topic);
                    }
                }
            }
            (Scope::Event, None) => {}
            (Scope::Event, Some(key)) => {
                let Some(keys) = self.keys.get_mut(topic) else { return };
                if let Some(events) = keys.get_mut(key) {
                    *events -= 1;
                    if *events == 0 {
                        keys.remove(key);
                        self.key_count -= 1;
                    }
                }
                if keys.is_empty() {
                    self.keys.remove(topic);
                }
            }
        }
    }

    /// How many events hold what this one holds; none where it is nobody.
    #[must_use]
    pub fn count(&self, holding: &Holding) -> u64 {
        match (holding.scope, &holding.key) {
            (Scope::Topic, _) => self.topics.get(&holding.topic).map_or(0, |held| held.events),
            (Scope::Event, None) => 0,
            (Scope::Event, Some(key)) => {
                self.keys.get(&holding.topic).and_then(|keys| keys.get(key)).copied().unwrap_or(0)
            }
        }
    }

    /// A topic does not take events, once more. Returns how often by now.
    pub fn close(&mut self, topic: &str, is_missing: bool, now: Duration) -> u32 {
        let held = self.topics.entry(topic.to_owned()).or_insert(HeldTopic {
            events: 0,
            attempts: 0,
            gate: Gate::Open,
            is_missing,
        });
        held.is_missing |= is_missing;
        held.gate = Gate::Closed { probe_at: now + retry_after(held.attempts) };
        held.attempts = held.attempts.saturating_add(1);
        held.attempts
    }

    /// Its first event could not be tried; it is looked at again at this time.
    pub fn close_again(&mut self, topic: &str, probe_at: Duration) {
        if let Some(held) = self.topics.get_mut(topic) {
            held.gate = Gate::Closed { probe_at };
        }
    }

    /// A topic takes events.
    pub fn open(&mut self, topic: &str) {
        if let Some(held) = self.topics.get_mut(topic) {
            (held.gate, held.attempts, held.is_missing) = (Gate::Open, 0, false);
            if held.events == 0 {
                self.topics.remove(topic);
            }
        }
    }

    /// A topic whose time has come to be looked at again: its name, and whether it was missing.
    #[must_use]
    pub fn due(&self, now: Duration) -> Option<(String, bool)> {
        let is_due = |held: &HeldTopic| matches!(held.gate, Gate::Closed { probe_at } if probe_at <= now);
        let due = self.topics.iter().find(|(_, held)| is_due(held) && (held.events > 0 || held.is_missing));
        due.map(|(topic, held)| (topic.clone(), held.is_missing))
    }

    /// When the next topic is to be looked at.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        let times = self.topics.values().filter(|held| held.events > 0 || held.is_missing).map(|held| held.gate);
        times.filter_map(|gate| if let Gate::Closed { probe_at } = gate { Some(probe_at) } else { None }).min()
    }

    /// The first event of a topic is being tried.
    pub fn probe(&mut self, topic: &str) {
        if let Some(held) = self.topics.get_mut(topic) {
            held.gate = Gate::Probing;
        }
    }

    /// Topics that take no events, or of which that is not known, and that the brokers were missing.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let missing = self.topics.iter().filter(|(_, held)| held.is_missing && held.gate != Gate::Open);
        missing.map(|(topic, _)| topic.as_str())
    }

    /// There are topics that take no events.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.topics.values().any(|held| held.gate != Gate::Open)
    }

    /// Topics whose events wait.
    #[must_use]
    pub fn blocked(&self) -> Vec<String> {
        self.topics.iter().filter(|(_, held)| held.gate != Gate::Open).map(|(topic, _)| topic.clone()).collect()
    }

    /// What the table has, and what is on its way there. False where there are too many keys.
    pub fn load<'h>(&mut self, loaded: &Loaded, on_the_way: impl Iterator<Item = &'h Holding>) -> bool {
        self.keys.clear();
        self.key_count = 0;
        self.topics.values_mut().for_each(|held| held.events = 0);
        for (topic, key, events) in &loaded.keys {
            self.key_count += 1;
            self.keys.entry(topic.clone()).or_default().insert(key.clone(), *events);
        }
        for (topic, events) in &loaded.topics {
            let closed = HeldTopic {
                events: 0,
                attempts: 0,
                gate: Gate::Closed { probe_at: Duration::ZERO },
                is_missing: false,
            };
            self.topics.entry(topic.clone()).or_insert(closed).events = *events;
        }
        on_the_way.for_each(|holding| {
            self.add(holding);
        });
        self.topics.retain(|_, held| held.events > 0 || held.gate != Gate::Open);
        self.key_count <= self.max_keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_key(key: &str) -> Holding {
        Holding { scope: Scope::Event, topic: "t".into(), key: Some(key.into()) }
    }

    fn of_topic(topic: &str) -> Holding {
        Holding { scope: Scope::Topic, topic: topic.into(), key: Some(b"k".to_vec()) }
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_key_is_free_when_its_last_event_is() {
        let mut holds = Holds::new(2);
        assert!(holds.add(&of_key("a")) && holds.add(&of_key("a")) && holds.add(&of_key("b")));
        assert_eq!(holds.holds("t", Some(b"a")), Some(Scope::Event));
        assert_eq!(holds.holds("t", Some(b"c")), None);
        assert_eq!(holds.holds("u", Some(b"a")), None);
        assert_eq!(holds.holds("t", None), None);
        assert!(!holds.add(&of_key("c")), "one more than may be");
        holds.remove(&of_key("a"));
        assert_eq!(holds.holds("t", Some(b"a")), Some(Scope::Event));
        for key in ["a", "b", "c"] {
            holds.remove(&of_key(key));
        }
        assert!(holds.is_empty() && holds.keys() == 0);
        holds.add(&Holding { key: None, ..of_key("") });
        assert!(holds.is_empty(), "an event without a key holds nobody");
    }

    #[test]
    fn a_topic_is_looked_at_after_1_2_4_s_and_freed_when_it_is_open_and_empty() {
        let mut holds = Holds::new(2);
        assert_eq!(holds.close("t", true, S), 1);
        holds.add(&of_topic("t"));
        assert_eq!(holds.holds("t", Some(b"x")), Some(Scope::Topic));
        assert_eq!((holds.due(S), holds.due_at()), (None, Some(2 * S)));
        assert_eq!(holds.due(2 * S), Some(("t".into(), true)));
        assert_eq!(holds.close("t", true, 2 * S), 2);
        assert_eq!(holds.due_at(), Some(4 * S));
        assert_eq!(holds.blocked(), ["t"]);
        holds.probe("t");
        assert_eq!((holds.due_at(), holds.blocked()), (None, vec!["t".to_owned()]));
        holds.open("t");
        assert!(holds.blocked().is_empty());
        assert_eq!(holds.holds("t", None), Some(Scope::Topic), "what was held goes first");
        holds.remove(&of_topic("t"));
        assert!(holds.is_empty());
    }

    #[test]
    fn what_is_loaded_counts_with_what_is_on_its_way() {
        let mut holds = Holds::new(2);
        holds.close("gone", true, S);
        holds.add(&of_key("old"));
        let loaded =
            Loaded { keys: vec![("t".into(), b"a".to_vec(), 2)], topics: vec![("u".into(), 3)], ..Loaded::default() };
        assert!(holds.load(&loaded, [of_key("a"), of_key("b")].iter()));
        assert_eq!(holds.holds("t", Some(b"old")), None);
        assert_eq!(holds.holds("gone", None), Some(Scope::Topic), "it is still closed");
        assert_eq!(holds.due(Duration::ZERO), Some(("u".into(), false)));
        (0..3).for_each(|_| holds.remove(&of_key("a")));
        assert_eq!(holds.holds("t", Some(b"a")), None);
        assert!(!holds.load(&loaded, [of_key("b"), of_key("c")].iter()), "too many keys");
    }
}
