//! The measured processes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::backlog::{Feed, SLOT};
use super::failure::Failure;
use super::stage::Stage;
use super::topic::Topic;
use super::way::Way;

/// outboxd or `pg_recvlogical`, on the slot of the run. Killed when it is dropped or when this program ends.
pub(crate) struct Measured {
    child: Child,
    name: &'static str,
    log: PathBuf,
}

impl Measured {
    /// outboxd with its defaults, but for what a user must name.
    pub(crate) fn outboxd(stage: &Stage, feed: &Feed, way: Way, topic: &Topic, flags: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&stage.outboxd).arg("run").args(["--slot", SLOT]);
        command.args(["--publication", feed.publication, "--table", feed.table]);
        command.args(["--brokers", &stage.kafka.bootstrap(), "--topic", topic.name()]).args(flags);
        command.env("OUTBOXD_DATABASE_URL", stage.conninfo(way));
        Self::spawn(command, "outboxd", stage.file("outboxd.log"))
    }

    /// `pg_recvlogical` that throws away what it reads, up to the end of the backlog.
    pub(crate) fn pg_recvlogical(stage: &Stage, feed: &Feed, way: Way, end: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&stage.pg_recvlogical).args(["--start", "--slot", SLOT, "--no-loop"]);
        command.args(["--file", "/dev/null", "--endpos", end, "--option", "proto_version=1"]);
        command.args(["--option", &format!("publication_names={}", feed.publication)]);
        command.args(["--dbname", &stage.conninfo(way)]);
        Self::spawn(command, "pg_recvlogical", stage.file("pg_recvlogical.log"))
    }

    fn spawn(mut command: Command, name: &'static str, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { child, name, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, which only `pg_recvlogical` may, and only without an error.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Failure> {
        match self.child.try_wait().unwrap() {
            None => Ok(false),
            Some(status) if status.success() && self.name != "outboxd" => Ok(true),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// SIGTERM, and its end.
    pub(crate) async fn terminate(mut self) -> Result<(), Failure> {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            match self.child.try_wait().unwrap() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended(status)),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        Err(Failure::new(format!("{} does not end:\n{}", self.name, tail(&self.log))))
    }

    fn ended(&self, status: ExitStatus) -> Failure {
        Failure::new(format!("{} ended ({status}):\n{}", self.name, tail(&self.log)))
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
