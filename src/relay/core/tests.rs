//! What the simulation found, and rules that are easier to show directly.

use std::time::Duration;

use super::*;
use crate::pgoutput::PgTimestamp;

const NOW: Duration = Duration::from_secs(1);

fn core(window_events: usize) -> Core<u32> {
    let mut core = Core::new(Limits { window_events, ..Limits::default() });
    core.add_lane().unwrap();
    core.resume(end(1000));
    core
}

fn end(lsn: u64) -> EndLsn {
    EndLsn::new(Lsn::new(lsn))
}

fn lane() -> LaneId {
    LaneId::new(0).unwrap()
}

fn begin(core: &mut Core<u32>, commit: u64) -> Result<(), Trouble> {
    let xid = u32::try_from(commit).unwrap();
    core.begin(TransactionId { commit: Lsn::new(commit), xid, committed_at: PgTimestamp::from_micros(0) })
}

/// A transaction of `rows` that comes for the first time; it ends ten bytes behind its commit record's start.
fn receive(core: &mut Core<u32>, commit: u64, rows: u32) {
    begin(core, commit).unwrap();
    rows_come(core, rows);
    core.commit(end(commit + 10)).unwrap();
}

fn rows_come(core: &mut Core<u32>, rows: u32) {
    for row in 0..rows {
        let Ok(Arrival::New(position)) = core.row() else { panic!("row {row} is not new") };
        core.push(lane(), position, row, 100, NOW);
    }
}

/// Sends what may be sent; the numbers of what was sent.
fn send(core: &mut Core<u32>) -> Vec<u64> {
    let mut sent = Vec::new();
    core.send_ready(NOW, |handle, _| {
        sent.push(handle.number());
        SendOutcome::Queued
    });
    sent
}

fn acknowledge(core: &mut Core<u32>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        assert!(core.acknowledge(Handle::new(lane(), number), NOW));
    }
}

fn publish_all(core: &mut Core<u32>) {
    loop {
        let sent = send(core);
        if sent.is_empty() {
            return;
        }
        acknowledge(core, sent);
    }
}

#[test]
fn a_cold_partition_gets_one_record_until_its_first_acknowledgement() {
    let mut core = core(100);
    receive(&mut core, 1100, 5);
    assert_eq!(send(&mut core), [0]);
    assert_eq!(send(&mut core), Vec::<u64>::new());
    acknowledge(&mut core, [0]);
    assert_eq!(send(&mut core), [1, 2, 3, 4]);
    core.restart_generation();
    assert_eq!(send(&mut core), [1]);
}

#[test]
fn a_partition_that_was_idle_for_long_is_cold_again() {
    let mut core = core(100);
    receive(&mut core, 1100, 1);
    publish_all(&mut core);
    receive(&mut core, 1200, 3);
    let mut sent = 0;
    core.send_ready(NOW + Limits::default().cold_after, |_, _| {
        sent += 1;
        SendOutcome::Queued
    });
    assert_eq!(sent, 1);
}

#[test]
fn a_suspect_goes_alone_and_the_others_do_not() {
    let mut core = core(100);
    receive(&mut core, 1100, 1);
    publish_all(&mut core);
    receive(&mut core, 1200, 4);
    assert_eq!(send(&mut core), [1, 2, 3, 4]);
    assert_eq!(core.give_back(Handle::new(lane(), 3)), Some(false));
    core.suspect(Handle::new(lane(), 3));
    core.restart_generation();
    receive(&mut core, 1300, 2);
    // The partition is cold at first.
    assert_eq!(send(&mut core), [1]);
    acknowledge(&mut core, [1]);
    assert_eq!(send(&mut core), [2]);
    acknowledge(&mut core, [2]);
    assert_eq!(send(&mut core), [3]);
    acknowledge(&mut core, [3]);
    assert_eq!(send(&mut core), [4, 5, 6]);
}

#[test]
fn what_is_taken_out_keeps_the_frontier_until_it_is_stored() {
    let mut core = core(100);
    receive(&mut core, 1100, 1);
    publish_all(&mut core);
    receive(&mut core, 1200, 3);
    assert_eq!(send(&mut core), [1, 2, 3]);
    (1..=3).for_each(|number| {
        core.give_back(Handle::new(lane(), number));
    });
    core.restart_generation();
    // The guilty one and one behind it; the one between them stays.
    let guilty = core.take_out(lane(), |handle, _| handle.number() == 1);
    let behind = core.take_out(lane(), |handle, _| handle.number() == 3);
    assert_eq!((guilty.len(), behind.len(), core.shelved(), core.unresolved_events()), (1, 1, 2, 3));
    assert_eq!(core.event(Handle::new(lane(), 1)), None);
    assert_eq!(send(&mut core), [2]);
    acknowledge(&mut core, [2]);
    assert_eq!(core.frontier().end, end(1110), "the held ones are not stored");
    receive(&mut core, 1300, 1);
    assert_eq!(send(&mut core), [4]);
    acknowledge(&mut core, [4]);
    assert!(core.stored(behind[0].0) && !core.stored(behind[0].0));
    assert_eq!(core.frontier().end, end(1110));
    assert!(core.stored(guilty[0].0));
    assert_eq!(core.frontier().end, end(1310));
    assert_eq!((core.unresolved_events(), core.unresolved_bytes(), core.oldest()), (0, 0, None));
}

#[test]
fn a_shelved_event_counts_and_comes_again_as_resolved() {
    let mut core = core(3);
    begin(&mut core, 1100).unwrap();
    for row in 0..3 {
        let Arrival::New(position) = core.row().unwrap() else { panic!("row {row}") };
        core.shelve(position, 10, NOW);
    }
    core.commit(end(1110)).unwrap();
    assert!(!core.takes_more());
    assert_eq!(core.frontier().end, end(1000));
    core.resume(end(1000));
    begin(&mut core, 1100).unwrap();
    assert_eq!(core.row().unwrap(), Arrival::Resolved);
}

#[test]
fn an_event_that_landed_behind_a_refused_one_is_sent_again_behind_it() {
    let mut core = core(100);
    receive(&mut core, 1100, 1);
    publish_all(&mut core);
    receive(&mut core, 1200, 2);
    assert_eq!(send(&mut core), [1, 2]);
    acknowledge(&mut core, [2]);
    assert_eq!(core.frontier().end, end(1110));
    assert_eq!(core.give_back(Handle::new(lane(), 1)), Some(false));
    core.restart_generation();
    assert_eq!(send(&mut core), [1]);
    acknowledge(&mut core, [1]);
    assert_eq!(send(&mut core), [2]);
}

#[test]
fn only_whole_transactions_are_confirmed_and_a_keepalive_is_an_empty_one() {
    let mut core = core(100);
    core.keepalive(Lsn::new(1050), false).unwrap();
    assert_eq!(core.take_status(NOW).1, end(1050));
    begin(&mut core, 1100).unwrap();
    rows_come(&mut core, 1);
    publish_all(&mut core);
    core.keepalive(Lsn::new(1100), false).unwrap();
    assert_eq!(core.take_status(NOW).1, end(1050), "a transaction is open");
    core.commit(end(1110)).unwrap();
    assert_eq!(core.take_status(NOW).1, end(1110));
    receive(&mut core, 1200, 1);
    core.keepalive(Lsn::new(1300), false).unwrap();
    assert_eq!(core.take_status(NOW).1, end(1110), "an event is unresolved");
    publish_all(&mut core);
    assert_eq!(core.take_status(NOW).1, end(1300));
}

#[test]
fn a_status_waits_its_pace_unless_asked_for_or_much_is_confirmed() {
    let mut core = core(10);
    core.take_status(NOW);
    assert!(!core.status_due(NOW));
    core.keepalive(Lsn::new(1010), false).unwrap();
    assert!(!core.status_due(NOW) && core.status_due(NOW + Duration::from_millis(100)));
    core.keepalive(Lsn::new(1010), true).unwrap();
    assert!(core.status_due(NOW));
    core.take_status(NOW);
    assert!(!core.status_due(NOW + Duration::from_millis(999)) && core.status_due(NOW + Duration::from_secs(1)));
    receive(&mut core, 1100, 5);
    publish_all(&mut core);
    assert!(core.status_due(NOW), "half of the window waits for it");
}

#[test]
fn intake_pauses_at_the_window_and_a_transaction_larger_than_it_passes() {
    let mut core = core(3);
    begin(&mut core, 1100).unwrap();
    for row in 0..10 {
        assert!(core.takes_more());
        rows_come(&mut core, 1);
        if row % 3 == 2 {
            assert!(!core.takes_more());
            publish_all(&mut core);
        }
    }
    publish_all(&mut core);
    core.commit(end(1110)).unwrap();
    assert!(!core.takes_more(), "ten events are not covered by a status");
    core.take_status(NOW);
    assert!(core.takes_more());
}

#[test]
fn late_events_give_up_their_block_once() {
    let mut core = core(100);
    receive(&mut core, 1100, 2);
    let mut detached = Vec::new();
    for _ in 0..3 {
        core.note_stream_bytes(Limits::default().window_bytes, |event| detached.push(*event));
    }
    assert_eq!(detached, [0, 1]);
}

#[test]
fn what_comes_again_after_the_proof_is_recognised() {
    let mut core = core(100);
    receive(&mut core, 1100, 1);
    publish_all(&mut core);
    begin(&mut core, 1200).unwrap();
    rows_come(&mut core, 2);
    core.stream_ended();
    core.resume(end(1000));
    begin(&mut core, 1100).unwrap();
    assert_eq!(core.row(), Ok(Arrival::Resolved));
    core.commit(end(1110)).unwrap();
    assert_eq!(core.take_status(NOW).1, end(1000), "before the proof only the slot's own position");
    begin(&mut core, 1200).unwrap();
    for row in 0..2 {
        let Ok(Arrival::Unresolved(_, handle)) = core.row() else { panic!("row {row} is in the window") };
        assert_eq!(core.event(handle), Some(&row));
    }
    rows_come(&mut core, 1);
    core.commit(end(1210)).unwrap();
    publish_all(&mut core);
    assert_eq!(core.take_status(NOW).1, end(1210));
    assert_eq!(core.uncovered_events(), 0);
}

#[test]
fn a_witness_that_does_not_come_refutes_the_history() {
    let lost = || {
        let mut core = core(100);
        receive(&mut core, 1100, 1);
        core.stream_ended();
        core.resume(end(1000));
        core
    };
    assert!(matches!(begin(&mut lost(), 1101), Err(Trouble::OtherHistory(_))));
    assert!(lost().keepalive(Lsn::new(1101), false).is_err());
    assert!(lost().keepalive(Lsn::new(1100), false).is_ok());
    let mut other = lost();
    let id = TransactionId { commit: Lsn::new(1100), xid: 7, committed_at: PgTimestamp::from_micros(0) };
    assert!(matches!(other.begin(id), Err(Trouble::OtherHistory(_))));
}

/// Found by the simulation: nothing could be confirmed before the witness, and nothing was read until something was.
#[test]
fn a_full_window_does_not_keep_the_proof_from_coming() {
    let mut core = core(3);
    receive(&mut core, 1100, 5);
    publish_all(&mut core);
    core.stream_ended();
    core.resume(end(1000));
    assert!(core.takes_more());
}

/// Found by the simulation: a server that lost the end of its log could commit something new before an old keepalive's
/// position, and that was confirmed at once.
#[test]
fn keepalives_are_forgotten_with_the_connection() {
    let mut core = core(100);
    core.keepalive(Lsn::new(2000), false).unwrap();
    assert_eq!(core.take_status(NOW).1, end(2000));
    core.stream_ended();
    core.resume(end(1000));
    receive(&mut core, 1500, 1);
    assert_eq!(core.take_status(NOW).1, end(1000));
    publish_all(&mut core);
    assert_eq!(core.take_status(NOW).1, end(1510));
}

/// Found by the simulation: rows of another history were published before it was known to be another one, and those before
/// them afterwards.
#[test]
fn nothing_is_new_before_the_proof() {
    let mut core = core(100);
    begin(&mut core, 1500).unwrap();
    core.stream_ended();
    core.resume(end(1000));
    begin(&mut core, 1200).unwrap();
    assert_eq!(core.row(), Ok(Arrival::Resolved));
}

/// Found by the simulation: a server whose log ends where the witness began waited for ever.
#[test]
fn a_server_that_ends_at_the_witness_is_behind() {
    let mut core = core(100);
    begin(&mut core, 1100).unwrap();
    assert!(core.is_ahead_of(Lsn::new(1100)) && !core.is_ahead_of(Lsn::new(1101)));
}
