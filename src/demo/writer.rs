//! An application that takes orders: every transaction writes business rows and events together, and some roll back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::Client;

use super::error::Error;
use super::ledger::{Ledger, Written};
use super::locked;
use crate::postgres::conninfo::Conninfo;
use crate::postgres::sql;
use crate::postgres::wire::quote::identifier;

/// The largest transaction, in events.
pub(super) const ROWS_MAX: usize = 10;

const CONNECTIONS: usize = 4;

const ORDERS: usize = 200;

/// Of ten transactions, so many roll back, and so many have a savepoint that rolls back.
const ROLLED_BACK_OF_TEN: u32 = 1;

/// So far, at most, is the writer ahead of the consumer: the in-process broker forgets all but the last 5 MB of a partition.
const LEAD_MAX: usize = 20_000;

/// So many transactions are begun in a second, or as many more as it takes to be done within [`TARGET_S`].
const RATE_MIN: usize = 400;

const TARGET_S: usize = 20;

/// What all connections of the application share.
#[derive(Clone)]
pub(super) struct Application {
    pub(super) conninfo: Conninfo,
    /// The schema with the tables `orders` and `outbox`.
    pub(super) schema: String,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) seed: u64,
}

impl Application {
    /// Begins to write; every task ends when all is written, or with what the database refused.
    pub(super) fn start(&self, events: usize) -> JoinSet<Result<(), Error>> {
        // A transaction has 5.5 events on average, and one of ten is in vain.
        let rate = RATE_MIN.max(events / 5 / TARGET_S);
        let pause = Duration::from_secs_f64(CONNECTIONS as f64 / rate as f64);
        let left = Arc::new(AtomicUsize::new(events));
        let mut connections = JoinSet::new();
        for number in 0..CONNECTIONS {
            // An order belongs to one connection, so the sequence of its commits is known.
            let orders = (number..ORDERS).step_by(CONNECTIONS).map(|order| (format!("order-{order}"), 0)).collect();
            let connection = Connection {
                application: self.clone(),
                left: left.clone(),
                random: fastrand::Rng::with_seed(self.seed.wrapping_add(number as u64)),
                orders,
                pause,
            };
            connections.spawn(connection.run());
        }
        connections
    }
}

struct Connection {
    application: Application,
    /// Events that nobody has begun to write.
    left: Arc<AtomicUsize>,
    random: fastrand::Rng,
    /// Every order with its version, which counts its committed events.
    orders: Vec<(String, u64)>,
    pause: Duration,
}

impl Connection {
    async fn run(mut self) -> Result<(), Error> {
        let client = sql::connect_and_spawn(&self.application.conninfo).await?;
        let ledger = Arc::clone(&self.application.ledger);
        let mut pace = interval(self.pause);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            while lead(&ledger) > LEAD_MAX {
                sleep(Duration::from_millis(10)).await;
            }
            let rows = self.claim();
            if rows == 0 {
                return Ok(());
            }
            let events = self.compose(rows);
            let discarded = if self.chance() { self.compose(3) } else { Vec::new() };
            let is_rolled_back = self.chance();
            locked(&ledger).roll_back(discarded.iter().cloned());
            self.transact(&client, &events, &discarded, is_rolled_back).await?;
            if is_rolled_back {
                self.left.fetch_add(rows, Ordering::Relaxed);
                locked(&ledger).roll_back(events);
            } else {
                self.advance(&events);
                locked(&ledger).commit(events);
            }
        }
    }

    /// Takes on so many of the events that are left.
    fn claim(&mut self) -> usize {
        let wanted = self.random.usize(1..=ROWS_MAX);
        let take = |left: usize| Some(left - wanted.min(left));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or_default();
        wanted.min(before)
    }

    fn chance(&mut self) -> bool {
        self.random.u32(..10) < ROLLED_BACK_OF_TEN
    }

    /// Events that would be the next ones of their orders.
    fn compose(&mut self, rows: usize) -> Vec<Written> {
        let mut added: HashMap<String, u64> = HashMap::new();
        let mut events = Vec::with_capacity(rows);
        for _ in 0..rows {
            let Some((order, version)) = self.random.choice(&self.orders) else { break };
            let added = added.entry(order.clone()).or_default();
            *added += 1;
            let id = uuid::Builder::from_random_bytes(self.random.u128(..).to_ne_bytes()).into_uuid();
            events.push(Written { id: id.to_string(), key: order.clone(), seq: version + *added });
        }
        events
    }

    fn advance(&mut self, events: &[Written]) {
        for event in events {
            if let Some((_, version)) = self.orders.iter_mut().find(|(order, _)| *order == event.key) {
                *version = event.seq;
            }
        }
    }

    async fn transact(
        &self,
        client: &Client,
        events: &[Written],
        discarded: &[Written],
        is_rolled_back: bool,
    ) -> Result<(), Error> {
        client.batch_execute("begin").await?;
        if !discarded.is_empty() {
            client.batch_execute("savepoint s").await?;
            self.insert(client, discarded).await?;
            client.batch_execute("rollback to savepoint s").await?;
        }
        self.insert(client, events).await?;
        client.batch_execute(if is_rolled_back { "rollback" } else { "commit" }).await?;
        Ok(())
    }

    /// The new versions of the orders, and their events.
    async fn insert(&self, client: &Client, events: &[Written]) -> Result<(), Error> {
        let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
        let orders: Vec<&str> = events.iter().map(|event| event.key.as_str()).collect();
        let versions: Vec<i64> = events.iter().map(|event| event.seq.cast_signed()).collect();
        let schema = identifier(&self.application.schema);
        let business = format!(
            "insert into {schema}.orders (id, version) \
             select o.id, max(o.version) from unnest($1::text[], $2::bigint[]) as o (id, version) group by o.id \
             on conflict (id) do update set version = excluded.version"
        );
        client.execute(&business, &[&orders, &versions]).await?;
        let outbox = format!(
            "insert into {schema}.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             select e.id::uuid, 'order', e.key, case e.version when 1 then 'OrderPlaced' else 'OrderChanged' end, \
             json_build_object('order', e.key, 'version', e.version, 'total', e.version * 1999) \
             from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as e (id, key, version, n) order by e.n"
        );
        client.execute(&outbox, &[&ids, &orders, &versions]).await?;
        Ok(())
    }
}

/// So many events are committed and have not arrived.
fn lead(ledger: &Mutex<Ledger>) -> usize {
    let ledger = locked(ledger);
    ledger.committed().saturating_sub(ledger.arrived())
}
