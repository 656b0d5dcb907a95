//! What a server runs in: a container or a plain process, both with the same small set of powers over it.

use futures_util::future::BoxFuture;

/// How to start one server. Image and package understand the same variables and arguments.
pub(super) struct Recipe {
    /// Name and tag of the container image.
    pub(super) image: (&'static str, String),
    /// Name of the package with the binaries, and the program in it that does what the image does.
    pub(super) package: (String, &'static str),
    pub(super) variables: Vec<(String, String)>,
    pub(super) arguments: Vec<String>,
    /// The port on which the server listens, inside a container and outside. Fixed, so that it is the same after a restart.
    pub(super) port: u16,
}

/// A signal that ends a server's main process in its own way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    Interrupt,
    Quit,
}

/// One server over all its lives: data and port stay the same. Dropping it removes all of it.
pub(super) trait Machine: Send + Sync {
    /// Starts a server that is not running; does not wait until it is ready.
    fn start(&self) -> BoxFuture<'_, ()>;
    /// Sends a signal to the main process and returns at once.
    fn signal(&self, signal: Signal) -> BoxFuture<'_, ()>;
    /// SIGKILL to all processes of the server, paused or not; returns when they are gone.
    fn kill(&self) -> BoxFuture<'_, ()>;
    /// Freezes all processes; connections stay open.
    fn pause(&self) -> BoxFuture<'_, ()>;
    fn unpause(&self) -> BoxFuture<'_, ()>;
    /// Whether any process of the server exists.
    fn is_running(&self) -> BoxFuture<'_, bool>;
    /// What the server wrote to standard output and error.
    fn log(&self) -> BoxFuture<'_, String>;
}

impl Recipe {
    pub(super) fn with_variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a server setting in the form that PostgreSQL understands.
    pub(super) fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
        self
    }
}
