//! What `outboxd run` needs, created in the one order that works: table, then publication, then slot. A publication that is
//! created after the slot is never seen by it. Idempotent: what is there is left as it is.

use std::time::Duration;

use tokio_postgres::Client;

use super::conninfo::Conninfo;
use super::error::{Error, Result};
use super::migration;
use super::name::QualifiedName;
use super::publication;
use super::slot::{self, Holder};
use super::sql;

/// How often the creation of a slot looks whom it waits for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The outbox table.
    pub table: QualifiedName,
    /// The publication.
    pub publication: String,
    /// The slot.
    pub slot: String,
}

/// What happened, as it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was there.
    Present {
        /// What, in words.
        what: String,
    },
    /// It was made, or with a dry run would be.
    Done {
        /// What, in words.
        what: String,
        /// The SQL.
        sql: String,
    },
    /// The slot has to wait for these transactions, oldest first.
    Waiting(Vec<Holder>),
}

/// Creates what is missing; with `dry_run` only tells.
///
/// # Errors
/// When the server refuses a step, or what is there is not what is needed.
pub async fn setup(database: &Conninfo, plan: &Plan, dry_run: bool, mut report: impl FnMut(Step)) -> Result<()> {
    let mut client = sql::connect_and_spawn(database).await?;
    let version = check_server(&client).await?;
    for applied in migration::apply(&mut client, &plan.table, dry_run).await? {
        report(Step::Done { what: format!("migration {}", applied.name), sql: applied.sql });
    }
    create_publication(&client, plan, version, dry_run, &mut report).await?;
    create_slot(database, &client, plan, version, dry_run, &mut report).await
}

/// Removes the slot and the publication; the table and its rows stay.
///
/// # Errors
/// When somebody reads the slot, or the server refuses.
pub async fn drop(database: &Conninfo, plan: &Plan, dry_run: bool, mut report: impl FnMut(Step)) -> Result<()> {
    let client = sql::connect_and_spawn(database).await?;
    let name = &plan.slot;
    match slot::inspect(&client, name).await? {
        Some(slot::Slot { active_pid: Some(pid), .. }) => {
            return Err(Error::refused(format!(
                "the slot {name:?} is in use by the server process {pid}; stop the outboxd that reads it first"
            )));
        }
        Some(_) => {
            run(&client, slot::drop_statement(name), format!("slot {name:?} dropped"), dry_run, &mut report).await?
        }
        None => report(Step::Present { what: format!("slot {name:?} is not there") }),
    }
    let name = &plan.publication;
    match publication::inspect(&client, name, &plan.table).await? {
        Some(_) => {
            let what = format!("publication {name:?} dropped");
            run(&client, publication::drop_statement(name), what, dry_run, &mut report).await
        }
        None => {
            report(Step::Present { what: format!("publication {name:?} is not there") });
            Ok(())
        }
    }
}

/// The server's version, if it can do what is needed.
async fn check_server(client: &Client) -> Result<u32> {
    let query = "select pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('wal_level'), \
                 pg_catalog.pg_is_in_recovery()";
    let row = client.query_one(query, &[]).await?;
    let (version, wal_level, is_standby): (i32, String, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    if version < 140_000 {
        return Err(Error::refused(format!("PostgreSQL 14 or later is needed; this one is {}", version / 10_000)));
    }
    if is_standby {
        return Err(Error::refused("this server is a standby; connect to the primary (target_session_attrs=primary)"));
    }
    if wal_level != "logical" {
        return Err(Error::refused(format!(
            "wal_level is {wal_level}; ALTER SYSTEM SET wal_level = 'logical' and restart the server"
        )));
    }
    Ok(version.unsigned_abs())
}

async fn create_publication(
    client: &Client,
    plan: &Plan,
    version: u32,
    dry_run: bool,
    report: &mut impl FnMut(Step),
) -> Result<()> {
    let (name, table) = (&plan.publication, &plan.table);
    match publication::inspect(client, name, table).await? {
        Some(found) if found.inserts && found.covers => {
            report(Step::Present { what: format!("publication {name:?} covers {table}") });
            Ok(())
        }
        Some(found) if found.inserts => Err(Error::refused(format!(
            "the publication {name:?} is there and does not cover {table}; choose another name with --publication, or \
             ALTER PUBLICATION {name} ADD TABLE {table}"
        ))),
        Some(_) => Err(Error::refused(format!(
            "the publication {name:?} is there and does not publish inserts; ALTER PUBLICATION {name} SET (publish = 'insert')"
        ))),
        None => {
            let mut columns = publication::published_columns(client, table).await?;
            if columns.is_empty() && dry_run {
                // The table is to be created by the step before.
                columns = ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"]
                    .map(str::to_owned)
                    .to_vec();
            }
            let statement = publication::create_statement(name, table, &columns, version);
            run(client, statement, format!("publication {name:?} for {table}"), dry_run, report).await
        }
    }
}

async fn create_slot(
    database: &Conninfo,
    client: &Client,
    plan: &Plan,
    version: u32,
    dry_run: bool,
    report: &mut impl FnMut(Step),
) -> Result<()> {
    let name = &plan.slot;
    if let Some(slot) = slot::inspect(client, name).await? {
        if slot.plugin.as_deref() != Some(slot::PLUGIN) || slot.database.as_deref() != Some(database.dbname()) {
            return Err(Error::refused(format!(
                "the slot {name:?} is there with the plugin {} for the database {}; choose another name with --slot",
                slot.plugin.as_deref().unwrap_or("none"),
                slot.database.as_deref().unwrap_or("none"),
            )));
        }
        report(Step::Present { what: format!("slot {name:?}") });
        return Ok(());
    }
    let (statement, what) = (slot::create_statement(name, version), format!("slot {name:?}"));
    if !dry_run {
        execute_and_watch(database, client, &statement, report).await.map_err(|error| error.context(what.clone()))?;
    }
    report(Step::Done { what, sql: statement });
    Ok(())
}

/// Creates the slot, and tells meanwhile which transactions it waits for, once for each change of who it is.
async fn execute_and_watch(
    database: &Conninfo,
    client: &Client,
    statement: &str,
    report: &mut impl FnMut(Step),
) -> Result<()> {
    let pid: i32 = client.query_one("select pg_catalog.pg_backend_pid()", &[]).await?.try_get(0)?;
    let watch = sql::connect_and_spawn(database).await?;
    let mut creation = std::pin::pin!(client.batch_execute(statement));
    let mut told = Vec::new();
    loop {
        if let Ok(created) = tokio::time::timeout(LOOK_INTERVAL, &mut creation).await {
            return created.map_err(Error::from);
        }
        let holders = slot::holders(&watch, pid).await?;
        let pids: Vec<i32> = holders.iter().map(|holder| holder.pid).collect();
        if !holders.is_empty() && pids != told {
            told = pids;
            report(Step::Waiting(holders));
        }
    }
}

async fn run(
    client: &Client,
    statement: String,
    what: String,
    dry_run: bool,
    report: &mut impl FnMut(Step),
) -> Result<()> {
    if !dry_run {
        client.batch_execute(&statement).await.map_err(|error| Error::from(error).context(what.clone()))?;
    }
    report(Step::Done { what, sql: statement });
    Ok(())
}
