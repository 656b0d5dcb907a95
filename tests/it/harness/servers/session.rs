//! This test process as the owner of servers: what it leaves behind is removed when it ends, however it ends.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// Names of this test process and its folder.
pub(super) struct Session {
    id: String,
    folder: PathBuf,
    _reaper: Child,
}

/// The session; begins when it is first asked for.
pub(super) fn session() -> &'static Session {
    static SESSION: OnceLock<Session> = OnceLock::new();
    SESSION.get_or_init(Session::begin)
}

impl Session {
    fn begin() -> Self {
        let id = format!("{}-{:08x}", process::id(), fastrand::u32(..));
        let folder = home().join("run").join(&id);
        fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        // Its standard input ends together with this process, also after a kill -9; statics, such as shared servers, are never
        // dropped. A process group of its own keeps Ctrl-C away from it.
        let reaper = std::os::unix::process::CommandExt::process_group(&mut Command::new(script("clean.sh")), 0)
            .arg("--after-input")
            .arg(&id)
            .env("OUTBOXD_TEST_HOME", home())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash runs tests/servers/clean.sh");
        Self { id, folder, _reaper: reaper }
    }

    /// What the containers of this process are labelled with.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// A new folder, named after what will lie in it.
    pub(super) fn new_folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.join(unique(name));
        fs::create_dir(&folder).unwrap_or_else(|error| panic!("cannot make {}: {error}", folder.display()));
        folder
    }
}

/// A name that no other caller gets, in this process or in another one that uses the same server.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(1);
    format!("{prefix}_{}_{}", process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// A TCP port that is free and stays so while its server is down: outside the range from which the system takes ports for connections.
pub(super) fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(fastrand::u32(..)));
    for _ in 0..10_000 {
        let port = 10_000 + (next.fetch_add(1, Ordering::Relaxed) % 20_000) as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no free TCP port between 10000 and 30000")
}

/// The unpacked binaries of a server; tests/servers/binaries.sh puts them there.
pub(super) fn package(name: &str) -> PathBuf {
    let folder = home().join("packages").join(name);
    assert!(folder.exists(), "{} is missing; tests/run.sh prepares it", folder.display());
    folder
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers").join(name)
}

/// The same folder as in tests/servers/env.sh.
fn home() -> PathBuf {
    let user_home = || env::home_dir().expect("a home folder").join(".cache/outboxd-tests");
    let default = || if is_root() { PathBuf::from("/var/cache/outboxd-tests") } else { user_home() };
    env::var_os("OUTBOXD_TEST_HOME").map_or_else(default, PathBuf::from)
}

/// PostgreSQL refuses to run as root.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
