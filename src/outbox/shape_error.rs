//! Why nothing can be made of a table, in words.

use std::fmt;

use super::columns::Role;
use super::mapping::Mapping;

/// The publication sends a table that is no outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError {
    pub(super) table: String,
    pub(super) problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// Columns for these are not among those.
    Missing(Vec<String>, Vec<String>),
    /// The topic's name for every row.
    Topic(String),
    /// A column is in the table and not published.
    Unpublished(Vec<String>, Vec<String>),
    /// A column that an option names is not there.
    Named { column: String, by: &'static str, nearest: Option<String> },
}

impl ShapeError {
    /// What is wrong with a table of these columns, of which those are published. As the catalogue has them today.
    #[must_use]
    pub fn among(table: &str, in_table: &[String], published: &[String], mapping: &Mapping) -> Option<Self> {
        let error = |problem| Some(Self { table: table.to_owned(), problem });
        let missing = mapping.columns.missing(in_table);
        if !missing.is_empty() {
            return error(Problem::Missing(missing, in_table.to_vec()));
        }
        let is_known = |name: &str, among: &[String]| {
            let role = Role::by_name(name).and_then(|role| mapping.columns.find(role, among));
            among.iter().any(|column| column == name) || role.is_some()
        };
        let is_text = |(name, by): &(&str, &str)| *by == "--topic" && matches!(*name, "schema" | "table");
        let named: Vec<_> = mapping.named_columns().filter(|named| !is_text(named)).collect();
        if let Some((column, by)) = named.iter().find(|(name, _)| !is_known(name, in_table)) {
            let nearest = nearest(column, in_table);
            return error(Problem::Named { column: (*column).to_owned(), by, nearest });
        }
        let wanted = mapping.unpublished(in_table, published);
        if wanted.is_empty() { None } else { error(Problem::Unpublished(wanted, published.to_vec())) }
    }
}

/// The name that is most like this one, if one is.
#[must_use]
pub fn nearest(name: &str, among: &[String]) -> Option<String> {
    let likeness = |known: &&String| (strsim::jaro_winkler(name, known) * 1000.0) as u64;
    among.iter().max_by_key(likeness).filter(|known| likeness(known) >= 750).cloned()
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &self.table;
        match &self.problem {
            Problem::Missing(missing, present) => write!(
                f,
                "table {table} is published without the column {}; published are: {}. Add what is missing to the table and to \
                 the publication's column list, or name another column with --column",
                missing.join(", "),
                present.join(", ")
            ),
            Problem::Topic(name) => write!(
                f,
                "{name:?}, the topic for table {table}, is no name that Kafka takes (letters, digits, '.', '_' and '-', 249 at \
                 most); choose another with --topic"
            ),
            Problem::Unpublished(columns, published) => write!(
                f,
                "table {table} is published without its column {}; published are: {}. Add it to the publication's column list, \
                 or say with --column that it is not to be used",
                columns.join(", "),
                published.join(", ")
            ),
            Problem::Named { column, by, nearest } => {
                write!(f, "table {table} has no column {column}, which {by} names")?;
                nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; {nearest} is the nearest"))
            }
        }
    }
}

impl std::error::Error for ShapeError {}
