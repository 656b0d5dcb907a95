//! The flags that several commands share: which database, slot, publication and table.

use clap::Args;

use crate::config::run::Mistakes;
use crate::postgres::QualifiedName;
use crate::postgres::conninfo::{Conninfo, Process, password_in_text};

/// Where the outbox is.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// The database, as libpq takes it: postgresql://user@host/db or "host=... dbname=...". No password on the command line.
    #[arg(long, env = "OUTBOXD_DATABASE_URL", hide_env_values = true, default_value = "")]
    database_url: String,
    /// The logical replication slot (plugin pgoutput).
    #[arg(long, env = "OUTBOXD_SLOT", default_value = "outboxd")]
    slot: String,
    /// The publication that covers the table.
    #[arg(long, env = "OUTBOXD_PUBLICATION", default_value = "outboxd")]
    publication: String,
    /// The outbox table.
    #[arg(long, env = "OUTBOXD_TABLE", default_value = "outboxd.outbox")]
    table: String,
}

/// What the flags say, checked.
#[derive(Clone, Debug)]
pub struct Target {
    /// The database.
    pub database: Conninfo,
    /// The slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// The table.
    pub table: QualifiedName,
}

impl TargetArgs {
    /// Checks them all; `None` with at least one mistake noted.
    pub fn check(&self, mistakes: &mut Mistakes) -> Option<Target> {
        // It may have come from the environment or a file.
        let in_argv = std::env::args_os().any(|argument| argument.to_string_lossy().contains(&self.database_url));
        if in_argv && password_in_text(&self.database_url) {
            mistakes.add(
                "--database-url",
                "has a password, and a command line is visible to every user of the machine; put it into \
                 OUTBOXD_DATABASE_URL, PGPASSWORD or a password file",
            );
        }
        if self.publication.is_empty() {
            mistakes.add("--publication", "a name is needed");
        }
        // As PostgreSQL's ReplicationSlotValidateName().
        let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if self.slot.is_empty() || self.slot.len() > 63 || !self.slot.bytes().all(is_legal) {
            let rule = "a slot's name has lower-case letters, digits and '_', 63 at most";
            mistakes.add("--slot", format_args!("{:?}: {rule}", self.slot));
        }
        let database = mistakes.note("--database-url", Conninfo::parse(&self.database_url, &Process));
        let table = mistakes.note("--table", self.table.parse());
        Some(Target {
            database: database?,
            slot: self.slot.clone(),
            publication: self.publication.clone(),
            table: table?,
        })
    }
}
