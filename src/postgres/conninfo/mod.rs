//! Where a server is and who asks: connection strings with the habits of libpq.
//!
//! Both forms of a string, `PG*` variables, password file and service file mean what they mean to `psql`. Three things
//! differ. An attempt to connect takes at most [`DEFAULT_CONNECT_TIMEOUT`] unless `connect_timeout` says otherwise (0: for
//! ever). What is not supported is refused by name, never ignored: everything that needs encryption, for now;
//! `sslmode` may be `disable`, `allow` or `prefer`, and all three connect unencrypted. And mistakes are reported all at
//! once, without any value, because a value may be a piece of a password in a wrong place.

mod keyword;
mod passfile;
mod service;
mod settings;
mod surroundings;
mod syntax;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::settings::Settings;
pub use self::surroundings::{FileContents, Process, Surroundings};
use super::session::TargetSession;
use crate::config::Secret;

/// How long an attempt to connect to one address may take when nothing else is said.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection string, complete: everything that is needed to connect.
///
/// Neither `Debug` nor `Display` shows the password.
#[derive(Clone, Debug)]
pub struct Conninfo {
    hosts: Vec<Host>,
    user: String,
    dbname: String,
    application_name: String,
    options: String,
    connect_timeout: Option<Duration>,
    keepalives: Option<Keepalives>,
    tcp_user_timeout: Option<Duration>,
    target_session: TargetSession,
    balances_load: bool,
    origins: BTreeMap<&'static str, Origin>,
    warnings: Vec<String>,
}

/// One server of the list.
#[derive(Clone, Debug)]
pub struct Host {
    endpoint: Endpoint,
    name: Option<String>,
    port: u16,
    password: Option<Secret>,
}

/// Where to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The folder that has its unix socket.
    Socket(PathBuf),
    /// A name to be looked up.
    Name(String),
    /// An address.
    Address(IpAddr),
}

/// Settings of TCP keepalives; `None` leaves one to the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalives {
    /// Quiet time before the first probe.
    pub idle: Option<Duration>,
    /// Time between probes.
    pub interval: Option<Duration>,
    /// Probes without an answer until the connection counts as dead.
    pub count: Option<u32>,
}

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The connection string.
    Text,
    /// A section of a service file.
    Service(PathBuf),
    /// An environment variable.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("the connection string"),
            Self::Service(path) => write!(f, "the service file {}", path.display()),
            Self::Variable(name) => f.write_str(name),
        }
    }
}

/// A connection string, or what completes it, with mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConninfo {
    mistakes: Vec<String>,
}

impl InvalidConninfo {
    /// All that was found, each with the name of the setting, and without its value.
    #[must_use]
    pub fn mistakes(&self) -> &[String] {
        &self.mistakes
    }
}

impl fmt::Display for InvalidConninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "how to connect to PostgreSQL: {}", self.mistakes.join("; "))
    }
}

impl std::error::Error for InvalidConninfo {}

/// Whether a connection string itself carries a password, as none should on a command line, which every user of the
/// machine can read.
#[must_use]
pub fn password_in_text(text: &str) -> bool {
    syntax::password_in_text(text)
}

impl Conninfo {
    /// Reads a connection string and completes it from its surroundings. An empty string is complete there alone.
    ///
    /// # Errors
    /// With every mistake that was found.
    pub fn parse(text: &str, surroundings: &impl Surroundings) -> Result<Self, InvalidConninfo> {
        let mut settings = Settings::default();
        settings.gather(text, surroundings);
        let conninfo = settings.conninfo(surroundings);
        if settings.mistakes.is_empty() { Ok(conninfo) } else { Err(InvalidConninfo { mistakes: settings.mistakes }) }
    }

    /// The servers, in the order of the string; there is at least one.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The role to log in as.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database; unless given, the one with the user's name.
    #[must_use]
    pub fn dbname(&self) -> &str {
        &self.dbname
    }

    /// How the sessions call themselves.
    #[must_use]
    pub fn application_name(&self) -> &str {
        &self.application_name
    }

    /// Command-line options for the server's session, such as `-c statement_timeout=5s`; mostly empty.
    #[must_use]
    pub fn options(&self) -> &str {
        &self.options
    }

    /// How long one address is tried; `None` is for ever.
    #[must_use]
    pub const fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// TCP keepalives; `None` is none.
    #[must_use]
    pub const fn keepalives(&self) -> Option<Keepalives> {
        self.keepalives
    }

    /// How long sent bytes may stay without an acknowledgement of the other end.
    #[must_use]
    pub const fn tcp_user_timeout(&self) -> Option<Duration> {
        self.tcp_user_timeout
    }

    /// Which of the servers will do.
    #[must_use]
    pub const fn target_session(&self) -> TargetSession {
        self.target_session
    }

    /// Where a setting came from; `None` when it is a default.
    #[must_use]
    pub fn origin(&self, keyword: &str) -> Option<&Origin> {
        self.origins.get(keyword)
    }

    /// What should be told to whoever set this up, though it is no mistake.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The same with one of its hosts alone.
    pub(crate) fn only(&self, host: usize) -> Self {
        let hosts = self.hosts.get(host).cloned().map_or_else(|| self.hosts.clone(), |host| vec![host]);
        Self { hosts, ..self.clone() }
    }

    /// The hosts in the order in which they are tried this time, as indexes.
    pub(crate) fn attempts(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.hosts.len()).collect();
        if self.balances_load {
            fastrand::shuffle(&mut order);
        }
        order
    }
}

impl fmt::Display for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "database {:?} as {:?} on ", self.dbname, self.user)?;
        for (index, host) in self.hosts.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{host}")?;
        }
        Ok(())
    }
}

impl Host {
    /// Where it is.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The port, which is also a part of a unix socket's name.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The password for this host.
    #[must_use]
    pub const fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// The unix socket in `folder`.
    pub(crate) fn socket_path(&self, folder: &Path) -> PathBuf {
        folder.join(format!(".s.PGSQL.{}", self.port))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.endpoint, &self.name) {
            (Endpoint::Socket(folder), _) => write!(f, "socket {}", self.socket_path(folder).display()),
            (Endpoint::Name(name), _) => write!(f, "host {name} port {}", self.port),
            (Endpoint::Address(address), None) => write!(f, "host {address} port {}", self.port),
            (Endpoint::Address(address), Some(name)) if *name == address.to_string() => {
                write!(f, "host {name} port {}", self.port)
            }
            (Endpoint::Address(address), Some(name)) => write!(f, "host {name} ({address}) port {}", self.port),
        }
    }
}

#[cfg(test)]
mod tests;
