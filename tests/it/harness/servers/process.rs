//! A server as plain processes of this machine.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use rustix::process::{Pid, kill_process};

use super::machine::{Machine, Recipe, Signal};
use super::session::{is_root, package};
use super::wait::until;

/// The user `nobody` and its group.
const NOBODY: u32 = 65_534;

/// A server whose processes all have their working folder in `folder`; by that they are found.
pub(super) struct Process {
    recipe: Recipe,
    folder: PathBuf,
    main: Mutex<Child>,
}

impl Process {
    /// Starts a server that keeps its data in the folder.
    pub(super) fn boot(recipe: Recipe, folder: PathBuf) -> Self {
        give_away(&folder);
        let main = Mutex::new(spawn(&recipe, &folder));
        Self { recipe, folder, main }
    }

    /// Signals the main process, if it has not ended. Its id is not reused before `try_wait` has seen its end.
    fn send(&self, signal: rustix::process::Signal) {
        let mut main = self.main.lock().unwrap();
        if main.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&main), signal).unwrap();
        }
    }

    fn send_to_all(&self, signal: rustix::process::Signal) {
        for process in processes_in(&self.folder) {
            // One that has ended meanwhile is no error.
            let _ = kill_process(process, signal);
        }
    }

    fn kill_now(&self) {
        // A main process that stands still has no more children than those found.
        self.send(rustix::process::Signal::STOP);
        self.send_to_all(rustix::process::Signal::KILL);
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }
}

impl Machine for Process {
    fn start(&self) -> BoxFuture<'_, ()> {
        async { *self.main.lock().unwrap() = spawn(&self.recipe, &self.folder) }.boxed()
    }

    fn signal(&self, signal: Signal) -> BoxFuture<'_, ()> {
        async move {
            self.send(match signal {
                Signal::Interrupt => rustix::process::Signal::INT,
                Signal::Quit => rustix::process::Signal::QUIT,
            });
        }
        .boxed()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async {
            self.kill_now();
            until("the end of killed processes", Duration::from_secs(10), || async {
                if self.is_running().await { Err("some run") } else { Ok(()) }
            })
            .await;
        }
        .boxed()
    }

    fn pause(&self) -> BoxFuture<'_, ()> {
        async { self.send_to_all(rustix::process::Signal::STOP) }.boxed()
    }

    fn unpause(&self) -> BoxFuture<'_, ()> {
        async { self.send_to_all(rustix::process::Signal::CONT) }.boxed()
    }

    fn is_running(&self) -> BoxFuture<'_, bool> {
        async { self.main.lock().unwrap().try_wait().unwrap().is_none() || !processes_in(&self.folder).is_empty() }
            .boxed()
    }

    fn log(&self) -> BoxFuture<'_, String> {
        async { String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned() }.boxed()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_now();
        let _ = self.main.lock().unwrap().wait();
        // Whatever cannot be removed yet is left to the end of the session.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes the folder the server's own; PostgreSQL refuses to run as root.
pub(super) fn give_away(folder: &Path) {
    if is_root() {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn spawn(recipe: &Recipe, folder: &Path) -> Child {
    let package = package(&recipe.package.0);
    let program = package.join(recipe.package.1);
    let log: File = OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = Command::new(&program);
    command
        .args(&recipe.arguments)
        .env_clear()
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", package.join("bin").display()))
        .env("LANG", "C.UTF-8")
        .envs(recipe.variables.iter().cloned())
        .current_dir(folder)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()))
}

/// The processes whose working folder is the given one or lies in it; none that has ended and was not waited for.
fn processes_in(folder: &Path) -> Vec<Pid> {
    let pid = |name: &str| name.parse().ok().and_then(Pid::from_raw);
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let inside =
        entries.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)));
    inside.filter_map(|entry| pid(&entry.file_name().to_string_lossy())).collect()
}
