//! Which column of the outbox table is what: found by name, or named by the user.

use std::collections::BTreeMap;
use std::fmt;

/// What a column of an outbox table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Further headers: a JSON object or an hstore.
    Headers,
    /// The topic itself.
    Topic,
    /// The version of the payload's schema; a header.
    SchemaVersion,
    /// The class of the event; a header.
    EventClass,
    /// The writer's idempotency key; a header.
    IdempotencyKey,
    /// The trace that the event belongs to (W3C Trace Context); a header.
    TraceParent,
    /// What vendors add to it; a header.
    TraceState,
    /// Both, as Debezium's router takes them: lines of `name=value` (Java's `Properties`).
    SpanContext,
    /// Where the row is in its life, for `--status-filter`.
    Status,
    /// How often the event may be tried before it counts as one that cannot be published.
    MaxRetries,
}

impl Role {
    /// Every role with the names under which it is known: ours first, then those of Debezium's outbox event router and of
    /// other tables.
    const ALL: [(Self, &[&str]); 15] = [
        (Self::Id, &["id", "event_id"]),
        (Self::AggregateType, &["aggregate_type", "aggregatetype"]),
        (Self::AggregateId, &["aggregate_id", "aggregateid", "partition_key"]),
        (Self::EventType, &["event_type", "type"]),
        (Self::Payload, &["payload"]),
        (Self::Headers, &["headers"]),
        (Self::Topic, &["topic"]),
        (Self::SchemaVersion, &["schema_version"]),
        (Self::EventClass, &["event_class"]),
        (Self::IdempotencyKey, &["idempotency_key"]),
        (Self::TraceParent, &["traceparent"]),
        (Self::TraceState, &["tracestate"]),
        (Self::SpanContext, &["tracingspancontext"]),
        (Self::Status, &["status"]),
        (Self::MaxRetries, &["max_retries"]),
    ];

    /// How many there are.
    pub(super) const COUNT: usize = Self::ALL.len();

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().map(|(role, _)| *role)
    }

    /// Our name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names().first().copied().unwrap_or_default()
    }

    /// The role with this name of ours.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|role| role.name() == name)
    }

    /// Without a column for it no row is an event.
    #[must_use]
    pub const fn is_needed(self) -> bool {
        matches!(self, Self::Id | Self::Payload)
    }

    /// Where it is published or not decides which record it is: what, to which topic, in which order.
    #[must_use]
    pub const fn is_essential(self) -> bool {
        let is_routing = matches!(self, Self::AggregateType | Self::AggregateId | Self::EventType | Self::Topic);
        self.is_needed() || is_routing
    }

    fn names(self) -> &'static [&'static str] {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or(&[], |(_, names)| names)
    }
}

/// The columns that the user has named; the others are found by their usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// `None` where the role is not to have a column.
    named: BTreeMap<Role, Option<String>>,
}

impl Columns {
    /// Takes `role=column`; without a column the role has none.
    ///
    /// # Errors
    /// When there is no such role.
    pub fn name(&mut self, choice: &str) -> Result<(), ColumnsError> {
        let (role, column) = choice.split_once('=').ok_or_else(|| ColumnsError::Form(choice.to_owned()))?;
        let role = Role::by_name(role).ok_or_else(|| ColumnsError::Role(role.to_owned()))?;
        self.named.insert(role, (!column.is_empty()).then(|| column.to_owned()));
        Ok(())
    }

    /// The column of this role among these, if there is one.
    #[must_use]
    pub fn find<'c>(&self, role: Role, columns: &'c [String]) -> Option<&'c str> {
        let by_name = |name: &str| columns.iter().find(|column| *column == name).map(String::as_str);
        match self.named.get(&role) {
            Some(named) => named.as_deref().and_then(by_name),
            None => role.names().iter().find_map(|name| by_name(name)),
        }
    }

    /// The column that the user has named for this role.
    #[must_use]
    pub fn named(&self, role: Role) -> Option<&str> {
        self.named.get(&role)?.as_deref()
    }

    /// The roles that are to have a column and have none among these, each with the names that it may have.
    #[must_use]
    pub fn missing(&self, columns: &[String]) -> Vec<String> {
        let is_wanted = |role: &Role| role.is_needed() || self.named(*role).is_some();
        let is_missing = |role: &Role| self.find(*role, columns).is_none();
        Role::all().filter(is_wanted).filter(is_missing).map(|role| self.words(role)).collect()
    }

    /// The names that a column of this role may have.
    #[must_use]
    pub fn words(&self, role: Role) -> String {
        self.named(role).map_or_else(|| role.names().join(" or "), str::to_owned)
    }
}

/// A choice of a column that says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnsError {
    /// Not `role=column`.
    Form(String),
    /// There is no such role.
    Role(String),
}

impl fmt::Display for ColumnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(f, "{text:?} is not of the form payload=my_column"),
            Self::Role(name) => {
                let known: Vec<_> = Role::all().map(Role::name).collect();
                write!(f, "{name:?} is nothing that a column can be; known are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for ColumnsError {}
