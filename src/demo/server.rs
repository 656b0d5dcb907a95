//! A private PostgreSQL: its binaries, its cluster, its process.
//!
//! It listens on a unix socket in a folder that only its user (and root) can enter, so it needs no password and no port.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::child;
use super::error::Error;
use crate::postgres::conninfo::{Conninfo, FileContents, Surroundings};
use crate::postgres::sql;

/// The user `nobody` and its group: PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// How long a start or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that runs, or has run.
pub(super) struct Server {
    child: Child,
    url: String,
    conninfo: Conninfo,
}

impl Server {
    /// Makes a cluster in the folder and starts a server on it.
    pub(super) async fn start(bin: &Path, folder: &Path) -> Result<Self, Error> {
        let home = folder.join("postgres");
        let made = DirBuilder::new().mode(0o700).create(&home);
        made.map_err(|error| Error::failed(home.display(), error))?;
        if geteuid().is_root() {
            chown(&home, Some(NOBODY), Some(NOBODY)).map_err(|error| Error::failed(home.display(), error))?;
        }
        let log_path = folder.join("postgres.log");
        init(bin, &home, &log_path).await?;
        let host = home.display().to_string().replace('\\', r"\\").replace('\'', r"\'");
        let url = format!("host='{host}' user=postgres dbname=postgres");
        let conninfo = Conninfo::parse(&url, &Nowhere).map_err(|error| Error::failed("the private server", error))?;
        let mut server = Self { child: spawn(bin, &home, &log_path)?, url, conninfo };
        server.ready(&log_path).await?;
        Ok(server)
    }

    /// A connection string of its superuser.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The same, parsed.
    pub(super) const fn conninfo(&self) -> &Conninfo {
        &self.conninfo
    }

    async fn ready(&mut self, log: &Path) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let Err(error) = sql::connect(&self.conninfo).await else { return Ok(()) };
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if has_ended || Instant::now() >= until {
                return Err(Error::failed("PostgreSQL does not start", format_args!("{error}\n{}", tail(log))));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops it and waits for its end: with its data in good order, or at once.
    pub(super) async fn stop(mut self, in_order: bool) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // Its own names for these: fast and immediate. It may have ended already.
            let _ = kill_process(pid, if in_order { Signal::INT } else { Signal::QUIT });
        }
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

async fn init(bin: &Path, home: &Path, log: &Path) -> Result<(), Error> {
    let mut command = command(bin, "initdb", "KILL", home, log)?;
    command.arg("-D").arg(home.join("data")).kill_on_drop(true).args([
        "--username=postgres",
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
        "--no-instructions",
    ]);
    let status = command.status().await.map_err(|error| child::not_started(&error))?;
    if status.success() {
        return Ok(());
    }
    let hint = "if a folder cannot be entered, set TMPDIR to one that every user can enter";
    Err(Error::failed("initdb failed", format_args!("{status} ({hint})\n{}", tail(log))))
}

fn spawn(bin: &Path, home: &Path, log: &Path) -> Result<Child, Error> {
    // QUIT is PostgreSQL's immediate shutdown: no child and no shared memory stay.
    let mut command = command(bin, "postgres", "QUIT", home, log)?;
    command.arg("-D").arg(home.join("data"));
    let socket = format!("unix_socket_directories={}", home.display());
    for setting in ["wal_level=logical", "fsync=off", "listen_addresses=", "max_wal_size=256MB", &socket] {
        command.args(["-c", setting]);
    }
    command.spawn().map_err(|error| child::not_started(&error))
}

/// One of PostgreSQL's programs, as a user that it accepts, away from the settings of its owner's environment.
fn command(bin: &Path, program: &str, signal_at_death: &str, home: &Path, log: &Path) -> Result<Command, Error> {
    let open = || File::options().create(true).append(true).open(log);
    let (out, err) = open().and_then(|out| Ok((out, open()?))).map_err(|error| Error::failed(log.display(), error))?;
    let mut command = child::command(bin.join(program), signal_at_death);
    command.current_dir(home).env_clear().stdout(Stdio::from(out)).stderr(Stdio::from(err));
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ok(command)
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let log = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(15)).copied().collect::<Vec<_>>().join("\n")
}

/// The folder with PostgreSQL's server programs: the one given, else the first of PATH, else the newest where distributions
/// put them.
pub(super) fn find_programs(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(bin) = given {
        let missing = || format!("--postgres-bin: {} has not both initdb and postgres", bin.display());
        // The server runs in another folder.
        let absolute = std::path::absolute(bin).unwrap_or_else(|_| bin.to_owned());
        return if has_programs(bin) { Ok(absolute) } else { Err(Error::Missing(missing())) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = std::env::split_paths(&path).filter(|bin| bin.is_absolute()).collect();
    found.extend(distribution_folders());
    found.into_iter().find(|bin| has_programs(bin)).ok_or_else(|| {
        Error::Missing(
            "PostgreSQL's server programs (initdb, postgres) are not in PATH and not in /usr/lib/postgresql; install them \
             (deploy/demo.sh does), name their folder with --postgres-bin, or use your own server with --database-url"
                .to_owned(),
        )
    })
}

fn has_programs(bin: &Path) -> bool {
    bin.join("initdb").is_file() && bin.join("postgres").is_file()
}

/// `bin` of every version of Debian's and of Red Hat's packages, newest first.
fn distribution_folders() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix) in [("/usr/lib/postgresql", ""), ("/usr", "pgsql-")] {
        for entry in fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(version) = name.strip_prefix(prefix).and_then(|version| version.parse().ok()) {
                versions.push((version, entry.path().join("bin")));
            }
        }
    }
    versions.sort_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, bin)| bin).collect()
}

/// The private server has nothing to do with what its owner's environment says about others.
struct Nowhere;

impl Surroundings for Nowhere {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn user(&self) -> Option<String> {
        None
    }

    fn home(&self) -> Option<PathBuf> {
        None
    }

    fn socket_folder(&self) -> PathBuf {
        std::env::temp_dir()
    }

    fn file(&self, _: &Path) -> std::io::Result<Option<FileContents>> {
        Ok(None)
    }
}
