//! Rows of a table as text, as the replication stream would bring them.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::error::Result;
use super::name::QualifiedName;
use super::wire::quote::{identifier, literal};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// The oid of its type.
    pub type_oid: u32,
    /// The name of its type; of a domain that of its base.
    pub type_name: String,
    /// Its type as SQL writes it, without length or precision; of a type outside of `pg_catalog` with the schema.
    pub sql_type: String,
}

/// The table's columns, in order; none where there is no such table.
///
/// # Errors
/// When the connection is lost.
pub async fn columns(client: &Client, table: &QualifiedName) -> Result<Vec<TableColumn>> {
    let query = "with recursive base (oid, typname, typbasetype) as ( \
          select t.oid, t.typname, t.typbasetype from pg_type t), \
        resolved (oid, name, next) as ( \
          select oid, typname, typbasetype from base union all \
          select r.oid, b.typname, b.typbasetype from resolved r join base b on b.oid = r.next where r.next <> 0) \
        select a.attname::text, a.atttypid, r.name::text, \
        pg_catalog.format_type(a.atttypid, null) \
        from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace \
        join resolved r on r.oid = a.atttypid and r.next = 0 \
        where n.nspname = $1 and c.relname = $2 and a.attnum > 0 and not a.attisdropped order by a.attnum";
    let rows = client.query(query, &[&table.schema(), &table.name()]).await?;
    let column = |row: &tokio_postgres::Row| -> Result<TableColumn> {
        Ok(TableColumn {
            name: row.try_get(0)?,
            type_oid: row.try_get(1)?,
            type_name: row.try_get(2)?,
            sql_type: row.try_get(3)?,
        })
    };
    rows.iter().map(column).collect()
}

/// The row whose column `id_column` has this text; `None` where there is none. Of several the first that is found.
///
/// # Errors
/// When the role may not read the columns, or the connection is lost.
pub async fn by_id(
    client: &Client,
    table: &QualifiedName,
    columns: &[TableColumn],
    id_column: &str,
    id: &str,
) -> Result<Option<Vec<Option<String>>>> {
    let names: Vec<String> = columns.iter().map(|column| identifier(&column.name)).collect();
    // The simple protocol gives texts, which is what the stream carries.
    let query = format!(
        "select {} from {} where {}::text = {} limit 1",
        names.join(", "),
        table.quoted(),
        identifier(id_column),
        literal(id)
    );
    let messages = client.simple_query(&query).await?;
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(row.map(|row| (0..columns.len()).map(|index| row.get(index).map(str::to_owned)).collect()))
}
