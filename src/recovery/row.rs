//! Events from rows of the table, as the stream would bring them.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::outbox::{Event, Mapping, MappingError, Position, Shape, ShapeError, TypeNames};
use crate::pgoutput::{PgTimestamp, Relation, Tuple, encode};
use crate::postgres::QualifiedName;
use crate::postgres::row::TableColumn;

/// Makes events of a table's rows.
#[derive(Clone, Debug)]
pub struct RowMapper {
    shape: Arc<Shape>,
}

impl RowMapper {
    /// For a table with these columns, which are those that are published.
    ///
    /// # Errors
    /// When a column that every event needs is not there, or has a type that it cannot have.
    pub fn new(table: &QualifiedName, columns: &[TableColumn], mapping: &Mapping) -> Result<Self, ShapeError> {
        let types: TypeNames = columns.iter().map(|column| (column.type_oid, column.type_name.clone())).collect();
        let described = columns.iter().map(|column| (column.name.clone(), column.type_oid));
        let relation = Relation::new(table.schema(), table.name(), described);
        Ok(Self { shape: Arc::new(Shape::of(&relation, mapping, &types)?) })
    }

    /// The event of a row: its values in the order of the columns, as text.
    ///
    /// # Errors
    /// When the row is no event.
    pub fn event(&self, values: &[Option<Cow<'_, str>>], committed_at: PgTimestamp) -> Result<Event, MappingError> {
        let texts: Vec<Option<&[u8]>> = values.iter().map(|value| value.as_deref().map(str::as_bytes)).collect();
        let row = encode(&texts);
        // What was encoded here can be parsed, unless its lengths could not be written down.
        let tuple = Tuple::parse(&row).map_err(|_| MappingError::TooLarge { column: "the row".to_owned() })?;
        Event::map(&self.shape, &tuple, Bytes::copy_from_slice, Position::default(), committed_at)
    }
}
