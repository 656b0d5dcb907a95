//! Texts made from a row, such as `outbox.event.{aggregate_type}` or `{tenant|lower:-shared}.{event_type|kebab}`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use heck::{ToKebabCase as _, ToSnakeCase as _};

/// What is done to a column's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Lower case.
    Lower,
    /// `OrderPlaced` becomes `order_placed`.
    Snake,
    /// `OrderPlaced` becomes `order-placed`.
    Kebab,
}

impl Filter {
    const ALL: [(&str, Self); 3] = [("lower", Self::Lower), ("snake", Self::Snake), ("kebab", Self::Kebab)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, filter)| *filter == self).map_or("", |(name, _)| name)
    }

    /// The text after it.
    #[must_use]
    pub fn apply(self, text: &str) -> String {
        match self {
            Self::Lower => text.to_lowercase(),
            Self::Snake => text.to_snake_case(),
            Self::Kebab => text.to_kebab_case(),
        }
    }
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// As it stands.
    Literal(String),
    /// What a column holds.
    Column {
        /// A column of the table, or a role by our name for it.
        name: String,
        /// In this order.
        filters: Vec<Filter>,
        /// Where the column is NULL or not there.
        default: Option<String>,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) => f.write_str(text),
            Self::Column { name, filters, default } => {
                write!(f, "{{{name}")?;
                filters.iter().try_for_each(|filter| write!(f, "|{}", filter.name()))?;
                default.iter().try_for_each(|default| write!(f, ":-{default}"))?;
                f.write_str("}")
            }
        }
    }
}

/// A template. Without braces it is one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

impl Template {
    /// Literals and names of columns, in turns.
    pub(super) fn of(pieces: &[&str]) -> Self {
        let mut parts = Vec::new();
        for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
            parts.push(match index % 2 {
                0 => Part::Literal((*piece).to_owned()),
                _ => Part::Column { name: (*piece).to_owned(), filters: Vec::new(), default: None },
            });
        }
        Self::from_parts(parts)
    }

    fn from_parts(parts: Vec<Part>) -> Self {
        Self { text: parts.iter().map(ToString::to_string).collect(), parts }
    }

    /// The template with these names replaced by texts that are the same for every row.
    #[must_use]
    pub(super) fn with<'v>(&self, value_of: impl Fn(&str) -> Option<&'v str>) -> Self {
        let part = |part: &Part| match part {
            Part::Column { name, filters, .. } => match value_of(name) {
                Some(value) => Part::Literal(filtered(Cow::Borrowed(value), filters).into_owned()),
                None => part.clone(),
            },
            Part::Literal(_) => part.clone(),
        };
        Self::from_parts(self.parts.iter().map(part).collect())
    }

    /// The pieces, first to last.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The text when it is the same for every row.
    #[must_use]
    pub fn fixed(&self) -> Option<&str> {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_))).then_some(self.text.as_str())
    }

    /// The columns that it needs: those without a default.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column { name, default: None, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    /// All columns that it names.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Column { name, .. } => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// Appends the text for a row whose columns `value_of` tells, by the number of the piece and its name.
    ///
    /// # Errors
    /// The name of the column that is NULL and has no default.
    pub fn render<'v>(
        &self,
        text: &mut String,
        value_of: impl Fn(usize, &str) -> Option<Cow<'v, str>>,
    ) -> Result<(), &str> {
        for (index, part) in self.parts.iter().enumerate() {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Column { name, filters, default } => match (value_of(index, name), default) {
                    (Some(value), _) => text.push_str(&filtered(value, filters)),
                    (None, Some(default)) => text.push_str(default),
                    (None, None) => return Err(name),
                },
            }
        }
        Ok(())
    }

    /// Whether a text may be one of the template's: it begins and ends as all of them do. Never when that says nothing.
    #[must_use]
    pub fn may_be(&self, text: &str) -> bool {
        if let Some(fixed) = self.fixed() {
            return text == fixed;
        }
        let literal = |part: Option<&Part>| match part {
            Some(Part::Literal(text)) => text.clone(),
            _ => String::new(),
        };
        let (start, end) = (literal(self.parts.first()), literal(self.parts.last()));
        let fixed = start.len() + end.len();
        fixed > 0 && text.len() > fixed && text.starts_with(&start) && text.ends_with(&end)
    }
}

/// The text after all filters.
fn filtered<'v>(value: Cow<'v, str>, filters: &[Filter]) -> Cow<'v, str> {
    filters.iter().fold(value, |value, filter| Cow::Owned(filter.apply(&value)))
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text that is no template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// There is nothing.
    Empty,
    /// A brace that does not close, or was not opened.
    Braces,
    /// A placeholder without the name of a column.
    Placeholder(String),
    /// A filter that does not exist.
    Filter(String),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::Braces => f.write_str("a brace is not closed or was not opened"),
            Self::Placeholder(text) => {
                write!(f, "{{{text}}} names no column; expected {{column}}, {{column|kebab}} or {{column:-default}}")
            }
            Self::Filter(name) => {
                let known: Vec<_> = Filter::ALL.iter().map(|(name, _)| *name).collect();
                write!(f, "{name:?} is no filter; known are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for TemplateError {}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (literal, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
            if literal.contains('}') {
                return Err(TemplateError::Braces);
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            rest = after;
            if let Some(inside) = rest.strip_prefix('{') {
                let (placeholder, after) = inside.split_once('}').ok_or(TemplateError::Braces)?;
                parts.push(column(placeholder)?);
                rest = after;
            }
        }
        if parts.is_empty() { Err(TemplateError::Empty) } else { Ok(Self { text: text.to_owned(), parts }) }
    }
}

/// `name`, then `|filter` any number of times, then `:-default`.
fn column(placeholder: &str) -> Result<Part, TemplateError> {
    if placeholder.contains('{') {
        return Err(TemplateError::Braces);
    }
    let (front, default) = match placeholder.split_once(":-") {
        Some((front, default)) => (front, Some(default.to_owned())),
        None => (placeholder, None),
    };
    let mut pieces = front.split('|');
    let name = pieces.next().unwrap_or_default();
    if name.is_empty() {
        return Err(TemplateError::Placeholder(placeholder.to_owned()));
    }
    let filter = |piece: &str| {
        let known = Filter::ALL.iter().find(|(name, _)| *name == piece);
        known.map(|(_, filter)| *filter).ok_or_else(|| TemplateError::Filter(piece.to_owned()))
    };
    Ok(Part::Column { name: name.to_owned(), filters: pieces.map(filter).collect::<Result<_, _>>()?, default })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, columns: &[(&str, &str)]) -> Option<String> {
        let value_of =
            |_, name: &str| columns.iter().find(|(known, _)| *known == name).map(|(_, value)| Cow::Borrowed(*value));
        let mut text = String::new();
        template.parse::<Template>().unwrap().render(&mut text, value_of).ok().map(|()| text)
    }

    #[test]
    fn a_template_without_braces_is_one_text() {
        assert_eq!("shop.events".parse::<Template>().unwrap().fixed(), Some("shop.events"));
        assert_eq!("outbox.event.{aggregate_type}".parse::<Template>().unwrap().fixed(), None);
    }

    #[test]
    fn columns_filters_and_defaults() {
        let row = [("tenant", "ACME"), ("event_type", "OrderPlaced")];
        assert_eq!(render("{tenant|lower}.{event_type|kebab}", &row).unwrap(), "acme.order-placed");
        assert_eq!(render("{event_type|snake}", &row).unwrap(), "order_placed");
        assert_eq!(render("{region:-eu}.{tenant:-x}", &row).unwrap(), "eu.ACME");
        assert_eq!(render("{region:-}x", &row).unwrap(), "x");
        assert_eq!(render("{region}", &row), None);
    }

    #[test]
    fn each_mistake_is_named() {
        let error = |text: &str| text.parse::<Template>().unwrap_err();
        assert_eq!(error(""), TemplateError::Empty);
        assert_eq!(error("a.{aggregate_type"), TemplateError::Braces);
        assert_eq!(error("a.}"), TemplateError::Braces);
        assert_eq!(error("a.{{aggregate_type}}"), TemplateError::Braces);
        assert_eq!(error("a.{}"), TemplateError::Placeholder(String::new()));
        assert_eq!(error("a.{|kebab}"), TemplateError::Placeholder("|kebab".to_owned()));
        assert_eq!(error("a.{b|camel}"), TemplateError::Filter("camel".to_owned()));
    }

    #[test]
    fn what_may_be_a_text_of_it() {
        let template: Template = "x.{a}.y".parse().unwrap();
        assert!(template.may_be("x.1.y") && !template.may_be("x.y") && !template.may_be("1"));
        assert!(!"{a}".parse::<Template>().unwrap().may_be("x"));
    }
}
