//! Which column of the outbox table is what, found by name.

use std::fmt;

use crate::pgoutput::{Relation, RelationColumn};

/// Type oid of `bytea` in `pg_type.dat`, the same in every server.
const BYTEA: u32 = 17;

/// What a column of an outbox table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The event's id.
    Id,
    /// What kind of thing the event is about; names the topic.
    AggregateType,
    /// Which thing the event is about; the record's key.
    AggregateId,
    /// What happened.
    EventType,
    /// The record's value.
    Payload,
    /// Further headers as a JSON object; a table may be without.
    Headers,
}

impl Role {
    /// Every role with the names under which it is known: ours first, then those of Debezium's outbox event router.
    const ALL: [(Self, &[&str]); 6] = [
        (Self::Id, &["id"]),
        (Self::AggregateType, &["aggregate_type", "aggregatetype"]),
        (Self::AggregateId, &["aggregate_id", "aggregateid"]),
        (Self::EventType, &["event_type", "type"]),
        (Self::Payload, &["payload"]),
        (Self::Headers, &["headers"]),
    ];

    /// The column of this role among these, if there is one.
    #[must_use]
    pub fn column(self, columns: &[String]) -> Option<&str> {
        let names = self.names();
        names.iter().find_map(|name| columns.iter().find(|column| column == name)).map(String::as_str)
    }

    /// The names of the roles that have no column among these and need one, each with the names it may have.
    #[must_use]
    pub fn missing(columns: &[String]) -> Vec<&'static [&'static str]> {
        let needed = Self::ALL.iter().filter(|(role, _)| *role != Self::Headers);
        needed.filter(|(role, _)| role.column(columns).is_none()).map(|(_, names)| *names).collect()
    }

    /// Such names in words.
    #[must_use]
    pub fn words(missing: &[&'static [&'static str]]) -> String {
        missing.iter().map(|names| names.join(" or ")).collect::<Vec<_>>().join(", ")
    }

    fn names(self) -> &'static [&'static str] {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or(&[], |(_, names)| names)
    }

    /// How many there are.
    pub(super) const COUNT: usize = Self::ALL.len();
}

/// The role of each column of an outbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    roles: Vec<Option<Role>>,
    payload_is_bytea: bool,
}

impl Shape {
    /// Finds the roles among the columns that the publication sends.
    ///
    /// # Errors
    /// Names every role without a column, and the columns that are there.
    pub fn of(relation: &Relation) -> Result<Self, ShapeError> {
        let columns: Vec<String> = relation.columns().iter().map(|column| column.name().to_owned()).collect();
        let table = format!("{}.{}", relation.namespace(), relation.name());
        if let Some(error) = ShapeError::among(&table, &columns) {
            return Err(error);
        }
        let mut roles = vec![None; columns.len()];
        for (role, _) in Role::ALL {
            let index = role.column(&columns).and_then(|name| relation.column_index(name));
            if let Some(column) = index.and_then(|index| roles.get_mut(index)) {
                *column = Some(role);
            }
        }
        let is_bytea = |(column, role): (&RelationColumn, &Option<Role>)| {
            *role == Some(Role::Payload) && column.type_oid() == BYTEA
        };
        let payload_is_bytea = relation.columns().iter().zip(&roles).any(is_bytea);
        Ok(Self { roles, payload_is_bytea })
    }

    /// What the column at `index` is; `None` where it is nothing to us.
    #[must_use]
    pub fn role(&self, index: usize) -> Option<Role> {
        self.roles.get(index).copied().flatten()
    }

    /// The payload is `bytea`, so the stream carries it in hexadecimal digits.
    #[must_use]
    pub const fn payload_is_bytea(&self) -> bool {
        self.payload_is_bytea
    }
}

/// The publication sends a table that is no outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError {
    table: String,
    missing: Vec<&'static [&'static str]>,
    present: Vec<String>,
}

impl ShapeError {
    /// The error about a table of which these columns are published, if some are missing.
    #[must_use]
    pub fn among(table: &str, columns: &[String]) -> Option<Self> {
        let missing = Role::missing(columns);
        (!missing.is_empty()).then(|| Self { table: table.to_owned(), missing, present: columns.to_vec() })
    }
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table {} is published without the column {}; published are: {}. Add what is missing to the table and to \
             the publication's column list",
            self.table,
            Role::words(&self.missing),
            self.present.join(", ")
        )
    }
}

impl std::error::Error for ShapeError {}
