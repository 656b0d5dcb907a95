//! Exceptions: what happens to the rows whose columns look like this.

use std::fmt;

use wildmatch::WildMatch;

use super::mapping::OnFailure;
use super::template::Template;

/// What happens to rows that fit. In a list the first that fits wins.
#[derive(Clone, Debug)]
pub struct Rule {
    /// All of these; none fits every row.
    pub when: Vec<Condition>,
    /// Then this.
    pub then: Action,
}

/// A column that looks like this.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The column, or a role by our name for it.
    pub column: String,
    /// One of these, where `*` is any text and `?` any character; a column that is NULL fits none.
    pub patterns: Vec<WildMatch>,
}

impl Condition {
    /// One of these texts, which may hold `*` and `?`.
    pub fn new<'p>(column: &str, patterns: impl IntoIterator<Item = &'p str>) -> Self {
        Self { column: column.to_owned(), patterns: patterns.into_iter().map(WildMatch::new).collect() }
    }

    /// Whether a column with this text fits.
    #[must_use]
    pub fn fits(&self, text: Option<&str>) -> bool {
        text.is_some_and(|text| self.patterns.iter().any(|pattern| pattern.matches(text)))
    }
}

/// What happens to a row.
#[derive(Clone, Debug)]
pub enum Action {
    /// No record is made of it.
    Drop,
    /// The record is another than it would be.
    Change(Change),
}

/// What is different about a record; what is not given is as always.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The topic.
    pub topic: Option<Template>,
    /// The key.
    pub key: Option<super::mapping::Key>,
    /// More headers; one whose template meets NULL is left out.
    pub headers: Vec<(String, Template)>,
    /// What happens to an event that cannot be published.
    pub on_failure: Option<OnFailure>,
}

impl Rule {
    /// The columns that it needs.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let when = self.when.iter().map(|condition| condition.column.as_str());
        when.chain(self.change().into_iter().flat_map(Change::templates).flat_map(Template::needs))
    }

    /// What it changes; `None` where it drops.
    #[must_use]
    pub const fn change(&self) -> Option<&Change> {
        match &self.then {
            Action::Drop => None,
            Action::Change(change) => Some(change),
        }
    }
}

impl Change {
    fn templates(&self) -> impl Iterator<Item = &Template> {
        let key = match &self.key {
            Some(super::mapping::Key::Template(template)) => Some(template),
            _ => None,
        };
        self.topic.iter().chain(key).chain(self.headers.iter().map(|(_, template)| template))
    }
}

/// For people: what it looks for and what it does.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Condition { column, patterns }) in self.when.iter().enumerate() {
            let patterns: Vec<_> = patterns.iter().map(ToString::to_string).collect();
            write!(f, "{}{column} like {}", if index > 0 { " and " } else { "" }, patterns.join(" or "))?;
        }
        match &self.then {
            Action::Drop => f.write_str(": dropped"),
            Action::Change(Change { topic, key, headers, on_failure }) => {
                if let Some(topic) = topic {
                    write!(f, ": topic {topic}")?;
                }
                if key.is_some() {
                    f.write_str(": its own key")?;
                }
                if !headers.is_empty() {
                    write!(f, ": {} more headers", headers.len())?;
                }
                if let Some(on_failure) = on_failure {
                    write!(f, ": {on_failure} where it cannot be published")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pattern_is_enough_and_null_fits_none() {
        let condition = Condition::new("event_type", ["Order*", "Refund?"]);
        assert!(condition.fits(Some("OrderPlaced")) && condition.fits(Some("Refund1")));
        assert!(!condition.fits(Some("Refund")) && !condition.fits(Some("order")) && !condition.fits(None));
        assert!(!Condition::new("a", ["*"]).fits(None));
    }
}
