//! The schema in numbered steps: embedded, applied once each, recorded with a checksum.
//!
//! A small runner of our own rather than the crate `refinery`: the table's name is an option, so the SQL is a template and
//! each table has a record of its own; `--dry-run` prints the statements instead of running them; and the steps of several
//! processes that start at once must exclude each other (an advisory lock), which refinery leaves to its user.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::error::{Error, Result};
use super::name::QualifiedName;
use super::wire::quote::literal;

/// A step.
struct Migration {
    version: i32,
    name: &'static str,
    /// SQL with `{table}`, `{schema}` and `{name}` (of the table, as an identifier that is quoted) in it.
    template: &'static str,
    /// Whether it is applied once for each table or once for the database.
    per_table: bool,
}

const MIGRATIONS: [Migration; 3] = [
    Migration {
        version: 1,
        name: "schema",
        template: include_str!("../../migrations/0001_schema.sql"),
        per_table: false,
    },
    Migration {
        version: 2,
        name: "outbox",
        template: include_str!("../../migrations/0002_outbox.sql"),
        per_table: true,
    },
    Migration { version: 3, name: "held", template: include_str!("../../migrations/0003_held.sql"), per_table: false },
];

/// Any two runs in one database exclude each other by this number.
const LOCK: i64 = 0x6F75_7462_6F78_6401;

impl Migration {
    fn sql(&self, table: &QualifiedName) -> String {
        self.template
            .replace("{table}", &table.quoted())
            .replace("{schema}", &super::wire::quote::identifier(table.schema()))
    }

    /// Of the template, so that it is the same for every table.
    fn checksum(&self) -> String {
        Sha256::digest(self.template).iter().fold(String::new(), |mut text, byte| {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn subject(&self, table: &QualifiedName) -> String {
        if self.per_table { table.to_string() } else { String::new() }
    }

    fn record(&self, table: &QualifiedName) -> String {
        format!(
            "INSERT INTO outboxd.migration (version, subject, name, checksum) VALUES ({}, {}, {}, {})",
            self.version,
            literal(&self.subject(table)),
            literal(self.name),
            literal(&self.checksum())
        )
    }
}

/// What one step did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its number and name, as in `migrations/`.
    pub name: String,
    /// What was run.
    pub sql: String,
}

/// Applies what is not applied yet for this table, each step in a transaction of its own; with `dry_run` only tells.
///
/// # Errors
/// When a step fails, or a step that was applied is not the one that this program has.
pub async fn apply(client: &mut Client, table: &QualifiedName, dry_run: bool) -> Result<Vec<Applied>> {
    if !dry_run {
        client.execute("select pg_catalog.pg_advisory_lock($1)", &[&LOCK]).await?;
    }
    let applied = apply_locked(client, table, dry_run).await;
    if !dry_run {
        // The lock goes with the session in any case.
        let _ = client.execute("select pg_catalog.pg_advisory_unlock($1)", &[&LOCK]).await;
    }
    applied
}

async fn apply_locked(client: &mut Client, table: &QualifiedName, dry_run: bool) -> Result<Vec<Applied>> {
    let mut applied = Vec::new();
    for migration in &MIGRATIONS {
        let name = format!("{:04}_{}", migration.version, migration.name);
        match recorded(client, migration, table).await? {
            Some(checksum) if checksum == migration.checksum() => continue,
            Some(_) => {
                return Err(Error::refused(format!(
                    "migration {name} was applied to this database in another form than this program has; \
                     use the version of outboxd that applied it, or a later one"
                )));
            }
            None => {}
        }
        if migration.per_table && exists(client, table).await? {
            // Somebody's own outbox, or one of an earlier time: it is used as it is.
            continue;
        }
        let sql = migration.sql(table);
        if !dry_run {
            let transaction = client.transaction().await?;
            let script = format!("{sql};\n{}", migration.record(table));
            transaction
                .batch_execute(&script)
                .await
                .map_err(|error| Error::from(error).context(format!("migration {name}")))?;
            transaction.commit().await?;
        }
        applied.push(Applied { name, sql });
    }
    Ok(applied)
}

async fn exists(client: &Client, table: &QualifiedName) -> Result<bool> {
    let row = client.query_one("select pg_catalog.to_regclass($1) is not null", &[&table.quoted()]).await?;
    Ok(row.try_get(0)?)
}

/// The checksum with which the step was recorded; `None` where it was not applied.
async fn recorded(client: &Client, migration: &Migration, table: &QualifiedName) -> Result<Option<String>> {
    let exists = client.query_one("select pg_catalog.to_regclass('outboxd.migration') is not null", &[]).await?;
    if !exists.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let query = "select checksum from outboxd.migration where version = $1 and subject = $2";
    let row = client.query_opt(query, &[&migration.version, &migration.subject(table)]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
