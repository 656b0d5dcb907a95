//! From the settings by keyword to a complete [`Conninfo`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::keyword::{self, KEYWORDS};
use super::passfile::{self, Passfile};
use super::{Conninfo, DEFAULT_CONNECT_TIMEOUT, Endpoint, Host, Keepalives, Origin, Surroundings, service, syntax};
use crate::config::Secret;

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_APPLICATION_NAME: &str = "outboxd";

/// The settings by keyword, and what is wrong with them.
#[derive(Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    pub(super) mistakes: Vec<String>,
    warnings: Vec<String>,
}

impl Settings {
    /// The string counts before the service, the service before the environment. In the string the last of several equal
    /// keywords counts, in a service the first.
    pub(super) fn gather(&mut self, text: &str, surroundings: &impl Surroundings) {
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
            if let Some(name) = keyword.variable.filter(|name| surroundings.is_garbled(name)) {
                self.mistakes.push(format!("{name}: not UTF-8"));
            }
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
    pub(super) fn conninfo(&mut self, surroundings: &impl Surroundings) -> Conninfo {
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
