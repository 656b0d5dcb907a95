//! A second connection that watches over the first: is the slot still ours, and is the server shutting down?
//!
//! While intake is paused nothing is read from the stream, and a server in fast shutdown says nothing on it; an ordinary
//! connection hears both.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use crate::postgres::{Conninfo, sql};
use crate::recovery::request;

/// Between two questions, and the longest that an answer may take.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the sentinel last heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing yet.
    Nothing,
    /// At this time the slot was in use by our own connection.
    Ours(Instant),
    /// The slot is free, gone, or in use by another connection.
    NotOurs,
    /// The server is shutting down.
    Stopping,
}

/// So often it is looked whether an operator asks for something, even if nobody has called.
const LOOK_EVERY: u32 = 5;

/// Watches until it is dropped.
pub(super) struct Sentinel {
    word: watch::Receiver<Word>,
    calls: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sentinel {
    /// Watches over `slot`, which the server process `pid` reads for us.
    pub(super) fn watch(database: Conninfo, slot: String, pid: i32) -> Self {
        let (publish, word) = watch::channel(Word::Nothing);
        let calls = Arc::<Notify>::default();
        let to = Publisher { word: publish, calls: calls.clone() };
        let task = tokio::spawn(async move {
            let mut is_told = false;
            loop {
                if let Err(error) = session(&database, &slot, pid, &to).await {
                    if error.is_starting_or_stopping() {
                        to.word.send_replace(Word::Stopping);
                    } else if !error.is_terminated() && !std::mem::replace(&mut is_told, true) {
                        tracing::warn!("slot {slot:?} cannot be watched over a second connection: {error}");
                    }
                    tracing::debug!(%error, "the connection that watches the slot");
                    // A session that was ended by a shutdown is followed at once by the question whether it is one.
                    if !error.is_terminated() {
                        tokio::time::sleep(INTERVAL).await;
                    }
                }
            }
        });
        Self { word, calls, task }
    }

    /// Waits until it hears something; `None` is that an operator asks for something. Cancel-safe.
    pub(super) async fn heard(&mut self) -> Option<Word> {
        tokio::select! {
            biased;
            changed = self.word.changed() => match changed {
                Ok(()) => Some(*self.word.borrow()),
                Err(_) => std::future::pending().await,
            },
            () = self.calls.notified() => None,
        }
    }
}

/// What it hears, to whom it tells it.
struct Publisher {
    word: watch::Sender<Word>,
    calls: Arc<Notify>,
}

/// One connection, until it ends.
async fn session(database: &Conninfo, slot: &str, pid: i32, to: &Publisher) -> Result<(), crate::postgres::Error> {
    let (client, mut connection, heard) = sql::connect_listening(database).await?;
    let listen = format!("listen {}", request::CHANNEL);
    tokio::select! {
        biased;
        ended = &mut connection => return ended,
        listening = client.batch_execute(&listen) => listening?,
    }
    for round in 0_u32.. {
        if round.is_multiple_of(LOOK_EVERY) {
            tokio::select! {
                biased;
                ended = &mut connection => return ended,
                asked = timeout(INTERVAL, request::has_replay(&client, slot)) => if matches!(asked, Ok(Ok(true))) {
                    to.calls.notify_one();
                }
            }
        }
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            asked = timeout(INTERVAL, holder(&client, slot)) => if let Ok(holder) = asked {
                let word = if holder? == Some(pid) { Word::Ours(Instant::now()) } else { Word::NotOurs };
                to.word.send_replace(word);
            }
        }
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            () = heard.notified() => to.calls.notify_one(),
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
    Ok(())
}

/// The process that reads the slot.
async fn holder(client: &Client, slot: &str) -> Result<Option<i32>, crate::postgres::Error> {
    let query = "select active_pid from pg_catalog.pg_replication_slots where slot_name = $1";
    let row = client.query_opt(query, &[&slot]).await?;
    Ok(row.and_then(|row| row.try_get(0).ok()).flatten())
}
