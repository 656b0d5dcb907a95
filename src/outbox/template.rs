//! The topic of an event, from a template such as `outbox.event.{aggregate_type}`.

use std::fmt;
use std::str::FromStr;

use super::event::{Event, MappingError};

/// Kafka's limit on the length of a topic's name, in bytes (`org.apache.kafka.common.internals.Topic`).
const NAME_LEN_MAX: usize = 249;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    AggregateType,
    EventType,
}

/// How an event's topic is named. A template without braces is one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate {
    text: String,
    parts: Vec<Part>,
}

impl TopicTemplate {
    /// The topic's name when it is the same for every event.
    #[must_use]
    pub fn fixed(&self) -> Option<&str> {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_))).then_some(self.text.as_str())
    }

    /// The topic of events of this kind, if Kafka takes such a name.
    #[must_use]
    pub fn topic_of(&self, aggregate_type: &str, event_type: &str) -> Option<String> {
        let text = |part: &Part| match part {
            Part::Literal(text) => text.clone(),
            Part::AggregateType => aggregate_type.to_owned(),
            Part::EventType => event_type.to_owned(),
        };
        Some(self.parts.iter().map(text).collect::<String>()).filter(|name| is_name(name))
    }

    /// Whether the topic may be one of the template's: it begins and ends as all of them do. Never when that says nothing.
    #[must_use]
    pub fn may_name(&self, topic: &str) -> bool {
        if let Some(fixed) = self.fixed() {
            return topic == fixed;
        }
        let literal = |part: Option<&Part>| match part {
            Some(Part::Literal(text)) => text.clone(),
            _ => String::new(),
        };
        let (start, end) = (literal(self.parts.first()), literal(self.parts.last()));
        let fixed = start.len() + end.len();
        fixed > 0 && topic.len() > fixed && topic.starts_with(&start) && topic.ends_with(&end)
    }

    /// Writes the event's topic over `name`.
    ///
    /// # Errors
    /// When the column that names the topic holds what Kafka does not take in a topic's name.
    pub fn render(&self, event: &Event, name: &mut String) -> Result<(), MappingError> {
        name.clear();
        for part in &self.parts {
            let (role, bytes) = match part {
                Part::Literal(text) => {
                    name.push_str(text);
                    continue;
                }
                Part::AggregateType => ("aggregate_type", event.aggregate_type()),
                Part::EventType => ("event_type", event.event_type()),
            };
            let text = std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_legal));
            name.push_str(text.ok_or(MappingError::TopicCharacters { role })?);
        }
        if is_name(name) { Ok(()) } else { Err(MappingError::TopicName) }
    }
}

/// What Kafka takes in a topic's name.
fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-')
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= NAME_LEN_MAX && name.chars().all(is_legal)
}

impl fmt::Display for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A template that names no topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// Nothing to name a topic with.
    Empty,
    /// A brace that does not close, or was not opened.
    Braces,
    /// A placeholder that stands for nothing.
    Placeholder(String),
    /// A character that Kafka does not take in a topic's name.
    Character(char),
    /// Longer than Kafka's 249 bytes, or `.` or `..`.
    Name,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the topic template is empty"),
            Self::Braces => f.write_str("a brace is not closed or was not opened"),
            Self::Placeholder(name) => {
                write!(f, "{{{name}}} stands for nothing; known are {{aggregate_type}} and {{event_type}}")
            }
            Self::Character(character) => {
                write!(f, "{character:?} is not allowed in a topic's name (letters, digits, '.', '_' and '-' are)")
            }
            Self::Name => f.write_str("a topic's name has at most 249 characters and is not '.' or '..'"),
        }
    }
}

impl std::error::Error for TemplateError {}

impl FromStr for TopicTemplate {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (literal, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
            if let Some(character) = literal.chars().find(|character| !is_legal(*character)) {
                let brace = character == '}';
                return Err(if brace { TemplateError::Braces } else { TemplateError::Character(character) });
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            rest = after;
            if let Some(inside) = rest.strip_prefix('{') {
                let (name, after) = inside.split_once('}').ok_or(TemplateError::Braces)?;
                parts.push(placeholder(name)?);
                rest = after;
            }
        }
        let template = Self { text: text.to_owned(), parts };
        match template.fixed() {
            Some("") => Err(TemplateError::Empty),
            Some(name) if !is_name(name) => Err(TemplateError::Name),
            _ => Ok(template),
        }
    }
}

fn placeholder(name: &str) -> Result<Part, TemplateError> {
    match name {
        "aggregate_type" => Ok(Part::AggregateType),
        "event_type" => Ok(Part::EventType),
        name if name.contains('{') => Err(TemplateError::Braces),
        name => Err(TemplateError::Placeholder(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_braces_is_one_topic() {
        let template: TopicTemplate = "shop.events".parse().unwrap();
        assert_eq!(template.fixed(), Some("shop.events"));
        let template: TopicTemplate = "outbox.event.{aggregate_type}".parse().unwrap();
        assert_eq!(template.fixed(), None);
    }

    #[test]
    fn each_mistake_is_named() {
        let error = |text: &str| text.parse::<TopicTemplate>().unwrap_err();
        assert_eq!(error(""), TemplateError::Empty);
        assert_eq!(error("a.{type}"), TemplateError::Placeholder("type".to_owned()));
        assert_eq!(error("a.{aggregate_type"), TemplateError::Braces);
        assert_eq!(error("a.}"), TemplateError::Braces);
        assert_eq!(error("a.{{aggregate_type}}"), TemplateError::Braces);
        assert_eq!(error("a b"), TemplateError::Character(' '));
        assert_eq!(error(".."), TemplateError::Name);
        assert_eq!(error(&"x".repeat(250)), TemplateError::Name);
    }
}
