//! From the blocks of the stream to events in the core's window.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::core::{Arrival, Core};
use super::halt::{Halt, Reason};
use super::holder::{Holder, RawRow, Why};
use super::resume::{OtherHistory, TransactionId};
use super::router::{Router, partition};
use super::trouble::Trouble;
use crate::failpoint::{Point, reached};
use crate::kafka::topics::Topic;
use crate::outbox::{
    Event, Filtered, Mapping, MappingError, Object, Receipt, Record, Shape, Source, Tables, TablesError,
};
use crate::pgoutput::{self, Column, Message, Tuple};
use crate::postgres::{self, Block, CopyMessage, QualifiedName, ServerError};
use crate::telemetry::Metrics;

/// How far a block got.
#[derive(Debug)]
pub(super) enum Taken {
    /// All of it.
    Whole,
    /// The window is full, or an event has to wait; so does the rest.
    Part,
    /// The server has ended the stream.
    Done,
    /// The server has ended it with an error.
    Lost(postgres::Error),
    /// The server has another history.
    OtherHistory(OtherHistory),
}

/// An event that has to wait. It stands in front of everything behind it.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) event: Event,
    pub(super) awaits: Awaits,
}

/// What an event waits for.
#[derive(Debug)]
pub(super) enum Awaits {
    /// Its topic is not known yet.
    Topic(String),
    /// Its payload is not in the store yet.
    Store(Object),
    /// Nothing any more.
    Nothing,
}

/// Where events go.
pub(super) struct Ways<'a> {
    pub(super) core: &'a mut Core<Event>,
    pub(super) router: &'a mut Router,
    pub(super) holder: &'a mut Holder,
    pub(super) now: Duration,
}

/// What the stream has told so far about tables, and the part of it that has not been taken yet.
pub(super) struct Intake {
    tables: Tables,
    source: Source,
    filters: Filters,
    committed_at: pgoutput::PgTimestamp,
    block: Option<Block>,
    pending: Option<Pending>,
    metrics: Metrics,
}

impl Intake {
    pub(super) fn new(table: QualifiedName, mapping: Mapping, source: Source, metrics: Metrics) -> Self {
        Self {
            tables: Tables::new(table, mapping),
            source,
            filters: Filters::default(),
            committed_at: pgoutput::PgTimestamp::default(),
            block: None,
            pending: None,
            metrics,
        }
    }

    /// A new stream describes its relations again. A pending event stays: the server will not count it as new again.
    pub(super) fn stream_ended(&mut self) {
        self.tables.clear();
        self.block = None;
    }

    /// The tables that inherit from the outbox, as the server that streams next has them.
    pub(super) fn set_heirs(&mut self, heirs: Vec<QualifiedName>) {
        self.tables.set_heirs(heirs);
    }

    /// Part of a block waits.
    pub(super) const fn has_block(&self) -> bool {
        self.block.is_some()
    }

    /// The event that waits.
    pub(super) const fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// The payload of the event that waits is in the store, and so it waits no longer.
    pub(super) fn stored(&mut self, receipt: Receipt) {
        if let Some(Pending { event, awaits }) = &mut self.pending {
            event.stored(receipt);
            *awaits = Awaits::Nothing;
        }
    }

    /// A block has come; it is taken by [`Intake::proceed`].
    pub(super) fn put(&mut self, block: Block, core: &mut Core<Event>) {
        self.metrics.stream_bytes.inc_by(block.len() as u64);
        core.note_stream_bytes(block.len(), Event::detach);
        self.block = Some(block);
    }

    /// Takes as much of the waiting block as the window has room for. `to_boundary`: no further than the open transaction.
    pub(super) fn proceed(&mut self, ways: &mut Ways<'_>, to_boundary: bool) -> Result<Taken, Halt> {
        if let Some(Pending { event, .. }) = self.pending.take_if(|pending| !matches!(pending.awaits, Awaits::Store(_)))
        {
            self.enter(event, ways)?;
        }
        let Some(block) = self.block.take() else { return Ok(Taken::Whole) };
        let mut messages = block.messages();
        loop {
            let is_boundary = to_boundary && !ways.core.is_in_transaction();
            if self.pending.is_some() || !ways.core.takes_more() || is_boundary {
                let rest = block.rest(&messages);
                self.block = (!rest.is_empty()).then_some(rest);
                return Ok(if self.block.is_some() { Taken::Part } else { Taken::Whole });
            }
            let taken = match messages.next() {
                None => return Ok(Taken::Whole),
                Some(Ok(CopyMessage::XLogData { data, .. })) => self.message(data, &block, ways),
                Some(Ok(CopyMessage::Keepalive { wal_end, reply_requested, .. })) => {
                    ways.core.keepalive(wal_end, reply_requested).map_err(|other| Refused::Trouble(other.into()))
                }
                // Of anything but an Insert only the kind is there: it is nothing to us, whatever its size.
                Some(Ok(CopyMessage::Oversized { data, .. })) if data.first() == Some(&b'I') => {
                    self.message(data, &block, ways)
                }
                Some(Ok(CopyMessage::Oversized { .. })) => Ok(()),
                Some(Ok(CopyMessage::Done)) => return Ok(Taken::Done),
                Some(Ok(CopyMessage::Notice(notice))) => self::notice(&notice),
                Some(Err(error)) if error.as_server_error().is_some() => return Ok(Taken::Lost(error)),
                Some(Err(error)) => return Err(Halt::new(Reason::Undecodable, None, error)),
            };
            match taken {
                Ok(()) => {}
                Err(Refused::Trouble(Trouble::OtherHistory(other))) => return Ok(Taken::OtherHistory(other)),
                Err(Refused::Trouble(Trouble::Disorder(disorder))) => {
                    return Err(Halt::new(Reason::Undecodable, None, disorder));
                }
                Err(Refused::Halt(halt)) => return Err(*halt),
            }
        }
    }

    fn message(&mut self, data: &[u8], block: &Block, ways: &mut Ways<'_>) -> Result<(), Refused> {
        let message = pgoutput::parse(data).map_err(|error| Halt::new(Reason::Undecodable, None, error))?;
        match message {
            Message::Insert { relation_id, new } => self.insert(relation_id, &new, block, ways)?,
            Message::Begin { final_lsn, committed_at, xid } => {
                self.committed_at = committed_at;
                ways.core.begin(TransactionId { commit: final_lsn, xid, committed_at })?;
            }
            Message::Commit { end_lsn, .. } => ways.core.commit(end_lsn)?,
            Message::Relation(body) => self.tables.relation(body),
            // Rows of an outbox are only ever added; what is done to them later concerns no consumer.
            Message::Update { .. } | Message::Delete { .. } | Message::Truncate { .. } => {}
            Message::Type { id, name, .. } => self.tables.named_type(id, name),
            Message::Origin { .. } | Message::Logical(_) => {}
        }
        Ok(())
    }

    fn insert(
        &mut self,
        relation_id: u32,
        tuple: &Tuple<'_>,
        block: &Block,
        ways: &mut Ways<'_>,
    ) -> Result<(), Refused> {
        let Some(shape) = self.tables.shape(relation_id).map_err(unmappable_table)? else { return Ok(()) };
        let arrival = ways.core.row()?;
        let (Arrival::New(position) | Arrival::Unresolved(position, _)) = arrival else {
            self.metrics.recognised.inc();
            return Ok(());
        };
        if ways.holder.is_durable(position) {
            self.metrics.recognised.inc();
            return Ok(());
        }
        let event = match Event::map(shape, tuple, |row| block.slice(row), position, self.committed_at) {
            Ok(event) => event,
            Err(error) => {
                let (row, why) = self.unmappable(relation_id, tuple, &error);
                self.metrics.received.inc();
                return Ok(ways.holder.refuse_row(position, row, &why, (ways.core, ways.now))?);
            }
        };
        if let Arrival::Unresolved(_, handle) = arrival {
            self.metrics.recognised.inc();
            let is_same = ways.core.event(handle).is_none_or(|known| known.id() == event.id());
            return if is_same { Ok(()) } else { Err(Halt::new(Reason::OtherEvent, Some(position), "").into()) };
        }
        self.metrics.received.inc();
        if let Some(filtered) = event.filtered() {
            self.metrics.filtered.inc();
            self.filters.note(filtered, self.tables.mapping());
            return Ok(());
        }
        self.enter(event, ways)?;
        Ok(())
    }

    /// Puts an event into its lane or among the held ones, or keeps it while its topic is not known or its payload is not in the
    /// store.
    fn enter(&mut self, event: Event, ways: &mut Ways<'_>) -> Result<(), Halt> {
        let Ways { core, router, holder, now } = ways;
        if let Err(error) = router.name(&event) {
            return holder.refuse(&event, None, &Why::unmappable(&error), (core, *now));
        }
        match event.to_store(&self.source) {
            Ok(None) => {}
            Ok(Some(object)) => {
                self.pending = Some(Pending { event, awaits: Awaits::Store(object) });
                return Ok(());
            }
            Err(error) => return holder.refuse(&event, None, &Why::unmappable(&error), (core, *now)),
        }
        let topic = router.here();
        if let Some(scope) = holder.holds(topic, &event) {
            return holder.park(&event, topic, scope, (core, *now));
        }
        let Some(known) = router.find(topic) else {
            self.pending = Some(Pending { awaits: Awaits::Topic(topic.to_owned()), event });
            return Ok(());
        };
        let lane = match destination(&event, &self.source, known) {
            Ok(partition) => router.lane(topic, partition),
            Err(why) => return holder.refuse(&event, Some(topic), &why, (core, *now)),
        };
        match lane {
            Some(lane) => {
                let bytes = event.len();
                core.push(lane, event.position(), event, bytes, *now);
                reached(Point::AfterReceive);
            }
            None => self.pending = Some(Pending { awaits: Awaits::Topic(topic.to_owned()), event }),
        }
        Ok(())
    }

    /// What is known of a row that is no event, and why it is none.
    fn unmappable(&self, relation_id: u32, tuple: &Tuple<'_>, error: &MappingError) -> (RawRow, Why) {
        let shape = self.tables.known_shape(relation_id);
        let id = shape.and_then(Shape::id_column).and_then(|index| tuple.columns().nth(index));
        let id = match id {
            Some(Column::Text(id)) => Some(String::from_utf8_lossy(id).into_owned()),
            _ => None,
        };
        let why = match error {
            MappingError::TooLarge { column } => {
                // Without it nobody would find the row, and it is the one thing to look at.
                let of_row = id.as_ref().map_or_else(String::new, |id| format!(" of the row with the id {id:?}"));
                let reason = format!("{column}{of_row} is too large: --max-message-bytes is the limit");
                Why { class: "row_too_large", reason, halt: Reason::RowTooLarge }
            }
            error => Why::unmappable(error),
        };
        let columns = self.tables.columns(relation_id, tuple);
        (RawRow { id, committed_us: self.committed_at.unix_us(), columns }, why)
    }
}

/// The partition that an event goes to. What a broker would refuse for certain is refused before it is sent: afterwards it would
/// take its batch with it.
fn destination(event: &Event, source: &Source, topic: Topic) -> Result<u32, Why> {
    let record = Record::of(event, source, 0).map_err(|error| Why::unmappable(&error))?;
    let size = record.size_min();
    if size > topic.message_bytes_max {
        let reason = format!("{size} bytes and more, and the topic takes {}", topic.message_bytes_max);
        return Err(Why { class: "too_large", reason, halt: Reason::TooLarge });
    }
    if topic.is_compacted && record.key.is_none() {
        let reason = "it has no key, and the topic is compacted".to_owned();
        return Err(Why { class: "no_key", reason, halt: Reason::Unmappable });
    }
    partition(event, topic.partitions).map_err(|error| Why::unmappable(&error))
}

/// What the relay stops for where nothing can be made of the table.
fn unmappable_table(error: TablesError) -> Halt {
    let reason = if error == TablesError::Undescribed { Reason::Undecodable } else { Reason::Shape };
    Halt::new(reason, None, error)
}

/// Which filters have left rows out, so that each is told of once.
#[derive(Debug, Default)]
struct Filters(Vec<Filtered>);

impl Filters {
    fn note(&mut self, filtered: Filtered, mapping: &Mapping) {
        if self.0.contains(&filtered) {
            return;
        }
        self.0.push(filtered);
        match filtered {
            Filtered::Status => tracing::info!("--status-filter leaves out a row, the first of those to come"),
            Filtered::Rule(number) => {
                let rule = mapping.rules.get(number).map(ToString::to_string).unwrap_or_default();
                tracing::info!("rule {} leaves out a row, the first of those to come: {rule}", number + 1);
            }
        }
    }
}

/// Why a message was not taken.
enum Refused {
    Trouble(Trouble),
    Halt(Box<Halt>),
}

impl<T: Into<Trouble>> From<T> for Refused {
    fn from(trouble: T) -> Self {
        Self::Trouble(trouble.into())
    }
}

impl From<Halt> for Refused {
    fn from(halt: Halt) -> Self {
        Self::Halt(Box::new(halt))
    }
}

/// What the server says beside the stream. From 18 on it only warns where the slot does not see the publication, and leaves the
/// rows out; before, that was an error.
fn notice(notice: &ServerError) -> Result<(), Refused> {
    if *notice.sqlstate() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE && notice.severity() == "WARNING" {
        let what = format!(
            "the server leaves out rows where the slot does not see the publication: {notice}; when it was created after the \
             slot, drop the slot and create it again"
        );
        return Err(Refused::Halt(Box::new(Halt::new(Reason::Slot, None, what))));
    }
    tracing::info!("the server says: {notice}");
    Ok(())
}
