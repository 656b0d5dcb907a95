//! Colours, where a person looks.

use std::fmt;
use std::io::{self, IsTerminal, Write as _};

/// The colours, and what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// What is as it should be.
    Green,
    /// What is not.
    Red,
    /// What deserves a second look.
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

    /// The text in this colour, as a terminal takes it.
    #[must_use]
    pub fn paint(self, text: impl fmt::Display) -> String {
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

/// One line to standard output.
///
/// # Errors
/// When nobody reads it any more, or there is no room for it.
pub fn say(line: impl fmt::Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush())
}

/// Whether lines on this output can be written over.
#[must_use]
pub fn is_terminal(output: &impl IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether this output takes colours, and its owner wants them: <https://no-color.org>.
#[must_use]
pub fn has_colours(output: &impl IsTerminal) -> bool {
    is_terminal(output) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The width of the terminal behind standard output, in characters; `None` where there is none.
#[must_use]
pub fn width() -> Option<usize> {
    let output = io::stdout();
    let size = rustix::termios::tcgetwinsize(&output).ok().filter(|size| size.ws_col > 0);
    size.filter(|_| is_terminal(&output)).map(|size| usize::from(size.ws_col))
}
