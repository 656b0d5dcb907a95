//! `outboxd explain`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::Value;

use super::effective::Effective;
use super::exit::{Class, Failed};
use super::mapping::MappingArgs;
use super::shown::Shown;
use super::target::{Target, TargetArgs};
use crate::outbox::shape_error::nearest;
use crate::outbox::{Mapping, Role, ShapeError, Source};
use crate::pgoutput::PgTimestamp;
use crate::postgres::row::{self, TableColumn};
use crate::postgres::{publication, sql};
use crate::recovery::row::RowMapper;
use crate::terminal::say;

/// The arguments: those of `run` that decide about records.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    mapping: MappingArgs,
    /// The name of this source in the header outboxd_source [default: the database's name].
    #[arg(long, env = "OUTBOXD_SOURCE")]
    source: Option<String>,
    /// The row of the table with this id.
    #[arg(long, required_unless_present = "row", conflicts_with = "row")]
    id: Option<String>,
    /// A row that is not in the table: a JSON object of columns and values.
    #[arg(long, value_name = "JSON")]
    row: Option<String>,
    /// One JSON object, for programs.
    #[arg(long)]
    json: bool,
}

/// Prints what the relay would send for a row.
///
/// # Errors
/// Mistakes in the settings, a row that is not there, or that no record can be made of it.
pub async fn run(args: ExplainArgs, effective: &Effective) -> Result<(), Failed> {
    let mut mistakes = effective.mistakes();
    let target = args.target.check(&mut mistakes);
    let mapping = args.mapping.mapping(effective, &mut mistakes);
    let row = args.row.as_ref().and_then(|text| mistakes.note("--row", object(text)));
    let Some(target) = target.filter(|_| mistakes.is_empty()) else {
        return Err(Failed::new(Class::Usage, mistakes));
    };
    let client = sql::connect_and_spawn(&target.database).await?;
    let columns = columns(&client, &target, &mapping).await?;
    let values = match (&row, &args.id) {
        (Some(row), _) => given(row, &columns)?,
        (None, id) => {
            let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
            let (id, id_column) = (id.as_deref().unwrap_or_default(), mapping.columns.find(Role::Id, &names));
            let found = row::by_id(&client, &target.table, &columns, id_column.unwrap_or_default(), id).await?;
            found.ok_or_else(|| {
                Failed::new(Class::Setup, format_args!("the table {} has no row {id:?}", target.table))
            })?
        }
    };
    let name = args.source.clone().unwrap_or_else(|| target.database.dbname().to_owned());
    let source = Source::new(&name, &target.table.to_string());
    let shown = explain(&target, &mapping, &source, &columns, &values)?;
    if args.json {
        say(serde_json::to_string(&shown).map_err(|error| Failed::new(Class::Data, error))?)?;
    } else {
        shown.lines().iter().try_for_each(say)?;
    }
    match shown.error() {
        Some(error) => Err(Failed::new(Class::Data, format_args!("it cannot be published: {error}"))),
        None => Ok(()),
    }
}

/// The columns that the relay would see.
async fn columns(
    client: &tokio_postgres::Client,
    target: &Target,
    mapping: &Mapping,
) -> Result<Vec<TableColumn>, Failed> {
    let mut columns = row::columns(client, &target.table).await?;
    if columns.is_empty() {
        return Err(Failed::new(
            Class::Setup,
            format_args!("there is no table {}; choose another with --table", target.table),
        ));
    }
    let in_table: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    // Without a publication it is the table that counts: `explain` serves those who are still preparing.
    let found = publication::inspect(client, &target.publication, &target.table).await?.filter(|found| found.covers);
    let published = found.map_or_else(|| in_table.clone(), |found| found.columns);
    if let Some(error) = ShapeError::among(&target.table.to_string(), &in_table, &published, mapping) {
        return Err(Failed::new(Class::Setup, error));
    }
    columns.retain(|column| published.contains(&column.name));
    Ok(columns)
}

fn explain(
    target: &Target,
    mapping: &Mapping,
    source: &Source,
    columns: &[TableColumn],
    values: &[Option<String>],
) -> Result<Shown, Failed> {
    let mapper = RowMapper::new(&target.table, columns, mapping).map_err(|error| Failed::new(Class::Setup, error))?;
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let now_us = i64::try_from(now_us).unwrap_or(i64::MAX);
    let committed_at = PgTimestamp::from_unix_us(now_us);
    let texts: Vec<_> = values.iter().map(|value| value.as_deref().map(Cow::Borrowed)).collect();
    Ok(match mapper.event(&texts, committed_at) {
        Ok(event) => Shown::of(&event, mapping, source, now_us / 1000, false),
        Err(error) => Shown::refused(&error),
    })
}

fn object(text: &str) -> Result<BTreeMap<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("is not a JSON object of columns and values: {error}"))
}

/// The values in the order of the columns; a column that is not given is NULL.
fn given(row: &BTreeMap<String, Value>, columns: &[TableColumn]) -> Result<Vec<Option<String>>, Failed> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    if let Some(unknown) = row.keys().find(|key| !names.contains(key)) {
        let hint = nearest(unknown, &names).map_or_else(|| names.join(", "), |nearest| format!("{nearest}?"));
        return Err(Failed::new(Class::Usage, format_args!("--row: {unknown} is no published column; {hint}")));
    }
    let text = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    Ok(names.iter().map(|name| row.get(name).and_then(text)).collect())
}
