//! Waiting for the relay to do what it was asked for, with a bar where a person looks.

use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;
use tokio_postgres::Client;

use super::exit::{Class, Failed};
use crate::recovery::request::{self, Progress};
use crate::terminal::is_terminal;

/// Between two looks at a request.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// After so long without a relay that takes the request, that is told.
const PATIENCE: Duration = Duration::from_secs(3);

/// Without a terminal, progress is a line so often.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How far something has come, for whoever looks at standard error.
pub(super) struct Bar {
    bar: ProgressBar,
    is_seen: bool,
    what: &'static str,
    told_at: Instant,
}

impl Bar {
    /// `what`: what is being done, before the numbers.
    pub(super) fn new(what: &'static str) -> Self {
        let is_seen = is_terminal(&io::stderr());
        let target = if is_seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}");
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self { bar, is_seen, what, told_at: Instant::now() }
    }

    /// So many of so many.
    pub(super) fn at(&mut self, done: i64, total: i64) {
        self.bar.set_length(total.unsigned_abs());
        self.bar.set_position(done.unsigned_abs());
        if !self.is_seen && self.told_at.elapsed() >= LINE_INTERVAL {
            self.told_at = Instant::now();
            tracing::info!("{}: {done} of {total}", self.what);
        }
    }

    /// A line beside the bar.
    pub(super) fn say(&self, line: &str) {
        if self.is_seen {
            self.bar.suspend(|| eprintln!("{line}"));
        } else {
            tracing::info!("{line}");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Waits until a request has ended well. One that no relay has begun with after `wait` is taken back.
pub(super) async fn wait_for(
    client: &Client,
    slot: &str,
    id: i64,
    wait: Duration,
    bar: &mut Bar,
) -> Result<Progress, Failed> {
    let (since, mut is_told) = (Instant::now(), false);
    loop {
        let Some(progress) = request::progress(client, id).await? else {
            return Err(Failed::new(Class::Setup, format_args!("there is no request {id}")));
        };
        if let Some(total) = progress.total {
            bar.at(progress.done, total);
        }
        match progress.state.as_str() {
            "done" => return Ok(progress),
            "running" => {}
            "waiting" => {
                if since.elapsed() >= wait && request::withdraw(client, id).await? {
                    let what = format!("no relay has taken the request; is `outboxd run --slot {slot}` running?");
                    return Err(Failed::new(Class::Unavailable, what));
                }
                if since.elapsed() >= PATIENCE && !std::mem::replace(&mut is_told, true) {
                    bar.say(&format!("waiting for `outboxd run --slot {slot}`, which does it"));
                }
            }
            "cancelled" => return Err(Failed::new(Class::Setup, format_args!("request {id} was cancelled"))),
            _ => {
                let message = progress.message.unwrap_or_default();
                return Err(Failed::new(Class::Setup, format_args!("the relay could not do it: {message}")));
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
