//! The simulation: random histories of the core between a model database and model brokers, in virtual time.
//!
//! | module | what it is |
//! |---|---|
//! | `server` | the database: its log, its slot, its successors |
//! | `broker`, `producer` | the partitions with Kafka's rules, and the client before them |
//! | `relay`, `publisher` | twins of the driver, the intake and the publisher: what they do to the core |
//! | `world`, `history` | time and chance, and what happens |
//! | `ledger`, `exposure` | what must hold |
//! | `trace` | what happened |
//!
//! `OUTBOXD_SIM_SEED=n` runs and prints the one history of that seed; `OUTBOXD_SIM_HISTORIES=n` says how many are run, and
//! `OUTBOXD_SIM_FIRST=n` from which seed on.

mod broker;
mod exposure;
mod history;
mod ledger;
mod producer;
mod publisher;
mod relay;
mod server;
mod trace;
mod world;

use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use history::History;
use trace::{Seen, Tally};

/// How many histories a test run goes through.
const HISTORIES: u64 = 100_000;

/// Threads that share them.
const THREADS: u64 = 2;

/// Says how to see a failure again, when one unwinds through it.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("this history failed; see it again with OUTBOXD_SIM_SEED={}", self.0);
        }
    }
}

fn run(seed: u64, is_printed: bool) -> (u64, Tally) {
    let _replay = Replay(seed);
    History::run(seed, is_printed)
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn random_histories_keep_the_contract() {
    if let Some(seed) = setting("OUTBOXD_SIM_SEED") {
        println!("{:?}", run(seed, true).1);
        return;
    }
    let histories = setting("OUTBOXD_SIM_HISTORIES").unwrap_or(HISTORIES);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 20;
    let first = setting("OUTBOXD_SIM_FIRST").unwrap_or_else(clock);
    let started = Instant::now();
    println!("{histories} histories from OUTBOXD_SIM_FIRST={first} on");
    let share = |thread: u64| {
        let mut sum = Tally::default();
        for seed in (first..first + histories).skip(thread as usize).step_by(THREADS as usize) {
            sum.add(&run(seed, false).1);
        }
        sum
    };
    let tally = thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || share(thread)));
        threads.into_iter().fold(Tally::default(), |mut sum, thread| {
            sum.add(&thread.join().expect("a history failed"));
            sum
        })
    });
    let seen: Vec<String> = Seen::FREQUENT.iter().map(|seen| format!("{seen:?} {}", tally.of(*seen))).collect();
    println!("{} in {:.1?}", seen.join(", "), started.elapsed());
    let unseen: Vec<&Seen> = Seen::FREQUENT.iter().filter(|seen| tally.of(**seen) == 0).collect();
    assert!(unseen.is_empty() || histories < HISTORIES, "no history came through {unseen:?}");
}

#[test]
fn a_seed_replays_exactly() {
    let hashes: Vec<u64> = (0..50).map(|seed| run(seed, false).0).collect();
    for (seed, hash) in (0..).zip(&hashes) {
        assert_eq!(run(seed, false).0, *hash, "seed {seed}");
    }
    assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]), "the trace does not tell histories apart");
}
