//! What is to be made of a row, as the user says it: for every table, before one is known.

use std::fmt;
use std::str::FromStr;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::claim::ClaimStore;
use super::columns::{Columns, Role};
use super::rule::Rule;
use super::shape::default_topic;
use super::template::Template;

/// How rows become records. The default is that of `outboxd run` without an option.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// Which columns are what.
    pub columns: Columns,
    /// The topic; `None` is what suits the table: its topic column, `outbox.event.{aggregate_type}` or `outbox.event.{table}`.
    pub topic: Option<Template>,
    /// In place of `topic`: the text of a column, rewritten.
    pub rewrite: Option<Rewrite>,
    /// The key.
    pub key: Key,
    /// The column that holds the partition; `None` is by the key's hash.
    pub partition: Option<String>,
    /// The column that holds the record's timestamp; `None` is the commit time.
    pub timestamp: Option<String>,
    /// Columns that become headers.
    pub headers: Vec<HeaderColumn>,
    /// What the value is made of.
    pub value: ValueFormat,
    /// Whose headers the record has.
    pub layout: Layout,
    /// An empty payload is a tombstone, as NULL is.
    pub empty_is_tombstone: bool,
    /// A payload of more bytes than this, as the stream carries it, stays in the table, and the record tells which row it is.
    pub claim_check_above: Option<usize>,
    /// Such a payload is put there instead, and the record tells where, unless the stream left it out.
    pub claim_check_to: Option<ClaimStore>,
    /// Only rows whose status is one of these; none is all rows.
    pub statuses: Vec<String>,
    /// Exceptions, the first that fits wins.
    pub rules: Vec<Rule>,
}

/// What happens in the end to an event that cannot be published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// It gives up its place and stands among the held events as a dead letter; its key goes on.
    #[default]
    DeadLetter,
    /// It keeps its place, and later events of its key wait behind it, until an operator releases it.
    Quarantine,
    /// The relay stops in front of it.
    Halt,
}

impl OnFailure {
    const ALL: [(&str, Self); 3] =
        [("dead-letter", Self::DeadLetter), ("quarantine", Self::Quarantine), ("halt", Self::Halt)];
}

impl FromStr for OnFailure {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        word(&Self::ALL, text)
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(_, policy)| policy == self).map_or("", |(word, _)| word))
    }
}

/// Where a record's key comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Key {
    /// The aggregate's id.
    #[default]
    Aggregate,
    /// A text made from columns.
    Template(Template),
    /// Records have no key.
    None,
}

impl FromStr for Key {
    type Err = super::template::TemplateError;

    /// `none`, the name of a column, or a template with braces.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            text if text.contains(['{', '}']) => text.parse().map(Self::Template),
            text => format!("{{{text}}}").parse().map(Self::Template),
        }
    }
}

/// A column that becomes a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderColumn {
    /// The column.
    pub column: String,
    /// The header's name.
    pub header: String,
}

impl FromStr for HeaderColumn {
    type Err = String;

    /// `column`, or `column=header`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (column, header) = text.split_once('=').unwrap_or((text, text));
        if column.is_empty() || header.is_empty() {
            return Err(format!("{text:?} is not of the form column or column=header"));
        }
        Ok(Self { column: column.to_owned(), header: header.to_owned() })
    }
}

/// The text of a column, rewritten where a pattern fits the whole of it: Debezium's `route.by.field`, `route.topic.regex` and
/// `route.topic.replacement`.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// The column, or a role by our name for it.
    pub column: String,
    /// Fits from the first character to the last.
    pub pattern: Regex,
    /// With `$1` or `${name}` for groups.
    pub replacement: String,
}

impl Rewrite {
    /// A pattern without anchors of its own.
    ///
    /// # Errors
    /// When it is no regular expression, or the replacement names a group that it does not have.
    pub fn new(column: &str, pattern: &str, replacement: &str) -> Result<Self, RewriteError> {
        // Checked alone first: parentheses of ours must not complete a broken pattern.
        Regex::new(pattern)?;
        let pattern = Regex::new(&format!("^(?:{pattern})$"))?;
        // In Java "$1_x" is the first group and "_x"; here it would be a group of the name "1_x".
        let group = Regex::new(r"\$(?:(\d+)|\{(\w+)\})")?;
        let replacement = group.replace_all(replacement, "$${${1}${2}}").into_owned();
        for captures in group.captures_iter(&replacement) {
            let name = captures.get(2).map_or("", |name| name.as_str());
            let is_number = name.parse().is_ok_and(|number: usize| number < pattern.captures_len());
            if !is_number && !pattern.capture_names().flatten().any(|known| known == name) {
                return Err(RewriteError::Group(name.to_owned()));
            }
        }
        Ok(Self { column: column.to_owned(), pattern, replacement })
    }

    /// The topic for this text: itself where the pattern does not fit.
    #[must_use]
    pub fn apply(&self, text: &str) -> String {
        self.pattern.replace(text, self.replacement.as_str()).into_owned()
    }
}

/// A rewrite that cannot be done.
#[derive(Clone, Debug, PartialEq)]
pub enum RewriteError {
    /// The pattern is no regular expression.
    Pattern(regex::Error),
    /// The replacement names a group that the pattern does not have.
    Group(String),
}

impl fmt::Display for RewriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(error) => error.fmt(f),
            Self::Group(name) => write!(f, "the replacement names the group {name:?}, which the pattern does not have"),
        }
    }
}

impl std::error::Error for RewriteError {}

impl From<regex::Error> for RewriteError {
    fn from(error: regex::Error) -> Self {
        Self::Pattern(error)
    }
}

/// What a record's value is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueFormat {
    /// The payload as it stands.
    #[default]
    Payload,
    /// A JSON object of id, type, aggregate, version, time and payload.
    Envelope,
    /// A CloudEvent in the structured mode of the Kafka binding: all of it in the value.
    CloudEvents,
    /// A CloudEvent in the binary mode: attributes in headers, the payload in the value.
    CloudEventsBinary,
}

impl ValueFormat {
    const ALL: [(&str, Self); 4] = [
        ("payload", Self::Payload),
        ("envelope", Self::Envelope),
        ("cloudevents", Self::CloudEvents),
        ("cloudevents-binary", Self::CloudEventsBinary),
    ];
}

impl FromStr for ValueFormat {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        word(&Self::ALL, text)
    }
}

/// Whose headers a record has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Ours.
    #[default]
    Outboxd,
    /// Those of Debezium's outbox event router.
    Debezium,
}

impl Layout {
    const ALL: [(&str, Self); 2] = [("outboxd", Self::Outboxd), ("debezium", Self::Debezium)];
}

impl FromStr for Layout {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        word(&Self::ALL, text)
    }
}

fn word<T: Copy>(all: &[(&'static str, T)], text: &str) -> Result<T, UnknownWord> {
    let found = all.iter().find(|(word, _)| *word == text);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| UnknownWord { text: text.to_owned(), known: all.iter().map(|(word, _)| *word).collect() })
}

/// A word that is none of those that are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    text: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is unknown; known are {}", self.text, self.known.join(", "))
    }
}

impl std::error::Error for UnknownWord {}

impl Mapping {
    /// The columns that it names and that must be there, each with what names it.
    pub fn named_columns(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let topic = self.topic.iter().flat_map(Template::needs).map(|column| (column, "--topic"));
        let key = match &self.key {
            Key::Template(template) => Some(template),
            Key::Aggregate | Key::None => None,
        };
        let key = key.into_iter().flat_map(Template::needs).map(|column| (column, "--key"));
        let rewrite = self.rewrite.iter().map(|rewrite| (rewrite.column.as_str(), "--route-by"));
        let partition = self.partition.iter().map(|column| (column.as_str(), "--partition-column"));
        let timestamp = self.timestamp.iter().map(|column| (column.as_str(), "--timestamp-column"));
        let headers = self.headers.iter().map(|header| (header.column.as_str(), "--header"));
        let status = (!self.statuses.is_empty()).then_some(("status", "--status-filter"));
        let rules = self.rules.iter().flat_map(Rule::columns).map(|column| (column, "a rule"));
        topic.chain(key).chain(rewrite).chain(partition).chain(timestamp).chain(headers).chain(status).chain(rules)
    }

    /// A rule wants events to be held that cannot be published.
    #[must_use]
    pub fn holds(&self) -> bool {
        let policies = self.rules.iter().filter_map(|rule| rule.change()?.on_failure);
        policies.into_iter().any(|policy| policy != OnFailure::Halt)
    }

    /// Those of a table's columns that records need and that are not published.
    #[must_use]
    pub fn unpublished(&self, in_table: &[String], published: &[String]) -> Vec<String> {
        let of_roles = Role::all().filter(|role| role.is_essential());
        let of_roles = of_roles.filter_map(|role| self.columns.find(role, in_table));
        let of_names = self.named_columns().map(|(name, _)| name);
        let of_names = of_names.filter(|name| in_table.iter().any(|column| column == name));
        let mut wanted: Vec<String> = of_roles.chain(of_names).map(str::to_owned).collect();
        wanted.retain(|column| !published.contains(column));
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Those of a table's columns that decide which topic a row goes to, or none.
    #[must_use]
    pub fn deciding_columns(&self, columns: &[String]) -> Vec<String> {
        let topic = self.topic.clone().unwrap_or_else(|| default_topic(self, columns));
        let topic: Vec<&str> = match &self.rewrite {
            Some(rewrite) => vec![rewrite.column.as_str()],
            None => topic.columns().collect(),
        };
        let of_rules = self.rules.iter().flat_map(|rule| {
            let topic = rule.change().and_then(|change| change.topic.as_ref());
            rule.when
                .iter()
                .map(|condition| condition.column.as_str())
                .chain(topic.into_iter().flat_map(Template::columns))
        });
        let status = (!self.statuses.is_empty()).then_some(Role::Status.name());
        let names = topic.into_iter().chain(of_rules).chain(status);
        let mut deciding: Vec<String> = names
            .filter_map(|name| {
                let by_name = columns.iter().find(|column| *column == name).map(String::as_str);
                by_name.or_else(|| self.columns.find(Role::by_name(name)?, columns)).map(str::to_owned)
            })
            .collect();
        deciding.sort_unstable();
        deciding.dedup();
        deciding
    }

    /// The topic as far as it can be told without a row: for people, and for what may be one.
    #[must_use]
    pub fn topic_words(&self, columns: &[String]) -> Template {
        self.topic.clone().unwrap_or_else(|| default_topic(self, columns))
    }
}
