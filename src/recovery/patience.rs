//! Trying again until it works: the task of a table has nothing else to do, and what needs it waits.

use std::fmt;
use std::time::Duration;

/// Between two tries, at first and at most.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How one thing goes that is tried until it works. What fails is told once for each new reason.
#[derive(Debug)]
pub(super) struct Patience {
    what: &'static str,
    told: String,
    pause: Duration,
}

impl Patience {
    /// `what` is not to be had, in words that go before a colon.
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, told: String::new(), pause: RETRY }
    }

    /// It failed: tells why, and waits for the time of the next try.
    pub(super) async fn failed(&mut self, error: &impl fmt::Display) {
        let words = error.to_string();
        if words != self.told {
            tracing::warn!("{}: {words}; what needs it waits", self.what);
            self.told = words;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }

    /// It worked.
    pub(super) fn over(self) {
        if !self.told.is_empty() {
            tracing::info!("no longer: {}", self.what);
        }
    }
}
