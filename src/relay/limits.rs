//! What bounds the relay's core.

use std::time::Duration;

/// What bounds the core, and its pace. Bytes of an event include [`Limits::EVENT_OVERHEAD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of unresolved events at which intake pauses.
    pub window_bytes: usize,
    /// Events, unresolved or not yet covered by a status, at which intake pauses.
    pub window_events: usize,
    /// A status is sent at least this often.
    pub status_interval: Duration,
    /// A status that moves the frontier waits this long after the last one, unless a quarter of the window is behind it.
    pub status_pace: Duration,
    /// A partition without an acknowledgement for this long is cold again: the broker may have forgotten the producer.
    pub cold_after: Duration,
}

impl Limits {
    /// What an event costs beside its row, in bytes: our entry, and librdkafka's message with its headers.
    pub const EVENT_OVERHEAD: usize = 512;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window_bytes: 16 << 20,
            window_events: 20_000,
            status_interval: Duration::from_secs(1),
            status_pace: Duration::from_millis(100),
            cold_after: Duration::from_secs(12 * 3600),
        }
    }
}
