//! `outboxd tail`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use super::effective::Effective;
use super::exit::{Class, Failed};
use super::mapping::MappingArgs;
use super::shown::Shown;
use super::target::{Target, TargetArgs};
use crate::outbox::{Event, Mapping, Ordinal, Position, Role, ShapeError, Source, Tables};
use crate::pgoutput::{self, Message, PgTimestamp};
use crate::postgres::wire::quote;
use crate::postgres::{
    Block, CopyMessage, EndLsn, Lsn, ReplicationConnection, ReplicationStream, Status, StreamSettings, publication,
    slot, sql,
};
use crate::terminal::{self, say};

/// How often the server is told that this side lives.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Where no terminal tells its width, or the line is for a file.
const WIDE: usize = 100_000;

/// The arguments: those of `run` that decide about records, and which of them to show.
#[derive(Debug, Args)]
pub struct TailArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    mapping: MappingArgs,
    /// The name of this source in the header outboxd_source [default: the database's name].
    #[arg(long, env = "OUTBOXD_SOURCE")]
    source: Option<String>,
    /// Only events of this aggregate type.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// Only events of this type.
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// Only records with this key.
    #[arg(long, value_name = "KEY")]
    only_key: Option<String>,
    /// Only records for this topic.
    #[arg(long, value_name = "TOPIC")]
    only_topic: Option<String>,
    /// End after so many.
    #[arg(long, short = 'n', value_name = "NUMBER")]
    count: Option<u64>,
    /// One JSON object a line, for programs.
    #[arg(long)]
    json: bool,
}

/// Shows events as they are committed until a signal comes, or so many as were asked for.
///
/// It reads through a slot of its own, which the server removes with the connection, so the relay's is not touched.
///
/// # Errors
/// Mistakes in the settings, a database that does not let us do it, or a connection that is lost.
pub async fn run(args: TailArgs, effective: &Effective) -> Result<(), Failed> {
    let mut mistakes = effective.mistakes();
    let target = args.target.check(&mut mistakes);
    let mapping = args.mapping.mapping(effective, &mut mistakes);
    let Some(target) = target.filter(|_| mistakes.is_empty()) else {
        return Err(Failed::new(Class::Usage, mistakes));
    };
    let name = args.source.clone().unwrap_or_else(|| target.database.dbname().to_owned());
    let source = Source::new(&name, &target.table.to_string());
    let mut tail = Tail {
        tables: Tables::new(target.table.clone(), mapping.clone()),
        mapping,
        source,
        position: Position::default(),
        committed_at: PgTimestamp::default(),
        seen: EndLsn::default(),
        left: args.count,
        args,
    };
    tokio::select! {
        ended = tail.follow(&target) => ended,
        // A handler that cannot be set leaves the signal's own effect.
        Ok(()) = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// What is known while the stream runs.
struct Tail {
    args: TailArgs,
    tables: Tables,
    mapping: Mapping,
    source: Source,
    /// Of the next row.
    position: Position,
    committed_at: PgTimestamp,
    /// All before this has been shown.
    seen: EndLsn,
    left: Option<u64>,
}

impl Tail {
    async fn follow(&mut self, target: &Target) -> Result<(), Failed> {
        let client = sql::connect_and_spawn(&target.database).await?;
        let found = publication::inspect(&client, &target.publication, &target.table).await?;
        let Some(found) = found.filter(|found| found.covers) else {
            let what = format!("no publication {:?} covers the table {}", target.publication, target.table);
            return Err(Failed::new(Class::Setup, format_args!("{what}; `outboxd setup` creates what is missing")));
        };
        let table = target.table.to_string();
        if let Some(error) = ShapeError::among(&table, &found.table_columns, &found.columns, &self.mapping) {
            return Err(Failed::new(Class::Setup, error));
        }
        self.tables.set_heirs(found.heirs);
        let mut connection = ReplicationConnection::connect(&target.database, &StreamSettings::default()).await?;
        let name = format!("outboxd_tail_{}", std::process::id());
        let create = format!(
            "SELECT pg_catalog.pg_create_logical_replication_slot({}, '{}', true)",
            quote::literal(&name),
            slot::PLUGIN
        );
        connection.simple_query(&create).await?;
        let mut stream = connection.start(&name, Lsn::ZERO, &[&target.publication]).await?;
        tracing::info!("following {} through publication {}", target.table, target.publication);
        let mut ticks = tokio::time::interval(STATUS_INTERVAL);
        loop {
            tokio::select! {
                block = stream.readable_block() => {
                    if !self.block(&block?, &mut stream)? {
                        return Ok(());
                    }
                }
                _ = ticks.tick() => self.confirm(&mut stream),
            }
        }
    }

    /// Tells the server that this side lives, and that its own slot need not hold the log.
    fn confirm(&self, stream: &mut ReplicationStream) {
        let written = self.seen.lsn();
        stream.send_status(Status { written, flushed: self.seen, applied: self.seen, ..Status::default() });
    }

    /// Shows what is in a block; false once that is enough.
    fn block(&mut self, block: &Block, stream: &mut ReplicationStream) -> Result<bool, Failed> {
        for message in block {
            match message? {
                CopyMessage::XLogData { data, .. } => {
                    let message = pgoutput::parse(data).map_err(|error| Failed::new(Class::Data, error))?;
                    self.message(&message, block)?;
                }
                CopyMessage::Keepalive { wal_end, reply_requested, .. } => {
                    self.seen = self.seen.max(EndLsn::new(wal_end));
                    if reply_requested {
                        self.confirm(stream);
                    }
                }
                // Of anything but an Insert only the kind is there.
                CopyMessage::Oversized { data, .. } if data.first() == Some(&b'I') => {
                    let message = pgoutput::parse(data).map_err(|error| Failed::new(Class::Data, error))?;
                    self.message(&message, block)?;
                }
                CopyMessage::Oversized { .. } => {}
                CopyMessage::Done => return Ok(false),
                CopyMessage::Notice(notice) => tracing::info!("the server says: {notice}"),
            }
            if self.left == Some(0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn message(&mut self, message: &Message<'_>, block: &Block) -> Result<(), Failed> {
        match message {
            Message::Begin { final_lsn, committed_at, .. } => {
                self.position = Position::new(*final_lsn, Ordinal::FIRST);
                self.committed_at = *committed_at;
            }
            Message::Commit { end_lsn, .. } => self.seen = self.seen.max(*end_lsn),
            Message::Relation(body) => self.tables.relation(*body),
            Message::Type { id, name, .. } => self.tables.named_type(*id, name),
            Message::Insert { relation_id, new } => {
                let shape = self.tables.shape(*relation_id).map_err(|error| Failed::new(Class::Setup, error))?;
                let Some(shape) = shape else { return Ok(()) };
                let event = Event::map(shape, new, |row| block.slice(row), self.position, self.committed_at);
                self.advance();
                match event {
                    Ok(event) if self.is_wanted(&event) => self.show(&event)?,
                    Ok(_) => {}
                    Err(error) => self.print(&Shown::refused(&error))?,
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// To the next row of the transaction.
    fn advance(&mut self) {
        let next = self.position.ordinal().next().unwrap_or(Ordinal::FIRST);
        self.position = Position::new(self.position.commit(), next);
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let is = |wanted: &Option<String>, role| {
            wanted.as_ref().is_none_or(|wanted| event.role(role) == Some(wanted.as_bytes()))
        };
        is(&self.args.aggregate_type, Role::AggregateType) && is(&self.args.event_type, Role::EventType)
    }

    fn show(&mut self, event: &Event) -> Result<(), Failed> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let shown = Shown::of(event, &self.mapping, &self.source, now_ms, true);
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        match is(&self.args.only_key, shown.key()) && is(&self.args.only_topic, shown.topic()) {
            true => self.print(&shown),
            false => Ok(()),
        }
    }

    fn print(&mut self, shown: &Shown) -> Result<(), Failed> {
        if self.left == Some(0) {
            return Ok(());
        }
        self.left = self.left.map(|left| left - 1);
        if self.args.json {
            return Ok(say(serde_json::to_string(shown).map_err(|error| Failed::new(Class::Data, error))?)?);
        }
        Ok(say(shown.line(terminal::width().unwrap_or(WIDE)))?)
    }
}
