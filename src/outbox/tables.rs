//! The tables that a stream describes, and which of them is the outbox.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::mapping::Mapping;
use super::shape::{Shape, TypeNames};
use super::shape_error::ShapeError;
use crate::pgoutput::{Column, Relation, RelationBody, RelationCache, Tuple};
use crate::postgres::QualifiedName;

/// What a stream has told about tables so far.
#[derive(Debug)]
pub struct Tables {
    outbox: QualifiedName,
    /// Tables that inherit from it.
    heirs: Vec<QualifiedName>,
    mapping: Mapping,
    relations: RelationCache,
    types: TypeNames,
    /// For each relation, whether it is the outbox and if so what is made of it.
    shapes: HashMap<u32, Option<Arc<Shape>>>,
    /// What the outbox and its heirs looked like last.
    last: HashMap<u32, Arc<Shape>>,
}

impl Tables {
    /// Nothing is known yet but which table is the outbox, and what is to be made of it.
    #[must_use]
    pub fn new(outbox: QualifiedName, mapping: Mapping) -> Self {
        Self {
            outbox,
            heirs: Vec::new(),
            mapping,
            relations: RelationCache::default(),
            types: TypeNames::new(),
            shapes: HashMap::new(),
            last: HashMap::new(),
        }
    }

    /// A new stream describes everything again. It may begin earlier, before a column was added.
    pub fn clear(&mut self) {
        let heirs = std::mem::take(&mut self.heirs);
        *self = Self { heirs, ..Self::new(self.outbox.clone(), std::mem::take(&mut self.mapping)) };
    }

    /// The tables that inherit from the outbox: their rows are its rows.
    pub fn set_heirs(&mut self, heirs: Vec<QualifiedName>) {
        self.heirs = heirs;
    }

    /// What is to be made of rows.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A table is described, for the first time or anew.
    pub fn relation(&mut self, body: RelationBody<'_>) {
        let relation = self.relations.apply(body);
        self.shapes.remove(&relation.id());
    }

    /// A type is described that is not built in.
    pub fn named_type(&mut self, oid: u32, name: &str) {
        self.types.insert(oid, name.to_owned());
    }

    /// A row's columns by name, as text, for people: of one that is no event.
    #[must_use]
    pub fn columns(&self, relation_id: u32, tuple: &Tuple<'_>) -> BTreeMap<String, Option<String>> {
        let names = self.relations.get(relation_id).map_or(&[][..], |relation| relation.columns());
        let text = |column: Column<'_>| match column {
            Column::Text(text) | Column::Binary(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Column::Null | Column::UnchangedToast => None,
        };
        names.iter().zip(tuple.columns()).map(|(name, value)| (name.name().to_owned(), text(value))).collect()
    }

    /// What is made of the rows of a relation; `None` where it is not the outbox.
    ///
    /// # Errors
    /// When the relation was not described, or the outbox lacks what records need.
    pub fn shape(&mut self, relation_id: u32) -> Result<Option<&Arc<Shape>>, TablesError> {
        if !self.shapes.contains_key(&relation_id) {
            let shape = self.bind(relation_id)?;
            if let Some(shape) = &shape {
                self.last.insert(relation_id, Arc::clone(shape));
            }
            self.shapes.insert(relation_id, shape);
        }
        Ok(self.shapes.get(&relation_id).and_then(Option::as_ref))
    }

    /// What is made of the rows of a relation, if that has been asked before.
    #[must_use]
    pub fn known_shape(&self, relation_id: u32) -> Option<&Shape> {
        self.shapes.get(&relation_id)?.as_deref()
    }

    fn bind(&self, relation_id: u32) -> Result<Option<Arc<Shape>>, TablesError> {
        let relation = self.relations.get(relation_id).ok_or(TablesError::Undescribed)?;
        let is = |table: &QualifiedName| relation.namespace() == table.schema() && relation.name() == table.name();
        let shape = if is(&self.outbox) {
            Shape::of(relation, &self.mapping, &self.types)
        } else if self.heirs.iter().any(is) {
            // Under the outbox's name: topics do not depend on where a row lies.
            let columns = relation.columns().iter().map(|column| (column.name().to_owned(), column.type_oid()));
            let relation = Relation::new(self.outbox.schema(), self.outbox.name(), columns);
            Shape::of(&relation, &self.mapping, &self.types)
        } else {
            return Ok(None);
        };
        let shape = shape.map_err(TablesError::Shape)?;
        match self.last.get(&relation_id).and_then(|last| last.lost_in(&shape)) {
            Some(column) => Err(TablesError::Lost { table: self.outbox.to_string(), column: column.to_owned() }),
            None => Ok(Some(Arc::new(shape))),
        }
    }
}

/// Why nothing can be made of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TablesError {
    /// A row of a relation that the stream did not describe.
    Undescribed,
    /// The table is no outbox.
    Shape(ShapeError),
    /// The table had a column that records need, and has it no more.
    Lost {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
}

impl fmt::Display for TablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undescribed => f.write_str("a row of a relation that was not described"),
            Self::Shape(error) => error.fmt(f),
            Self::Lost { table, column } => {
                write!(f, "the table {table} comes without its column {column}, which it had before")
            }
        }
    }
}

impl std::error::Error for TablesError {}
