//! A finding of the check.

use std::fmt;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It works, and something may go wrong.
    Warning,
    /// It does not work, or loses events.
    Error,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: a name for programs, the same in every version.
    pub check: &'static str,
    /// How bad it is.
    pub grade: Grade,
    /// What was found, in words.
    pub what: String,
    /// What to do.
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub(super) fn ok(check: &'static str, what: impl fmt::Display) -> Self {
        Self { check, grade: Grade::Ok, what: what.to_string(), remedy: None }
    }

    /// Good to know.
    pub(super) fn note(check: &'static str, what: impl fmt::Display) -> Self {
        Self { check, grade: Grade::Note, what: what.to_string(), remedy: None }
    }

    /// The same with what to do.
    pub(super) fn with_remedy(mut self, remedy: &str) -> Self {
        self.remedy = Some(remedy.to_owned());
        self
    }

    /// It works, and something may go wrong.
    pub(super) fn warning(check: &'static str, what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { check, grade: Grade::Warning, what: what.to_string(), remedy: Some(remedy.to_string()) }
    }

    /// It does not work, or loses events.
    pub(super) fn error(check: &'static str, what: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { check, grade: Grade::Error, what: what.to_string(), remedy: Some(remedy.to_string()) }
    }
}

/// A name as a shell takes it.
pub(super) fn shell(name: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_-./:".contains(character);
    if !name.is_empty() && name.chars().all(is_plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', "'\\''"))
    }
}
