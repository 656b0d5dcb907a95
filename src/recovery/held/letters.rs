//! What operators see of held events, and how they ask for something to be done about them. Only the relay that owns the slot
//! does it: a request is a row of `outboxd.request`.

use serde::{Deserialize, Serialize};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::event::{HeldEvent, State};
use super::store::COLUMNS;
use crate::postgres::Error;

/// Which held events: all that are of everything that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Their numbers.
    #[serde(default)]
    pub ids: Option<Vec<i64>>,
    /// Where they are in their lives, by the words of the table.
    #[serde(default)]
    pub states: Option<Vec<String>>,
    /// Their topic.
    #[serde(default)]
    pub topic: Option<String>,
    /// The kind of their refusal.
    #[serde(default)]
    pub class: Option<String>,
    /// What happened.
    #[serde(default)]
    pub event_type: Option<String>,
}

impl Filter {
    /// The condition on the table, for parameters from `$2` on; `$1` is the slot.
    pub(super) const CONDITION: &str = "slot = $1 and ($2::bigint[] is null or id = any($2)) \
        and ($3::text[] is null or state = any($3)) and ($4::text is null or topic = $4) \
        and ($5::text is null or class = $5) and ($6::text is null or event_type = $6)";

    pub(super) fn parameters<'f>(&'f self, slot: &'f &'f str) -> [&'f (dyn ToSql + Sync); 6] {
        [slot, &self.ids, &self.states, &self.topic, &self.class, &self.event_type]
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Dead letters are to be published, quarantined events in their place.
    Requeue,
    /// They are not to be published.
    Discard,
}

impl Wish {
    /// Its name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Discard => "discard",
        }
    }

    /// What it can be done to.
    #[must_use]
    pub fn takes(self, state: State) -> bool {
        match self {
            Self::Requeue => matches!(state, State::Dead | State::Quarantined),
            Self::Discard => matches!(state, State::Dead | State::Quarantined | State::Parked),
        }
    }
}

/// A held event with what only people want to know.
#[derive(Clone, Debug, Deserialize)]
pub struct Letter {
    /// The event.
    #[serde(flatten)]
    pub event: HeldEvent,
    /// When it was first refused, as the server writes it.
    pub first_at: String,
    /// When last.
    pub last_at: String,
    /// When it is tried again.
    pub retry_at: Option<String>,
    /// How many bytes the value has; it is not read for a list.
    pub value_bytes: Option<i64>,
}

/// Held events in the order of their commits, at most `limit`; with their values where `whole`.
///
/// # Errors
/// When the database does not answer, or the table is not there.
pub async fn list(client: &Client, slot: &str, filter: &Filter, limit: i64, whole: bool) -> Result<Vec<Letter>, Error> {
    let columns = if whole { COLUMNS.to_owned() } else { COLUMNS.replace("encode(h.value, 'base64')", "null::text") };
    let query = format!(
        "select row_to_json(d)::text from (select {columns}, octet_length(h.value) as value_bytes, h.first_at::text, \
         h.last_at::text, h.retry_at::text from outboxd.held h where {} order by h.commit_lsn, h.ordinal limit {limit}) d",
        Filter::CONDITION
    );
    let rows = client.query(&query, &filter.parameters(&slot)).await?;
    rows.iter().map(|row| serde_json::from_str(row.try_get(0)?).map_err(Error::internal)).collect()
}

/// How many there are in each state.
///
/// # Errors
/// As [`list`].
pub async fn count(client: &Client, slot: &str, filter: &Filter) -> Result<Vec<(String, i64)>, Error> {
    let query =
        format!("select state, count(*) from outboxd.held where {} group by state order by state", Filter::CONDITION);
    let rows = client.query(&query, &filter.parameters(&slot)).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Asks for something; the number of the request.
///
/// # Errors
/// When the database does not take it.
pub async fn request(client: &Client, slot: &str, wish: Wish, filter: &Filter) -> Result<i64, Error> {
    let what = serde_json::to_string(filter).map_err(Error::internal)?;
    let statement = "insert into outboxd.request (slot, kind, what) values ($1, $2, $3::text::jsonb) returning id";
    Ok(client.query_one(statement, &[&slot, &wish.name(), &what]).await?.try_get(0)?)
}

/// How a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// `waiting`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// How many events it has been done to.
    pub done: i64,
    /// What went wrong.
    pub message: Option<String>,
}

/// Looks at a request.
///
/// # Errors
/// When the database does not answer.
pub async fn progress(client: &Client, request: i64) -> Result<Progress, Error> {
    let row = client.query_one("select state, done, message from outboxd.request where id = $1", &[&request]).await?;
    Ok(Progress { state: row.try_get(0)?, done: row.try_get(1)?, message: row.try_get(2)? })
}

/// Takes a request back that no relay has begun with. False where one has.
///
/// # Errors
/// When the database does not take it.
pub async fn cancel(client: &Client, request: i64) -> Result<bool, Error> {
    let statement =
        "update outboxd.request set state = 'cancelled', finished_at = now() where id = $1 and state = 'waiting'";
    Ok(client.execute(statement, &[&request]).await? > 0)
}
