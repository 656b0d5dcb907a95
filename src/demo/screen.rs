//! What a person sees while the demo runs.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use tokio::time::Instant;

use crate::terminal::{self, Colour};

/// How often the line of numbers changes: on a terminal in place.
const IN_PLACE: Duration = Duration::from_millis(200);

/// Elsewhere it is another line.
const ELSEWHERE: Duration = Duration::from_secs(5);

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
        if output_is_for_a_program {
            let to = io::stderr();
            return Self::on(terminal::is_terminal(&to), terminal::has_colours(&to), Box::new(to));
        }
        let to = io::stdout();
        Self::on(terminal::is_terminal(&to), terminal::has_colours(&to), Box::new(to))
    }

    fn on(is_terminal: bool, has_colours: bool, to: Box<dyn Write>) -> Self {
        Self { to, is_terminal, has_colours, has_progress: false, next_progress_at: Instant::now() }
    }

    /// One line.
    pub(super) fn say(&mut self, colour: Option<Colour>, line: impl fmt::Display) {
        let text = match colour.filter(|_| self.has_colours) {
            Some(colour) => format!("{}\n", colour.paint(line)),
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
