//! What a database tells about itself that decides whether a relay can work on it: facts, judged elsewhere.

use std::time::{Duration, Instant, SystemTime};

use tokio_postgres::{Client, Row};

use super::error::Result;
use super::lsn::EndLsn;
use super::name::QualifiedName;
use super::wire::quote::{identifier, literal};

/// How long the slot's own view of the publication is looked for.
const PEEK_LIMIT: &str = "5s";

/// How far the slot is read for that: the error comes with the first change.
const PEEK_BYTES: u64 = 16 << 20;

/// How many rows of the outbox are looked at.
const SAMPLE_ROWS: u32 = 10_000;

/// The server.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// As in `server_version_num`: 180004 is 18.4.
    pub version_num: u32,
    /// As the server words it.
    pub version: String,
    /// It is in recovery.
    pub is_standby: bool,
    /// `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// The database's encoding.
    pub encoding: String,
    /// Replication slots.
    pub slots: Capacity,
    /// Processes that send the log.
    pub senders: Capacity,
    /// Without an answer for this long the server ends a replication connection; zero is never.
    pub sender_timeout: Duration,
    /// So much of the log is kept for a slot that lags, in bytes; `None` is without a limit.
    pub slot_keep: Option<u64>,
    /// An idle slot is invalidated after this time (18 and later); zero is never.
    pub idle_slot_timeout: Duration,
    /// How far the server's clock is ahead of ours, in seconds. The error is at most half of `clock_round_trip`.
    pub clock_ahead: f64,
    /// How long the question for the time took.
    pub clock_round_trip: Duration,
}

/// So many of something are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// In use.
    pub used: i64,
    /// The limit.
    pub max: i64,
}

impl Capacity {
    /// How many more there may be.
    #[must_use]
    pub const fn left(self) -> i64 {
        self.max - self.used
    }
}

/// A publication and what it publishes of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// It publishes inserts.
    pub inserts: bool,
    /// It publishes updates, deletes or truncations.
    pub others: bool,
    /// Partitions are published under the name of their table.
    pub via_root: bool,
    /// The table's published columns; `None` where the table is not covered.
    pub columns: Option<Vec<String>>,
    /// Rows are published only where this holds.
    pub row_filter: Option<String>,
    /// How many tables it covers.
    pub tables: i64,
    /// Publication and membership of the table are surely older than all that the slot still has to read.
    pub is_surely_older: bool,
}

/// The outbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `pg_class.relkind`: `r` is a table, `p` a partitioned one.
    pub kind: char,
    /// `pg_class.relpersistence`: `p` is permanent.
    pub persistence: char,
    /// Its columns, in order.
    pub columns: Vec<String>,
    /// Row security hides rows from this role.
    pub is_row_security_active: bool,
    /// The role may read it.
    pub may_select: bool,
}

/// What stands in the outbox, as far as it was looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// What the columns that were asked for hold: each combination once, a thousand at most.
    pub kinds: Vec<Vec<Option<String>>>,
    /// The largest payload, in bytes.
    pub payload_max: Option<u64>,
}

/// Nothing that is asked waits for long: not for a lock, not for a large table.
///
/// # Errors
/// When the connection is lost.
pub async fn set_limits(client: &Client) -> Result<()> {
    client.batch_execute("set lock_timeout = '2s'; set statement_timeout = '10s'").await?;
    Ok(())
}

/// Asks the server about itself.
///
/// # Errors
/// When the connection is lost.
pub async fn server(client: &Client) -> Result<Server> {
    let query = "select current_setting('server_version_num')::int8, current_setting('server_version'), \
        pg_is_in_recovery(), current_setting('wal_level'), \
        (select pg_encoding_to_char(encoding)::text from pg_database where datname = current_database()), \
        (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int8, \
        (select count(*) from pg_stat_get_wal_senders()), current_setting('max_wal_senders')::int8, \
        extract(epoch from current_setting('wal_sender_timeout')::interval)::float8, \
        pg_size_bytes(current_setting('max_slot_wal_keep_size')), \
        coalesce(extract(epoch from current_setting('idle_replication_slot_timeout', true)::interval), 0)::float8";
    let row = client.query_one(query, &[]).await?;
    let (clock_ahead, clock_round_trip) = clock(client).await?;
    Ok(Server {
        version_num: u32::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default(),
        version: row.try_get(1)?,
        is_standby: row.try_get(2)?,
        wal_level: row.try_get(3)?,
        encoding: row.try_get(4)?,
        slots: Capacity { used: row.try_get(5)?, max: row.try_get(6)? },
        senders: Capacity { used: row.try_get(7)?, max: row.try_get(8)? },
        sender_timeout: seconds(row.try_get(9)?),
        slot_keep: u64::try_from(row.try_get::<_, i64>(10)?).ok(),
        idle_slot_timeout: seconds(row.try_get(11)?),
        clock_ahead,
        clock_round_trip,
    })
}

/// The difference of the clocks, taken in the middle of the question.
async fn clock(client: &Client) -> Result<(f64, Duration)> {
    let (before, begun_at) = (SystemTime::now(), Instant::now());
    let row = client.query_one("select extract(epoch from clock_timestamp())::float8", &[]).await?;
    let (theirs, round_trip): (f64, Duration) = (row.try_get(0)?, begun_at.elapsed());
    let ours = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + round_trip / 2;
    Ok((theirs - ours.as_secs_f64(), round_trip))
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

/// Looks the publication up, as far as it concerns this table and this slot; `None` where there is none.
///
/// # Errors
/// When the connection is lost.
pub async fn publication(
    client: &Client,
    name: &str,
    table: &QualifiedName,
    slot: &str,
) -> Result<Option<Publication>> {
    // Through JSON, since columns and row filters came with version 15. A transaction below the slot's catalogue horizon was
    // over before anything that the slot still has to read.
    let query = "select p.pubinsert, p.pubupdate or p.pubdelete or p.pubtruncate, p.pubviaroot, \
        t.document is not null, \
        array(select jsonb_array_elements_text(nullif(t.document -> 'attnames', 'null'))), t.document ->> 'rowfilter', \
        (select count(*) from pg_publication_tables t where t.pubname = p.pubname), \
        coalesce((select bool_and(age(m.xmin) > age(s.catalog_xmin)) from pg_replication_slots s, \
          (select p.xmin union all \
           select r.xmin from pg_publication_rel r join pg_class c on c.oid = r.prrelid \
           join pg_namespace n on n.oid = c.relnamespace \
           where r.prpubid = p.oid and n.nspname = $2 and c.relname = $3) m \
          where s.slot_name = $4), true) \
        from pg_publication p left join lateral \
          (select to_jsonb(t) as document from pg_publication_tables t \
           where t.pubname = p.pubname and t.schemaname = $2 and t.tablename = $3) t on true \
        where p.pubname = $1";
    let found = client.query_opt(query, &[&name, &table.schema(), &table.name(), &slot]).await?;
    let Some(row) = found else { return Ok(None) };
    let (is_covered, columns): (bool, Vec<String>) = (row.try_get(3)?, row.try_get(4)?);
    Ok(Some(Publication {
        inserts: row.try_get(0)?,
        others: row.try_get(1)?,
        via_root: row.try_get(2)?,
        columns: is_covered.then_some(columns),
        row_filter: row.try_get(5)?,
        tables: row.try_get(6)?,
        is_surely_older: row.try_get(7)?,
    }))
}

/// Reads the beginning of what the slot has to read, without moving it, with the publication as the slot sees it there. Returns
/// whether that shows it: a change came, or there is nothing more to read.
///
/// # Errors
/// What the server says where the slot does not see the publication (42704, before 18), that somebody reads the slot (55006),
/// or that it takes too long (57014).
pub async fn peek(client: &mut Client, slot: &str, publication: &str, confirmed: EndLsn) -> Result<bool> {
    let until = confirmed.lsn().get().saturating_add(PEEK_BYTES);
    let until = super::lsn::Lsn::new(until);
    let statement = format!(
        "select count(*) > 0 or pg_current_wal_lsn() <= '{until}' from pg_logical_slot_peek_binary_changes({}, least(pg_current_wal_lsn(), '{until}'::pg_lsn), null, \
         'proto_version', '1', 'publication_names', {})",
        literal(slot),
        literal(&identifier(publication)),
    );
    let transaction = client.transaction().await?;
    transaction.batch_execute(&format!("set local statement_timeout = '{PEEK_LIMIT}'")).await?;
    let is_shown: bool = transaction.query_one(&statement, &[]).await?.try_get(0)?;
    transaction.rollback().await?;
    Ok(is_shown)
}

/// Looks the table up; `None` where there is none.
///
/// # Errors
/// When the connection is lost.
pub async fn table(client: &Client, name: &QualifiedName) -> Result<Option<Table>> {
    let query = "select c.relkind, c.relpersistence, row_security_active(c.oid), \
        has_schema_privilege(c.relnamespace, 'usage') and has_any_column_privilege(c.oid, 'select'), \
        array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped \
              order by a.attnum) \
        from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2";
    let found = client.query_opt(query, &[&name.schema(), &name.name()]).await?;
    let character = |row: &Row, index| row.try_get::<_, i8>(index).map(|byte| char::from(byte.cast_unsigned()));
    found
        .map(|row| {
            Ok(Table {
                kind: character(&row, 0)?,
                persistence: character(&row, 1)?,
                is_row_security_active: row.try_get(2)?,
                may_select: row.try_get(3)?,
                columns: row.try_get(4)?,
            })
        })
        .transpose()
}

/// Looks at the first rows of the table: what these columns hold, and how large payloads are.
///
/// # Errors
/// When the role may not read the columns, or the connection is lost.
pub async fn sample(client: &Client, table: &QualifiedName, columns: &[String], payload: &str) -> Result<Sample> {
    let texts: String = columns.iter().map(|column| format!("{}::text, ", identifier(column))).collect();
    let group = match columns.len() {
        0 => String::new(),
        count => {
            let numbers: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
            format!("group by {0} order by {0}", numbers.join(", "))
        }
    };
    let names: String = (0..columns.len()).map(|index| format!("c{index}, ")).collect();
    let query = format!(
        "select {names}max(l) from (select {texts}octet_length({}::text)::int8 from {} limit {SAMPLE_ROWS}) \
         s({names}l) {group} limit 1000",
        identifier(payload),
        table.quoted()
    );
    let mut sample = Sample::default();
    for row in client.query(&query, &[]).await? {
        let kind: std::result::Result<Vec<Option<String>>, _> =
            (0..columns.len()).map(|index| row.try_get(index)).collect();
        sample.kinds.push(kind?);
        let payload: Option<i64> = row.try_get(columns.len())?;
        sample.payload_max = sample.payload_max.max(payload.map(i64::unsigned_abs));
    }
    Ok(sample)
}

/// The age of the oldest row that the slot may still have to read, for a table with the columns `txid` and `created_at`.
///
/// # Errors
/// When the role may not read the columns, or the connection is lost.
pub async fn oldest_pending(client: &Client, table: &QualifiedName, slot: &str) -> Result<Option<Duration>> {
    // The slot's catalogue horizon as a full transaction id. Constant for the query, so that the index on txid is used.
    let query = format!(
        "select extract(epoch from clock_timestamp() - min(created_at))::float8 from {} where txid >= \
         (select (pg_snapshot_xmax(pg_current_snapshot())::text::int8 - age(s.catalog_xmin))::text::xid8 \
          from pg_replication_slots s where s.slot_name = $1)",
        table.quoted()
    );
    let age: Option<f64> = client.query_one(&query, &[&slot]).await?.try_get(0)?;
    Ok(age.map(seconds))
}
