//! Where the rows of the outbox would go: what a relay decides, for every kind of row that is there. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::outbox::{Event, Mapping, MappingError, Position, Role, Shape, TypeNames};
use crate::pgoutput::{PgTimestamp, Relation, Tuple, encode};
use crate::postgres::QualifiedName;

/// Type oid of `text`.
const TEXT: u32 = 25;

/// What the rows would become.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// The columns that decide.
    pub(super) columns: Vec<String>,
    pub(super) topics: BTreeSet<String>,
    /// What they hold where that makes no topic.
    pub(super) unnamable: Vec<Vec<Option<String>>>,
    /// A column that is NULL and must not be.
    pub(super) null: Option<String>,
}

impl Routes {
    /// Maps rows of which only the columns that decide are known, each kind once.
    pub(super) fn of(
        table: &QualifiedName,
        mapping: &Mapping,
        in_table: &[String],
        columns: &[String],
        kinds: &[Vec<Option<String>>],
    ) -> Self {
        let mut routes = Self { columns: columns.to_vec(), ..Self::default() };
        let needed = [Role::Id, Role::Payload];
        let others = needed.iter().filter_map(|role| mapping.columns.find(*role, in_table));
        let others: Vec<&str> = others.filter(|name| !columns.iter().any(|column| column == name)).collect();
        let names = columns.iter().map(String::as_str).chain(others.iter().copied());
        let relation = Relation::new(table.schema(), table.name(), names.map(|name| (name.to_owned(), TEXT)));
        let Ok(shape) = Shape::of(&relation, mapping, &TypeNames::new()).map(Arc::new) else { return routes };
        for kind in kinds {
            let values = kind.iter().map(|value| value.as_deref().map(str::as_bytes));
            let values: Vec<Option<&[u8]>> = values.chain(others.iter().map(|_| Some(&b""[..]))).collect();
            routes.add(&shape, &encode(&values), kind);
        }
        routes
    }

    fn add(&mut self, shape: &Arc<Shape>, row: &[u8], kind: &[Option<String>]) {
        let Ok(tuple) = Tuple::parse(row) else { return };
        let event = Event::map(shape, &tuple, Bytes::copy_from_slice, Position::default(), PgTimestamp::default());
        let mut topic = String::new();
        match event.and_then(|event| Ok(if event.filtered().is_none() { Some(event.topic(&mut topic)?) } else { None }))
        {
            Ok(Some(())) => drop(self.topics.insert(topic)),
            Ok(None) => {}
            Err(MappingError::NoTopic { column } | MappingError::Null { column }) => self.null = Some(column),
            Err(_) => self.unnamable.push(kind.to_vec()),
        }
    }
}
