//! Why the relay stops by itself: what, where, and what to do about it.

use std::fmt;

use crate::outbox::Position;

/// What stopped the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The stream is not what the protocol promises.
    Undecodable,
    /// A row that is no event.
    Unmappable,
    /// An event that is larger than its topic takes.
    TooLarge,
    /// A row that is larger than what is read.
    RowTooLarge,
    /// An event that the brokers refuse for good.
    Refused,
    /// The table is no outbox, or its publication leaves out a column that is needed.
    Shape,
    /// The server sent another event at the position of one that is being published.
    OtherEvent,
    /// The topic does not exist.
    NoTopic,
    /// The topic has fewer partitions than before.
    TopicShrunk,
    /// The server no longer has what the slot stands for, or the slot, publication or table is not there.
    Slot,
    /// The publication leaves out what is needed.
    Publication,
    /// The server does not let us in, or not do what is needed.
    Forbidden,
    /// A server did not become reachable in time.
    Unreachable,
    /// The server is not set up for logical replication, or not the right one.
    Server,
    /// The database does not exist.
    NoDatabase,
    /// librdkafka does not take the settings.
    Settings,
    /// More keys wait behind held events than may.
    TooManyHeld,
    /// Events are to be held, and there is no table for them.
    NoHeldTable,
}

impl Reason {
    /// What to do about it.
    const fn advice(self) -> &'static str {
        match self {
            Self::Undecodable => "check that the server is PostgreSQL 14 or later and report this",
            Self::Unmappable => {
                "correct the application that wrote it; the event can be passed over with pg_replication_slot_advance() to \
                 the end of its transaction, which loses it"
            }
            Self::TooLarge => "raise the topic's max.message.bytes",
            Self::RowTooLarge => {
                "raise --max-message-bytes, or let --claim-check-above leave such payloads in the table; the event can be passed over with pg_replication_slot_advance() to the end of its \
                 transaction, which loses it"
            }
            Self::Refused => "correct the topic's settings and start again",
            Self::Shape => "correct the table or the publication's column list",
            Self::OtherEvent => "the server was restored while outboxd ran; start outboxd again",
            Self::NoTopic => "create it, or choose another with --topic",
            Self::TopicShrunk => {
                "start outboxd again: everything unconfirmed is then published to the partitions there are"
            }
            Self::Slot => {
                "`outboxd setup` creates what is missing; events since the old slot was lost are not in a new one"
            }
            Self::Publication => "what was committed before that is not published",
            Self::Forbidden => {
                "give the right role and password (PGPASSWORD, a password file), let it in by pg_hba.conf, and ALTER ROLE ... \
                 REPLICATION"
            }
            Self::Unreachable => {
                "is the server up, and are host and port right? (--database-url and the variables PG*)"
            }
            Self::NoDatabase => "name a database that exists, with --database-url or PGDATABASE",
            Self::Server => "check the server's settings",
            Self::Settings => "correct the setting",
            Self::TooManyHeld => {
                "see what is held with `outboxd dead-letters list`, release or discard it, or raise --max-held-keys"
            }
            Self::NoHeldTable => "run `outboxd setup` as a role that may create it, or leave --on-failure out",
        }
    }
}

/// Why the relay stopped by itself.
#[derive(Debug)]
pub struct Halt {
    reason: Reason,
    position: Option<Position>,
    what: String,
}

impl Halt {
    /// Stops for `reason`; `what` says more and never has a row's contents.
    pub(super) fn new(reason: Reason, position: Option<Position>, what: impl fmt::Display) -> Self {
        Self { reason, position, what: what.to_string() }
    }

    /// The class of the reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The event that the relay stopped before, if it was one.
    #[must_use]
    pub const fn position(&self) -> Option<Position> {
        self.position
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.position {
            write!(f, "the event at commit LSN {}, row {} of its transaction: ", at.commit(), at.ordinal().get())?;
        }
        match (self.reason, self.what.as_str()) {
            (Reason::OtherEvent, _) => {
                f.write_str("the server sent another event at the position of one in the window")?
            }
            (_, what) => f.write_str(what)?,
        }
        write!(f, "; {}", self.reason.advice())
    }
}

impl std::error::Error for Halt {}
