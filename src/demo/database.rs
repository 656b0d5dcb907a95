//! What the demo makes in a database, and how it goes again.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::error::Error;
use crate::postgres::conninfo::Conninfo;
use crate::postgres::setup::{self, Plan, Step};
use crate::postgres::wire::quote::{identifier, literal};
use crate::postgres::{QualifiedName, slot, sql};

/// How long a slot may be held by a relay that was killed.
const SLOT_LIMIT: Duration = Duration::from_secs(20);

/// The schema, slot and publication of one demo, which all have the same name.
pub(super) struct Database {
    client: Client,
    conninfo: Conninfo,
    name: String,
}

impl Database {
    /// Reserves the name, for as long as this session lives.
    pub(super) async fn open(conninfo: &Conninfo, name: &str) -> Result<Self, Error> {
        let client = sql::connect_and_spawn(conninfo).await?;
        try_reserve(&client, name).await?;
        Ok(Self { client, conninfo: conninfo.clone(), name: name.to_owned() })
    }

    /// The name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the server calls itself.
    pub(super) async fn server_version(&self) -> Result<String, Error> {
        let version: String = self.client.query_one("show server_version", &[]).await?.try_get(0)?;
        Ok(version.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// Creates the table of the business, then the outbox and all that `outboxd setup` creates.
    pub(super) async fn set_up(&self, report: impl FnMut(Step)) -> Result<(), Error> {
        let schema = identifier(&self.name);
        let orders = format!("create table {schema}.orders (id text primary key, version bigint not null)");
        self.client.batch_execute(&format!("create schema {schema}; {orders}")).await?;
        let plan = Plan { table: self.table()?, publication: self.name.clone(), slot: self.name.clone() };
        setup::setup(&self.conninfo, &plan, false, report).await?;
        Ok(())
    }

    /// The outbox.
    pub(super) fn table(&self) -> Result<QualifiedName, Error> {
        table(&self.name)
    }

    /// How many changes of orders the business has committed, by its own table.
    pub(super) async fn committed(&self) -> Result<u64, Error> {
        let query = format!("select coalesce(sum(version), 0)::bigint from {}.orders", identifier(&self.name));
        let sum: i64 = self.client.query_one(&query, &[]).await?.try_get(0)?;
        Ok(sum.unsigned_abs())
    }

    /// Where the log ends.
    pub(super) async fn log_end(&self) -> Result<String, Error> {
        Ok(self.client.query_one("select pg_catalog.pg_current_wal_lsn()::text", &[]).await?.try_get(0)?)
    }

    /// Whether the slot has confirmed everything up to there.
    pub(super) async fn is_confirmed(&self, end: &str) -> Result<bool, Error> {
        let query =
            "select confirmed_flush_lsn >= $2::text::pg_lsn from pg_catalog.pg_replication_slots where slot_name = $1";
        Ok(self.client.query_one(query, &[&self.name, &end]).await?.try_get(0)?)
    }

    /// Removes everything of this demo.
    pub(super) async fn remove(self) -> Result<(), Error> {
        remove(&self.client, &self.name).await
    }

    /// Removes what demos that were killed have left in this database, and returns their names.
    pub(super) async fn sweep(&self) -> Result<Vec<String>, Error> {
        let query =
            r"select nspname::text from pg_catalog.pg_namespace where nspname ~ '^outboxd_demo_\d+_[0-9a-f]{8}$'";
        let mut removed = Vec::new();
        for row in self.client.query(query, &[]).await? {
            let name: String = row.try_get(0)?;
            // A demo that is alive holds its name, and one that kept its things holds it by this comment.
            if name != self.name && !is_kept(&self.client, &name).await? && try_reserve(&self.client, &name).await? {
                remove(&self.client, &name).await?;
                removed.push(name);
            }
        }
        Ok(removed)
    }

    /// Marks the schema as kept on purpose.
    pub(super) async fn keep(&self) -> Result<(), Error> {
        let schema = identifier(&self.name);
        self.client.batch_execute(&format!("comment on schema {schema} is 'kept by outboxd demo --keep'")).await?;
        Ok(())
    }
}

async fn is_kept(client: &Client, name: &str) -> Result<bool, Error> {
    let query = "select coalesce(pg_catalog.obj_description(pg_catalog.to_regnamespace($1)::oid, 'pg_namespace'), '') \
                 like 'kept by outboxd%'";
    Ok(client.query_one(query, &[&name]).await?.try_get(0)?)
}

fn table(name: &str) -> Result<QualifiedName, Error> {
    format!("{name}.outbox").parse().map_err(|error| Error::failed(name, error))
}

async fn try_reserve(client: &Client, name: &str) -> Result<bool, Error> {
    let query = "select pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1, 0))";
    Ok(client.query_one(query, &[&name]).await?.try_get(0)?)
}

/// The schema goes last: as long as it is there, a later demo finds what is left.
async fn remove(client: &Client, name: &str) -> Result<(), Error> {
    drop_slot(client, name).await?;
    let quoted = identifier(name);
    client.batch_execute(&format!("drop publication if exists {quoted}")).await?;
    client.batch_execute(&forget_migrations(&table(name)?)).await?;
    client.batch_execute(&format!("drop schema if exists {quoted} cascade")).await?;
    Ok(())
}

/// Removes the record of the outbox's migrations, and all of the schema where it serves no other table and no other slot.
fn forget_migrations(table: &QualifiedName) -> String {
    format!(
        "do $$ begin \
           if to_regclass('outboxd.migration') is not null then \
             delete from outboxd.migration where subject = {}; \
             if not exists (select from outboxd.migration where subject <> '') \
                and not exists (select from pg_class where relnamespace = to_regnamespace('outboxd') \
                    and relkind not in ('i', 't', 'S') and relname not in ('migration', 'held', 'request')) \
                and not exists (select from pg_catalog.pg_replication_slots where database = current_database()) then \
               drop table if exists outboxd.held, outboxd.request, outboxd.migration; \
               drop schema outboxd; \
             end if; \
           end if; \
         end $$",
        literal(&table.to_string())
    )
}

/// The server may not have noticed yet that the relay, or a setup, is gone.
async fn drop_slot(client: &Client, name: &str) -> Result<(), Error> {
    let until = Instant::now() + SLOT_LIMIT;
    while let Some(slot) = slot::inspect(client, name).await? {
        let outcome = match slot.active_pid {
            Some(pid) => client.execute("select pg_catalog.pg_terminate_backend($1)", &[&pid]).await.map(drop),
            None => client.batch_execute(&slot::drop_statement(name)).await,
        };
        match outcome {
            Err(error) if Instant::now() >= until => return Err(error.into()),
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
    Ok(())
}
