//! The password file.
//!
//! <https://www.postgresql.org/docs/current/libpq-pgpass.html>

use std::path::{Path, PathBuf};

use super::Endpoint;
use super::surroundings::Surroundings;
use crate::config::Secret;

/// A password file that may be used.
#[derive(Default)]
pub(super) struct Passfile {
    lines: Vec<String>,
}

impl Passfile {
    /// Reads the file, unless others may read it too: then it is ignored, and the warning says so.
    pub(super) fn read(path: &Path, surroundings: &impl Surroundings, warnings: &mut Vec<String>) -> Self {
        let mut ignored = |why: &str| {
            warnings.push(format!("the password file {} is ignored: {why}", path.display()));
            Self::default()
        };
        match surroundings.file(path) {
            Ok(None) => Self::default(),
            Ok(Some(file)) if !file.is_regular => ignored("it is not an ordinary file"),
            Ok(Some(file)) if file.open_to_others => {
                ignored("others may use it too; its permissions must be 0600 or narrower (chmod 0600)")
            }
            Ok(Some(file)) => Self { lines: file.text.lines().map(str::to_owned).collect() },
            Err(error) => ignored(&error.to_string()),
        }
    }

    /// The password of the first line that fits.
    pub(super) fn password(&self, host: &str, port: u16, dbname: &str, user: &str) -> Option<Secret> {
        let wanted = [host, &port.to_string(), dbname, user];
        self.lines.iter().filter(|line| !line.starts_with('#')).find_map(|line| {
            let mut fields = fields(line);
            let fits = wanted.iter().all(|wanted| {
                // A star means "any" only when it stands alone and was not escaped.
                fields.next().is_some_and(|field| field.raw == "*" || field.text == **wanted)
            });
            let password = fields.next().filter(|_| fits)?;
            (!password.text.is_empty()).then(|| Secret::new(password.text))
        })
    }
}

/// Where the file is unless told otherwise.
pub(super) fn default_path(surroundings: &impl Surroundings) -> Option<PathBuf> {
    Some(surroundings.home()?.join(".pgpass"))
}

/// The name by which a host is looked up: the default socket folder counts as `localhost`.
pub(super) fn host_name(endpoint: &Endpoint, surroundings: &impl Surroundings) -> String {
    match endpoint {
        Endpoint::Socket(folder) if *folder == surroundings.socket_folder() => "localhost".to_owned(),
        Endpoint::Socket(folder) => folder.display().to_string(),
        Endpoint::Name(name) => name.clone(),
        Endpoint::Address(address) => address.to_string(),
    }
}

struct Field<'a> {
    raw: &'a str,
    text: String,
}

/// The fields of a line: colons between them, a backslash before one that is meant as such.
fn fields(line: &str) -> impl Iterator<Item = Field<'_>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let mut text = String::new();
        let mut chars = line.char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                ':' => {
                    let (raw, after) = line.split_at_checked(offset)?;
                    rest = after.strip_prefix(':');
                    return Some(Field { raw, text });
                }
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c => text.push(c),
            }
        }
        rest = None;
        Some(Field { raw: line, text })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn passfile(text: &str) -> Passfile {
        Passfile { lines: text.lines().map(str::to_owned).collect() }
    }

    fn password(text: &str) -> Option<String> {
        passfile(text).password("h", 5432, "d", "u").map(|secret| secret.expose().to_owned())
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        assert_eq!(password("h:5432:d:x:1\nh:*:d:u:2\n*:*:*:*:3").as_deref(), Some("2"));
        assert_eq!(password("# h:5432:d:u:0\n\nshort\n*:*:*:*:3").as_deref(), Some("3"));
        assert_eq!(password("g:5432:d:u:1\n"), None);
        assert_eq!(password("\\*:5432:d:u:1"), None);
        assert_eq!(password("h:5432:d:u:"), None);
    }

    #[test]
    fn colons_and_backslashes_are_escaped() {
        assert_eq!(password(r"h:5432:d:u:a\:b\\c:ignored").as_deref(), Some(r"a:b\c"));
        assert_eq!(passfile(r"\:\:1:1:*:*:p").password("::1", 1, "", "").unwrap().expose(), "p");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,60}") {
            let _ = password(&text);
        }

        #[test]
        fn escaped_fields_round_trip(host in "[^\\x00\\n\\r#]{1,9}", secret in "[^\\x00\\n\\r]{1,9}") {
            let escape = |text: &str| text.replace('\\', r"\\").replace(':', r"\:");
            // An escaped star is itself, as the file cannot say it otherwise.
            let line = format!("{}:1:d:u:{}", escape(&host).replace('*', r"\*"), escape(&secret));
            let found = passfile(&line).password(&host, 1, "d", "u");
            prop_assert_eq!(found.as_ref().map(Secret::expose), Some(&*secret));
        }
    }
}
