//! An application: commits events, rolls some back, and writes down in the ledger what it did.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use super::ledger::{Ledger, Written};

/// What is written.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How many events are to be committed; without end until [`Writer::finish`] where it is `None`.
    pub(crate) events: Option<usize>,
    pub(crate) connections: usize,
    pub(crate) keys: usize,
    pub(crate) rows_per_transaction: usize,
    /// Of ten transactions, so many are rolled back.
    pub(crate) rolled_back_of_ten: u32,
    /// Of ten transactions, so many roll a savepoint back.
    pub(crate) savepoints_of_ten: u32,
    /// Between two transactions of one connection.
    pub(crate) pause: Duration,
    pub(crate) payload_bytes: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            events: None,
            connections: 4,
            keys: 100,
            rows_per_transaction: 10,
            rolled_back_of_ten: 1,
            savepoints_of_ten: 1,
            pause: Duration::from_millis(5),
            payload_bytes: 300,
        }
    }
}

/// Where it is written.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) conninfo: String,
    pub(crate) table: String,
    pub(crate) aggregate_type: String,
}

/// A writer at work.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    connections: JoinSet<()>,
}

impl Writer {
    pub(crate) fn start(place: &Place, plan: &Plan, ledger: &Arc<Mutex<Ledger>>, seed: u64) -> Self {
        let (stop, committed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut connections = JoinSet::new();
        for number in 0..plan.connections {
            // A key belongs to one connection, so the order of its commits is known.
            let keys = (number..plan.keys).step_by(plan.connections).map(|key| (format!("{seed}-{key}"), 0)).collect();
            let connection = Connection {
                place: place.clone(),
                plan: plan.clone(),
                ledger: ledger.clone(),
                stop: stop.clone(),
                committed: committed.clone(),
                random: fastrand::Rng::with_seed(seed.wrapping_add(number as u64)),
                keys,
            };
            connections.spawn(connection.run());
        }
        Self { stop, committed, connections }
    }

    /// Events committed so far.
    pub(crate) fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Waits until the plan is done.
    pub(crate) async fn done(mut self) -> usize {
        while let Some(ended) = self.connections.join_next().await {
            ended.unwrap();
        }
        self.committed()
    }

    /// Ends after the transactions that are open.
    pub(crate) async fn finish(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.done().await
    }
}

struct Connection {
    place: Place,
    plan: Plan,
    ledger: Arc<Mutex<Ledger>>,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    random: fastrand::Rng,
    /// The last committed sequence number of each key.
    keys: Vec<(String, u64)>,
}

impl Connection {
    async fn run(mut self) {
        let mut client = self.connect().await;
        while !self.is_done() {
            let events = self.compose(self.plan.rows_per_transaction);
            let discarded = (self.random.u32(..10) < self.plan.savepoints_of_ten).then(|| self.compose(3));
            let is_rolled_back = self.random.u32(..10) < self.plan.rolled_back_of_ten;
            self.ledger.lock().unwrap().roll_back(discarded.iter().flatten().cloned());
            if is_rolled_back {
                self.ledger.lock().unwrap().roll_back(events.clone());
            }
            let is_committed = match self.transact(&client, &events, discarded.as_deref(), is_rolled_back).await {
                Ok(()) => !is_rolled_back,
                Err(_) => {
                    // The server went away; whether it committed is in the table.
                    client = self.connect().await;
                    self.is_in_table(&mut client, &events[0].id).await
                }
            };
            if is_committed {
                self.committed.fetch_add(events.len(), Ordering::Relaxed);
                for event in &events {
                    let (_, seq) = self.keys.iter_mut().find(|(key, _)| *key == event.key).unwrap();
                    *seq = event.seq;
                }
                self.ledger.lock().unwrap().commit(events);
            } else if !is_rolled_back {
                self.ledger.lock().unwrap().roll_back(events);
            }
            if !self.plan.pause.is_zero() {
                tokio::time::sleep(self.plan.pause).await;
            }
        }
    }

    fn is_done(&self) -> bool {
        let has_all = self.plan.events.is_some_and(|events| self.committed.load(Ordering::Relaxed) >= events);
        has_all || self.stop.load(Ordering::Relaxed)
    }

    /// Events that would be the next ones of their keys.
    fn compose(&mut self, rows: usize) -> Vec<Written> {
        let mut next: HashMap<usize, u64> = HashMap::new();
        (0..rows)
            .map(|_| {
                let index = self.random.usize(..self.keys.len());
                let (key, seq) = &self.keys[index];
                let seq = next.entry(index).and_modify(|seq| *seq += 1).or_insert(seq + 1);
                Written { id: uuid::Uuid::new_v4().to_string(), key: key.clone(), seq: *seq }
            })
            .collect()
    }

    async fn transact(
        &self,
        client: &Client,
        events: &[Written],
        discarded: Option<&[Written]>,
        is_rolled_back: bool,
    ) -> Result<(), tokio_postgres::Error> {
        client.batch_execute("begin").await?;
        if let Some(discarded) = discarded {
            client.batch_execute("savepoint s").await?;
            insert(client, &self.place, discarded, self.plan.payload_bytes).await?;
            client.batch_execute("rollback to savepoint s").await?;
        }
        insert(client, &self.place, events, self.plan.payload_bytes).await?;
        client.batch_execute(if is_rolled_back { "rollback" } else { "commit" }).await
    }

    /// Keeps trying: servers come and go.
    async fn connect(&self) -> Client {
        loop {
            match tokio_postgres::connect(&self.place.conninfo, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn is_in_table(&self, client: &mut Client, id: &str) -> bool {
        let query = format!("select exists (select from {} where id = $1::text::uuid)", self.place.table);
        loop {
            match client.query_one(&query, &[&id]).await {
                Ok(row) => return row.get(0),
                Err(_) => *client = self.connect().await,
            }
        }
    }
}

/// One multi-row INSERT.
pub(crate) async fn insert(
    client: &Client,
    place: &Place,
    events: &[Written],
    payload_bytes: usize,
) -> Result<(), tokio_postgres::Error> {
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    let keys: Vec<&str> = events.iter().map(|event| event.key.as_str()).collect();
    let payloads: Vec<String> = events.iter().map(|event| payload(event, payload_bytes)).collect();
    let statement = format!(
        "insert into {} (id, aggregate_type, aggregate_id, event_type, payload) \
         select id::uuid, $1, key, 'Happened', payload::json \
         from unnest($2::text[], $3::text[], $4::text[]) with ordinality as e (id, key, payload, n) order by n",
        place.table
    );
    client.execute(&statement, &[&place.aggregate_type, &ids, &keys, &payloads]).await.map(drop)
}

fn payload(event: &Written, bytes: usize) -> String {
    let start = format!("{{\"key\": \"{}\", \"seq\": {}, \"filler\": \"", event.key, event.seq);
    let filler = "x".repeat(bytes.saturating_sub(start.len() + 2));
    format!("{start}{filler}\"}}")
}
