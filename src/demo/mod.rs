//! `outboxd demo`: an application writes orders with events, some roll back, the relay is killed with SIGKILL while events
//! flow, a consumer reads, and a ledger compares.
//!
//! By default on a PostgreSQL of its own in a temporary folder and a Kafka broker inside this process. Nothing is left: not
//! after the end, not after Ctrl-C, and after a kill of the demo itself its processes end and the next demo removes the rest.

mod broker;
mod child;
mod consumer;
mod database;
mod error;
mod folder;
pub mod ledger;
mod play;
mod relay;
mod screen;
mod server;
mod show;
mod stage;
mod writer;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::ClientConfig;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

pub use error::Error;
use ledger::Verdict;
use screen::Screen;
use stage::Stage;

use crate::postgres::conninfo::Conninfo;
use crate::terminal::Colour;

/// The window of the relay, in events: small, so that a kill repeats little.
const WINDOW_EVENTS: usize = 2_000;

/// What the demo is to do. Not printable: the brokers' settings may hold a password.
pub struct Settings {
    /// How many events are committed.
    pub events: usize,
    /// How often the relay is killed.
    pub kills: usize,
    /// Decides what is written and when the relay is killed.
    pub seed: u64,
    /// Whether what the demo makes stays afterwards.
    pub keep: bool,
    /// The folder with PostgreSQL's programs, where it is not to be searched for.
    pub postgres_bin: Option<PathBuf>,
    /// One's own database: the connection string, and the same parsed.
    pub database: Option<(String, Conninfo)>,
    /// One's own brokers: the settings of a client.
    pub brokers: Option<ClientConfig>,
    /// Standard output is for a program: what people read goes to standard error.
    pub json: bool,
}

/// The outcome in numbers, in the order in which they are printed as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Events that were committed.
    pub committed: usize,
    /// Events that were written and rolled back.
    pub rolled_back: usize,
    /// Records that arrived.
    pub delivered: usize,
    /// Records of events that had arrived before.
    pub repeats: usize,
    /// The most repeats that so many kills may cause.
    pub repeats_bound: usize,
    /// Committed events that did not arrive.
    pub lost: usize,
    /// Records of what was not committed.
    pub phantom: usize,
    /// Records in the wrong place.
    pub out_of_order: usize,
    /// How often the relay was killed.
    pub kills: usize,
}

impl Report {
    fn new(verdict: &Verdict, kills: usize) -> Self {
        Self {
            committed: verdict.committed,
            rolled_back: verdict.rolled_back,
            delivered: verdict.delivered,
            repeats: verdict.repeats,
            repeats_bound: ledger::bound(kills, WINDOW_EVENTS, writer::ROWS_MAX),
            lost: verdict.lost.len(),
            phantom: verdict.phantom.len(),
            out_of_order: verdict.out_of_order.len() + verdict.last_wrong.len(),
            kills,
        }
    }

    /// Nothing lost, nothing made up, everything in order, and no more repeats than allowed.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.lost == 0 && self.phantom == 0 && self.out_of_order == 0 && self.repeats <= self.repeats_bound
    }
}

/// Runs the demo, then removes what it has made, whatever the outcome is.
///
/// # Errors
/// Why there is no verdict: a signal, something missing on this machine, or a server that did not do its part.
pub async fn run(settings: &Settings) -> Result<Report, Error> {
    let mut screen = Screen::new(settings.json);
    let mut stage = Stage::default();
    let interrupted = interrupted().map_err(|error| Error::failed("cannot listen to signals", error))?;
    let outcome = tokio::select! {
        biased;
        () = interrupted => Err(Error::Interrupted),
        outcome = show::play(settings, &mut stage, &mut screen) => outcome,
    };
    let cleared = stage.clear(settings.keep, &mut screen).await;
    let (report, verdict) = match (outcome, cleared) {
        (Ok(outcome), Ok(())) => outcome,
        (Ok(_), Err(error)) => return Err(Error::failed("cannot clean up", error)),
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(left)) => {
            screen.say(Some(Colour::Yellow), format_args!("cannot clean up: {left}"));
            return Err(error);
        }
    };
    show::tell(&report, &verdict, &mut screen);
    Ok(report)
}

/// Listens from now on; the future ends with the first signal that asks for an end.
fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// The lock's value. Nothing under these locks can be left half done by a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
