//! The connection service file.
//!
//! <https://www.postgresql.org/docs/current/libpq-pgservice.html>

use std::path::{Path, PathBuf};

use super::surroundings::Surroundings;
use super::syntax::Pairs;

/// Where libpq of Debian and its kin looks for the file of the whole machine.
const MACHINE_FOLDER: &str = "/etc/postgresql-common";

/// The settings of a service, and the file that has them: the user's file, or else the machine's.
pub(super) fn settings(service: &str, surroundings: &impl Surroundings) -> Result<(PathBuf, Pairs), String> {
    let mut looked_at = Vec::new();
    for (path, must_exist) in places(surroundings) {
        let shown = path.display().to_string();
        let file = surroundings.file(&path).map_err(|error| format!("the service file {shown}: {error}"))?;
        match file {
            Some(file) => {
                if let Some(pairs) = section(&file.text, service).map_err(|mistake| format!("{shown}, {mistake}"))? {
                    return Ok((path, pairs));
                }
            }
            None if must_exist => return Err(format!("the service file {shown} does not exist")),
            None => {}
        }
        looked_at.push(shown);
    }
    Err(format!("the service {service:?} is not defined in {}", looked_at.join(" or ")))
}

fn places(surroundings: &impl Surroundings) -> Vec<(PathBuf, bool)> {
    let of_user = match surroundings.variable("PGSERVICEFILE") {
        Some(path) => Some((PathBuf::from(path), true)),
        None => surroundings.home().map(|home| (home.join(".pg_service.conf"), false)),
    };
    let folder = surroundings.variable("PGSYSCONFDIR").map_or_else(|| PathBuf::from(MACHINE_FOLDER), PathBuf::from);
    of_user.into_iter().chain([(Path::new(&folder).join("pg_service.conf"), false)]).collect()
}

/// The pairs below `[service]`, up to the next section.
fn section(text: &str, service: &str) -> Result<Option<Pairs>, String> {
    let header = format!("[{service}]");
    let mut lines = text.lines().map(str::trim).enumerate().skip_while(|(_, line)| !line.starts_with(&header));
    if lines.next().is_none() {
        return Ok(None);
    }
    let mut pairs = Pairs::new();
    for (index, line) in lines.take_while(|(_, line)| !line.starts_with('[')) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("line {}", index + 1);
        let (key, value) = line.split_once('=').ok_or_else(|| format!("{place}: there is no \"=\""))?;
        match key {
            "service" => return Err(format!("{place}: a service cannot name a service")),
            key if key.starts_with("ldap") => return Err(format!("{place}: looking up by LDAP is not supported")),
            key => pairs.push((key.to_owned(), value.to_owned())),
        }
    }
    Ok(Some(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# c\n[other]\nhost=o\n[mine]\n  host=h  \n\n# c\noptions=-c a=b\n[last]\nhost=l\n";

    #[test]
    fn a_section_ends_at_the_next() {
        let pairs = section(FILE, "mine").unwrap().unwrap();
        assert_eq!(pairs, [("host".to_owned(), "h".to_owned()), ("options".to_owned(), "-c a=b".to_owned())]);
        assert_eq!(section(FILE, "min").unwrap(), None);
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, words) in [
            ("[s]\nhost", "line 2: there is no"),
            ("[s]\n\nservice=x", "line 3: a service"),
            ("[s]\nldap://x?y=z", "line 2: looking up"),
        ] {
            assert!(section(text, "s").unwrap_err().starts_with(words));
        }
    }
}
