//! The record of a replayed event, in the form in which held events are published.

use crate::outbox::{
    Event, HEADER_COMMIT_TIME, HEADER_POSITION, MappingError, OnFailure, Record, Role, Source, header::HEADER_TIMESTAMP,
};
use crate::postgres::Lsn;
use crate::recovery::held::{HeldEvent, HeldHeader, Scope, State};

/// The record of an event, to its own topic or to `topic`, with the header `mark`. Its timestamp is the present; what tells where and
/// when it was first published is not known and left out.
///
/// # Errors
/// When no record can be made of the event.
pub(super) fn of(
    event: &Event,
    source: &Source,
    topic: Option<&str>,
    (mark, value): (&str, String),
    now_us: i64,
) -> Result<HeldEvent, MappingError> {
    let record = Record::of(event, source, now_us / 1000)?;
    let mut name = String::new();
    match topic {
        Some(topic) => topic.clone_into(&mut name),
        None => event.topic(&mut name)?,
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let is_of_old =
        |header: &HeldHeader| [HEADER_POSITION, HEADER_COMMIT_TIME, HEADER_TIMESTAMP].contains(&header.name.as_str());
    let mut headers: Vec<HeldHeader> = record.headers.iter().map(HeldHeader::from).collect();
    headers.retain(|header| !is_of_old(header));
    headers.push(HeldHeader::text(mark, value));
    Ok(HeldEvent {
        id: 0,
        commit_lsn: Lsn::ZERO,
        ordinal: 0,
        source: source.as_str().to_owned(),
        event_id: Some(text(event.id())),
        event_type: event.role(Role::EventType).map(text),
        topic: Some(name),
        key: record.key.map(std::borrow::Cow::into_owned),
        value: record.value.map(std::borrow::Cow::into_owned),
        headers,
        partition: event.partition(u32::MAX)?.and_then(|number| i32::try_from(number).ok()),
        timestamp_ms: Some(now_us / 1000),
        committed_us: now_us,
        columns: None,
        // It keeps no place: whatever its key does, it is published or refused.
        state: State::Requeued,
        scope: Scope::Event,
        on_failure: OnFailure::DeadLetter,
        class: String::new(),
        reason: String::new(),
        attempts: 0,
        max_attempts: 1,
        retry_in: None,
        released: false,
    })
}
