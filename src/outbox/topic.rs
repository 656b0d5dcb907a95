//! What Kafka takes as a topic's name.

use std::fmt;

use super::template::{Part, Template, TemplateError};

/// Kafka's limit on the length of a topic's name, in bytes (`org.apache.kafka.common.internals.Topic`).
const NAME_LEN_MAX: usize = 249;

/// Whether Kafka takes this as the name of a topic.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= NAME_LEN_MAX && name.chars().all(is_legal)
}

/// Whether this may be in a topic's name.
#[must_use]
pub const fn is_legal(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-')
}

/// A template for the names of topics.
///
/// # Errors
/// When it is no template, or every name that it makes would be one that Kafka does not take.
pub fn template(text: &str) -> Result<Template, TopicError> {
    let template: Template = text.parse().map_err(TopicError::Template)?;
    let given = template.parts().iter().filter_map(|part| match part {
        Part::Literal(text) | Part::Column { default: Some(text), .. } => Some(text),
        Part::Column { default: None, .. } => None,
    });
    if let Some(character) = given.flat_map(|text| text.chars()).find(|character| !is_legal(*character)) {
        return Err(TopicError::Character(character));
    }
    match template.fixed() {
        Some(name) if !is_name(name) => Err(TopicError::Name),
        _ => Ok(template),
    }
}

/// A template that names no topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicError {
    /// It is no template.
    Template(TemplateError),
    /// A character that Kafka does not take in a topic's name.
    Character(char),
    /// Longer than Kafka's 249 bytes, or `.` or `..`.
    Name,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(error) => error.fmt(f),
            Self::Character(character) => {
                write!(f, "{character:?} is not allowed in a topic's name (letters, digits, '.', '_' and '-' are)")
            }
            Self::Name => f.write_str("a topic's name has at most 249 characters and is not '.' or '..'"),
        }
    }
}

impl std::error::Error for TopicError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_named() {
        let error = |text: &str| template(text).unwrap_err();
        assert_eq!(error(""), TopicError::Template(TemplateError::Empty));
        assert_eq!(error("a b.{x}"), TopicError::Character(' '));
        assert_eq!(error("{x:-a/b}"), TopicError::Character('/'));
        assert_eq!(error(".."), TopicError::Name);
        assert_eq!(error(&"x".repeat(250)), TopicError::Name);
        assert!(template("{x:-}").is_ok());
    }
}
