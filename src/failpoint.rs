//! Named points at which a test kills the process or breaks the producer. Without the feature `failpoints` they are nothing.
//!
//! `OUTBOXD_FAILPOINTS=after_ack=kill:1000` kills the process, as `kill -9` does, when the point is reached for the
//! thousandth time; `after_produce=fatal:1000` makes the producer fail there instead. Several are separated by `;`.

/// Where a test can break the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// An event has come and is in the window.
    AfterReceive,
    /// An event is with the producer.
    AfterProduce,
    /// An event is acknowledged and not yet confirmed.
    AfterAck,
    /// A status that moves the frontier has been sent.
    AfterConfirm,
    /// Events are to be stored among the held ones.
    BeforeHold,
    /// They are stored.
    AfterHold,
    /// Held events have been published, and their rows are still there.
    AfterRelease,
    /// What became of them is written down.
    AfterSettle,
    /// A page of a replay is to be published.
    BeforeReplay,
    /// It is published, and that is not written down.
    AfterReplay,
    /// It is written down.
    AfterReplayed,
    /// A payload is in the store, and its event is not with the producer.
    AfterStore,
}

#[cfg(feature = "failpoints")]
mod active {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Point;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Action {
        Kill,
        Fatal,
    }

    struct Armed {
        point: Point,
        action: Action,
        left: AtomicU64,
    }

    static ARMED: OnceLock<Vec<Armed>> = OnceLock::new();

    fn parse(text: &str) -> Option<Armed> {
        let (name, rest) = text.split_once('=')?;
        let (action, count) = rest.split_once(':')?;
        Some(Armed {
            point: match name {
                "after_receive" => Point::AfterReceive,
                "after_produce" => Point::AfterProduce,
                "after_ack" => Point::AfterAck,
                "after_confirm" => Point::AfterConfirm,
                "before_hold" => Point::BeforeHold,
                "after_hold" => Point::AfterHold,
                "after_release" => Point::AfterRelease,
                "after_settle" => Point::AfterSettle,
                "before_replay" => Point::BeforeReplay,
                "after_replay" => Point::AfterReplay,
                "after_replayed" => Point::AfterReplayed,
                "after_store" => Point::AfterStore,
                _ => return None,
            },
            action: match action {
                "kill" => Action::Kill,
                "fatal" => Action::Fatal,
                _ => return None,
            },
            left: AtomicU64::new(count.parse().ok()?),
        })
    }

    fn armed() -> &'static [Armed] {
        ARMED.get_or_init(|| {
            let text = std::env::var("OUTBOXD_FAILPOINTS").unwrap_or_default();
            let points = text.split(';').filter(|part| !part.is_empty());
            points
                .filter_map(|part| {
                    parse(part).or_else(|| {
                        tracing::error!("OUTBOXD_FAILPOINTS: {part} is no failpoint");
                        std::process::exit(64)
                    })
                })
                .collect()
        })
    }

    /// The point is reached; true when the producer is to fail here.
    pub fn reached(point: Point) -> bool {
        let hits = armed().iter().filter(|armed| armed.point == point);
        let due = hits.filter(|armed| armed.left.fetch_sub(1, Ordering::Relaxed) == 1);
        let mut is_fatal = false;
        for armed in due {
            match armed.action {
                Action::Fatal => is_fatal = true,
                // The process is gone before the call returns; if it were not, the test would see a clean run.
                Action::Kill => {
                    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                }
            }
        }
        is_fatal
    }
}

#[cfg(feature = "failpoints")]
pub use active::reached;

/// The point is reached; nothing happens.
#[cfg(not(feature = "failpoints"))]
#[allow(clippy::must_use_candidate)]
pub const fn reached(_: Point) -> bool {
    false
}
