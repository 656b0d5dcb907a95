//! What every session of this program has in common, and which servers it may be on.

use std::fmt;
use std::str::FromStr;

/// Settings of every session. A role or a database may have other defaults, and texts from the server must mean the
/// same everywhere.
pub(crate) const FIXED_SETTINGS: [(&str, &str); 4] =
    [("client_encoding", "UTF8"), ("DateStyle", "ISO"), ("bytea_output", "hex"), ("TimeZone", "UTC")];

/// Settings of the sessions for ordinary SQL: a row that a policy hides must be an error and not a gap, and no name may
/// resolve to somebody else's object.
pub(crate) const FIXED_SQL_SETTINGS: [(&str, &str); 5] = [
    ("row_security", "off"),
    ("search_path", ""),
    // Creating a slot waits for other transactions, and the session that watches the slot is mostly idle.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_session_timeout", "0"),
];

/// Which of several servers will do: libpq's `target_session_attrs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetSession {
    /// Any server that lets one in.
    #[default]
    Any,
    /// One that takes writes by default.
    ReadWrite,
    /// One that refuses writes by default.
    ReadOnly,
    /// One that is no standby.
    Primary,
    /// A standby.
    Standby,
    /// A standby if there is one, else any.
    PreferStandby,
}

/// What a server says about itself when a session begins (14 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerRole {
    in_hot_standby: bool,
    read_only: bool,
}

impl ServerRole {
    /// Reads it from the parameters that the server reports.
    pub(crate) fn reported<'a>(parameter: impl Fn(&str) -> Option<&'a str>) -> Self {
        let on = |name| parameter(name) == Some("on");
        Self { in_hot_standby: on("in_hot_standby"), read_only: on("default_transaction_read_only") }
    }
}

impl TargetSession {
    /// Whether a server will do; the passes are zero, then one when all hosts have failed in the first.
    pub(crate) fn accepts(self, role: ServerRole, pass: usize) -> bool {
        let read_only = role.in_hot_standby || role.read_only;
        match self {
            Self::Any => true,
            Self::ReadWrite => !read_only,
            Self::ReadOnly => read_only,
            Self::Primary => !role.in_hot_standby,
            Self::Standby => role.in_hot_standby,
            Self::PreferStandby => role.in_hot_standby || pass > 0,
        }
    }

    /// How often the list of hosts is gone through.
    pub(crate) const fn passes(self) -> usize {
        if matches!(self, Self::PreferStandby) { 2 } else { 1 }
    }
}

/// Every choice with its name in libpq.
const TARGETS: [(&str, TargetSession); 6] = [
    ("any", TargetSession::Any),
    ("read-write", TargetSession::ReadWrite),
    ("read-only", TargetSession::ReadOnly),
    ("primary", TargetSession::Primary),
    ("standby", TargetSession::Standby),
    ("prefer-standby", TargetSession::PreferStandby),
];

impl FromStr for TargetSession {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        TARGETS.iter().find(|(name, _)| *name == text).map(|(_, target)| *target).ok_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            format!("only {} are possible", names.join(", "))
        })
    }
}

impl fmt::Display for TargetSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TARGETS.iter().find(|(_, target)| target == self).map_or(Ok(()), |(name, _)| f.write_str(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (name, target) in TARGETS {
            assert_eq!(name.parse(), Ok(target));
            assert_eq!(target.to_string(), name);
        }
        assert!("master".parse::<TargetSession>().is_err());
    }

    #[test]
    fn roles_are_told_apart() {
        let role = |in_hot_standby, read_only| ServerRole { in_hot_standby, read_only };
        let (primary, frozen, standby) = (role(false, false), role(false, true), role(true, false));
        for (target, accepted) in [
            (TargetSession::Any, [true, true, true]),
            (TargetSession::ReadWrite, [true, false, false]),
            (TargetSession::ReadOnly, [false, true, true]),
            (TargetSession::Primary, [true, true, false]),
            (TargetSession::Standby, [false, false, true]),
            (TargetSession::PreferStandby, [false, false, true]),
        ] {
            assert_eq!([primary, frozen, standby].map(|role| target.accepts(role, 0)), accepted, "{target}");
        }
        assert!(TargetSession::PreferStandby.accepts(primary, 1));
    }

    #[test]
    fn roles_are_read_from_reported_parameters() {
        let reported = ServerRole::reported(|name| (name == "in_hot_standby").then_some("on"));
        assert_eq!(reported, ServerRole { in_hot_standby: true, read_only: false });
    }
}
