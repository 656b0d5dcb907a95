//! What a mapping means for one table: columns by number instead of by name.

use std::collections::HashMap;

use super::claim::ClaimStore;
use super::columns::Role;
use super::mapping::{HeaderColumn, Key, Layout, Mapping, OnFailure, Rewrite, ValueFormat};
use super::rule::{Action, Condition, Rule};
use super::shape_error::{Problem, ShapeError};
use super::template::{Part, Template};
use super::topic;
use crate::pgoutput::{Relation, RelationColumn};

/// The number of a column among those that are used.
pub(super) type Slot = usize;

/// How a column's text is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Text,
    Json,
    Bytea,
    Hstore,
}

impl Kind {
    /// Type oids of `pg_type.dat`, the same in every server; other types have a name from the stream.
    fn of(column: &RelationColumn, types: &TypeNames) -> Self {
        match (column.type_oid(), types.get(&column.type_oid()).map(String::as_str)) {
            (17, _) | (_, Some("bytea")) => Self::Bytea,
            (114 | 3802, _) | (_, Some("json" | "jsonb")) => Self::Json,
            (_, Some("hstore")) => Self::Hstore,
            _ => Self::Text,
        }
    }
}

/// Names of the types that are not built in, by oid, as the stream's Type messages tell them: for a domain that of its base.
pub type TypeNames = HashMap<u32, String>;

/// The columns of one table, and what is made of them.
#[derive(Clone, Debug)]
pub struct Shape {
    /// By the number of the column in the relation.
    slots: Vec<Option<Slot>>,
    used: Vec<Used>,
    roles: [Option<Slot>; Role::COUNT],
    pub(super) topic: Topic,
    pub(super) key: BoundKey,
    pub(super) partition: Option<Slot>,
    pub(super) timestamp: Option<Slot>,
    pub(super) headers: Vec<(String, Slot)>,
    pub(super) rules: Vec<BoundRule>,
    pub(super) statuses: Vec<String>,
    pub(super) value: ValueFormat,
    pub(super) layout: Layout,
    pub(super) empty_is_tombstone: bool,
    claim_check_above: Option<usize>,
    pub(super) claim_check_to: Option<ClaimStore>,
}

/// A column that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Used {
    name: String,
    kind: Kind,
    /// An option names it.
    is_named: bool,
}

/// A template with the slots of its pieces.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) template: Template,
    pub(super) slots: Vec<Option<Slot>>,
}

#[derive(Clone, Debug)]
pub(super) enum Topic {
    Text(Text),
    Rewrite(Rewrite, Option<Slot>),
}

#[derive(Clone, Debug)]
pub(super) enum BoundKey {
    Column(Option<Slot>),
    Text(Text),
    None,
}

#[derive(Clone, Debug)]
pub(super) struct BoundRule {
    pub(super) when: Vec<(Condition, Option<Slot>)>,
    pub(super) then: Then,
}

#[derive(Clone, Debug)]
pub(super) enum Then {
    Drop,
    Change { topic: Option<Text>, key: Option<BoundKey>, headers: Vec<(String, Text)>, on_failure: Option<OnFailure> },
}

/// Roles whose columns become headers of the same name.
const HEADER_ROLES: [Role; 5] =
    [Role::SchemaVersion, Role::EventClass, Role::IdempotencyKey, Role::TraceParent, Role::TraceState];

impl Shape {
    /// Binds `mapping` to the columns that the publication sends. A column that is named but is not among them is as if it were
    /// NULL: rows from before it was added come without it.
    ///
    /// # Errors
    /// When there is no column for what every event needs, or every topic's name would be one that Kafka does not take.
    pub fn of(relation: &Relation, mapping: &Mapping, types: &TypeNames) -> Result<Self, ShapeError> {
        let mut binder = Binder::new(relation, mapping, types);
        let missing: Vec<String> = Role::all()
            .filter(|role| role.is_needed() && mapping.columns.find(*role, &binder.columns).is_none())
            .map(|role| mapping.columns.words(role))
            .collect();
        if !missing.is_empty() {
            return Err(ShapeError { table: binder.table(), problem: Problem::Missing(missing, binder.columns) });
        }
        let mut roles = [None; Role::COUNT];
        for role in Role::all() {
            let is_used = role != Role::Status || !mapping.statuses.is_empty();
            if let Some(slot) = roles.get_mut(role as usize).filter(|_| is_used) {
                *slot = binder.role(role);
            }
        }
        let topic = binder.topic()?;
        let of_roles = HEADER_ROLES.iter().filter(|_| mapping.layout == Layout::Outboxd);
        let of_roles = of_roles.filter_map(|role| Some((role.name().to_owned(), (*roles.get(*role as usize)?)?)));
        let mut headers: Vec<_> = of_roles.collect();
        headers.extend(
            mapping
                .headers
                .iter()
                .filter_map(|HeaderColumn { column, header }| Some((header.clone(), binder.slot(column)?))),
        );
        Ok(Self {
            topic,
            key: binder.key(&mapping.key),
            partition: mapping.partition.as_deref().and_then(|column| binder.slot(column)),
            timestamp: mapping.timestamp.as_deref().and_then(|column| binder.slot(column)),
            headers,
            rules: mapping.rules.iter().map(|rule| binder.rule(rule)).collect(),
            statuses: mapping.statuses.clone(),
            value: mapping.value,
            layout: mapping.layout,
            empty_is_tombstone: mapping.empty_is_tombstone,
            claim_check_above: mapping.claim_check_above,
            claim_check_to: mapping.claim_check_to.clone(),
            roles,
            slots: binder.slots,
            used: binder.used,
        })
    }

    /// The slot of the relation's column with this number; `None` where it is nothing to us.
    pub(super) fn slot(&self, column: usize) -> Option<Slot> {
        self.slots.get(column).copied().flatten()
    }

    /// The column is the payload, and payloads may stay behind.
    pub(super) fn is_claimable(&self, slot: Slot) -> bool {
        self.claim_check_above.is_some() && self.role(Role::Payload) == Some(slot)
    }

    /// The column is a payload of so many bytes as text, and stays behind.
    pub(super) fn is_claimed(&self, slot: Slot, bytes: usize) -> bool {
        self.claim_check_above.is_some_and(|above| bytes > above) && self.is_claimable(slot)
    }

    /// The number of the relation's column that holds the id.
    #[must_use]
    pub fn id_column(&self) -> Option<usize> {
        let id = self.role(Role::Id)?;
        self.slots.iter().position(|slot| *slot == Some(id))
    }

    /// How many columns are used.
    pub(super) fn width(&self) -> usize {
        self.used.len()
    }

    pub(super) fn role(&self, role: Role) -> Option<Slot> {
        self.roles.get(role as usize).copied().flatten()
    }

    pub(super) fn kind(&self, slot: Slot) -> Kind {
        self.used.get(slot).map_or(Kind::Text, |used| used.kind)
    }

    /// The column's name.
    pub(super) fn name(&self, slot: Slot) -> &str {
        self.used.get(slot).map_or("", |used| &used.name)
    }

    /// The first column that records need, that this shape has and `later` does not have, under whatever name.
    #[must_use]
    pub fn lost_in(&self, later: &Self) -> Option<&str> {
        let mut roles = Role::all().filter(|role| role.is_essential());
        let of_role = roles.find_map(|role| self.role(role).filter(|_| later.role(role).is_none()));
        let of_role = of_role.map(|slot| self.name(slot));
        let has = |name: &str| later.used.iter().any(|used| used.name == name);
        let mut named = self.used.iter().filter(|used| used.is_named).map(|used| used.name.as_str());
        of_role.or_else(|| named.find(|name| !has(name)))
    }
}

/// Gives slots to columns as they are asked for.
struct Binder<'m> {
    relation: &'m Relation,
    mapping: &'m Mapping,
    types: &'m TypeNames,
    columns: Vec<String>,
    slots: Vec<Option<Slot>>,
    used: Vec<Used>,
}

impl<'m> Binder<'m> {
    fn new(relation: &'m Relation, mapping: &'m Mapping, types: &'m TypeNames) -> Self {
        let columns: Vec<String> = relation.columns().iter().map(|column| column.name().to_owned()).collect();
        Self { relation, mapping, types, slots: vec![None; columns.len()], columns, used: Vec::new() }
    }

    fn table(&self) -> String {
        format!("{}.{}", self.relation.namespace(), self.relation.name())
    }

    fn role(&mut self, role: Role) -> Option<Slot> {
        let index = self.relation.column_index(self.mapping.columns.find(role, &self.columns)?)?;
        self.slot_of(index, false)
    }

    /// The column with this name, or that of the role with this name.
    fn slot(&mut self, name: &str) -> Option<Slot> {
        let Some(index) = self.relation.column_index(name) else {
            let column = self.mapping.columns.find(Role::by_name(name)?, &self.columns)?;
            let index = self.relation.column_index(column)?;
            return self.slot_of(index, false);
        };
        // A role may go on under another name.
        self.slot_of(index, Role::by_name(name).is_none())
    }

    fn slot_of(&mut self, index: usize, is_named: bool) -> Option<Slot> {
        let column = self.relation.columns().get(index)?;
        let (slot, next) = (self.slots.get_mut(index)?, self.used.len());
        if slot.is_none() {
            self.used.push(Used {
                name: column.name().to_owned(),
                kind: Kind::of(column, self.types),
                is_named: false,
            });
        }
        let slot = *slot.get_or_insert(next);
        if let Some(used) = self.used.get_mut(slot) {
            used.is_named |= is_named;
        }
        Some(slot)
    }

    fn text(&mut self, template: &Template) -> Text {
        let (schema, table) = (self.relation.namespace(), self.relation.name());
        let template = template.with(|name| match name {
            "schema" => Some(schema),
            "table" => Some(table),
            _ => None,
        });
        let slot = |part: &Part| match part {
            Part::Literal(_) => None,
            Part::Column { name, .. } => self.slot(name),
        };
        Text { slots: template.parts().iter().map(slot).collect(), template }
    }

    fn topic(&mut self) -> Result<Topic, ShapeError> {
        if let Some(rewrite) = &self.mapping.rewrite {
            let slot = self.slot(&rewrite.column);
            return Ok(Topic::Rewrite(rewrite.clone(), slot));
        }
        let template = match &self.mapping.topic {
            Some(template) => template.clone(),
            None => default_topic(self.mapping, &self.columns),
        };
        let text = self.text(&template);
        match text.template.fixed() {
            Some(name) if !topic::is_name(name) => {
                Err(ShapeError { table: self.table(), problem: Problem::Topic(name.to_owned()) })
            }
            _ => Ok(Topic::Text(text)),
        }
    }

    fn key(&mut self, key: &Key) -> BoundKey {
        match key {
            Key::None => BoundKey::None,
            Key::Aggregate => BoundKey::Column(self.role(Role::AggregateId)),
            Key::Template(template) => match template.parts() {
                // One column as it stands, without a detour over text.
                [Part::Column { name, filters, default: None }] if filters.is_empty() => {
                    BoundKey::Column(self.slot(name))
                }
                _ => BoundKey::Text(self.text(template)),
            },
        }
    }

    fn rule(&mut self, rule: &Rule) -> BoundRule {
        let when = rule.when.iter().map(|condition| (condition.clone(), self.slot(&condition.column))).collect();
        let then = match &rule.then {
            Action::Drop => Then::Drop,
            Action::Change(change) => Then::Change {
                topic: change.topic.as_ref().map(|template| self.text(template)),
                key: change.key.as_ref().map(|key| self.key(key)),
                headers: change.headers.iter().map(|(name, text)| (name.clone(), self.text(text))).collect(),
                on_failure: change.on_failure,
            },
        };
        BoundRule { when, then }
    }
}

/// What a table's columns suggest where no topic is given.
#[must_use]
pub fn default_topic(mapping: &Mapping, columns: &[String]) -> Template {
    let has = |role| mapping.columns.find(role, columns).is_some();
    let parts: &[&str] = match () {
        () if has(Role::Topic) => &["", "topic"],
        () if has(Role::AggregateType) => &["outbox.event.", "aggregate_type"],
        () => &["outbox.event.", "table"],
    };
    Template::of(parts)
}
