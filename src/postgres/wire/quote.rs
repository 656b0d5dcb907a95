//! Quoting of names and texts: the only place where either is put into a command.

pub use postgres_protocol::escape::{escape_identifier as identifier, escape_literal as literal};

/// A literal of the replication grammar, in which a backslash is an ordinary character and `E'...'` does not exist.
///
/// <https://github.com/postgres/postgres/blob/REL_18_STABLE/src/backend/replication/repl_scanner.l>
pub(crate) fn replication_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A list of names as one literal: the server splits it like `search_path`.
pub(crate) fn replication_name_list<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<_> = names.iter().map(|name| identifier(name.as_ref())).collect();
    replication_literal(&names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(identifier("a\"b\\c"), "\"a\"\"b\\c\"");
        assert_eq!(replication_literal("it's \\ one"), "'it''s \\ one'");
        assert_eq!(replication_name_list(&["a", "b'\"c"]), "'\"a\",\"b''\"\"c\"'");
    }
}
