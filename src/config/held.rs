//! What happens to events that cannot be published.

use std::time::Duration;

use crate::outbox::OnFailure;

/// How events are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSettings {
    /// What happens in the end; `None` is dead letters where there is a table for them, else a halt.
    pub on_failure: Option<OnFailure>,
    /// How often an event is tried whose refusal may pass.
    pub max_attempts: u32,
    /// The most keys that may be held.
    pub max_keys: usize,
    /// Dead letters go to this topic as well.
    pub dead_letter_topic: Option<String>,
    /// After this time dead letters are tried again.
    pub dead_retry: Option<Duration>,
}

impl Default for HeldSettings {
    fn default() -> Self {
        Self { on_failure: None, max_attempts: 5, max_keys: 100_000, dead_letter_topic: None, dead_retry: None }
    }
}
