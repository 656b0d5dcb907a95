//! The two forms of a connection string, as pairs of keyword and value.
//!
//! No message quotes a value, nor a word that could be a piece of a password which its writer forgot to quote or to
//! percent-encode.
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>

use std::iter::Peekable;
use std::str::{CharIndices, FromStr};

use percent_encoding::percent_decode_str;

/// Keyword and value, in order of appearance; a later pair overrides an earlier one.
pub(super) type Pairs = Vec<(String, String)>;

const SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];

/// Splits a connection string, whichever its form.
pub(super) fn pairs(text: &str) -> Result<Pairs, String> {
    match after_scheme(text) {
        Some(rest) => url_pairs(rest),
        None => key_value_pairs(text),
    }
}

fn after_scheme(text: &str) -> Option<&str> {
    SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

/// Whether the text itself holds a password, as far as can be told: a text that cannot be read counts when it looks so.
pub(super) fn password_in_text(text: &str) -> bool {
    let secret = |key: &str| key.contains("password") || key.contains("secret") || key.contains("scram_");
    match pairs(text) {
        Ok(pairs) => pairs.iter().any(|(key, value)| secret(key) && !value.is_empty()),
        Err(_) => secret(text) || after_scheme(text).is_some_and(|rest| rest.contains('@') && rest.contains(':')),
    }
}

// --- key=value ---

fn key_value_pairs(text: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    let mut chars = text.char_indices().peekable();
    loop {
        skip_spaces(&mut chars);
        let Some(&(offset, _)) = chars.peek() else { return Ok(pairs) };
        let key = keyword(&mut chars);
        skip_spaces(&mut chars);
        if chars.next_if(|&(_, c)| c == '=').is_none() {
            return Err(format!("missing \"=\" after the word at character {}", text_position(text, offset)));
        }
        skip_spaces(&mut chars);
        let value = match chars.next_if(|&(_, c)| c == '\'') {
            Some((quote, _)) => quoted_value(&mut chars)
                .ok_or_else(|| format!("the quote at character {} is never closed", text_position(text, quote)))?,
            None => plain_value(&mut chars),
        };
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("no keyword before the \"=\" that follows character {}", text_position(text, offset)));
        }
        pairs.push((key, value));
    }
}

/// Characters are counted from one.
fn text_position(text: &str, offset: usize) -> usize {
    text.get(..offset).map_or(0, |before| before.chars().count()) + 1
}

fn skip_spaces(chars: &mut Peekable<CharIndices<'_>>) {
    while chars.next_if(|&(_, c)| c.is_ascii_whitespace()).is_some() {}
}

fn keyword(chars: &mut Peekable<CharIndices<'_>>) -> String {
    let mut key = String::new();
    while let Some((_, c)) = chars.next_if(|&(_, c)| c != '=' && !c.is_ascii_whitespace()) {
        key.push(c);
    }
    key
}

fn plain_value(chars: &mut Peekable<CharIndices<'_>>) -> String {
    let mut value = String::new();
    while let Some((_, c)) = chars.next_if(|&(_, c)| !c.is_ascii_whitespace()) {
        // A backslash takes the next character as it is; one at the end takes nothing.
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    value
}

fn quoted_value(chars: &mut Peekable<CharIndices<'_>>) -> Option<String> {
    let mut value = String::new();
    loop {
        match chars.next()?.1 {
            '\'' => return Some(value),
            '\\' => value.push(chars.next()?.1),
            c => value.push(c),
        }
    }
}

// --- URL ---

fn url_pairs(rest: &str) -> Result<Pairs, String> {
    let mut pairs = Pairs::new();
    let rest = match user_part(rest) {
        Some((credentials, rest)) => {
            credential_pairs(credentials, &mut pairs)?;
            rest
        }
        None => rest,
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (hosts, dbname) = rest.split_once('/').map_or((rest, None), |(hosts, dbname)| (hosts, Some(dbname)));
    host_pairs(hosts, &mut pairs)?;
    if let Some(dbname) = dbname.filter(|dbname| !dbname.is_empty()) {
        // libpq would take it. But here it is nearly always the end of a password, and a database's name is printed.
        if dbname.contains(['@', '/']) {
            return Err(
                "\"@\" and \"/\" in a password or a database's name are written %40 and %2F in a URL".to_owned()
            );
        }
        pairs.push(("dbname".to_owned(), decoded(dbname, "the database's name")?));
    }
    query.map_or(Ok(()), |query| query_pairs(query, &mut pairs))?;
    Ok(pairs)
}

/// What stands before an `@`, unless a `/` comes first.
fn user_part(rest: &str) -> Option<(&str, &str)> {
    let end = rest.find(['@', '/'])?;
    rest.get(end..)?.strip_prefix('@').and_then(|after| Some((rest.get(..end)?, after)))
}

fn credential_pairs(credentials: &str, pairs: &mut Pairs) -> Result<(), String> {
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    for (key, text) in [("user", user), ("password", password)] {
        if !text.is_empty() {
            pairs.push((key.to_owned(), decoded(text, key)?));
        }
    }
    Ok(())
}

fn host_pairs(hosts: &str, pairs: &mut Pairs) -> Result<(), String> {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for entry in hosts.split(',') {
        let (name, port) = match entry.strip_prefix('[') {
            Some(address) => bracketed(address)?,
            None => entry.split_once(':').unwrap_or((entry, "")),
        };
        names.push(decoded(name, "a host's name")?);
        ports.push(decoded(port, "a port")?);
    }
    for (key, list) in [("host", names), ("port", ports)] {
        if list.iter().any(|entry| !entry.is_empty()) {
            pairs.push((key.to_owned(), list.join(",")));
        }
    }
    Ok(())
}

/// An IPv6 address, whose opening bracket is off already, and the port behind it.
fn bracketed(address: &str) -> Result<(&str, &str), String> {
    let (address, after) = address.split_once(']').ok_or("the bracket before an IPv6 address is never closed")?;
    match after.strip_prefix(':') {
        _ if address.is_empty() => Err("there is no address between the brackets".to_owned()),
        Some(port) => Ok((address, port)),
        None if after.is_empty() => Ok((address, "")),
        None => Err("only a port may follow the bracket behind an IPv6 address".to_owned()),
    }
}

fn query_pairs(query: &str, pairs: &mut Pairs) -> Result<(), String> {
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').ok_or("a query parameter without \"=\"")?;
        if value.contains('=') {
            return Err("a query parameter with a second \"=\": write %3D in a value".to_owned());
        }
        let (key, value) = (decoded(key, "a keyword")?, decoded(value, "a query parameter's value")?);
        // JDBC's spelling, which libpq takes too.
        match (key.as_str(), value.as_str()) {
            ("ssl", "true") => pairs.push(("sslmode".to_owned(), "require".to_owned())),
            _ => pairs.push((key, value)),
        }
    }
    Ok(())
}

/// Percent-decodes; what follows a `%` must be two hexadecimal digits, and not zero.
fn decoded(text: &str, what: &str) -> Result<String, String> {
    let mut after_percent = text.split('%').skip(1);
    let valid =
        after_percent.all(|after| after.get(..2).is_some_and(|hex| matches!(u8::from_str_radix(hex, 16), Ok(1..))));
    // `from_str_radix` takes a sign as well.
    if !valid || text.contains("%+") {
        return Err(format!("in {what}, \"%\" must be followed by two hexadecimal digits, and not by 00"));
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| format!("{what} is not UTF-8 after decoding"))?;
    String::from_str(&decoded).map_err(|never| match never {})
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, String)> {
        pairs(text).unwrap()
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn key_value_form() {
        assert_eq!(read(""), []);
        assert_eq!(
            read(r" host = 'a b' port=1 password='it\'s \\' dbname= user=x\ y"),
            // As in libpq: spaces behind "=" do not end an empty value, so the next word becomes it.
            expected(&[("host", "a b"), ("port", "1"), ("password", r"it's \"), ("dbname", "user=x y")])
        );
        assert_eq!(read("a='' b=c\\"), expected(&[("a", ""), ("b", "c")]));
    }

    #[test]
    fn key_value_mistakes_name_a_place_and_nothing_else() {
        for (text, place) in [("password=a hunter2", "12"), ("host=h password='hunter2", "17"), ("hunter2", "1")] {
            let error = pairs(text).unwrap_err();
            assert!(error.contains(&format!("character {place}")) && !error.contains("hunter2"), "{error}");
        }
        assert!(pairs("=a").is_err() && pairs("a-b=c").is_err());
    }

    #[test]
    fn url_form() {
        assert_eq!(read("postgres://"), []);
        assert_eq!(
            read("postgresql://u%40x:p%3A:q@h1:1,[::1],%2Fvar%2Frun:3/d%20b?application_name=a%26b&options=-c%20x%3Dy"),
            expected(&[
                ("user", "u@x"),
                ("password", "p::q"),
                ("host", "h1,::1,/var/run"),
                ("port", "1,,3"),
                ("dbname", "d b"),
                ("application_name", "a&b"),
                ("options", "-c x=y"),
            ])
        );
        assert_eq!(read("postgres:///d?host=/tmp"), expected(&[("dbname", "d"), ("host", "/tmp")]));
        assert_eq!(read("postgres://h?ssl=true"), expected(&[("host", "h"), ("sslmode", "require")]));
        assert_eq!(read("postgres://u@"), expected(&[("user", "u")]));
        assert_eq!(read("postgres://:5433"), expected(&[("port", "5433")]));
    }

    #[test]
    fn url_mistakes() {
        for text in ["[::1", "[]", "[::1]x", "h?a", "h?a=b=c", "h%", "h%0", "h%zz", "h%00", "h%+1", "%FF", "u:p/w@h/d"]
        {
            let error = pairs(&format!("postgres://{text}")).unwrap_err();
            assert!(!error.contains("p/w"), "{error}");
        }
    }

    #[test]
    fn passwords_are_noticed() {
        for text in [
            "postgres://u:p@h/d",
            "postgres://h/d?password=p",
            "postgres://h/d?pass%77ord=p",
            "postgres://u:p/w@h/d",
            "host=h password=p",
            "password = 'p",
            "sslpassword=p",
        ] {
            assert!(password_in_text(text), "{text}");
        }
        for text in ["", "postgres://u@h:1/d", "postgres://u:@h", "host=h", "password=''", "passfile=/x"] {
            assert!(!password_in_text(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".{0,60}", tail in "[a-z:/@?,=&%\\[\\]'\\\\ ]{0,40}") {
            let _ = (pairs(&text), pairs(&format!("postgres://{tail}")), pairs(&tail), password_in_text(&text));
        }

        #[test]
        fn quoted_values_round_trip(values in proptest::collection::vec("[^\\x00]{0,20}", 0..6)) {
            let text: Vec<_> = values
                .iter()
                .map(|value| format!("key='{}'", value.replace('\\', r"\\").replace('\'', r"\'")))
                .collect();
            let read: Vec<_> = read(&text.join(" ")).into_iter().map(|(_, value)| value).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn encoded_values_round_trip(user in "[^\\x00]{1,9}", password in "[^\\x00]{1,9}", dbname in "[^\\x00]{1,9}") {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let url = format!("postgres://{}:{}@h/{}", encode(&user), encode(&password), encode(&dbname));
            prop_assert_eq!(read(&url), expected(&[
                ("user", &user), ("password", &password), ("host", "h"), ("dbname", &dbname),
            ]));
        }
    }
}
