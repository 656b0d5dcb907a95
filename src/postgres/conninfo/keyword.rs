//! The keywords of a connection string, and what becomes of each here.
//!
//! The list is libpq's of PostgreSQL 18. Nothing is ignored: what a value asks for is either done or refused.
//! <https://www.postgresql.org/docs/18/libpq-connect.html#LIBPQ-PARAMKEYWORDS>

/// A keyword, and the environment variable that stands in for it.
pub(super) struct Keyword {
    pub(super) name: &'static str,
    pub(super) variable: Option<&'static str>,
    rule: Rule,
}

/// What values a keyword may have. An empty value is always as good as none.
enum Rule {
    /// Read and checked where it is used.
    Used,
    /// Only these values ask for nothing that is missing here.
    Only(&'static [&'static str], &'static str),
    /// Whatever it is, it is not there; the text says why.
    Refused(&'static str),
}

use Rule::{Only, Refused, Used};

const NO_TLS: &str = "encrypted connections are not supported yet";
const NO_GSS: &str = "GSSAPI is not supported";
const NO_OAUTH: &str = "OAuth is not supported";
const PROTOCOL: &str = "outboxd speaks protocol version 3.0";

/// Every keyword.
pub(super) const KEYWORDS: &[Keyword] = &[
    keyword("service", Some("PGSERVICE"), Used),
    keyword("user", Some("PGUSER"), Used),
    keyword("password", Some("PGPASSWORD"), Used),
    keyword("passfile", Some("PGPASSFILE"), Used),
    keyword("dbname", Some("PGDATABASE"), Used),
    keyword("host", Some("PGHOST"), Used),
    keyword("hostaddr", Some("PGHOSTADDR"), Used),
    keyword("port", Some("PGPORT"), Used),
    keyword("options", Some("PGOPTIONS"), Used),
    keyword("application_name", Some("PGAPPNAME"), Used),
    keyword("fallback_application_name", None, Used),
    keyword("connect_timeout", Some("PGCONNECT_TIMEOUT"), Used),
    keyword("keepalives", None, Used),
    keyword("keepalives_idle", None, Used),
    keyword("keepalives_interval", None, Used),
    keyword("keepalives_count", None, Used),
    keyword("tcp_user_timeout", None, Used),
    keyword("target_session_attrs", Some("PGTARGETSESSIONATTRS"), Used),
    keyword("load_balance_hosts", Some("PGLOADBALANCEHOSTS"), Used),
    keyword("client_encoding", None, Only(&["UTF8", "utf8", "UTF-8", "utf-8", "auto"], "outboxd always uses UTF8")),
    keyword("replication", None, Refused("outboxd sets it where it is needed")),
    keyword("min_protocol_version", Some("PGMINPROTOCOLVERSION"), Only(&["3.0"], PROTOCOL)),
    keyword("max_protocol_version", Some("PGMAXPROTOCOLVERSION"), Only(&["3.0", "3.2", "latest"], PROTOCOL)),
    keyword("sslmode", Some("PGSSLMODE"), Only(&["disable", "allow", "prefer"], NO_TLS)),
    keyword("requiressl", Some("PGREQUIRESSL"), Only(&["0"], NO_TLS)),
    keyword("sslnegotiation", Some("PGSSLNEGOTIATION"), Only(&["postgres"], NO_TLS)),
    keyword("sslcompression", Some("PGSSLCOMPRESSION"), Only(&["0"], NO_TLS)),
    keyword("sslcertmode", Some("PGSSLCERTMODE"), Only(&["disable", "allow"], NO_TLS)),
    keyword("sslsni", Some("PGSSLSNI"), Only(&["0", "1"], NO_TLS)),
    keyword("sslcert", Some("PGSSLCERT"), Refused(NO_TLS)),
    keyword("sslkey", Some("PGSSLKEY"), Refused(NO_TLS)),
    keyword("sslpassword", None, Refused(NO_TLS)),
    keyword("sslrootcert", Some("PGSSLROOTCERT"), Refused(NO_TLS)),
    keyword("sslcrl", Some("PGSSLCRL"), Refused(NO_TLS)),
    keyword("sslcrldir", Some("PGSSLCRLDIR"), Refused(NO_TLS)),
    keyword("sslkeylogfile", None, Refused(NO_TLS)),
    keyword("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION"), Refused(NO_TLS)),
    keyword("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION"), Refused(NO_TLS)),
    keyword("channel_binding", Some("PGCHANNELBINDING"), Only(&["disable", "prefer"], NO_TLS)),
    keyword("requirepeer", Some("PGREQUIREPEER"), Refused("the peer's user is not looked at yet")),
    keyword("require_auth", Some("PGREQUIREAUTH"), Refused("the method of authentication cannot be required yet")),
    keyword("scram_client_key", None, Refused("use a password")),
    keyword("scram_server_key", None, Refused("use a password")),
    keyword("gssencmode", Some("PGGSSENCMODE"), Only(&["disable", "prefer"], NO_GSS)),
    keyword("gssdelegation", Some("PGGSSDELEGATION"), Only(&["0"], NO_GSS)),
    keyword("krbsrvname", Some("PGKRBSRVNAME"), Refused(NO_GSS)),
    keyword("gsslib", Some("PGGSSLIB"), Refused(NO_GSS)),
    keyword("oauth_issuer", None, Refused(NO_OAUTH)),
    keyword("oauth_client_id", None, Refused(NO_OAUTH)),
    keyword("oauth_client_secret", None, Refused(NO_OAUTH)),
    keyword("oauth_scope", None, Refused(NO_OAUTH)),
];

const fn keyword(name: &'static str, variable: Option<&'static str>, rule: Rule) -> Keyword {
    Keyword { name, variable, rule }
}

/// The keyword of that name.
pub(super) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|keyword| keyword.name == name)
}

impl Keyword {
    /// Why this value cannot be served, if it cannot. The value itself is left out, for it may be a slip of the keyboard
    /// that belongs to a password.
    pub(super) fn objection(&self, value: &str) -> Option<String> {
        match self.rule {
            _ if value.is_empty() => None,
            Used => None,
            Only(values, _) if values.contains(&value) => None,
            Only(values, why) => Some(format!("{why}; only {} can be served", values.join(", "))),
            Refused(why) => Some(why.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_variables_are_unique() {
        let names: HashSet<_> = KEYWORDS.iter().map(|keyword| keyword.name).collect();
        let variables: HashSet<_> = KEYWORDS.iter().filter_map(|keyword| keyword.variable).collect();
        assert_eq!(names.len(), KEYWORDS.len());
        assert_eq!(variables.len(), KEYWORDS.iter().filter(|keyword| keyword.variable.is_some()).count());
    }

    #[test]
    fn what_is_missing_is_refused() {
        for (name, value) in [("sslmode", "verify-full"), ("channel_binding", "require"), ("sslrootcert", "/x")] {
            assert!(find(name).unwrap().objection(value).unwrap().contains("encrypted"), "{name}");
        }
        for (name, value) in [("sslmode", "prefer"), ("sslrootcert", ""), ("host", "x")] {
            assert_eq!(find(name).unwrap().objection(value), None, "{name}");
        }
    }
}
