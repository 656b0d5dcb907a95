//! What the server's settings mean for a relay. Pure.

use std::time::Duration;

use super::finding::Finding;
use crate::postgres::preflight::{Capacity, Server};
use crate::postgres::slot::Slot;

/// `--silence` of `outboxd run`, by default.
const SILENCE: Duration = Duration::from_secs(5);

/// Clocks that differ by more make commit times misleading.
const CLOCK_TOLERANCE_S: f64 = 5.0;

/// All findings about the server. Without a slot there must be room for one.
pub(super) fn judge(server: &Server, slot: Option<&Slot>) -> Vec<Finding> {
    let needs_sender = slot.is_none_or(|slot| slot.active_pid.is_none());
    let mut findings = vec![version(server), role(server), wal_level(server)];
    if slot.is_none() {
        findings.push(room("replication_slots", "replication slots", "max_replication_slots", server.slots));
    }
    if needs_sender {
        findings.push(room("wal_senders", "WAL senders", "max_wal_senders", server.senders));
    }
    findings.extend([sender_timeout(server), slot_keep(server, slot), clock(server)]);
    findings.extend(idle_slot_timeout(server));
    findings.extend(encoding(server));
    findings
}

fn version(server: &Server) -> Finding {
    let what = format!("PostgreSQL {}", server.version);
    if server.version_num < 140_000 {
        return Finding::error("server_version", what, "PostgreSQL 14 or later is needed");
    }
    Finding::ok("server_version", what)
}

fn role(server: &Server) -> Finding {
    if server.is_standby {
        let remedy = "name the primary, or name all servers and set target_session_attrs=primary";
        return Finding::error("primary", "this server is a standby", remedy);
    }
    Finding::ok("primary", "this server is a primary")
}

fn wal_level(server: &Server) -> Finding {
    let what = format!("wal_level is {}", server.wal_level);
    if server.wal_level == "logical" {
        return Finding::ok("wal_level", what);
    }
    Finding::error("wal_level", what, "ALTER SYSTEM SET wal_level = 'logical', then restart the server")
}

fn room(check: &'static str, of_what: &str, setting: &str, capacity: Capacity) -> Finding {
    let what = format!("{} of {} {of_what} are in use", capacity.used, capacity.max);
    if capacity.left() > 0 {
        return Finding::ok(check, what);
    }
    let more = capacity.max + 4;
    let remedy = format!("free one, or ALTER SYSTEM SET {setting} = {more} and restart the server");
    Finding::error(check, what, remedy)
}

fn sender_timeout(server: &Server) -> Finding {
    let timeout = server.sender_timeout;
    if timeout.is_zero() {
        let what = "wal_sender_timeout is off: a connection that broke unseen holds the slot until TCP gives up";
        return Finding::warning(
            "wal_sender_timeout",
            what,
            "ALTER SYSTEM SET wal_sender_timeout = '60s', then reload",
        );
    }
    let what = format!("wal_sender_timeout is {}", humantime::format_duration(timeout));
    if timeout < SILENCE * 2 {
        let remedy = "set `outboxd run --silence` below half of it, or raise wal_sender_timeout to at least 10s";
        return Finding::warning("wal_sender_timeout", what, remedy);
    }
    Finding::ok("wal_sender_timeout", what)
}

fn slot_keep(server: &Server, slot: Option<&Slot>) -> Finding {
    const CHECK: &str = "max_slot_wal_keep_size";
    let Some(keep) = server.slot_keep else {
        let what = "max_slot_wal_keep_size is unlimited: while no relay runs the log grows until the disk is full";
        return Finding::note(CHECK, what);
    };
    let shown = bytesize::ByteSize::b(keep).display().iec();
    let what = format!("max_slot_wal_keep_size is {shown}: a slot that lags by more is lost, and its events with it");
    let left = slot.and_then(|slot| slot.safe_bytes).map(|left| left.max(0).unsigned_abs());
    if let Some(left) = left.filter(|left| *left < keep / 3) {
        let left = bytesize::ByteSize::b(left).display().iec();
        let remedy = "start the relay now, or ALTER SYSTEM SET max_slot_wal_keep_size to more and reload";
        return Finding::warning(CHECK, format_args!("{what}; only {left} are left for this one"), remedy);
    }
    Finding::note(CHECK, what)
}

fn idle_slot_timeout(server: &Server) -> Option<Finding> {
    let timeout = server.idle_slot_timeout;
    (!timeout.is_zero()).then(|| {
        let timeout = humantime::format_duration(timeout);
        let what =
            format!("idle_replication_slot_timeout is {timeout}: a relay that is down for longer loses its slot");
        Finding::warning(
            "idle_replication_slot_timeout",
            what,
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0, then reload",
        )
    })
}

fn clock(server: &Server) -> Finding {
    let ahead = server.clock_ahead;
    // What the question's way may have added is no difference.
    let surely = ahead.abs() - server.clock_round_trip.as_secs_f64() / 2.0;
    let direction = if ahead > 0.0 { "ahead of" } else { "behind" };
    if surely > CLOCK_TOLERANCE_S {
        let what = format!("the server's clock is {:.1} s {direction} this machine's", ahead.abs());
        let remedy = "synchronise both (NTP): records carry the commit time, and brokers refuse times in the future";
        return Finding::warning("clock", what, remedy);
    }
    Finding::ok("clock", format_args!("the clocks of the server and this machine differ by {:.3} s", ahead.abs()))
}

fn encoding(server: &Server) -> Option<Finding> {
    (server.encoding == "SQL_ASCII").then(|| {
        let what = "the database's encoding is SQL_ASCII: the server converts nothing, and the relay stops at a row that is no UTF-8";
        Finding::warning("encoding", what, "write UTF-8 only, or move to a database with the encoding UTF8")
    })
}
