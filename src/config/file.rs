//! The configuration file: every flag by its name, and what is too long for a command line.
//!
//! ```toml
//! table = "public.outbox"
//! brokers = "kafka-1:9092,kafka-2:9092"
//! topic = "{tenant:-shared}.{event_type|kebab}"
//!
//! [columns]                    # as --column
//! payload = "body"
//!
//! [kafka]                      # as -X
//! "compression.type" = "zstd"
//!
//! [[rule]]                     # the first that fits wins
//! when = { event_type = ["Audit*", "Debug*"] }
//! drop = true
//!
//! [[rule]]
//! when = { tenant = "acme" }
//! topic = "acme.orders"
//! key = "{customer_id}"
//! headers = { priority = "high" }
//! on-failure = "quarantine"    # of one that cannot be published
//! ```

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use super::run::Mistakes;
use crate::outbox::mapping::Key;
use crate::outbox::rule::{Action, Change, Condition, Rule};
use crate::outbox::shape_error::nearest;
use crate::outbox::topic;

/// What a file says.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Values of flags, by their names.
    pub flags: BTreeMap<String, Vec<String>>,
    /// librdkafka's settings, one `name=value` a line.
    pub kafka: String,
    /// Exceptions, in order.
    pub rules: Vec<Rule>,
}

/// Keys of the file that are no flags.
const TABLES: [&str; 3] = ["columns", "kafka", "rule"];

impl ConfigFile {
    /// Reads a file; `flags` are the names of all flags that it may set. What is wrong with it goes into `mistakes`, with
    /// `path` before it.
    #[must_use]
    pub fn parse(path: &str, text: &str, flags: &[String], mistakes: &mut Mistakes) -> Self {
        let mut file = Self::default();
        let table: Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                mistakes.add(path, syntax(text, &error));
                return file;
            }
        };
        for (key, value) in &table {
            let about = format!("{path}, {key}");
            match (key.as_str(), value) {
                ("columns", Value::Table(columns)) => {
                    let choices = columns.iter().map(|(role, column)| Some(format!("{role}={}", scalar(column)?)));
                    file.set("column", choices.collect(), &about, mistakes);
                }
                ("kafka", Value::Table(settings)) => {
                    for (name, value) in settings {
                        match scalar(value) {
                            Some(value) => file.kafka.push_str(&format!("{name}={value}\n")),
                            None => {
                                mistakes.add(&format!("{about}.{name}"), Expected("a text, a number or true or false"))
                            }
                        }
                    }
                }
                ("rule", Value::Array(rules)) => {
                    for (number, rule) in (1..).zip(rules) {
                        file.rules.extend(read_rule(rule, &format!("{path}, rule {number}"), mistakes));
                    }
                }
                (name, _) if TABLES.contains(&name) => {
                    mistakes.add(&about, Expected("a table: [columns], [kafka] or [[rule]]"))
                }
                (name, value) => file.flag(name, value, flags, &about, mistakes),
            }
        }
        file
    }

    fn flag(&mut self, name: &str, value: &Value, flags: &[String], about: &str, mistakes: &mut Mistakes) {
        let flag = name.replace('_', "-");
        if !flags.contains(&flag) {
            let known: Vec<String> = flags.iter().cloned().chain(TABLES.map(str::to_owned)).collect();
            let hint = nearest(&flag, &known).map_or_else(String::new, |nearest| format!("; {nearest} is the nearest"));
            mistakes.add(about, format_args!("there is no such setting{hint}"));
            return;
        }
        let values = match value {
            Value::Array(values) => values.iter().map(scalar).collect(),
            value => scalar(value).map(|value| vec![value]),
        };
        self.set(&flag, values, about, mistakes);
    }

    fn set(&mut self, flag: &str, values: Option<Vec<String>>, about: &str, mistakes: &mut Mistakes) {
        match values {
            Some(values) => self.flags.entry(flag.to_owned()).or_default().extend(values),
            None => mistakes.add(about, Expected("a text, a number, true or false, or a list of them")),
        }
    }
}

/// A parser's message shows the line; a line may hold a secret, so only where and what.
fn syntax(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.iter().map(scalar).collect(),
        value => scalar(value).map(|text| vec![text]),
    }
}

/// What a value should have been.
struct Expected(&'static str);

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

/// What a rule may have.
const RULE_KEYS: [&str; 6] = ["when", "topic", "key", "headers", "on-failure", "drop"];

fn read_rule(rule: &Value, about: &str, mistakes: &mut Mistakes) -> Option<Rule> {
    let Value::Table(rule) = rule else {
        mistakes.add(about, Expected("a table: [[rule]]"));
        return None;
    };
    for key in rule.keys().filter(|key| !RULE_KEYS.contains(&key.as_str())) {
        let known = RULE_KEYS.map(str::to_owned);
        let hint = nearest(key, &known).map_or_else(|| known.join(", "), |nearest| format!("{nearest}?"));
        mistakes.add(about, format_args!("{key} is nothing that a rule can have; {hint}"));
    }
    let when = conditions(rule.get("when"), about, mistakes);
    let change = change(rule, about, mistakes);
    let is_drop = match rule.get("drop") {
        None | Some(Value::Boolean(false)) => false,
        Some(Value::Boolean(true)) => true,
        Some(_) => {
            mistakes.add(about, "drop: expected true or false");
            false
        }
    };
    let is_change =
        change.topic.is_some() || change.key.is_some() || !change.headers.is_empty() || change.on_failure.is_some();
    match (is_drop, is_change) {
        (true, false) => Some(Rule { when, then: Action::Drop }),
        (false, true) => Some(Rule { when, then: Action::Change(change) }),
        (true, true) => {
            mistakes.add(about, "drops rows and changes them; only one of these is possible");
            None
        }
        (false, false) if mistakes.is_empty() => {
            mistakes.add(about, "does nothing; give it topic, key, headers, on-failure or drop = true");
            None
        }
        (false, false) => None,
    }
}

fn conditions(when: Option<&Value>, about: &str, mistakes: &mut Mistakes) -> Vec<Condition> {
    let Some(Value::Table(when)) = when else {
        if when.is_some() {
            mistakes.add(about, "when: expected columns and what they look like: { event_type = \"Order*\" }");
        }
        return Vec::new();
    };
    let condition = |(column, patterns): (&String, &Value)| match texts(patterns) {
        Some(patterns) => Some(Condition::new(column, patterns.iter().map(String::as_str))),
        None => {
            mistakes.add(about, format_args!("when.{column}: expected a text with * and ?, or a list of them"));
            None
        }
    };
    when.iter().filter_map(condition).collect()
}

fn change(rule: &Table, about: &str, mistakes: &mut Mistakes) -> Change {
    let mut text = |name: &str| {
        let value = rule.get(name)?;
        let text = scalar(value);
        if text.is_none() {
            mistakes.add(about, format_args!("{name}: expected a text"));
        }
        text
    };
    let (topic, key, on_failure) = (text("topic"), text("key"), text("on-failure"));
    let on_failure = on_failure.and_then(|text| mistakes.note(&format!("{about}, on-failure"), text.parse()));
    let topic = topic.and_then(|text| mistakes.note(&format!("{about}, topic"), topic::template(&text)));
    let key: Option<Key> = key.and_then(|text| mistakes.note(&format!("{about}, key"), text.parse()));
    let mut headers = Vec::new();
    match rule.get("headers") {
        None => {}
        Some(Value::Table(table)) => {
            for (name, value) in table {
                let about = format!("{about}, headers.{name}");
                match scalar(value).map(|text| text.parse()) {
                    Some(template) => headers.extend(mistakes.note(&about, template).map(|text| (name.clone(), text))),
                    None => mistakes.add(&about, Expected("a text")),
                }
            }
        }
        Some(_) => mistakes.add(about, "headers: expected names and texts: { priority = \"high\" }"),
    }
    Change { topic, key, headers, on_failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (ConfigFile, String) {
        let flags = ["table", "brokers", "header", "window-bytes", "column"].map(str::to_owned);
        let mut mistakes = Mistakes::default();
        let file = ConfigFile::parse("o.toml", text, &flags, &mut mistakes);
        (file, mistakes.to_string())
    }

    #[test]
    fn flags_columns_kafka_and_rules() {
        let (file, mistakes) = parse(
            "table = 'public.o'\nwindow_bytes = 65536\nheader = ['a', 'b=c']\n[columns]\npayload = 'body'\n\
             [kafka]\n'linger.ms' = 2\n[[rule]]\nwhen = { t = ['A*', 'B'] }\ndrop = true\n\
             [[rule]]\ntopic = 'x.{t|kebab}'\nheaders = { p = 'high' }\non-failure = 'halt'\n",
        );
        assert_eq!(mistakes, "");
        let flag = |name: &str| file.flags.get(name).cloned().unwrap_or_default();
        assert_eq!(flag("window-bytes"), ["65536"]);
        assert_eq!(flag("header"), ["a", "b=c"]);
        assert_eq!(flag("column"), ["payload=body"]);
        assert_eq!(file.kafka, "linger.ms=2\n");
        let rules: Vec<String> = file.rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            rules,
            ["t like A* or B: dropped", ": topic x.{t|kebab}: 1 more headers: halt where it cannot be published"]
        );
    }

    #[test]
    fn all_mistakes_come_together_and_with_the_nearest_name() {
        let (_, mistakes) = parse(
            "tabel = 'x'\nbrokers = { a = 1 }\n[[rule]]\nwehn = { a = 'b' }\ndrop = true\n[[rule]]\ntopic = '{'\n\
             [[rule]]\ndrop = true\ntopic = 'x'\n",
        );
        let expected = [
            "o.toml, brokers: expected a text, a number, true or false, or a list of them",
            "o.toml, rule 1: wehn is nothing that a rule can have; when?",
            "o.toml, rule 2, topic: a brace is not closed or was not opened",
            "o.toml, rule 3: drops rows and changes them; only one of these is possible",
            "o.toml, tabel: there is no such setting; table is the nearest",
        ];
        assert_eq!(mistakes.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_broken_file_tells_the_line_and_not_what_stands_there() {
        let (_, mistakes) = parse("table = 'x'\nbrokers = hunter2 secret\n");
        assert!(mistakes.starts_with("o.toml: line 2: ") && !mistakes.contains("hunter2"), "{mistakes}");
    }
}
