//! The program under test as a child process.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::servers::until;

/// How to start it.
#[derive(Clone, Debug)]
pub(crate) struct RelayCommand {
    pub(crate) database_url: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) failpoints: String,
    pub(crate) variables: Vec<(String, String)>,
}

impl RelayCommand {
    /// With a further flag and its value.
    pub(crate) fn flag(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// With failpoints, as in `OUTBOXD_FAILPOINTS`.
    pub(crate) fn failpoints(mut self, failpoints: &str) -> Self {
        failpoints.clone_into(&mut self.failpoints);
        self
    }

    /// With a variable of the environment.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it.
    pub(crate) fn start(&self) -> Relay {
        // The process ends with the test's thread that started it, whatever that dies of.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_outboxd"), "run"])
            .args(&self.arguments)
            .env("OUTBOXD_DATABASE_URL", &self.database_url)
            .env("OUTBOXD_FAILPOINTS", &self.failpoints)
            .env("OUTBOXD_LOG", "outboxd=debug,librdkafka=info")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let reader = tokio::spawn({
            let log = log.clone();
            async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    log.lock().unwrap().push(line);
                }
            }
        });
        Relay { child, log, reader }
    }
}

/// It runs, or has ended.
pub(crate) struct Relay {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Ends with the log.
    reader: JoinHandle<()>,
}

impl Relay {
    /// Waits until it streams.
    pub(crate) async fn ready(&mut self) {
        self.logged("ready: ").await;
    }

    /// Waits for a line with this text, unless it ends before.
    pub(crate) async fn logged(&mut self, text: &str) {
        let log = self.log.clone();
        let ended = Mutex::new(&mut self.child);
        until(&format!("the relay's log to say {text:?}"), Duration::from_secs(60), || async {
            let is_there = log.lock().unwrap().iter().any(|line| line.contains(text));
            if is_there {
                return Ok(());
            }
            if let Ok(Some(status)) = ended.lock().unwrap().try_wait() {
                panic!("the relay ended ({status}) before it said {text:?}:\n{}", tail(&log));
            }
            Err("not yet")
        })
        .await;
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// `kill -9`.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM, and its end. It must be ready: before that a signal ends it as any process.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        assert!(self.log().contains("ready: "), "the relay is not ready to be stopped:\n{}", self.log());
        self.signal(Signal::TERM);
        self.ended(Duration::from_secs(20)).await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            kill_process(pid, signal).unwrap();
        }
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(&mut self, limit: Duration) -> ExitStatus {
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => {
                (&mut self.reader).await.unwrap();
                status.unwrap()
            }
            Err(_) => panic!("the relay did not end within {limit:?}:\n{}", tail(&self.log)),
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The most memory that it has had, in MiB.
    pub(crate) fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the relay's log ends with:\n{}", tail(&self.log));
        }
    }
}

fn tail(log: &Mutex<Vec<String>>) -> String {
    let log = log.lock().unwrap();
    log.iter().skip(log.len().saturating_sub(40)).cloned().collect::<Vec<_>>().join("\n")
}
