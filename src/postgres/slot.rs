//! Replication slots, over ordinary SQL.

use tokio_postgres::Client;

use super::error::{Error, Result};
use super::lsn::{EndLsn, Lsn};

/// The plugin that outboxd reads.
pub const PLUGIN: &str = "pgoutput";

/// A slot as `pg_replication_slots` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// The database; `None` for a physical slot.
    pub database: Option<String>,
    /// The server process that reads it now.
    pub active_pid: Option<i32>,
    /// Up to here everything is confirmed.
    pub confirmed: Option<EndLsn>,
    /// From here on the log is kept for it.
    pub restart: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// It goes when its session ends.
    pub temporary: bool,
    /// Why it can no longer be read (17 and later; before, `wal_status` alone tells).
    pub invalidation: Option<String>,
    /// So many bytes may still be written until it is in danger; `None` is without a limit.
    pub safe_bytes: Option<i64>,
    /// Standbys that synchronise slots have it too (17 and later).
    pub failover: bool,
}

impl Slot {
    /// The server has given it up.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.invalidation.is_some() || self.wal_status.as_deref() == Some("lost")
    }
}

/// Looks the slot up; `None` where there is none.
///
/// # Errors
/// When the connection is lost.
pub async fn inspect(client: &Client, name: &str) -> Result<Option<Slot>> {
    // Through JSON where a column came with a later version.
    let query = "select plugin::text, database::text, active_pid, confirmed_flush_lsn::text, restart_lsn::text, \
                 wal_status, temporary, to_jsonb(s) ->> 'invalidation_reason', safe_wal_size, \
                 coalesce((to_jsonb(s) ->> 'failover')::boolean, false) \
                 from pg_catalog.pg_replication_slots s where slot_name = $1";
    let Some(row) = client.query_opt(query, &[&name]).await? else { return Ok(None) };
    let lsn = |column| -> Result<Option<Lsn>> {
        let text: Option<&str> = row.try_get(column)?;
        text.map(str::parse).transpose().map_err(|error| Error::protocol(format!("slot {name:?}: {error}")))
    };
    Ok(Some(Slot {
        plugin: row.try_get(0)?,
        database: row.try_get(1)?,
        active_pid: row.try_get(2)?,
        confirmed: lsn(3)?.map(EndLsn::new),
        restart: lsn(4)?,
        wal_status: row.try_get(5)?,
        temporary: row.try_get(6)?,
        invalidation: row.try_get(7)?,
        safe_bytes: row.try_get(8)?,
        failover: row.try_get(9)?,
    }))
}

/// The statement that creates a slot. From 17 on it is also kept on standbys that synchronise slots.
#[must_use]
pub fn create_statement(name: &str, server_version_num: u32) -> String {
    let name = super::wire::quote::literal(name);
    match server_version_num {
        ..170_000 => format!("SELECT pg_catalog.pg_create_logical_replication_slot({name}, '{PLUGIN}')"),
        _ => format!("SELECT pg_catalog.pg_create_logical_replication_slot({name}, '{PLUGIN}', failover => true)"),
    }
}

/// The statement that drops a slot.
#[must_use]
pub fn drop_statement(name: &str) -> String {
    format!("SELECT pg_catalog.pg_drop_replication_slot({})", super::wire::quote::literal(name))
}

/// A session whose transaction is older than the slot that is being created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The server process.
    pub pid: i32,
    /// What the session calls itself.
    pub application: String,
    /// `active`, `idle in transaction` and so on.
    pub state: String,
    /// How long its transaction has been open, as the server words it.
    pub age: String,
}

/// Whom the creation of a slot by the session `pid` waits for: running transactions with an id, oldest first. A prepared
/// transaction has the pid 0 and its name as the application.
///
/// # Errors
/// When the connection is lost.
pub async fn holders(client: &Client, pid: i32) -> Result<Vec<Holder>> {
    let query = "select a.pid, a.application_name, coalesce(a.state, ''), \
                 date_trunc('second', clock_timestamp() - a.xact_start)::text, a.xact_start \
                 from pg_catalog.pg_stat_activity a where a.backend_xid is not null and a.pid <> $1 \
                 union all select 0, 'prepared transaction ' || p.gid, 'prepared', \
                 date_trunc('second', clock_timestamp() - p.prepared)::text, p.prepared \
                 from pg_catalog.pg_prepared_xacts p order by 5";
    let rows = client.query(query, &[&pid]).await?;
    let holder = |row: &tokio_postgres::Row| -> Result<Holder> {
        let age: Option<String> = row.try_get(3)?;
        Ok(Holder {
            pid: row.try_get(0)?,
            application: row.try_get(1)?,
            state: row.try_get(2)?,
            age: age.unwrap_or_default(),
        })
    };
    rows.iter().map(holder).collect()
}
