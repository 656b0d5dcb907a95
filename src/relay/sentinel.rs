//! A second connection that watches over the first: is the slot still ours, and is the server shutting down?
//!
//! While intake is paused nothing is read from the stream, and a server in fast shutdown says nothing on it; an ordinary
//! connection hears both.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use crate::postgres::{Conninfo, sql};

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

/// Watches until it is dropped.
pub(super) struct Sentinel {
    word: watch::Receiver<Word>,
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
        let task = tokio::spawn(async move {
            let mut is_told = false;
            loop {
                if let Err(error) = session(&database, &slot, pid, &publish).await {
                    if error.is_starting_or_stopping() {
                        publish.send_replace(Word::Stopping);
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
        Self { word, task }
    }

    /// What it last heard.
    pub(super) fn word(&self) -> Word {
        *self.word.borrow()
    }

    /// Waits until it hears something. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if self.word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One connection, until it ends.
async fn session(
    database: &Conninfo,
    slot: &str,
    pid: i32,
    publish: &watch::Sender<Word>,
) -> Result<(), crate::postgres::Error> {
    let (client, mut connection) = sql::connect(database).await?;
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            asked = timeout(INTERVAL, holder(&client, slot)) => if let Ok(holder) = asked {
                let word = if holder? == Some(pid) { Word::Ours(Instant::now()) } else { Word::NotOurs };
                publish.send_replace(word);
            }
        }
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// The process that reads the slot.
async fn holder(client: &Client, slot: &str) -> Result<Option<i32>, crate::postgres::Error> {
    let query = "select active_pid from pg_catalog.pg_replication_slots where slot_name = $1";
    let row = client.query_opt(query, &[&slot]).await?;
    Ok(row.and_then(|row| row.try_get(0).ok()).flatten())
}
