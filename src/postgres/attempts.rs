//! One host after the other, until one will do.

use super::conninfo::{Conninfo, Host};
use super::error::{Error, Result};

/// The hosts still to be tried, and what became of those that were.
pub(crate) struct Attempts<'a> {
    conninfo: &'a Conninfo,
    todo: std::vec::IntoIter<(usize, usize)>,
    failures: Vec<Error>,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(conninfo: &'a Conninfo) -> Self {
        let order = conninfo.attempts();
        let passes = 0..conninfo.target_session().passes();
        let todo: Vec<_> = passes.flat_map(|pass| order.iter().map(move |index| (pass, *index))).collect();
        Self { conninfo, todo: todo.into_iter(), failures: Vec::new() }
    }

    /// The next host, its index, and the pass in which it is tried.
    pub(crate) fn next(&mut self) -> Option<(&'a Host, usize, usize)> {
        let (pass, index) = self.todo.next()?;
        Some((self.conninfo.hosts().get(index)?, index, pass))
    }

    /// Notes a failure.
    ///
    /// # Errors
    /// When it ends the attempts, as in libpq: a server that answers and lets one not in is the one that was meant.
    pub(crate) fn failed(&mut self, host: &Host, error: Error) -> Result<()> {
        let goes_on = error.is_connection_lost() || error.is_starting_or_stopping() || error.is_wrong_server();
        let error = error.context(host.to_string());
        if !goes_on {
            return Err(error);
        }
        self.failures.push(error);
        Ok(())
    }

    /// One error out of all: the last one, with the others in front of its message.
    pub(crate) fn all_failed(mut self) -> Error {
        let last = self.failures.pop().unwrap_or_else(|| Error::refused("there is no host to connect to"));
        if self.failures.is_empty() {
            return last;
        }
        let others: Vec<_> = self.failures.iter().map(ToString::to_string).collect();
        last.context(others.join("; then ") + "; then")
    }
}
