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

/// The numbers of held events.
///
/// # Errors
/// As [`list`].
pub async fn ids(client: &Client, slot: &str, filter: &Filter) -> Result<Vec<i64>, Error> {
    let query = format!("select id from outboxd.held where {}", Filter::CONDITION);
    client.query(&query, &filter.parameters(&slot)).await?.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// How many of the events with these numbers are not through after a requeue: those that are still to be tried, and those that were
/// refused once more.
///
/// # Errors
/// As [`list`].
pub async fn left(client: &Client, slot: &str, ids: &[i64]) -> Result<(i64, i64), Error> {
    let query = "select count(*) filter (where released), count(*) filter (where not released) from outboxd.held \
        where slot = $1 and id = any($2) and state <> 'discarded'";
    let row = client.query_one(query, &[&slot, &ids]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
