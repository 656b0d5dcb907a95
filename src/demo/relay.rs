//! The relay as a child process: this very program with the command `run`.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use super::error::Error;
use super::{child, locked};

/// How many of its last lines are kept.
const TAIL: usize = 15;

/// How long it may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How to start it.
pub(super) struct RelayCommand {
    /// The database, which goes into its environment: it may hold a password.
    pub(super) url: String,
    /// The arguments of `run`.
    pub(super) arguments: Vec<String>,
    /// Whether the environment's settings for libpq are meant for it.
    pub(super) database_is_own: bool,
    /// Whether the environment's settings for librdkafka are.
    pub(super) brokers_are_own: bool,
}

/// It runs, or has ended.
pub(super) struct Relay {
    child: Child,
    is_ready: Arc<AtomicBool>,
    tail: Arc<Mutex<VecDeque<String>>>,
}

impl RelayCommand {
    /// Starts it.
    pub(super) fn start(&self) -> Result<Relay, Error> {
        let program = std::env::current_exe().map_err(|error| Error::failed("where this program is", error))?;
        let mut command = child::command(program, "KILL");
        self.clean_environment(&mut command);
        command.arg("run").args(&self.arguments).env("OUTBOXD_DATABASE_URL", &self.url);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| child::not_started(&error))?;
        let (is_ready, tail) = (Arc::<AtomicBool>::default(), Arc::<Mutex<VecDeque<String>>>::default());
        if let Some(log) = child.stderr.take() {
            tokio::spawn(read(BufReader::new(log), is_ready.clone(), tail.clone()));
        }
        Ok(Relay { child, is_ready, tail })
    }

    /// What the owner has set for a relay of their own, such as another table, is not for this one.
    fn clean_environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_for_database = text.starts_with("PG") && self.database_is_own;
            let is_for_brokers = text.starts_with("OUTBOXD_KAFKA_") && self.brokers_are_own;
            if (text.starts_with("PG") || text.starts_with("OUTBOXD_")) && !is_for_database && !is_for_brokers {
                command.env_remove(&name);
            }
        }
    }
}

impl Relay {
    /// It streams.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    /// Its process id, while it runs.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// # Errors
    /// It has ended by itself; with its last words.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::failed("the relay ended", format_args!("{status}\n{}", self.last_words()))),
            Err(error) => Err(Error::failed("the relay", error)),
        }
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        locked(&self.tail).iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// SIGKILL.
    pub(super) async fn kill(mut self) {
        // Fails only when it has ended.
        let _ = self.child.kill().await;
    }

    /// SIGTERM, and its end.
    pub(super) async fn terminate(mut self) -> Result<(), Error> {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended already, which its status tells.
            let _ = kill_process(pid, Signal::TERM);
        }
        match timeout(STOP_LIMIT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(Error::failed("the relay ended", format_args!("{status}\n{}", self.last_words()))),
            Ok(Err(error)) => Err(Error::failed("the relay", error)),
            Err(_) => Err(Error::failed("the relay does not end", self.last_words())),
        }
    }
}

async fn read(log: BufReader<ChildStderr>, is_ready: Arc<AtomicBool>, tail: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = log.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains("ready: ") {
            is_ready.store(true, Ordering::Relaxed);
        }
        let mut tail = locked(&tail);
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}
