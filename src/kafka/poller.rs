//! The thread that hands delivery reports over.
//!
//! rdkafka's own `ThreadedProducer` waits in steps of 100 ms and spins through the last millisecond of each, which costs an idle
//! process a hundredth of a core. This one sleeps while nothing is under way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::producer::{BaseProducer, Producer as _};

use super::delivery::Reporter;

/// How long one wait for reports takes. It ends only then, whatever comes meanwhile is handed over at once.
const STEP: Duration = Duration::from_millis(100);

/// While nothing is under way, how often errors of librdkafka are looked for.
const IDLE: Duration = Duration::from_secs(1);

/// What the thread and its owner share.
struct Shared {
    producer: Arc<BaseProducer<Reporter>>,
    is_idle: AtomicBool,
    should_stop: AtomicBool,
}

/// The thread; it ends with this.
pub(super) struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts it.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(super) fn start(producer: Arc<BaseProducer<Reporter>>) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { producer, is_idle: AtomicBool::new(false), should_stop: AtomicBool::new(false) });
        let thread = thread::Builder::new().name("reports".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Something was handed to the producer.
    pub(super) fn wake(&self) {
        // The other order of the two steps in `run`: either this sees that it is idle, or it sees what was handed over.
        if self.shared.is_idle.swap(false, Ordering::SeqCst) {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.should_stop.load(Ordering::SeqCst) {
            self.is_idle.store(true, Ordering::SeqCst);
            if self.producer.in_flight_count() > 0 {
                self.is_idle.store(false, Ordering::SeqCst);
                self.producer.poll(STEP);
            } else {
                self.producer.poll(Duration::ZERO);
                thread::park_timeout(IDLE);
            }
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.should_stop.store(true, Ordering::SeqCst);
        self.unpark();
        // An error carries only a panic of that thread, which the process has told of.
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
