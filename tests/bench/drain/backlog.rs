//! The outbox tables, what is in them, and the slots that read it.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::failure::Failure;
use super::servers::until;
use super::stage::Stage;
use super::way::Way;

/// The slot of a run: a copy of the master, so that each run reads the same log.
pub(crate) const SLOT: &str = "bench_run";
const MASTER: &str = "bench_master";

/// How many aggregates there are; each has its own key.
pub(crate) const AGGREGATES: i32 = 10_000;

/// An outbox table and its publication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed {
    pub(crate) table: &'static str,
    pub(crate) publication: &'static str,
    ddl: Option<&'static str>,
}

/// A table as an application may have it: the payload is jsonb, and all columns are published.
pub(crate) const REFERENCE: Feed = Feed {
    table: "public.outbox",
    publication: "bench_reference",
    ddl: Some(
        "create table public.outbox (
            id uuid primary key default gen_random_uuid(),
            aggregate_type text not null,
            aggregate_id text not null,
            event_type text not null,
            payload jsonb not null,
            headers jsonb,
            created_at timestamptz not null default now()
        );
        create publication bench_reference for table public.outbox with (publish = 'insert')",
    ),
};

/// The table of `outboxd setup`: the payload is json, and only the columns that an event has are published.
pub(crate) const DEFAULT: Feed = Feed { table: "outboxd.outbox", publication: "outboxd", ddl: None };

/// About 300 bytes of JSON. `n` numbers the events, `ts` is the moment of the insert in Unix seconds.
const PAYLOAD: &str = r#"create or replace function bench_payload(n bigint, aggregate int) returns json language sql volatile as $$
    select format(
        '{"n": %s, "ts": %s, "order_id": "order-%s", "customer_id": "customer-%s", "status": "placed", "currency": "EUR", '
        '"total": 28948, "items": [{"sku": "SKU-%s", "price": 1999, "quantity": 2}, '
        '{"sku": "SKU-0000042", "price": 24950, "quantity": 1}], "address": "12 Long Street, Springfield 12345"}',
        n, extract(epoch from clock_timestamp()), aggregate, 20000 - aggregate, 1000000 + n % 100000)::json
    $$"#;

impl Feed {
    /// Makes the table, empty, and a master slot that sees all that comes into it.
    pub(crate) async fn create(&self, stage: &Stage) {
        self.remove(stage).await;
        stage.sql.batch_execute(PAYLOAD).await.unwrap();
        if let Some(ddl) = self.ddl {
            stage.sql.batch_execute(ddl).await.unwrap();
            let create = "select pg_create_logical_replication_slot($1, 'pgoutput')";
            stage.sql.execute(create, &[&MASTER]).await.unwrap();
        } else {
            let mut setup = Command::new(&stage.outboxd);
            setup.args(["setup", "--slot", MASTER]).env("OUTBOXD_DATABASE_URL", stage.conninfo(Way::Unix));
            assert!(setup.stdout(Stdio::null()).status().unwrap().success(), "outboxd setup failed");
        }
    }

    /// Removes table, publication and slots.
    pub(crate) async fn remove(&self, stage: &Stage) {
        drop_slot(stage, SLOT).await;
        drop_slot(stage, MASTER).await;
        let Self { table, publication, .. } = self;
        let sql = format!("drop publication if exists {publication}; drop schema if exists outboxd cascade");
        stage.sql.batch_execute(&format!("{sql}; drop table if exists {table}")).await.unwrap();
    }

    /// The statement that inserts one event; its parameters are number and aggregate.
    pub(crate) fn insert(&self) -> String {
        format!("{} select {}", self.insert_into(), row("$1::bigint", "$2::int"))
    }

    fn insert_into(&self) -> String {
        format!("insert into {} (id, aggregate_type, aggregate_id, event_type, payload)", self.table)
    }

    /// Fills the table with so many rows and returns the end of the log, in the form that PostgreSQL prints.
    pub(crate) async fn fill(&self, stage: &Stage, rows: u64, rows_per_transaction: u64) -> String {
        let (insert_into, row) = (self.insert_into(), row("n", "aggregate"));
        let load = format!(
            "create or replace procedure bench_fill(total bigint, per_transaction bigint) language plpgsql as $$
            declare done bigint := 0;
            begin
                while done < total loop
                    {insert_into} select {row}
                    from (select n, 1 + floor(random() * {AGGREGATES})::int as aggregate
                          from generate_series(done + 1, least(done + per_transaction, total)) n) numbers;
                    done := done + per_transaction;
                    commit;
                end loop;
            end $$"
        );
        stage.sql.batch_execute(&load).await.unwrap();
        // What is in the log is the same, and it is there sooner.
        stage.sql.execute("set synchronous_commit = off", &[]).await.unwrap();
        stage.sql.batch_execute(&format!("call bench_fill({rows}, {rows_per_transaction})")).await.unwrap();
        stage.sql.execute("reset synchronous_commit", &[]).await.unwrap();
        let end = stage.sql.query_one("select pg_current_wal_insert_lsn()::text", &[]).await.unwrap().get(0);
        // Flushes the log, moves its end on, so that a reader gets past ours, and spares the runs a checkpoint.
        stage.sql.execute("checkpoint", &[]).await.unwrap();
        end
    }
}

fn row(number: &str, aggregate: &str) -> String {
    let payload = format!("bench_payload({number}, {aggregate})");
    format!("gen_random_uuid(), 'order', 'order-' || {aggregate}, 'OrderPlaced', {payload}")
}

/// Copies the master slot for a run.
pub(crate) async fn copy_slot(stage: &Stage) {
    drop_slot(stage, SLOT).await;
    stage.sql.execute("select pg_copy_logical_replication_slot($1, $2)", &[&MASTER, &SLOT]).await.unwrap();
}

/// Drops a slot if it is there, once its reader has gone.
async fn drop_slot(stage: &Stage, slot: &str) {
    until(&format!("slot {slot} to be free"), Duration::from_secs(20), || async {
        if stage.walsender(slot).await.is_some() { Err(Failure::new("it is in use")) } else { Ok(()) }
    })
    .await;
    let drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1";
    stage.sql.execute(drop, &[&slot]).await.unwrap();
}
