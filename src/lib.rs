//! outboxd tails a PostgreSQL write-ahead log through a logical replication slot (`pgoutput`), turns every committed insert
//! into an outbox table into an event, publishes it to Kafka keyed by its aggregate, and tells PostgreSQL "this log is no
//! longer needed" only after the broker has acknowledged it. It never polls the table and never writes to it.
//!
//! # The contract
//!
//! 1. Every insert that is committed while slot and publication cover the (logged) outbox table is acknowledged by Kafka, or
//!    stands durably among the held events, or the relay stops and says at which LSN and why.
//! 2. Nothing that was rolled back (transaction, savepoint, prepared transaction) is ever published. After an asynchronous
//!    failover PostgreSQL itself may forget a commit that was already published.
//! 3. For one key, first deliveries follow commit order, then order inside the transaction; dead letters that are requeued, and
//!    what is replayed, are marked and come late. A repeat is always a rewind to a position that had not been confirmed, or a batch of held events
//!    whose rows were still there.
//! 4. An LSN is confirmed only when every event up to it is acknowledged (`acks=all`, idempotent producer) or durably held.
//! 5. A crash of the relay repeats at most the window (events received and not yet covered by a status that was sent) plus
//!    the open transaction, and of held events one batch. When server and relay crash together, also what was confirmed since the server last wrote its
//!    slot to disk. Each record carries source, event id, commit LSN and ordinal, so a consumer can drop repeats.
//! 6. Memory is at most two windows (ours and librdkafka's), one row of the largest allowed size and small caches, whatever
//!    the size of a transaction or of the backlog.
//! 7. No event is dropped silently: one that cannot be published is held, or the relay halts; the operator chooses which.
//!
//! When these conflict with anything else: no loss, then order per key, then bounded memory, then fewer repeats, then
//! latency, then throughput, then convenience.
//!
//! # The way of an event
//!
//! ```text
//!  PostgreSQL walsender
//!      | XLogData, keepalive                                                  confirm(end LSN)
//!      v                                                                           ^
//!  postgres::stream -> pgoutput -> outbox (map, route) -> kafka::producer   relay::core (ack frontier)
//!      bytes            messages     Event -> Record           | delivery reports ->|
//!                                                              | cannot be published
//!                                                              v
//!                                  relay::holder -> recovery::held -> relay::releases -> kafka::producer
//! ```
//!
//! `relay` owns every arrow: it is the only module that knows the others. Pure, without I/O, clock or log, are
//! `postgres::wire`, [`pgoutput`], [`outbox`], `relay::core`, `relay::resume` and `relay::failure`.
//!
//! # The map
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | one file a command |
//! | `demo` | `outboxd demo`: private servers, a writer, a consumer, kills, and the ledger that judges |
//! | `check` | `outboxd check`: what both ends say about themselves, and what it means, with remedies |
//! | [`config`] | typed settings; all mistakes reported together; secrets |
//! | `relay` | core (ack frontier, window, generations), failure policy, and the loop around them |
//! | `claims` | the store of payloads that are too large to travel: a folder or a bucket |
//! | `recovery` | held events: their table, and who keeps it; replays: which rows, in which order, how far; what operators ask for |
//! | `kafka` | producer, delivery reports, topics, error classes |
//! | [`outbox`] | mapping, shape of the table, event, topic, record |
//! | [`pgoutput`] | the plugin's messages; relations as they change |
//! | [`postgres`] | positions, connection strings, the replication connection, slots, publications, migrations |
//! | `telemetry` | log, and the registry of metrics |
//! | `terminal` | colours, where a person looks |
//! | `failpoint` | where tests break the relay |
//!
//! Imports point one way: cli -> check, demo, relay -> recovery -> kafka, claims, outbox -> pgoutput -> postgres, config, telemetry.
//!
//! # Where this differs from the plan that it began with
//!
//! - **No queue of transactions.** Every unresolved event carries the end of the last transaction before its own; the ack
//!   frontier is the lowest of these (`relay::core`). State is bounded by what is unresolved.
//! - **An event leaves the window only when all before it in its partition are acknowledged.** If an event is refused while
//!   a later one of its partition lands, both are sent again, in order.
//! - **Streaming always begins at the slot's own position**, never at one from memory, and after a reconnect nothing is
//!   confirmed before the last known transaction has come again with the same LSN, transaction id and commit time
//!   (`relay::resume`). System identifier and timeline alone do not tell a restored copy of a data folder from the original.
//! - **A report without an offset is no acknowledgement.** librdkafka takes "duplicate sequence" for a success, and a
//!   partition that was created again says that of records that it never had (`kafka::delivery`).
//! - **A producer that reports nothing while the brokers are healthy is replaced** (`relay::publisher`); it would wait for ever.
//! - **Nothing is asked about publications over the replication connection** (`postgres::connection`): the server process would
//!   decode yesterday's log with today's definitions. And a server of 18 or later that only warns that the slot does not see
//!   the publication, and leaves the rows out, halts the relay as the error before 18 does (`relay::intake`).
//! - **Delivery reports are polled by a thread of our own** (`kafka::poller`): rdkafka's spins, at a hundredth of a core.
//! - **Naps over TCP grow to 16 ms in a flood** (`postgres::gather`): until the reader acknowledges, the walsender's congestion
//!   window makes it join what it writes to few large packets.
//! - **A payload that goes into a store** (`--claim-check-to`) is put there before its event enters the window, one at a time:
//!   all behind it waits, as behind a topic that is not known (`relay::upload`). A decoded `bytea` is in memory beside its row then.
//! - **A refused batch isolates only its suspects** (`relay::lane`): each goes alone, and the others do not.
//! - **Held events are published by a producer of their own** (`relay::releases`), so that one that is refused again disturbs
//!   nobody; a key or topic is free when the last of its rows is gone.
//! - **A held event counts as resolved when its row is committed**, not when that commit has passed in the stream: the stream
//!   may be a million events behind, and until then a crash would repeat them all. An asynchronous failover can therefore keep
//!   a confirmed position and lose the row of a held event; its row in the outbox is still there.
//! - **A replay is a request like any other, and its rows are read from the table**, not from the log: page by page, each behind a
//!   position that the slot has confirmed, so that a replayed record is never the first delivery of its event
//!   (`recovery::replay`). The order is the table's (`seq`, a time, else where rows lie), since the log's is not in it.
//! - **A row that the filters leave out** has a position like any other, so that a filter changes nobody else's.
//! - **The batch, not the record, is bounded by the smallest `max.message.bytes`** of the topics in use; a record by its own
//!   topic's, so one small topic does not refuse another's large events.

#[cfg(feature = "relay")]
pub mod check;
#[cfg(feature = "relay")]
pub mod claims;
#[cfg(feature = "relay")]
pub mod cli;
pub mod config;
#[cfg(feature = "relay")]
pub mod demo;
#[cfg(feature = "relay")]
pub mod failpoint;
#[cfg(feature = "relay")]
pub mod kafka;
pub mod outbox;
pub mod pgoutput;
pub mod postgres;
#[cfg(feature = "relay")]
pub mod recovery;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "relay")]
pub mod telemetry;
#[cfg(feature = "relay")]
pub mod terminal;
