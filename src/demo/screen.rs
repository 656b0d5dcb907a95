//! What a person sees while the demo runs.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

/// How often the line of numbers changes: on a terminal in place.
const IN_PLACE: Duration = Duration::from_millis(200);

/// Elsewhere it is another line.
const ELSEWHERE: Duration = Duration::from_secs(5);

/// The colours, and what they are for.
#[derive(Clone, Copy)]
pub(super) enum Colour {
    /// What is as it should be.
    Green,
    /// What is not.
    Red,
    /// What is done to the relay.
    Yellow,
    /// What is beside the point.
    Grey,
}

impl Colour {
    const fn code(self) -> u8 {
        match self {
            Self::Green => 32,
            Self::Red => 31,
            Self::Yellow => 33,
            Self::Grey => 90,
        }
    }
}

/// Standard output, or standard error where the former is for a program.
pub(super) struct Screen {
    to: Box<dyn Write>,
    is_terminal: bool,
    has_colours: bool,
    /// The line of numbers stands there and is to be written over.
    has_progress: bool,
    next_progress_at: Instant,
}

impl Screen {
    pub(super) fn new(output_is_for_a_program: bool) -> Self {
        let (to, is_terminal): (Box<dyn Write>, bool) = if output_is_for_a_program {
            (Box::new(io::stderr()), io::stderr().is_terminal())
        } else {
            (Box::new(io::stdout()), io::stdout().is_terminal())
        };
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = is_terminal && !is_dumb;
        // https://no-color.org: set and not empty.
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let has_colours = is_terminal && !no_colour;
        Self { to, is_terminal, has_colours, has_progress: false, next_progress_at: Instant::now() }
    }

    /// One line.
    pub(super) fn say(&mut self, colour: Option<Colour>, line: impl fmt::Display) {
        let text = match colour.filter(|_| self.has_colours) {
            Some(colour) => format!("\x1b[{}m{line}\x1b[0m\n", colour.code()),
            None => format!("{line}\n"),
        };
        self.write(&text);
        self.has_progress = false;
    }

    /// The line of numbers, if it is time for it.
    pub(super) fn progress(&mut self, line: impl fmt::Display) {
        if Instant::now() < self.next_progress_at {
            return;
        }
        self.next_progress_at = Instant::now() + if self.is_terminal { IN_PLACE } else { ELSEWHERE };
        let end = if self.is_terminal { "" } else { "\n" };
        self.write(&format!("{line}{end}"));
        self.has_progress = self.is_terminal;
    }

    /// A terminal that is gone is no reason to stop before everything is cleaned up.
    fn write(&mut self, text: &str) {
        let clear = if self.has_progress { "\r\x1b[K" } else { "" };
        let _ = write!(self.to, "{clear}{text}").and_then(|()| self.to.flush());
    }
}

/// Whatever comes next on the terminal has a line of its own.
impl Drop for Screen {
    fn drop(&mut self) {
        self.write("");
    }
}
