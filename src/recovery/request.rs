//! What operators ask of the relay that owns the slot: rows of `outboxd.request`. Only that relay publishes, so whoever asks
//! writes a row, and the relay says in it what it did. A notification wakes the relay at once; it looks now and then all the same.

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::postgres::Error;

/// The channel on which the relay hears of a new request. The payload is the slot.
pub const CHANNEL: &str = "outboxd_request";

/// How a request stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Its number.
    pub id: i64,
    /// `requeue`, `discard` or `replay`.
    pub kind: String,
    /// `waiting`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// How many events it has been done to.
    pub done: i64,
    /// How many there are, where that is known.
    pub total: Option<i64>,
    /// What went wrong, or what is to be said of it.
    pub message: Option<String>,
    /// Since when it is asked, as the server writes it.
    pub requested_at: String,
}

const COLUMNS: &str = "id, kind, state, done, total, message, requested_at::text";

fn progress_of(row: &Row) -> Result<Progress, Error> {
    Ok(Progress {
        id: row.try_get(0)?,
        kind: row.try_get(1)?,
        state: row.try_get(2)?,
        done: row.try_get(3)?,
        total: row.try_get(4)?,
        message: row.try_get(5)?,
        requested_at: row.try_get(6)?,
    })
}

/// Asks for something; the number of the request.
///
/// # Errors
/// When the database does not take it.
pub async fn ask(client: &Client, slot: &str, kind: &str, what: &impl Serialize) -> Result<i64, Error> {
    let what = serde_json::to_string(what).map_err(Error::internal)?;
    let statement = "with asked as (insert into outboxd.request (slot, kind, what) values ($1, $2, $3::text::jsonb) returning id) \
        select id, pg_catalog.pg_notify($4, $1) from asked";
    Ok(client.query_one(statement, &[&slot, &kind, &what, &CHANNEL]).await?.try_get(0)?)
}

/// Looks at a request; `None` where there is none with this number.
///
/// # Errors
/// When the database does not answer.
pub async fn progress(client: &Client, id: i64) -> Result<Option<Progress>, Error> {
    let query = format!("select {COLUMNS} from outboxd.request where id = $1");
    client.query_opt(&query, &[&id]).await?.as_ref().map(progress_of).transpose()
}

/// The last requests of a kind, the newest first.
///
/// # Errors
/// When the database does not answer.
pub async fn list(client: &Client, slot: &str, kind: &str, limit: i64) -> Result<Vec<Progress>, Error> {
    let query =
        format!("select {COLUMNS} from outboxd.request where slot = $1 and kind = $2 order by id desc limit {limit}");
    client.query(&query, &[&slot, &kind]).await?.iter().map(progress_of).collect()
}

/// Takes a request back that no relay has begun with. False where one has.
///
/// # Errors
/// When the database does not take it.
pub async fn withdraw(client: &Client, id: i64) -> Result<bool, Error> {
    let statement =
        "update outboxd.request set state = 'cancelled', finished_at = now() where id = $1 and state = 'waiting'";
    Ok(client.execute(statement, &[&id]).await? > 0)
}

/// Ends a request that waits or is under way. False where it had ended.
///
/// # Errors
/// When the database does not take it.
pub async fn cancel(client: &Client, id: i64) -> Result<bool, Error> {
    let statement = "update outboxd.request set state = 'cancelled', finished_at = now() \
        where id = $1 and state in ('waiting', 'running')";
    Ok(client.execute(statement, &[&id]).await? > 0)
}

/// Has a replay that was cancelled or failed go on where it stands. False where it was neither.
///
/// # Errors
/// When the database does not take it.
pub async fn resume(client: &Client, slot: &str, id: i64) -> Result<bool, Error> {
    let statement = "with resumed as (update outboxd.request set finished_at = null, message = null, \
          state = case when reached is null then 'waiting' else 'running' end \
          where id = $1 and slot = $2 and kind = 'replay' and state in ('cancelled', 'failed') returning slot) \
        select pg_catalog.pg_notify($3, slot) from resumed";
    Ok(!client.query(statement, &[&id, &slot, &CHANNEL]).await?.is_empty())
}

/// Whether a replay is asked for or under way. False also where there is no such table, or the role may not see it.
///
/// # Errors
/// When the database does not answer.
pub async fn has_replay(client: &Client, slot: &str) -> Result<bool, Error> {
    let query = "select exists (select from outboxd.request where slot = $1 and kind = 'replay' \
        and state in ('waiting', 'running'))";
    match client.query_one(query, &[&slot]).await.map_err(Error::from) {
        Ok(row) => Ok(row.try_get(0)?),
        Err(error) if error.is_privilege() || error.is_undefined() => Ok(false),
        Err(error) => Err(error),
    }
}
