//! Exit codes, by the class of what failed; the numbers are those of `sysexits.h`.

use std::{fmt, io};

use crate::postgres;
use crate::relay::{Halt, Reason};

/// The codes, for `--help`.
pub const TABLE: &str = "\
Exit codes:
   0  done, or stopped as a signal asked for
   1  check: there are errors; demo: something was lost, made up, out of order or repeated too often
  64  the command line or a setting is wrong
  65  an event cannot be published, or the stream cannot be read
  69  a server cannot be reached
  74  standard output cannot be written
  75  start again: the cause is gone with this process
  77  the database does not let us in, or lacks a privilege
  78  the database or the brokers are not set up for this: slot, publication, table, topic
 130  demo: a signal ended it before there was an outcome
 141  nobody reads standard output any more";

/// The class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// What was looked at is not as it should be.
    Verdict = 1,
    /// The command line or a setting is wrong.
    Usage = 64,
    /// An event cannot be published, or the stream cannot be read.
    Data = 65,
    /// A server cannot be reached.
    Unavailable = 69,
    /// Standard output cannot be written.
    Output = 74,
    /// The cause is gone with this process.
    Again = 75,
    /// The database does not let us in, or lacks a privilege.
    Forbidden = 77,
    /// The servers are not set up for this.
    Setup = 78,
    /// A signal came before there was an outcome.
    Interrupted = 130,
    /// Nobody reads standard output any more: what a shell shows of a process that died of SIGPIPE.
    Unread = 141,
}

/// A command that failed: one clear message, and the class.
#[derive(Debug)]
pub struct Failed {
    class: Class,
    message: String,
}

impl Failed {
    /// A failure of this class.
    #[must_use]
    pub fn new(class: Class, message: impl fmt::Display) -> Self {
        Self { class, message: message.to_string() }
    }

    /// The process's exit code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.class as u8
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failed {}

/// Of standard output. That nobody reads it needs no message.
impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Class::Unread, ""),
            _ => Self::new(Class::Output, format_args!("standard output: {error}")),
        }
    }
}

/// The class of what a server refused.
impl From<postgres::Error> for Failed {
    fn from(error: postgres::Error) -> Self {
        let class = if error.is_connection_lost() || error.is_starting_or_stopping() {
            Class::Unavailable
        } else if error.is_authentication() || error.is_privilege() {
            Class::Forbidden
        } else {
            Class::Setup
        };
        match error.remedy() {
            Some(remedy) => Self::new(class, format_args!("{error}; {remedy}")),
            None => Self::new(class, error),
        }
    }
}

impl From<Halt> for Failed {
    fn from(halt: Halt) -> Self {
        let class = match halt.reason() {
            Reason::Undecodable
            | Reason::Unmappable
            | Reason::TooLarge
            | Reason::RowTooLarge
            | Reason::Refused
            | Reason::TooManyHeld => Class::Data,
            Reason::Shape
            | Reason::NoTopic
            | Reason::Slot
            | Reason::Publication
            | Reason::Server
            | Reason::NoHeldTable
            | Reason::NoDatabase => Class::Setup,
            Reason::OtherEvent | Reason::TopicShrunk => Class::Again,
            Reason::Forbidden => Class::Forbidden,
            Reason::Unreachable => Class::Unavailable,
            Reason::Settings => Class::Usage,
        };
        Self::new(class, halt)
    }
}
