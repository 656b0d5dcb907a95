//! The SQL about held events. What goes in and out is JSON, so that one statement takes a whole batch.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;

use super::event::{HeldEvent, Row, State};
use super::letters::Filter;
use crate::kafka::class::Class;
use crate::outbox::{Ordinal, Position};
use crate::postgres::{Error, Lsn};

/// The most events, and about the most bytes of events, that are read at once.
const NEXT_EVENTS: i64 = 500;
const NEXT_BYTES: i64 = 8 << 20;

/// Whose events.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The slot.
    pub slot: String,
    /// The database system, as IDENTIFY_SYSTEM tells it.
    pub system: String,
}

/// What is held, as it counts for what comes.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Events behind the confirmed position that have a row already.
    pub durable: Vec<Position>,
    /// Keys that are held: topic, key, and how many events.
    pub keys: Vec<(String, Vec<u8>, u64)>,
    /// Topics that are held, and how many events.
    pub topics: Vec<(String, u64)>,
    /// There are events that may be due now or later.
    pub has_work: bool,
}

/// Events that may be published now.
#[derive(Clone, Debug)]
pub struct Next {
    /// In the order of their commits.
    pub events: Vec<HeldEvent>,
    /// Copies for the dead-letter topic.
    pub copies: Vec<HeldEvent>,
    /// Until the next one of the others is due.
    pub due_in: Option<Duration>,
}

/// A held event was refused once more.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The row.
    #[serde(flatten)]
    pub row: Row,
    /// Where it is now.
    pub state: State,
    /// The kind of the refusal, in one word.
    pub class: String,
    /// Why, without contents.
    pub reason: String,
    /// How often by now.
    pub attempts: u32,
    /// Until the next attempt, in seconds.
    pub retry_in: Option<f64>,
}

impl Failed {
    /// It is the topic that takes nothing, whatever the event.
    #[must_use]
    pub fn is_about_topic(&self) -> bool {
        [Class::NoTopic, Class::Forbidden].iter().any(|class| class.to_string() == self.class)
    }
}

/// What became of a batch.
#[derive(Clone, Debug, Default)]
pub struct Settlement {
    /// Rows whose record is acknowledged.
    pub delivered: Vec<Row>,
    /// Rows whose copy is in the dead-letter topic.
    pub copied: Vec<Row>,
    /// Rows that were refused.
    pub failed: Vec<Failed>,
}

/// Why events cannot be held in this database, if so.
///
/// # Errors
/// When the database does not answer.
pub async fn problem(client: &Client) -> Result<Option<String>, Error> {
    // A privilege on a table of a schema that one may not use is of no use.
    let query = "select t.name, pg_catalog.to_regclass(t.name) is not null, coalesce(pg_catalog.has_table_privilege( \
        pg_catalog.to_regclass(t.name), 'select') and pg_catalog.has_table_privilege(pg_catalog.to_regclass(t.name), t.needs), \
        false), current_user::text from (values ('outboxd.held', 'insert'), ('outboxd.held', 'update'), \
        ('outboxd.held', 'delete'), ('outboxd.request', 'update')) t (name, needs)";
    let missing = "the table outboxd.held does not exist";
    match client.query(query, &[]).await {
        Ok(rows) => {
            for row in rows {
                let (name, exists, may, user): (String, bool, bool, String) =
                    (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                if !exists {
                    return Ok(Some(missing.to_owned()));
                }
                if !may {
                    let needed = "GRANT SELECT, INSERT, UPDATE, DELETE ON outboxd.held, outboxd.request TO";
                    return Ok(Some(format!("the role {user:?} may not write to {name}: {needed} {user:?}")));
                }
            }
            Ok(None)
        }
        Err(error) => {
            let error = Error::from(error);
            let user = "the role may not use the schema outboxd: GRANT USAGE ON SCHEMA outboxd TO it";
            if error.is_privilege() { Ok(Some(user.to_owned())) } else { Err(error) }
        }
    }
}

/// Stores events; those that are there already stay as they are.
///
/// # Errors
/// When the database does not take them.
pub async fn insert(client: &Client, owner: &Owner, events: &[HeldEvent]) -> Result<(), Error> {
    let statement = "insert into outboxd.held (slot, system_id, commit_lsn, ordinal, source, event_id, event_type, topic, key, \
        value, headers, partition, timestamp_ms, committed_at, columns, state, scope, on_failure, class, reason, attempts, \
        max_attempts, retry_at) \
        select $1, $2, r.commit_lsn, r.ordinal, r.source, r.event_id, r.event_type, r.topic, decode(r.key, 'base64'), \
        r.value, r.headers, r.partition, r.timestamp_ms, to_timestamp(r.committed_us / 1e6), r.columns, \
        r.state, r.scope, r.on_failure, r.class, r.reason, r.attempts, r.max_attempts, \
        clock_timestamp() + r.retry_in * interval '1 s' \
        from rows from (json_to_recordset($3::text::json) as (commit_lsn pg_lsn, ordinal bigint, source text, event_id text, \
        event_type text, topic text, key text, headers jsonb, partition integer, timestamp_ms bigint, committed_us float8, \
        columns jsonb, state text, scope text, on_failure text, class text, reason text, attempts integer, max_attempts integer, \
        retry_in float8), unnest($4::bytea[])) as r (commit_lsn, ordinal, source, event_id, event_type, topic, key, headers, \
        partition, timestamp_ms, committed_us, columns, state, scope, on_failure, class, reason, attempts, max_attempts, \
        retry_in, value) \
        on conflict (slot, system_id, commit_lsn, ordinal) do nothing";
    let json = serde_json::to_string(events).map_err(Error::internal)?;
    let values: Vec<Option<&[u8]>> = events.iter().map(|event| event.value.as_deref()).collect();
    client.execute(statement, &[&owner.slot, &owner.system, &json, &values]).await?;
    Ok(())
}

/// What is held. `confirmed`: the slot's position, from which on events come again; at most `max_keys` keys and one more.
///
/// # Errors
/// When the database does not answer.
pub async fn load(client: &Client, owner: &Owner, confirmed: Lsn, max_keys: usize) -> Result<Loaded, Error> {
    let (slot, system) = (&owner.slot, &owner.system);
    let durable = "select commit_lsn::text, ordinal from outboxd.held where slot = $1 and system_id = $2 \
        and commit_lsn >= $3::text::pg_lsn";
    let mut loaded = Loaded::default();
    for row in client.query(durable, &[slot, system, &confirmed.to_string()]).await? {
        let (lsn, ordinal): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let lsn = lsn.parse().map_err(Error::internal)?;
        let ordinal = u32::try_from(ordinal).map_err(Error::internal)?;
        loaded.durable.push(Position::new(lsn, Ordinal::new(ordinal)));
    }
    let keys = "select topic, key, count(*) from outboxd.held where slot = $1 and scope = 'event' and key is not null \
        and topic is not null and state in ('parked', 'quarantined') group by topic, key limit $2";
    let limit = i64::try_from(max_keys.saturating_add(1)).unwrap_or(i64::MAX);
    for row in client.query(keys, &[slot, &limit]).await? {
        loaded.keys.push((row.try_get(0)?, row.try_get(1)?, row.try_get::<_, i64>(2)?.unsigned_abs()));
    }
    let topics = "select topic, count(*) from outboxd.held where slot = $1 and scope = 'topic' and topic is not null \
        and state in ('parked', 'quarantined') group by topic";
    for row in client.query(topics, &[slot]).await? {
        loaded.topics.push((row.try_get(0)?, row.try_get::<_, i64>(1)?.unsigned_abs()));
    }
    let work = "select exists (select from outboxd.held where slot = $1 and state <> 'discarded')";
    loaded.has_work = client.query_one(work, &[slot]).await?.try_get(0)?;
    Ok(loaded)
}

/// A row as [`HeldEvent`] reads it.
pub(super) const COLUMNS: &str = "h.id, h.commit_lsn::text, h.ordinal, h.source, h.event_id, h.event_type, h.topic, \
    encode(h.key, 'base64') as key, encode(h.value, 'base64') as value, h.headers, h.partition, h.timestamp_ms, \
    (extract(epoch from h.committed_at) * 1e6)::bigint as committed_us, h.columns, h.state, h.scope, h.on_failure, h.class, \
    h.reason, h.attempts, h.max_attempts, h.released";

/// The next events. Those of `blocked` topics wait; with `probe` it is the first one of that topic.
///
/// # Errors
/// When the database does not answer.
pub async fn next(
    client: &Client,
    owner: &Owner,
    blocked: &[String],
    probe: Option<&str>,
    copies: bool,
) -> Result<Next, Error> {
    // An event waits while one before it in its key does. Those are few, and gathered first: beside a table without statistics the
    // planner would compare each event with each.
    let query = format!(
        "with waiting as materialized (\
           select topic, key, commit_lsn, ordinal from outboxd.held where slot = $1 and state = 'quarantined' and key is not null \
           union all \
           select topic, key, commit_lsn, ordinal from outboxd.held \
             where slot = $1 and retry_at > now() and state = 'parked' and key is not null), \
         ahead as materialized (select distinct on (topic, key) * from waiting order by topic, key, commit_lsn, ordinal) \
         select coalesce(json_agg(row_to_json(d) order by d.commit_lsn::pg_lsn, d.ordinal), '[]')::text from (\
           select {COLUMNS}, sum(coalesce(octet_length(h.value), 0)) over (order by h.commit_lsn, h.ordinal) \
             - coalesce(octet_length(h.value), 0) as before from (\
             select h.* from outboxd.held h left join ahead a on a.topic = h.topic and a.key = h.key \
                 and (a.commit_lsn, a.ordinal) < (h.commit_lsn, h.ordinal) \
               where h.slot = $1 and h.topic is not null and not h.topic = any($2) \
               and ($3::text is null or h.topic = $3) and h.state in ('parked', 'requeued') \
               and (h.state = 'requeued' or (h.retry_at is null or h.retry_at <= now()) and a.key is null) \
             order by h.commit_lsn, h.ordinal limit $4) h) d where d.before < {NEXT_BYTES}"
    );
    let limit = if probe.is_some() { 1 } else { NEXT_EVENTS };
    let row = client.query_one(&query, &[&owner.slot, &blocked, &probe, &limit]).await?;
    let events = serde_json::from_str(row.try_get(0)?).map_err(Error::internal)?;
    let due = "select extract(epoch from min(retry_at) - clock_timestamp())::float8 from outboxd.held \
        where slot = $1 and state in ('parked', 'dead') and retry_at > now()";
    let due_in: Option<f64> = client.query_one(due, &[&owner.slot]).await?.try_get(0)?;
    let copies = if copies { next_copies(client, owner).await? } else { Vec::new() };
    Ok(Next { events, copies, due_in: due_in.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))) })
}

/// Dead letters that the dead-letter topic does not have yet.
async fn next_copies(client: &Client, owner: &Owner) -> Result<Vec<HeldEvent>, Error> {
    let query = format!(
        "select coalesce(json_agg(row_to_json(h)), '[]')::text from (select {COLUMNS} from outboxd.held h \
         where slot = $1 and state = 'dead' and copied_at is null order by h.commit_lsn, h.ordinal limit 50) h"
    );
    let row = client.query_one(&query, &[&owner.slot]).await?;
    serde_json::from_str(row.try_get(0)?).map_err(Error::internal)
}

/// Writes down what became of a batch, all or nothing.
///
/// # Errors
/// When the database does not take it.
pub async fn settle(client: &Client, owner: &Owner, settlement: &Settlement) -> Result<(), Error> {
    let json = |rows: serde_json::Result<String>| rows.map_err(Error::internal);
    let delivered = json(serde_json::to_string(&settlement.delivered))?;
    let copied = json(serde_json::to_string(&settlement.copied))?;
    let failed = json(serde_json::to_string(&settlement.failed))?;
    // A dead letter has a retry_at only if they are retried.
    let statement = "with delivered as (delete from outboxd.held h using json_to_recordset($1::text::json) as d (id bigint, \
          commit_lsn pg_lsn, ordinal bigint, event_id text) where h.id = d.id and h.commit_lsn = d.commit_lsn \
          and h.ordinal = d.ordinal and h.event_id is not distinct from d.event_id), \
        copied as (update outboxd.held h set copied_at = now() from json_to_recordset($2::text::json) as c (id bigint, \
          commit_lsn pg_lsn, ordinal bigint, event_id text) where h.id = c.id and h.commit_lsn = c.commit_lsn \
          and h.ordinal = c.ordinal and h.event_id is not distinct from c.event_id) \
        update outboxd.held h set state = f.state, class = f.class, reason = f.reason, attempts = f.attempts, \
          last_at = clock_timestamp(), retry_at = clock_timestamp() + f.retry_in * interval '1 s', released = false, \
          scope = 'event' \
        from json_to_recordset($3::text::json) as f (id bigint, commit_lsn pg_lsn, ordinal bigint, event_id text, state text, \
          class text, reason text, attempts integer, retry_in float8) where h.id = f.id and h.commit_lsn = f.commit_lsn \
          and h.ordinal = f.ordinal and h.event_id is not distinct from f.event_id";
    client.execute(statement, &[&delivered, &copied, &failed]).await?;
    if !settlement.failed.is_empty() {
        wait_for_keys(client, owner).await?;
    }
    Ok(())
}

/// A whole topic was refused once more: what has been tried often enough goes the way of its policy. Returns whether one of
/// them wants the relay to halt.
///
/// # Errors
/// When the database does not take it.
pub async fn fail_topic(
    client: &Client,
    owner: &Owner,
    topic: &str,
    class: &str,
    reason: &str,
    dead_retry: Option<Duration>,
) -> Result<bool, Error> {
    let statement = "with ahead as materialized (select distinct on (key) key, commit_lsn, ordinal from outboxd.held \
          where slot = $1 and topic = $2 and state = 'quarantined' and key is not null order by key, commit_lsn, ordinal) \
        update outboxd.held h set attempts = attempts + 1, class = $3, reason = $4, last_at = now(), \
        scope = case when attempts + 1 >= max_attempts and on_failure = 'quarantine' then 'event' else 'topic' end, \
        state = case when attempts + 1 < max_attempts or on_failure = 'halt' then state \
          when on_failure = 'dead-letter' then 'dead' else 'quarantined' end, \
        retry_at = case when attempts + 1 >= max_attempts and on_failure = 'dead-letter' \
          then now() + $5::float8 * interval '1 s' end \
        where slot = $1 and topic = $2 and state = 'parked' and not exists (select from ahead a where a.key = h.key \
          and (a.commit_lsn, a.ordinal) < (h.commit_lsn, h.ordinal))";
    let retry = dead_retry.map(|retry| retry.as_secs_f64());
    client.execute(statement, &[&owner.slot, &topic, &class, &reason, &retry]).await?;
    wait_for_keys(client, owner).await?;
    let halts = "select exists (select from outboxd.held where slot = $1 and topic = $2 and scope = 'topic' \
        and state = 'parked' and on_failure = 'halt' and attempts >= max_attempts)";
    Ok(client.query_one(halts, &[&owner.slot, &topic]).await?.try_get(0)?)
}

/// What stands behind an event that waits alone, or for an operator, waits for it and no longer for the topic.
async fn wait_for_keys(client: &Client, owner: &Owner) -> Result<(), Error> {
    let statement = "with waiting as materialized (\
          select topic, key, commit_lsn, ordinal from outboxd.held where slot = $1 and state = 'quarantined' and key is not null \
          union all \
          select topic, key, commit_lsn, ordinal from outboxd.held \
            where slot = $1 and retry_at is not null and state = 'parked' and scope = 'event' and key is not null), \
        ahead as materialized (select distinct on (topic, key) * from waiting order by topic, key, commit_lsn, ordinal) \
        update outboxd.held h set scope = 'event' from ahead a where h.slot = $1 and h.scope = 'topic' and h.state = 'parked' \
          and a.topic = h.topic and a.key = h.key and (a.commit_lsn, a.ordinal) < (h.commit_lsn, h.ordinal)";
    client.execute(statement, &[&owner.slot]).await?;
    Ok(())
}

/// Dead letters whose time has come are tried again, discarded ones are forgotten once the log before them is confirmed.
/// Returns whether there is something new to do.
///
/// # Errors
/// When the database does not take it.
pub async fn housekeep(client: &Client, owner: &Owner, confirmed: Lsn) -> Result<bool, Error> {
    let purge = "delete from outboxd.held where slot = $1 and state = 'discarded' \
        and (system_id <> $2 or commit_lsn < $3::text::pg_lsn)";
    client.execute(purge, &[&owner.slot, &owner.system, &confirmed.to_string()]).await?;
    let retry = "update outboxd.held set state = 'requeued', released = true, retry_at = null \
        where slot = $1 and state = 'dead' and retry_at <= now() and topic is not null";
    Ok(client.execute(retry, &[&owner.slot]).await? > 0)
}

/// Does what operators have asked for about held events. Returns whether something has changed.
///
/// # Errors
/// When the database does not take it.
pub async fn serve(client: &mut Client, owner: &Owner) -> Result<bool, Error> {
    let open = "select id, kind, what::text from outboxd.request where slot = $1 and state = 'waiting' \
        and kind in ('requeue', 'discard') order by id limit 100";
    let requests = client.query(open, &[&owner.slot]).await?;
    for row in &requests {
        let (id, kind, what): (i64, &str, &str) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let transaction = client.transaction().await?;
        let outcome = match serde_json::from_str::<Filter>(what) {
            Ok(filter) => Ok(serve_one(&transaction, owner, kind, &filter).await?),
            Err(error) => Err(error.to_string()),
        };
        let (state, done, message) = match outcome {
            Ok(done) => ("done", i64::try_from(done).unwrap_or(i64::MAX), None),
            Err(message) => ("failed", 0, Some(message)),
        };
        let close = "update outboxd.request set state = $2, done = $3, total = $3, message = $4, finished_at = now() \
            where id = $1 and state = 'waiting'";
        transaction.execute(close, &[&id, &state, &done, &message]).await?;
        transaction.commit().await?;
    }
    Ok(!requests.is_empty())
}

async fn serve_one(
    transaction: &tokio_postgres::Transaction<'_>,
    owner: &Owner,
    kind: &str,
    filter: &Filter,
) -> Result<u64, Error> {
    let change = match kind {
        // A dead letter has no place any more; what keeps its own is released there.
        "requeue" => {
            "state = case when state = 'dead' then 'requeued' else 'parked' end, released = true, attempts = 0, retry_at = null"
        }
        _ => "state = 'discarded', retry_at = null",
    };
    let states = match kind {
        "requeue" => "state in ('dead', 'quarantined') and topic is not null",
        _ => "state in ('dead', 'quarantined', 'parked')",
    };
    let statement = format!("update outboxd.held set {change} where {states} and {}", Filter::CONDITION);
    Ok(transaction.execute(&statement, &filter.parameters(&owner.slot.as_str())).await?)
}
