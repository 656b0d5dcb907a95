//! The SQL about replays: the request that is next, how far it has come, and the pages of its rows.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::plan::{PageSize, Plan, Wanted};
use crate::postgres::{Error, Lsn};

/// How far a replay has come; it stands in the request's row as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The place of the last row of all.
    pub until: Vec<String>,
    /// The place of the last row that has been seen to.
    pub at: Option<Vec<String>>,
    /// Rows that could not be published.
    pub refused: u64,
    /// Rows that are no events, or are held.
    pub left_out: u64,
    /// What was wrong with the first that could not be published.
    pub first: Option<String>,
}

/// A request that is to be done.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its number.
    pub id: i64,
    /// What is wanted; what is wrong with it otherwise.
    pub wanted: Result<Wanted, String>,
    /// How many events have been published for it.
    pub done: u64,
    /// How far it has come, once it has begun.
    pub reached: Option<Reached>,
}

/// A row of a page.
#[derive(Clone, Debug)]
pub struct PageRow {
    /// The columns that make records, as text.
    pub values: Vec<Option<String>>,
    /// Its place in the order.
    pub place: Vec<String>,
    /// When it was written, in Unix microseconds, where the table tells.
    pub written_us: Option<i64>,
    /// Its payload is too large to be read.
    pub is_too_large: bool,
}

/// The request that is under way, else the oldest one that waits.
///
/// # Errors
/// When the database does not answer.
pub async fn next(client: &Client, slot: &str) -> Result<Option<Request>, Error> {
    let query = "select id, what::text, done, case when state = 'running' then reached end from outboxd.request \
        where slot = $1 and kind = 'replay' and state in ('waiting', 'running') order by state = 'waiting', id limit 1";
    let Some(row) = client.query_opt(query, &[&slot]).await? else { return Ok(None) };
    let (what, reached): (&str, Option<&str>) = (row.try_get(1)?, row.try_get(3)?);
    let wrong = |error: serde_json::Error| error.to_string();
    let reached = reached.map(|reached| serde_json::from_str(reached).map_err(wrong)).transpose();
    Ok(Some(Request {
        id: row.try_get(0)?,
        done: row.try_get::<_, i64>(2)?.unsigned_abs(),
        wanted: serde_json::from_str(what).map_err(wrong).and_then(|wanted| match &reached {
            Ok(_) => Ok(wanted),
            Err(error) => Err(format!("how far it has come cannot be read: {error}")),
        }),
        reached: reached.ok().flatten(),
    }))
}

/// The place of the last row, how many there are up to it, and how many have no place.
///
/// # Errors
/// When the rows cannot be read.
pub async fn measure(client: &Client, plan: &Plan) -> Result<Option<(Vec<String>, i64, i64)>, Error> {
    let Some(row) = rows(client.simple_query(&plan.last_query()).await?).pop() else { return Ok(None) };
    let until = texts(&row, 0, plan.order_len())?;
    let Some(row) = rows(client.simple_query(&plan.count_query(&until)).await?).pop() else { return Ok(None) };
    let count = |index| row.try_get(index)?.unwrap_or("0").parse().map_err(Error::internal);
    Ok(Some((until, count(0)?, count(1)?)))
}

/// Writes down that a request has begun. False where it no longer waits.
///
/// # Errors
/// When the database does not take it.
pub async fn begin(client: &Client, id: i64, total: i64, reached: &Reached) -> Result<bool, Error> {
    let statement =
        "update outboxd.request set state = 'running', total = $2, reached = $3 where id = $1 and state = 'waiting'";
    Ok(client.execute(statement, &[&id, &total, &json(reached)?]).await? > 0)
}

/// How far a request came when that was last written down, and how far it has come by now.
#[derive(Clone, Copy, Debug)]
pub struct Advance<'a> {
    /// The request.
    pub id: i64,
    /// How many events have been published.
    pub done: u64,
    /// What stands in its row.
    pub before: &'a Reached,
    /// What is to stand there.
    pub reached: &'a Reached,
}

/// Writes down how far it has come, and reads the rows behind that. Gives them with a position in the log: once the slot has
/// confirmed that, all of them were published or are held. `None` where the request was cancelled, or another relay goes on with it.
///
/// # Errors
/// When the rows cannot be read.
pub async fn page(
    client: &mut Client,
    advance: Advance<'_>,
    plan: &Plan,
    size: PageSize,
) -> Result<Option<(Vec<PageRow>, Lsn)>, Error> {
    let transaction = client.transaction().await?;
    let statement =
        "update outboxd.request set done = $2, reached = $3 where id = $1 and state = 'running' and reached = $4";
    let Advance { id, done, before, reached } = advance;
    let done = i64::try_from(done).unwrap_or(i64::MAX);
    if transaction.execute(statement, &[&id, &done, &json(reached)?, &json(before)?]).await? == 0 {
        return Ok(None);
    }
    let query = plan.page_query(reached.at.as_deref(), &reached.until, size);
    let rows = rows(transaction.simple_query(&query).await?);
    // The commit is flushed, and with it everything before it: the log is sent as far as it is flushed.
    transaction.commit().await?;
    let flushed: String =
        client.query_one("select pg_catalog.pg_current_wal_flush_lsn()::text", &[]).await?.try_get(0)?;
    let rows = rows.iter().map(|row| page_row(row, plan)).collect::<Result<_, _>>()?;
    Ok(Some((rows, flushed.parse().map_err(Error::internal)?)))
}

/// Ends a request.
///
/// # Errors
/// When the database does not take it.
pub async fn finish(client: &Client, id: i64, state: &str, message: Option<&str>) -> Result<(), Error> {
    let statement = "update outboxd.request set state = $2, message = $3, finished_at = now() \
        where id = $1 and state in ('waiting', 'running')";
    client.execute(statement, &[&id, &state, &message]).await?;
    Ok(())
}

/// Which of these events stand among the held ones.
///
/// # Errors
/// When the database does not answer.
pub async fn held(client: &Client, slot: &str, event_ids: &[&str]) -> Result<Vec<String>, Error> {
    let query = "select event_id from outboxd.held where slot = $1 and event_id = any($2) and state <> 'discarded'";
    client.query(query, &[&slot, &event_ids]).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

fn json(reached: &Reached) -> Result<String, Error> {
    serde_json::to_string(reached).map_err(Error::internal)
}

fn rows(messages: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}

fn texts(row: &SimpleQueryRow, from: usize, count: usize) -> Result<Vec<String>, Error> {
    (from..from + count).map(|index| Ok(row.try_get(index)?.unwrap_or_default().to_owned())).collect()
}

fn page_row(row: &SimpleQueryRow, plan: &Plan) -> Result<PageRow, Error> {
    let (columns, keys) = (plan.column_len(), plan.order_len());
    let value = |index| Ok(row.try_get(index)?.map(str::to_owned));
    let written_us = row.try_get(columns + keys)?;
    Ok(PageRow {
        values: (0..columns).map(value).collect::<Result<_, Error>>()?,
        place: texts(row, columns, keys)?,
        // Infinite times are none.
        written_us: written_us.and_then(|text| text.parse().ok()),
        is_too_large: row.try_get(columns + keys + 1)? == Some("t"),
    })
}

impl PageRow {
    /// The values as [`RowMapper::event`](crate::recovery::row::RowMapper::event) takes them.
    #[must_use]
    pub fn texts(&self) -> Vec<Option<Cow<'_, str>>> {
        self.values.iter().map(|value| value.as_deref().map(Cow::Borrowed)).collect()
    }
}
