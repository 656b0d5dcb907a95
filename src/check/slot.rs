//! What the slot and its view of the publication mean. Pure.

use super::Settings;
use super::finding::{Finding, shell};
use crate::postgres::preflight::Server;
use crate::postgres::slot::{self, Slot};

const CHECK: &str = "slot";

/// All findings about the slot.
pub(super) fn judge(settings: &Settings, server: &Server, slot: Option<&Slot>) -> Vec<Finding> {
    let name = &settings.slot;
    let Some(slot) = slot else {
        let what = format!("the slot {name:?} does not exist");
        return vec![Finding::error(CHECK, what, format_args!("outboxd setup --slot {name}"))];
    };
    let mut findings = vec![identity(settings, slot)];
    findings.extend(lost(name, slot));
    if slot.temporary {
        let what = format!("the slot {name:?} is temporary: it goes with its session, and its events with it");
        findings.push(Finding::error(CHECK, what, "choose another name, and outboxd setup --slot NAME"));
    }
    if let Some(pid) = slot.active_pid {
        let what = format!("the slot {name:?} is being read by the server process {pid}; another relay waits for it");
        findings.push(Finding::note("slot_active", what));
    }
    if server.version_num >= 170_000 && !slot.failover {
        let what = format!("the slot {name:?} is not kept on standbys: it and its events are lost with a failover");
        findings.push(Finding::note("slot_failover", what));
    }
    findings
}

fn identity(settings: &Settings, slot: &Slot) -> Finding {
    let name = &settings.slot;
    let another = "choose another name with --slot, and outboxd setup --slot NAME";
    match (slot.plugin.as_deref(), slot.database.as_deref()) {
        (None, _) => Finding::error(CHECK, format_args!("the slot {name:?} is a physical one"), another),
        (Some(plugin), _) if plugin != slot::PLUGIN => {
            let what = format!("the slot {name:?} has the plugin {plugin} instead of {}", slot::PLUGIN);
            Finding::error(CHECK, what, another)
        }
        (_, Some(database)) if database != settings.database.dbname() => {
            let what = format!("the slot {name:?} belongs to the database {database:?}");
            Finding::error(CHECK, what, another)
        }
        _ => Finding::ok(CHECK, format_args!("the slot {name:?} has the plugin {}", slot::PLUGIN)),
    }
}

fn lost(name: &str, slot: &Slot) -> Option<Finding> {
    let unreserved = slot.wal_status.as_deref() == Some("unreserved");
    if slot.is_lost() {
        let why = slot.invalidation.as_deref().unwrap_or("the log that it needs was removed");
        let what = format!("the slot {name:?} was invalidated by the server: {why}");
        let remedy = format!(
            "what was committed since {} must be published another way; then outboxd drop --slot {name} and outboxd setup \
             --slot {name}",
            slot.confirmed.map_or_else(|| "its creation".to_owned(), |end| end.lsn().to_string()),
        );
        return Some(Finding::error("slot_lost", what, remedy));
    }
    unreserved.then(|| {
        let what = format!(
            "the slot {name:?} lags by more than the server keeps: the next checkpoint may remove what it needs"
        );
        Finding::error("slot_lost", what, "start the relay now, or raise max_slot_wal_keep_size")
    })
}

/// Whether the slot sees the publication from its own position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// It does.
    Sees,
    /// It does not, says the server.
    Blind,
    /// That could not be found out: why.
    Unknown(String),
}

/// The finding about that.
pub(super) fn judge_view(settings: &Settings, view: &View) -> Finding {
    const CHECK: &str = "publication_age";
    let Settings { slot, publication, .. } = settings;
    match view {
        View::Sees => {
            Finding::ok(CHECK, format_args!("the publication {publication:?} is older than what the slot reads next"))
        }
        View::Blind => {
            let what =
                format!("the publication {publication:?} is younger than the slot {slot:?}, which cannot be read");
            let remedy = format!(
                "outboxd drop --slot {slot} --publication {}, then outboxd setup, which creates the publication first; what was \
                 committed before that is not published",
                shell(publication)
            );
            Finding::error(CHECK, what, remedy)
        }
        View::Unknown(why) => {
            let what =
                format!("whether the publication {publication:?} is older than the slot {slot:?} is unknown: {why}");
            let remedy =
                "let a relay catch up and check again: it says so and stops if the slot does not see the publication";
            Finding::warning(CHECK, what, remedy)
        }
    }
}
