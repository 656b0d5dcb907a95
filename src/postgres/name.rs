//! Names of tables as people write them.

use std::fmt;
use std::str::FromStr;

use super::wire::quote::identifier;

/// A table with its schema. Names are compared as they are, without folding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QualifiedName {
    schema: String,
    name: String,
}

impl QualifiedName {
    /// A name from the catalogue.
    #[must_use]
    pub fn new(schema: &str, name: &str) -> Self {
        Self { schema: schema.to_owned(), name: name.to_owned() }
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For SQL: both names in double quotes.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.name))
    }
}

/// Not `schema.table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError;

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected schema.table; names with other characters than letters, digits and _ go into double quotes",
        )
    }
}

impl std::error::Error for NameError {}

impl FromStr for QualifiedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (schema, rest) = part(text)?;
        let (name, rest) = part(rest.strip_prefix('.').ok_or(NameError)?)?;
        if rest.is_empty() { Ok(Self { schema, name }) } else { Err(NameError) }
    }
}

/// One name, folded to lower case as SQL does unless it is quoted, and what follows it.
fn part(text: &str) -> Result<(String, &str), NameError> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$'))).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
        return if is_name { Ok((name.to_lowercase(), rest)) } else { Err(NameError) };
    };
    let mut name = String::new();
    loop {
        let (piece, after) = rest.split_once('"').ok_or(NameError)?;
        name.push_str(piece);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None if name.is_empty() => return Err(NameError),
            None => return Ok((name, after)),
        }
    }
}

/// As SQL takes it, quoted where that is needed.
impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |name: &str| {
            let is_plain = part(name).is_ok_and(|(folded, rest)| folded == name && rest.is_empty());
            if is_plain { name.to_owned() } else { identifier(name) }
        };
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fold_and_quote_as_in_sql() {
        for (text, schema, name, shown) in [
            ("outboxd.outbox", "outboxd", "outbox", "outboxd.outbox"),
            ("Shop.Events", "shop", "events", "shop.events"),
            ("\"Shop\".\"my \"\"events\"\"\"", "Shop", "my \"events\"", "\"Shop\".\"my \"\"events\"\"\""),
        ] {
            let parsed: QualifiedName = text.parse().unwrap();
            assert_eq!((parsed.schema(), parsed.name()), (schema, name));
            assert_eq!(parsed.to_string(), shown);
        }
        for text in ["", "outbox", ".outbox", "a.b.c", "a.", "\"a.b", "\"\".b", "1a.b", "a b.c"] {
            assert_eq!(text.parse::<QualifiedName>(), Err(NameError), "{text}");
        }
    }
}
