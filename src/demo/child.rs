//! Child processes that do not outlive the demo.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::process::Command;

use super::error::Error;

/// A command whose process gets this signal when the demo dies, whatever it dies of. Ctrl-C on the terminal is for the demo
/// alone, so the process is in a group of its own.
pub(super) fn command(program: impl AsRef<OsStr>, signal_at_death: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal_at_death, "--"]).arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// What to say when a command of [`command`] could not be started.
pub(super) fn not_started(error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Error::Missing("setpriv is missing; it is in the package util-linux".to_owned());
    }
    Error::failed("cannot start setpriv", error)
}
