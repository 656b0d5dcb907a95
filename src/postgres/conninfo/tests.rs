use std::collections::HashMap;
use std::io;

use super::*;
use proptest::prelude::*;

/// Made-up surroundings.
#[derive(Default)]
struct World {
    variables: HashMap<&'static str, &'static str>,
    files: HashMap<PathBuf, FileContents>,
}

impl World {
    fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.insert(name, value);
        self
    }

    fn file(mut self, path: &str, text: &str, open_to_others: bool) -> Self {
        let contents = FileContents { text: text.to_owned(), is_regular: true, open_to_others };
        self.files.insert(PathBuf::from(path), contents);
        self
    }

    fn parse(&self, text: &str) -> Result<Conninfo, InvalidConninfo> {
        Conninfo::parse(text, self)
    }

    fn mistakes(&self, text: &str) -> Vec<String> {
        self.parse(text).unwrap_err().mistakes().to_vec()
    }
}

impl Surroundings for World {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|value| (*value).to_owned())
    }

    fn user(&self) -> Option<String> {
        Some("osuser".to_owned())
    }

    fn home(&self) -> Option<PathBuf> {
        Some(PathBuf::from("/home/osuser"))
    }

    fn socket_folder(&self) -> PathBuf {
        PathBuf::from("/run/pg")
    }

    fn file(&self, path: &Path) -> io::Result<Option<FileContents>> {
        Ok(self.files.get(path).cloned())
    }
}

fn shown(conninfo: &Conninfo) -> Vec<String> {
    conninfo.hosts().iter().map(ToString::to_string).collect()
}

fn password(conninfo: &Conninfo, host: usize) -> Option<&str> {
    conninfo.hosts()[host].password().map(Secret::expose)
}

#[test]
fn nothing_given_is_the_local_server() {
    let conninfo = World::default().parse("").unwrap();
    assert_eq!(shown(&conninfo), ["socket /run/pg/.s.PGSQL.5432"]);
    assert_eq!((conninfo.user(), conninfo.dbname(), conninfo.application_name()), ("osuser", "osuser", "outboxd"));
    assert_eq!(conninfo.connect_timeout(), Some(DEFAULT_CONNECT_TIMEOUT));
    assert_eq!(conninfo.keepalives(), Some(Keepalives::default()));
    assert_eq!(conninfo.tcp_user_timeout(), None);
    assert_eq!(conninfo.target_session(), TargetSession::Any);
}

#[test]
fn the_string_counts_before_service_and_environment() {
    let world = World::default()
        .variable("PGUSER", "env")
        .variable("PGDATABASE", "env")
        .variable("PGHOST", "env")
        .variable("PGSERVICE", "s")
        .file("/home/osuser/.pg_service.conf", "[s]\nuser=service\nuser=again\ndbname=service\n", true);
    let conninfo = world.parse("user=text user=last").unwrap();
    assert_eq!((conninfo.user(), conninfo.dbname()), ("last", "service"));
    assert_eq!(shown(&conninfo), ["host env port 5432"]);
    assert_eq!(conninfo.origin("user"), Some(&Origin::Text));
    assert_eq!(conninfo.origin("dbname").unwrap().to_string(), "the service file /home/osuser/.pg_service.conf");
    assert_eq!(conninfo.origin("host"), Some(&Origin::Variable("PGHOST")));
    assert_eq!(conninfo.origin("port"), None);
    assert_eq!(world.parse("service=''").unwrap().dbname(), "service", "an empty name is none");
}

#[test]
fn service_files_are_looked_for_where_libpq_does() {
    let world =
        World::default().variable("PGSYSCONFDIR", "/etc/pg").file("/etc/pg/pg_service.conf", "[s]\nport=1", false);
    assert_eq!(shown(&world.parse("service=s").unwrap()), ["socket /run/pg/.s.PGSQL.1"]);
    assert!(world.mistakes("service=t")[0].contains(".pg_service.conf or /etc/pg/pg_service.conf"));
    let world = World::default().variable("PGSERVICEFILE", "/nowhere");
    assert!(world.mistakes("service=s")[0].contains("/nowhere does not exist"));
}

#[test]
fn several_hosts() {
    let parse = |text: &str| World::default().parse(text).map(|conninfo| shown(&conninfo));
    assert_eq!(
        parse("postgres://a:1,b,[::1]:3/d"),
        Ok(vec!["host a port 1".to_owned(), "host b port 5432".to_owned(), "host ::1 port 3".to_owned(),])
    );
    assert_eq!(
        parse("host=a,/s,,b port=7"),
        Ok(vec![
            "host a port 7".to_owned(),
            "socket /s/.s.PGSQL.7".to_owned(),
            "socket /run/pg/.s.PGSQL.7".to_owned(),
            "host b port 7".to_owned(),
        ])
    );
    assert_eq!(
        parse("host=a,b hostaddr=10.0.0.1,::1"),
        Ok(vec!["host a (10.0.0.1) port 5432".to_owned(), "host b (::1) port 5432".to_owned(),])
    );
    assert!(parse("host=a,b hostaddr=10.0.0.1").is_err());
    assert!(parse("host=a,b port=1,2,3").is_err());
    assert!(parse("hostaddr=name").is_err());
}

#[test]
fn each_host_has_its_password_in_the_file() {
    let lines = "a:*:d:u:one\nlocalhost:5432:*:u:two\n10.0.0.1:*:*:*:three\n";
    let world = World::default().file("/home/osuser/.pgpass", lines, false);
    let conninfo = world.parse("host=a,/run/pg,/elsewhere,10.0.0.1 user=u dbname=d").unwrap();
    let passwords: Vec<_> = (0..4).map(|host| password(&conninfo, host)).collect();
    assert_eq!(passwords, [Some("one"), Some("two"), None, Some("three")]);
    assert_eq!(password(&world.parse("host=a user=u dbname=d password=given").unwrap(), 0), Some("given"));
    assert_eq!(password(&world.parse("host=a user=u dbname=d passfile=/none").unwrap(), 0), None);
}

#[test]
fn a_password_file_that_others_may_read_is_ignored_with_a_warning() {
    let world = World::default().variable("PGPASSFILE", "/p").file("/p", "*:*:*:*:x", true);
    let conninfo = world.parse("host=a").unwrap();
    assert_eq!(password(&conninfo, 0), None);
    assert!(conninfo.warnings()[0].contains("/p") && conninfo.warnings()[0].contains("0600"));
}

#[test]
fn times_and_numbers() {
    let conninfo = World::default()
        .variable("PGCONNECT_TIMEOUT", "3")
        .parse("keepalives_idle=5 keepalives_interval=0 keepalives_count=2 tcp_user_timeout=1500 options='-c a=b'")
        .unwrap();
    let keepalives = Keepalives { idle: Some(Duration::from_secs(5)), interval: None, count: Some(2) };
    assert_eq!(conninfo.keepalives(), Some(keepalives));
    assert_eq!(conninfo.connect_timeout(), Some(Duration::from_secs(3)));
    assert_eq!(conninfo.tcp_user_timeout(), Some(Duration::from_millis(1500)));
    assert_eq!(conninfo.options(), "-c a=b");
    let conninfo = World::default().parse("keepalives=0 connect_timeout=0 target_session_attrs=primary").unwrap();
    assert_eq!((conninfo.keepalives(), conninfo.connect_timeout()), (None, None));
    assert_eq!(conninfo.target_session(), TargetSession::Primary);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let world = World::default().variable("PGSSLMODE", "verify-full");
    let mistakes = world.mistakes("sslrootcert=/x no_such=1 port=0 connect_timeout=soon target_session_attrs=master");
    for name in
        ["sslmode from PGSSLMODE", "sslrootcert", "\"no_such\"", "port:", "connect_timeout:", "target_session_attrs:"]
    {
        assert!(mistakes.iter().any(|mistake| mistake.contains(name)), "{name} in {mistakes:?}");
    }
    assert_eq!(mistakes.len(), 6, "{mistakes:?}");
}

#[test]
fn passwords_in_wrong_places_are_not_shown() {
    for text in [
        "postgres://u:hunt/er2@h/d",
        "postgres://u:hunt@er2@h/d",
        "postgres://u:12/er2@h/d",
        "password=hunt er2",
        "password='hunt er2",
        "sslmode=hunt_er2",
        "port=hunt_er2",
        "connect_timeout=hunt_er2",
    ] {
        let error = World::default().parse(text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("er2"), "{error}");
    }
}

#[test]
fn passwords_are_not_printed() {
    let world = World::default().variable("PGPASSWORD", "hunter2");
    for text in ["host=a", "host=a password=hunter2", "postgres://u:hunter2@a"] {
        let conninfo = world.parse(text).unwrap();
        assert_eq!(password(&conninfo, 0), Some("hunter2"));
        assert!(!format!("{conninfo} {conninfo:?}").contains("hunter2"));
    }
}

#[test]
fn load_balancing_tries_every_host_once() {
    let conninfo = World::default().parse("host=a,b,c load_balance_hosts=random").unwrap();
    let mut attempts = conninfo.attempts();
    attempts.sort_unstable();
    assert_eq!(attempts, [0, 1, 2]);
    assert_eq!(World::default().parse("host=a,b").unwrap().attempts(), [0, 1]);
}

proptest! {
    #[test]
    fn arbitrary_strings_never_panic(text in "[a-z_=', /:@0-9%\\\\]{0,60}") {
        let _ = World::default().parse(&text);
        let _ = World::default().parse(&format!("postgres://{text}"));
    }

    #[test]
    fn both_forms_mean_the_same(host in "[a-z]{1,8}", port in 1u16.., user in "[a-zé'@:/ ]{1,8}", dbname in "[a-z ?&=%]{1,8}") {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let quote = |text: &str| format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"));
        let url = format!("postgres://{}@{host}:{port}/{}", encode(&user), encode(&dbname));
        let pairs = format!("host={host} port={port} user={} dbname={}", quote(&user), quote(&dbname));
        let (url, pairs) = (World::default().parse(&url).unwrap(), World::default().parse(&pairs).unwrap());
        prop_assert_eq!(url.to_string(), pairs.to_string());
        prop_assert_eq!((url.user(), url.dbname()), (&*user, &*dbname));
    }
}
