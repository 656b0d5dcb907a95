//! The settings in effect and where each came from, in one line and without secrets.

use std::fmt;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::brokers::KAFKA_PROPERTIES;
use super::config_file::GivenFile;
use crate::config::run::Mistakes;
use crate::outbox::rule::Rule;
use crate::postgres::conninfo::{Conninfo, Endpoint, Origin};

/// Flags whose values may hold a secret, or that are told in another way.
const HIDDEN: [&str; 3] = ["database_url", "property", "log_format"];

/// What the command line and the environment say, by the names of the flags.
#[derive(Clone, Debug, Default)]
pub struct Effective {
    entries: Vec<Entry>,
    /// Where the connection string came from; `None` when there is none.
    database_url: Option<String>,
    /// Where librdkafka's settings came from.
    property_origins: Vec<&'static str>,
    file: GivenFile,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    value: String,
    /// A flag or a variable; `None` for a default.
    origin: Option<String>,
}

impl Effective {
    /// Reads what was given to a command.
    #[must_use]
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let mut effective = Self::default();
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            // An argument that is not there at all, such as an optional one, has no values.
            let Ok(Some(values)) = matches.try_get_raw(id) else { continue };
            let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
            let flag = argument.get_long().map_or_else(|| format!("-{}", argument.get_short().unwrap_or('?')), long);
            let origin = match matches.value_source(id) {
                Some(ValueSource::CommandLine) => Some(flag.clone()),
                Some(ValueSource::EnvVariable) => argument.get_env().map(|name| name.to_string_lossy().into_owned()),
                _ => None,
            };
            match id {
                "database_url" => effective.database_url = origin,
                "property" => effective.property_origins.push("-X"),
                _ if HIDDEN.contains(&id) => {}
                _ => {
                    let name = flag.trim_start_matches('-').to_owned();
                    effective.entries.push(Entry { name, value: values.join(","), origin });
                }
            }
        }
        if effective.entries.iter().any(|entry| entry.name == "F") {
            effective.property_origins.push("-F");
        }
        if std::env::var_os(KAFKA_PROPERTIES).is_some() {
            effective.property_origins.push(KAFKA_PROPERTIES);
        }
        effective
    }

    /// Notes what a configuration file said.
    pub(super) fn add_file(&mut self, file: Option<GivenFile>) {
        let Some(file) = file else { return };
        for entry in self.entries.iter_mut().filter(|entry| entry.origin.is_none()) {
            entry.origin = file.content.flags.contains_key(&entry.name).then(|| file.path.clone());
        }
        if self.database_url.is_none() && file.content.flags.contains_key("database-url") {
            self.database_url = Some(file.path.clone());
        }
        if !file.content.kafka.is_empty() {
            self.property_origins.push("[kafka]");
        }
        self.file = file;
    }

    /// What is wrong with the configuration file.
    pub(super) fn mistakes(&self) -> Mistakes {
        self.file.mistakes.clone()
    }

    /// The configuration file's rules.
    pub(super) fn rules(&self) -> &[Rule] {
        &self.file.content.rules
    }

    /// The configuration file's settings of librdkafka, by the file's name.
    pub(super) fn kafka(&self) -> (&str, &str) {
        (&self.file.path, &self.file.content.kafka)
    }

    /// The line about these settings, this database and librdkafka's settings with these names.
    pub fn line<'a>(&self, database: &Conninfo, properties: impl Iterator<Item = &'a str>) -> String {
        let mut parts = self.database(database);
        parts.extend(self.entries.iter().map(|entry| shown(&entry.name, &entry.value, entry.origin.as_deref())));
        if !self.entries.iter().any(|entry| entry.name == "source") {
            parts.push(shown("source", database.dbname(), None));
        }
        if !self.file.content.rules.is_empty() {
            parts.push(shown("rules", &self.file.content.rules.len().to_string(), Some(&self.file.path)));
        }
        let properties: Vec<&str> = properties.collect();
        if !properties.is_empty() {
            parts.push(shown("librdkafka", &properties.join(","), Some(&self.property_origins.join(", "))));
        }
        format!("{}; what has no source in brackets is a default", parts.join(" "))
    }

    fn database(&self, database: &Conninfo) -> Vec<String> {
        let hosts: Vec<String> = database
            .hosts()
            .iter()
            .map(|host| match host.endpoint() {
                Endpoint::Socket(folder) => format!("{}:{}", folder.display(), host.port()),
                Endpoint::Name(name) => format!("{name}:{}", host.port()),
                Endpoint::Address(address) => format!("{address}:{}", host.port()),
            })
            .collect();
        let keyword = |name: &str| {
            database.origin(name).map(|origin| match origin {
                Origin::Text => self.database_url.clone().unwrap_or_else(|| origin.to_string()),
                _ => origin.to_string(),
            })
        };
        let host = keyword("host").or_else(|| keyword("hostaddr")).or_else(|| keyword("port"));
        let has_password = database.hosts().iter().any(|host| host.password().is_some());
        let password = keyword("password").or_else(|| has_password.then(|| "password file".to_owned()));
        vec![
            shown("database", database.dbname(), keyword("dbname").as_deref()),
            shown("host", &hosts.join(","), host.as_deref()),
            shown("user", database.user(), keyword("user").as_deref()),
            shown("password", if password.is_some() { "given" } else { "none" }, password.as_deref()),
        ]
    }
}

fn long(name: &str) -> String {
    format!("--{name}")
}

fn shown(name: impl fmt::Display, value: &str, origin: Option<&str>) -> String {
    match origin {
        Some(origin) => format!("{name}={value} [{origin}]"),
        None => format!("{name}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;
    use crate::postgres::conninfo::{FileContents, Surroundings};

    struct Environment;

    impl Surroundings for Environment {
        fn variable(&self, name: &str) -> Option<String> {
            (name == "PGUSER").then(|| "app".to_owned())
        }

        fn user(&self) -> Option<String> {
            None
        }

        fn home(&self) -> Option<PathBuf> {
            None
        }

        fn socket_folder(&self) -> PathBuf {
            PathBuf::from("/tmp")
        }

        fn file(&self, _: &Path) -> io::Result<Option<FileContents>> {
            Ok(None)
        }
    }

    #[test]
    fn each_setting_is_shown_with_its_source_and_no_secret() {
        let text = "host=db1,db2 port=5432 password=hunter2 dbname=shop";
        let arguments =
            ["outboxd", "run", "--database-url", text, "--slot", "s", "-X", "linger.ms=5", "-X", "client.rack=hunter2"];
        let command = Cli::command();
        let matches = command.clone().get_matches_from(arguments);
        let run = command.find_subcommand("run").unwrap();
        let effective = Effective::of(run, matches.subcommand_matches("run").unwrap());
        let line =
            effective.line(&Conninfo::parse(text, &Environment).unwrap(), ["linger.ms", "client.rack"].into_iter());
        for part in [
            "database=shop [--database-url]",
            "host=db1:5432,db2:5432 [--database-url]",
            "user=app [PGUSER]",
            "password=given [--database-url]",
            "slot=s [--slot]",
            "window-bytes=16MiB ",
            "librdkafka=linger.ms,client.rack [-X]",
        ] {
            assert!(line.contains(part), "{part:?} is missing in {line}");
        }
        assert!(!line.contains("hunter2"), "{line}");
    }
}
