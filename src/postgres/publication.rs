//! Publications, over ordinary SQL.

use tokio_postgres::Client;

use super::error::Result;
use super::name::QualifiedName;
use super::wire::quote::identifier;

/// Columns of our own table that no consumer reads: leaving them out spares the server work (and needs 15 or later).
const UNPUBLISHED: [&str; 3] = ["seq", "txid", "created_at"];

/// A publication as the catalogue shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// It publishes inserts.
    pub inserts: bool,
    /// It covers the table that was asked about.
    pub covers: bool,
    /// The columns of the table that it publishes: before version 15 all.
    pub columns: Vec<String>,
    /// All columns of the table.
    pub table_columns: Vec<String>,
    /// The tables that inherit from it, at any distance: their rows are the table's, too, and come under their own names.
    pub heirs: Vec<QualifiedName>,
}

/// Looks the publication up, and whether it covers the table; `None` where there is none.
///
/// # Errors
/// When the connection is lost.
pub async fn inspect(client: &Client, name: &str, table: &QualifiedName) -> Result<Option<Publication>> {
    // Through JSON, since lists of columns came with version 15.
    let query = "select p.pubinsert, t.tablename is not null, case \
        when jsonb_typeof(to_jsonb(t) -> 'attnames') = 'array' \
        then array(select jsonb_array_elements_text(to_jsonb(t) -> 'attnames')) else c.names end, c.names, h.schemas, h.tables \
        from (select array(select a.attname::text from pg_attribute a join pg_class c on c.oid = a.attrelid \
                     join pg_namespace n on n.oid = c.relnamespace \
                     where n.nspname = $2 and c.relname = $3 and a.attnum > 0 and not a.attisdropped) as names) c, \
        (with recursive heir (oid) as ( \
             select i.inhrelid from pg_inherits i join pg_class c on c.oid = i.inhparent \
               join pg_namespace n on n.oid = c.relnamespace where n.nspname = $2 and c.relname = $3 \
             union select i.inhrelid from pg_inherits i join heir on heir.oid = i.inhparent) \
           select coalesce(array_agg(n.nspname::text order by c.oid), '{}') as schemas, \
             coalesce(array_agg(c.relname::text order by c.oid), '{}') as tables \
           from heir join pg_class c on c.oid = heir.oid join pg_namespace n on n.oid = c.relnamespace) h, \
        pg_publication p left join pg_publication_tables t \
          on t.pubname = p.pubname and t.schemaname = $2 and t.tablename = $3 \
        where p.pubname = $1";
    let row = client.query_opt(query, &[&name, &table.schema(), &table.name()]).await?;
    let publication = |row: tokio_postgres::Row| -> Result<Publication> {
        let (columns, table_columns) = (row.try_get(2)?, row.try_get(3)?);
        let (schemas, tables): (Vec<String>, Vec<String>) = (row.try_get(4)?, row.try_get(5)?);
        let heirs = schemas.iter().zip(&tables).map(|(schema, table)| QualifiedName::new(schema, table)).collect();
        Ok(Publication { inserts: row.try_get(0)?, covers: row.try_get(1)?, columns, table_columns, heirs })
    };
    row.map(publication).transpose()
}

/// The columns of a table in their order, without those that nobody reads.
///
/// # Errors
/// When the connection is lost.
pub async fn published_columns(client: &Client, table: &QualifiedName) -> Result<Vec<String>> {
    let query = "select a.attname::text from pg_catalog.pg_attribute a join pg_catalog.pg_class c on c.oid = a.attrelid \
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                 where n.nspname = $1 and c.relname = $2 and a.attnum > 0 and not a.attisdropped order by a.attnum";
    let rows = client.query(query, &[&table.schema(), &table.name()]).await?;
    let names: std::result::Result<Vec<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    Ok(names?.into_iter().filter(|name| !UNPUBLISHED.contains(&name.as_str())).collect())
}

/// The statement that creates a publication of one table: inserts only, a partitioned table under its own name, and from 15
/// on only the given columns.
#[must_use]
pub fn create_statement(name: &str, table: &QualifiedName, columns: &[String], server_version_num: u32) -> String {
    let columns = match server_version_num {
        ..150_000 => String::new(),
        _ => format!(" ({})", columns.iter().map(|column| identifier(column)).collect::<Vec<_>>().join(", ")),
    };
    format!(
        "CREATE PUBLICATION {} FOR TABLE {}{columns} WITH (publish = 'insert', publish_via_partition_root = true)",
        identifier(name),
        table.quoted(),
    )
}

/// The statement that drops a publication.
#[must_use]
pub fn drop_statement(name: &str) -> String {
    format!("DROP PUBLICATION IF EXISTS {}", identifier(name))
}
