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
mod surroundings;
mod syntax;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use self::surroundings::{FileContents, Process, Surroundings};
use self::{keyword::KEYWORDS, passfile::Passfile};
use super::session::TargetSession;
use crate::config::Secret;

/// How long an attempt to connect to one address may take when nothing else is said.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_APPLICATION_NAME: &str = "outboxd";

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

/// The settings by keyword, and what is wrong with them.
#[derive(Default)]
struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    mistakes: Vec<String>,
    warnings: Vec<String>,
}

impl Settings {
    /// The string counts before the service, the service before the environment. In the string the last of several equal
    /// keywords counts, in a service the first.
    fn gather(&mut self, text: &str, surroundings: &impl Surroundings) {
        match syntax::pairs(text) {
            Ok(pairs) => pairs.into_iter().rev().for_each(|(key, value)| self.add(&key, value, &Origin::Text)),
            Err(mistake) => self.mistakes.push(format!("the connection string: {mistake}")),
        }
        let variable = || surroundings.variable("PGSERVICE").filter(|name| !name.is_empty());
        if let Some(service) = self.text("service").or_else(variable) {
            match service::settings(&service, surroundings) {
                Ok((path, pairs)) => {
                    let origin = Origin::Service(path);
                    pairs.into_iter().for_each(|(key, value)| self.add(&key, value, &origin));
                }
                Err(mistake) => self.mistakes.push(mistake),
            }
        }
        for keyword in KEYWORDS {
            if let Some((variable, value)) =
                keyword.variable.and_then(|name| Some((name, surroundings.variable(name)?)))
            {
                self.add(keyword.name, value, &Origin::Variable(variable));
            }
        }
    }

    /// What is there already stays.
    fn add(&mut self, key: &str, value: String, origin: &Origin) {
        match keyword::find(key) {
            None => self.mistakes.push(format!("{origin}: unknown setting {key:?}")),
            Some(keyword) if self.values.contains_key(keyword.name) => {}
            Some(keyword) => {
                if let Some(objection) = keyword.objection(&value) {
                    self.mistakes.push(format!("{} from {origin}: {objection}", keyword.name));
                }
                self.values.insert(keyword.name, (value, origin.clone()));
            }
        }
    }

    /// Reads the values. With mistakes the result means nothing.
    fn conninfo(&mut self, surroundings: &impl Surroundings) -> Conninfo {
        let user = self.text("user").or_else(|| surroundings.user()).unwrap_or_default();
        if user.is_empty() {
            self.mistakes.push("user: none is given, and the operating system's user has no name".to_owned());
        }
        let dbname = self.text("dbname").unwrap_or_else(|| user.clone());
        let application_name = self.text("application_name").or_else(|| self.text("fallback_application_name"));
        let keepalives = Keepalives {
            idle: self.number("keepalives_idle").and_then(seconds),
            interval: self.number("keepalives_interval").and_then(seconds),
            count: self
                .number("keepalives_count")
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| *count > 0),
        };
        let hosts = self.hosts(&dbname, &user, surroundings);
        Conninfo {
            hosts,
            application_name: application_name.unwrap_or_else(|| DEFAULT_APPLICATION_NAME.to_owned()),
            options: self.text("options").unwrap_or_default(),
            connect_timeout: self.number("connect_timeout").map_or(Some(DEFAULT_CONNECT_TIMEOUT), seconds),
            keepalives: (self.number("keepalives") != Some(0)).then_some(keepalives),
            tcp_user_timeout: self.number("tcp_user_timeout").and_then(milliseconds),
            target_session: self.parsed("target_session_attrs").unwrap_or_default(),
            balances_load: self.balances_load(),
            origins: self.values.iter().map(|(name, (_, origin))| (*name, origin.clone())).collect(),
            warnings: std::mem::take(&mut self.warnings),
            user,
            dbname,
        }
    }

    /// The value of a keyword; an empty one is none.
    fn text(&self, keyword: &str) -> Option<String> {
        self.values.get(keyword).map(|(value, _)| value.clone()).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr<Err: fmt::Display>>(&mut self, keyword: &str) -> Option<T> {
        match self.text(keyword)?.trim().parse() {
            Ok(value) => Some(value),
            Err(mistake) => {
                self.mistakes.push(format!("{keyword}: {mistake}"));
                None
            }
        }
    }

    fn number(&mut self, keyword: &str) -> Option<i32> {
        self.parsed(keyword)
    }

    fn balances_load(&mut self) -> bool {
        match self.text("load_balance_hosts").as_deref() {
            None | Some("disable") => false,
            Some("random") => true,
            Some(_) => {
                self.mistakes.push("load_balance_hosts: only disable, random are possible".to_owned());
                false
            }
        }
    }

    fn hosts(&mut self, dbname: &str, user: &str, surroundings: &impl Surroundings) -> Vec<Host> {
        let names = self.list("host");
        let addresses = self.list("hostaddr");
        let ports = self.list("port");
        let count = names.len().max(addresses.len()).max(1);
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            self.mistakes.push(format!("host and hostaddr: {} and {} of them", names.len(), addresses.len()));
        }
        if ports.len() > 1 && ports.len() != count {
            self.mistakes.push(format!("port: {} of them for {count} hosts", ports.len()));
        }
        let mut hosts = Vec::with_capacity(count);
        for index in 0..count {
            let name = names.get(index).cloned().filter(|name| !name.is_empty());
            let address = addresses.get(index).filter(|address| !address.is_empty());
            let port = ports.get(index).or_else(|| ports.first()).map_or("", |port| port.trim());
            hosts.push(Host {
                endpoint: self.endpoint(name.as_deref(), address.map(String::as_str), surroundings),
                name,
                port: self.port(port),
                password: None,
            });
        }
        self.set_passwords(&mut hosts, dbname, user, surroundings);
        hosts
    }

    fn list(&self, keyword: &str) -> Vec<String> {
        self.text(keyword).map(|list| list.split(',').map(str::to_owned).collect()).unwrap_or_default()
    }

    fn endpoint(&mut self, name: Option<&str>, address: Option<&str>, surroundings: &impl Surroundings) -> Endpoint {
        match (name, address) {
            (_, Some(address)) => match address.parse() {
                Ok(address) => return Endpoint::Address(address),
                Err(_) => self.mistakes.push("hostaddr: not a numeric address".to_owned()),
            },
            // A name is printed, and one with "@" is mostly the end of a password in a URL.
            (Some(name), None) if name.contains('@') => self
                .mistakes
                .push("host: \"@\" is in no host's name; in a URL, an \"@\" in a password is written %40".to_owned()),
            (Some(name), None) if name.starts_with('/') => return Endpoint::Socket(PathBuf::from(name)),
            (Some(name), None) => {
                return name.parse().map_or_else(|_| Endpoint::Name(name.to_owned()), Endpoint::Address);
            }
            (None, None) => {}
        }
        Endpoint::Socket(surroundings.socket_folder())
    }

    fn port(&mut self, text: &str) -> u16 {
        match text.parse() {
            Ok(port) if port > 0 => port,
            _ if text.is_empty() => DEFAULT_PORT,
            _ => {
                let mistake = "port: not a number from 1 to 65535 (in a URL, a \"/\" in a password is written %2F)";
                self.mistakes.push(mistake.to_owned());
                DEFAULT_PORT
            }
        }
    }

    /// A password that is given counts for every host; otherwise each host has its own in the file.
    fn set_passwords(&mut self, hosts: &mut [Host], dbname: &str, user: &str, surroundings: &impl Surroundings) {
        if let Some(password) = self.text("password") {
            hosts.iter_mut().for_each(|host| host.password = Some(Secret::new(password.clone())));
            return;
        }
        let path = self.text("passfile").map(PathBuf::from).or_else(|| passfile::default_path(surroundings));
        let passfile = path.map(|path| Passfile::read(&path, surroundings, &mut self.warnings)).unwrap_or_default();
        for host in hosts {
            let name = match &host.name {
                Some(name) if !name.starts_with('/') => name.clone(),
                _ => passfile::host_name(&host.endpoint, surroundings),
            };
            host.password = passfile.password(&name, host.port, dbname, user);
        }
    }
}

/// Zero and less stand for "no such time".
fn seconds(number: i32) -> Option<Duration> {
    u64::try_from(number).ok().filter(|number| *number > 0).map(Duration::from_secs)
}

fn milliseconds(number: i32) -> Option<Duration> {
    u64::try_from(number).ok().filter(|number| *number > 0).map(Duration::from_millis)
}

#[cfg(test)]
mod tests;
