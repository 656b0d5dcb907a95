//! Which rows are replayed, and in which order: as SQL, for a table of any shape. Pure.
//!
//! The order is that of the column named by `--order-by`, else of `seq`, else of the time at which rows were written. Where that
//! does not tell two rows apart, an integer id does, else their places in the table, which for rows of one transaction are the
//! order of insertion as a rule.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::outbox::{Mapping, Role};
use crate::postgres::QualifiedName;
use crate::postgres::row::TableColumn;
use crate::postgres::wire::quote::{identifier, literal};

/// The names that a column of times may have, the first of them goes first.
const TIME_NAMES: [&str; 4] = ["created_at", "occurred_at", "inserted_at", "timestamp"];

/// The column of our own table that tells the order of insertion.
const SEQUENCE: &str = "seq";

/// Types that tell a time.
const TIME_TYPES: [&str; 3] = ["timestamp with time zone", "timestamp without time zone", "date"];

/// Types of ids that count up.
const COUNTING_TYPES: [&str; 3] = ["bigint", "integer", "smallint"];

/// What an operator wants to be replayed: the rows to which everything applies that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// These events.
    #[serde(default)]
    pub ids: Vec<String>,
    /// Those about this aggregate.
    #[serde(default)]
    pub aggregate: Option<String>,
    /// Those about aggregates of this type.
    #[serde(default)]
    pub aggregate_type: Option<String>,
    /// Those of this event type.
    #[serde(default)]
    pub event_type: Option<String>,
    /// Those written at this time or later, as PostgreSQL reads it.
    #[serde(default)]
    pub from: Option<String>,
    /// Those written before this time.
    #[serde(default)]
    pub to: Option<String>,
    /// All to this topic, in place of each to its own.
    #[serde(default)]
    pub to_topic: Option<String>,
    /// The most events in a second.
    #[serde(default)]
    pub rate: Option<u32>,
    /// The column that tells the order.
    #[serde(default)]
    pub order_by: Option<String>,
    /// The column that tells when a row was written.
    #[serde(default)]
    pub time_column: Option<String>,
}

/// A wish that does not fit the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// There is no column of this role.
    NoRole {
        /// The flag that needs it.
        flag: &'static str,
        /// Our name for the role, and the names that its column may have.
        role: &'static str,
        /// The names that its column may have.
        names: String,
    },
    /// There is no column that tells when a row was written.
    NoTime,
    /// A column that was named is not there.
    NoColumn {
        /// The flag that names it.
        flag: &'static str,
        /// The name.
        column: String,
    },
    /// A column that does not tell a time.
    NotATime {
        /// The column.
        column: String,
        /// Its type.
        sql_type: String,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRole { flag, role, names } => {
                write!(f, "{flag}: the table has no column {names}; name it with --column {role}=COLUMN")
            }
            Self::NoTime => write!(
                f,
                "--from and --to: the table has no column of times ({}); name it with --time-column",
                TIME_NAMES.join(", ")
            ),
            Self::NoColumn { flag, column } => write!(f, "{flag}: the table has no column {column:?}"),
            Self::NotATime { column, sql_type } => {
                write!(f, "--from and --to: the column {column:?} has the type {sql_type}, which is no time")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// A part of the order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OrderKey {
    expression: String,
    sql_type: String,
}

impl OrderKey {
    fn of(column: &TableColumn) -> Self {
        Self { expression: identifier(&column.name), sql_type: column.sql_type.clone() }
    }

    fn system(name: &str, sql_type: &str) -> Self {
        Self { expression: name.to_owned(), sql_type: sql_type.to_owned() }
    }
}

/// How much of a page is read at once.
#[derive(Clone, Copy, Debug)]
pub struct PageSize {
    /// The most rows.
    pub rows: usize,
    /// About the most bytes of payloads.
    pub bytes: usize,
    /// A payload of more bytes than this is not read.
    pub row_bytes: usize,
}

/// Which rows of a table, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    table: String,
    /// Those that are published.
    columns: Vec<String>,
    payload: Option<usize>,
    condition: String,
    order: Vec<OrderKey>,
    /// Among the columns that are read, behind the published ones.
    time: Option<String>,
}

impl Plan {
    /// For a table with all of these columns, of which those of `published` make records.
    ///
    /// # Errors
    /// Everything that does not fit the table.
    pub fn new(
        table: &QualifiedName,
        columns: &[TableColumn],
        published: &[TableColumn],
        mapping: &Mapping,
        wanted: &Wanted,
    ) -> Result<Self, Vec<PlanError>> {
        let mut mistakes = Vec::new();
        let time = time_column(columns, wanted, &mut mistakes);
        let condition = condition(columns, mapping, wanted, time, &mut mistakes);
        let order = order(columns, mapping, wanted, time, &mut mistakes);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let names: Vec<String> = published.iter().map(|column| column.name.clone()).collect();
        let payload = mapping.columns.find(Role::Payload, &names);
        let is_timestamp = |column: &&TableColumn| column.sql_type != "date";
        Ok(Self {
            table: table.quoted(),
            payload: payload.and_then(|payload| names.iter().position(|name| name == payload)),
            columns: names.iter().map(|name| identifier(name)).collect(),
            condition,
            order,
            time: time.filter(is_timestamp).map(|column| identifier(&column.name)),
        })
    }

    /// How many values tell a row's place in the order.
    #[must_use]
    pub fn order_len(&self) -> usize {
        self.order.len()
    }

    /// How many columns of a page make records.
    #[must_use]
    pub fn column_len(&self) -> usize {
        self.columns.len()
    }

    /// The query for the place of the last row.
    #[must_use]
    pub fn last_query(&self) -> String {
        // A name of its own: ORDER BY would take a column's name for the text.
        let text = |(index, key)| format!("{key}::text as outboxd_o{index}");
        let texts: Vec<String> = self.expressions().enumerate().map(text).collect();
        format!(
            "select {} from {} where {} and {} order by {} limit 1",
            texts.join(", "),
            self.table,
            self.condition,
            self.known().join(" and "),
            self.sorted(" desc")
        )
    }

    /// The query for how many rows there are up to this place, and how many have no place.
    #[must_use]
    pub fn count_query(&self, until: &[String]) -> String {
        format!(
            "select count(*) filter (where {}), count(*) filter (where not ({})) from {} where {}",
            self.compared("<=", until),
            self.known().join(" and "),
            self.table,
            self.condition
        )
    }

    /// The query for the next rows behind `after`, up to `until`: the columns that make records, then the place in the order, the time
    /// in Unix microseconds, and whether the payload is too large and so was left out.
    #[must_use]
    pub fn page_query(&self, after: Option<&[String]>, until: &[String], size: PageSize) -> String {
        let PageSize { rows, bytes, row_bytes } = size;
        let column = |(index, column): (usize, &String)| format!("{column} as outboxd_c{index}");
        let columns: Vec<String> = self.columns.iter().enumerate().map(column).collect();
        let keys = self.expressions().enumerate();
        let keys: Vec<String> = keys.map(|(index, key)| format!("{key} as outboxd_o{index}")).collect();
        let shown = |index: usize| match self.payload == Some(index) {
            true => format!("case when outboxd_s <= {row_bytes} then outboxd_c{index} end"),
            false => format!("outboxd_c{index}"),
        };
        let shown: Vec<String> = (0..self.columns.len()).map(shown).collect();
        // A name of its own, as in `last_query`.
        let place = |index| format!("outboxd_o{index}::text as outboxd_p{index}");
        let places: Vec<String> = (0..self.order.len()).map(place).collect();
        let sorted: Vec<String> = (0..self.order.len()).map(|index| format!("outboxd_o{index}")).collect();
        let sorted = sorted.join(", ");
        let size = self.payload.and_then(|index| self.columns.get(index));
        let size = size.map_or_else(|| "0".to_owned(), |payload| format!("coalesce(octet_length({payload}::text), 0)"));
        let time = self.time.as_deref().unwrap_or("null::timestamptz");
        let after = after.map_or_else(|| "true".to_owned(), |after| self.compared(">", after));
        format!(
            "select {}, {}, (extract(epoch from outboxd_t) * 1000000)::bigint, outboxd_s > {row_bytes} from (\
             select *, sum(least(outboxd_s, {row_bytes})) over (order by {sorted}) - least(outboxd_s, {row_bytes}) as outboxd_before from (\
             select {}, {}, {time} as outboxd_t, {size}::bigint as outboxd_s from {} where {} and {} and {after} order by {} limit {rows}\
             ) a) b where outboxd_before < {bytes} order by {sorted}",
            shown.join(", "),
            places.join(", "),
            columns.join(", "),
            keys.join(", "),
            self.table,
            self.condition,
            self.compared("<=", until),
            self.sorted("")
        )
    }

    fn expressions(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|key| key.expression.as_str())
    }

    fn known(&self) -> Vec<String> {
        self.expressions().map(|key| format!("{key} is not null")).collect()
    }

    fn sorted(&self, direction: &str) -> String {
        self.expressions().map(|key| format!("{key}{direction}")).collect::<Vec<_>>().join(", ")
    }

    fn compared(&self, operator: &str, place: &[String]) -> String {
        let keys: Vec<&str> = self.expressions().collect();
        let values = place.iter().zip(&self.order).map(|(value, key)| format!("{}::{}", literal(value), key.sql_type));
        format!("({}) {operator} ({})", keys.join(", "), values.collect::<Vec<_>>().join(", "))
    }
}

/// The column that tells when a row was written.
fn time_column<'c>(
    columns: &'c [TableColumn],
    wanted: &Wanted,
    mistakes: &mut Vec<PlanError>,
) -> Option<&'c TableColumn> {
    let by_name = |name: &str| columns.iter().find(|column| column.name == name);
    let is_time = |column: &&TableColumn| TIME_TYPES.contains(&column.sql_type.as_str());
    let Some(name) = &wanted.time_column else {
        return TIME_NAMES.iter().filter_map(|name| by_name(name)).find(is_time);
    };
    match by_name(name) {
        Some(column) if is_time(&column) => Some(column),
        Some(column) => {
            mistakes.push(PlanError::NotATime { column: name.clone(), sql_type: column.sql_type.clone() });
            None
        }
        None => {
            mistakes.push(PlanError::NoColumn { flag: "--time-column", column: name.clone() });
            None
        }
    }
}

fn condition(
    columns: &[TableColumn],
    mapping: &Mapping,
    wanted: &Wanted,
    time: Option<&TableColumn>,
    mistakes: &mut Vec<PlanError>,
) -> String {
    let mut parts = Vec::new();
    let mut role = |flag: &'static str, role: Role| {
        let found = role_column(columns, mapping, role);
        if found.is_none() {
            mistakes.push(PlanError::NoRole { flag, role: role.name(), names: mapping.columns.words(role) });
        }
        found
    };
    if !wanted.ids.is_empty()
        && let Some(column) = role("--id", Role::Id)
    {
        let ids: Vec<String> = wanted.ids.iter().map(|id| literal(id)).collect();
        parts.push(format!("{} = any(array[{}]::{}[])", identifier(&column.name), ids.join(", "), column.sql_type));
    }
    let equals = |column: &TableColumn, value: &str| {
        format!("{} = {}::{}", identifier(&column.name), literal(value), column.sql_type)
    };
    for (flag, of, value) in [
        ("--aggregate", Role::AggregateId, &wanted.aggregate),
        ("--aggregate-type", Role::AggregateType, &wanted.aggregate_type),
        ("--event-type", Role::EventType, &wanted.event_type),
    ] {
        if let Some(value) = value
            && let Some(column) = role(flag, of)
        {
            parts.push(equals(column, value));
        }
    }
    for (operator, value) in [(">=", &wanted.from), ("<", &wanted.to)] {
        match (value, time) {
            (Some(value), Some(column)) => {
                let name = identifier(&column.name);
                parts.push(format!("{name} {operator} {}::timestamptz::{}", literal(value), column.sql_type));
            }
            (Some(_), None) if !mistakes.contains(&PlanError::NoTime) && wanted.time_column.is_none() => {
                mistakes.push(PlanError::NoTime);
            }
            _ => {}
        }
    }
    if parts.is_empty() { "true".to_owned() } else { parts.join(" and ") }
}

fn role_column<'c>(columns: &'c [TableColumn], mapping: &Mapping, role: Role) -> Option<&'c TableColumn> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let name = mapping.columns.find(role, &names)?;
    columns.iter().find(|column| column.name == name)
}

fn order(
    columns: &[TableColumn],
    mapping: &Mapping,
    wanted: &Wanted,
    time: Option<&TableColumn>,
    mistakes: &mut Vec<PlanError>,
) -> Vec<OrderKey> {
    let by_name = |name: &str| columns.iter().find(|column| column.name == name);
    let first = match &wanted.order_by {
        Some(name) => {
            let found = by_name(name);
            if found.is_none() {
                mistakes.push(PlanError::NoColumn { flag: "--order-by", column: name.clone() });
            }
            found
        }
        None => by_name(SEQUENCE).or(time),
    };
    let mut order: Vec<OrderKey> = first.map(OrderKey::of).into_iter().collect();
    match role_column(columns, mapping, Role::Id).filter(|id| COUNTING_TYPES.contains(&id.sql_type.as_str())) {
        Some(id) => order.push(OrderKey::of(id)),
        None => order.extend([OrderKey::system("tableoid", "oid"), OrderKey::system("ctid", "tid")]),
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, sql_type: &str) -> TableColumn {
        TableColumn {
            name: name.to_owned(),
            type_oid: 25,
            type_name: sql_type.to_owned(),
            sql_type: sql_type.to_owned(),
        }
    }

    fn plan(columns: &[TableColumn], wanted: &Wanted) -> Result<Plan, Vec<PlanError>> {
        Plan::new(&"app.outbox".parse().unwrap(), columns, columns, &Mapping::default(), wanted)
    }

    fn ours() -> Vec<TableColumn> {
        vec![
            column("id", "uuid"),
            column("aggregate_type", "text"),
            column("aggregate_id", "text"),
            column("event_type", "text"),
            column("payload", "json"),
            column("created_at", "timestamp with time zone"),
            column("seq", "bigint"),
        ]
    }

    #[test]
    fn everything_that_is_given_must_apply_and_quotes_are_quoted() {
        let wanted = Wanted {
            ids: vec!["a".into(), "o'b".into()],
            aggregate: Some("7".into()),
            from: Some("2026-12-01".into()),
            ..Wanted::default()
        };
        let plan = plan(&ours(), &wanted).unwrap();
        assert_eq!(
            plan.condition,
            "\"id\" = any(array['a', 'o''b']::uuid[]) and \"aggregate_id\" = '7'::text and \
             \"created_at\" >= '2026-12-01'::timestamptz::timestamp with time zone"
        );
        assert_eq!(plan.expressions().collect::<Vec<_>>(), ["\"seq\"", "tableoid", "ctid"]);
        let after = ["1".to_owned(), "2".to_owned(), "(0,1)".to_owned()];
        assert_eq!(plan.compared(">", &after), "(\"seq\", tableoid, ctid) > ('1'::bigint, '2'::oid, '(0,1)'::tid)");
    }

    #[test]
    fn the_order_is_what_the_table_has() {
        let order = |columns: &[TableColumn], wanted: &Wanted| {
            plan(columns, wanted).unwrap().order.into_iter().map(|key| key.expression).collect::<Vec<_>>()
        };
        let debezium = [column("id", "uuid"), column("payload", "jsonb")];
        assert_eq!(order(&debezium, &Wanted::default()), ["tableoid", "ctid"]);
        let counting = [column("id", "bigint"), column("payload", "jsonb"), column("created_at", "date")];
        assert_eq!(order(&counting, &Wanted::default()), ["\"created_at\"", "\"id\""]);
        let wanted = Wanted { order_by: Some("payload".into()), ..Wanted::default() };
        assert_eq!(order(&counting, &wanted), ["\"payload\"", "\"id\""]);
    }

    #[test]
    fn what_does_not_fit_the_table_is_told_together() {
        let debezium = [column("id", "uuid"), column("payload", "jsonb")];
        let wanted = Wanted {
            aggregate: Some("7".into()),
            to: Some("2026-12-01".into()),
            order_by: Some("nothing".into()),
            ..Wanted::default()
        };
        let told: Vec<String> = plan(&debezium, &wanted).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("--aggregate") && told[0].contains("--column aggregate_id=COLUMN"), "{told:?}");
        let wanted = Wanted { time_column: Some("payload".into()), from: Some("x".into()), ..Wanted::default() };
        assert_eq!(plan(&debezium, &wanted).unwrap_err().len(), 1);
    }
}
