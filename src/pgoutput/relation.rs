//! Tables as the server describes them before their first row, and again after DDL.

use std::collections::HashMap;
use std::iter::FusedIterator;
use std::sync::Arc;

use super::cursor::Cursor;
use super::error::ParseError;

/// What an UPDATE or DELETE sends of the old row: `pg_class.relreplident`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// Nothing.
    Nothing,
    /// All columns.
    Full,
    /// The columns of a chosen index.
    Index,
}

/// A Relation message: what the server says of a table before it sends rows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationBody<'a> {
    id: u32,
    namespace: &'a str,
    name: &'a str,
    replica_identity: ReplicaIdentity,
    columns: u16,
    columns_bytes: &'a [u8],
}

impl<'a> RelationBody<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, ParseError> {
        let id = cursor.u32("relation id")?;
        let namespace = cursor.string("namespace")?;
        let name = cursor.string("relation name")?;
        let replica_identity = match cursor.u8("replica identity")? {
            b'd' => ReplicaIdentity::Default,
            b'n' => ReplicaIdentity::Nothing,
            b'f' => ReplicaIdentity::Full,
            b'i' => ReplicaIdentity::Index,
            _ => return Err(cursor.unexpected_byte("replica identity")),
        };
        let columns = cursor.u16("number of columns")?;
        let ((), columns_bytes) =
            cursor.span(|cursor| (0..columns).try_for_each(|_| ColumnBody::read(cursor).map(drop)))?;
        Ok(Self { id, namespace, name, replica_identity, columns, columns_bytes })
    }

    /// The table's OID, by which its rows name it.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The schema; empty for `pg_catalog`.
    #[must_use]
    pub const fn namespace(&self) -> &'a str {
        self.namespace
    }

    /// The table's name.
    #[must_use]
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// What is sent of old rows.
    #[must_use]
    pub const fn replica_identity(&self) -> ReplicaIdentity {
        self.replica_identity
    }

    /// The published columns, in the order in which rows carry them.
    #[must_use]
    pub const fn columns(&self) -> ColumnBodies<'a> {
        ColumnBodies { cursor: Cursor::new("Relation", self.columns_bytes), left: self.columns }
    }
}

/// One column of a Relation message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnBody<'a> {
    /// Bit 0: the column is part of the replica identity.
    pub flags: u8,
    /// The column's name.
    pub name: &'a str,
    /// The OID of its type.
    pub type_oid: u32,
    /// The type's modifier (`pg_attribute.atttypmod`); -1 when it has none.
    pub type_modifier: i32,
}

impl<'a> ColumnBody<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, ParseError> {
        Ok(Self {
            flags: cursor.u8("column flags")?,
            name: cursor.string("column name")?,
            type_oid: cursor.u32("column type")?,
            type_modifier: cursor.i32("column type modifier")?,
        })
    }
}

/// The columns of a [`RelationBody`], first to last.
#[derive(Clone)]
pub struct ColumnBodies<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Iterator for ColumnBodies<'a> {
    type Item = ColumnBody<'a>;

    fn next(&mut self) -> Option<ColumnBody<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The columns were checked when the message was parsed, so this never fails.
        ColumnBody::read(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.left);
        (left, Some(left))
    }
}

impl ExactSizeIterator for ColumnBodies<'_> {}
impl FusedIterator for ColumnBodies<'_> {}

/// A table as the rows that follow carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    id: u32,
    namespace: String,
    name: String,
    replica_identity: ReplicaIdentity,
    columns: Vec<RelationColumn>,
}

impl Relation {
    /// A table that did not come from a stream, with columns of these names and types, as the catalogue or a query has them.
    #[must_use]
    pub fn new(namespace: &str, name: &str, columns: impl IntoIterator<Item = (String, u32)>) -> Self {
        let column = |(name, type_oid)| RelationColumn { name, type_oid, type_modifier: -1, is_identity: false };
        Self {
            id: 0,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            replica_identity: ReplicaIdentity::Default,
            columns: columns.into_iter().map(column).collect(),
        }
    }

    /// The table's OID.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The schema; empty for `pg_catalog`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is sent of old rows.
    #[must_use]
    pub const fn replica_identity(&self) -> ReplicaIdentity {
        self.replica_identity
    }

    /// The published columns, in the order in which rows carry them.
    #[must_use]
    pub fn columns(&self) -> &[RelationColumn] {
        &self.columns
    }

    /// Where in a row the column `name` is; none when it is not published.
    #[must_use]
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

impl From<RelationBody<'_>> for Relation {
    fn from(body: RelationBody<'_>) -> Self {
        Self {
            id: body.id,
            namespace: body.namespace.to_owned(),
            name: body.name.to_owned(),
            replica_identity: body.replica_identity,
            columns: body.columns().map(RelationColumn::from).collect(),
        }
    }
}

/// A published column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    name: String,
    type_oid: u32,
    type_modifier: i32,
    is_identity: bool,
}

impl RelationColumn {
    /// The column's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The OID of its type.
    #[must_use]
    pub const fn type_oid(&self) -> u32 {
        self.type_oid
    }

    /// The type's modifier; -1 when it has none.
    #[must_use]
    pub const fn type_modifier(&self) -> i32 {
        self.type_modifier
    }

    /// Whether the column is part of the replica identity.
    #[must_use]
    pub const fn is_identity(&self) -> bool {
        self.is_identity
    }
}

impl From<ColumnBody<'_>> for RelationColumn {
    fn from(body: ColumnBody<'_>) -> Self {
        Self {
            name: body.name.to_owned(),
            type_oid: body.type_oid,
            type_modifier: body.type_modifier,
            is_identity: body.flags & 1 != 0,
        }
    }
}

/// The tables that this connection has described so far.
///
/// The server describes a table once a connection, and again when DDL has changed it. Its size is the number of
/// tables in the publication.
#[derive(Debug, Default)]
pub struct RelationCache {
    relations: HashMap<u32, Arc<Relation>>,
}

impl RelationCache {
    /// Remembers what the server says of a table, in place of what it said before.
    ///
    /// A table that is described again without a change keeps its `Arc`, so what was derived from it stays valid.
    pub fn apply(&mut self, body: RelationBody<'_>) -> Arc<Relation> {
        let relation = Relation::from(body);
        if let Some(known) = self.relations.get(&relation.id).filter(|known| ***known == relation) {
            return Arc::clone(known);
        }
        let relation = Arc::new(relation);
        self.relations.insert(relation.id, Arc::clone(&relation));
        relation
    }

    /// The table with this OID, if the server has described it.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Arc<Relation>> {
        self.relations.get(&id)
    }

    /// Forgets all tables: a new connection describes them anew.
    pub fn clear(&mut self) {
        self.relations.clear();
    }
}
