//! How a slot stands: who reads it, how far behind, and how much of the log it holds.

use std::time::Duration;

use tokio_postgres::Client;

use super::error::{Error, Result};
use super::lsn::Lsn;
use super::slot::{self, Slot};

/// A slot at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The slot.
    pub slot: Slot,
    /// Where the server's log ends.
    pub end: Lsn,
    /// Who reads the slot.
    pub reader: Option<Reader>,
}

/// A connection that reads a slot, as `pg_stat_replication` shows it. To see those of others takes the role `pg_monitor`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reader {
    /// The server process.
    pub pid: i32,
    /// What it calls itself.
    pub application: Option<String>,
    /// Where it comes from; `None` over a unix socket too.
    pub address: Option<String>,
    /// `startup`, `catchup`, `streaming` and so on.
    pub state: Option<String>,
    /// How long it has been connected.
    pub connected_for: Option<Duration>,
    /// The time from the end of a transaction to its confirmation, as last measured; `None` when nothing was confirmed lately.
    pub lag: Option<Duration>,
}

impl Status {
    /// Bytes of the log behind what is confirmed.
    #[must_use]
    pub fn lag_bytes(&self) -> Option<u64> {
        self.slot.confirmed.map(|confirmed| self.end.bytes_since(confirmed.lsn()))
    }

    /// Bytes of the log that the server keeps for this slot.
    #[must_use]
    pub fn retained_bytes(&self) -> Option<u64> {
        self.slot.restart.map(|restart| self.end.bytes_since(restart))
    }
}

/// Looks at the slot; `None` where there is none.
///
/// # Errors
/// When the connection is lost.
pub async fn look(client: &Client, name: &str) -> Result<Option<Status>> {
    let Some(slot) = slot::inspect(client, name).await? else { return Ok(None) };
    let query =
        "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text";
    let end: String = client.query_one(query, &[]).await?.try_get(0)?;
    let end = end.parse().map_err(|error| Error::protocol(format!("the end of the log: {error}")))?;
    let reader = match slot.active_pid {
        Some(pid) => Some(reader(client, pid).await?),
        None => None,
    };
    Ok(Some(Status { slot, end, reader }))
}

async fn reader(client: &Client, pid: i32) -> Result<Reader> {
    let query = "select application_name, host(client_addr), state, \
                 extract(epoch from clock_timestamp() - backend_start)::float8, extract(epoch from flush_lag)::float8 \
                 from pg_stat_replication where pid = $1";
    let unknown = Reader { pid, application: None, address: None, state: None, connected_for: None, lag: None };
    // It may have gone meanwhile, or not have begun.
    let Some(row) = client.query_opt(query, &[&pid]).await? else { return Ok(unknown) };
    let seconds = |index| -> Result<Option<Duration>> {
        let seconds: Option<f64> = row.try_get(index)?;
        Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
    };
    Ok(Reader {
        pid,
        application: row.try_get(0)?,
        address: row.try_get(1)?,
        state: row.try_get(2)?,
        connected_for: seconds(3)?,
        lag: seconds(4)?,
    })
}
