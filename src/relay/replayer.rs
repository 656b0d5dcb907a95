//! Replays: rows that are published once more because an operator asks for it, through a producer of their own, a page at a time.
//!
//! What a page is, and when it may be published, is [`recovery::replay`](crate::recovery::replay)'s.

use std::time::Duration;

use tokio::sync::watch;

use super::halt::Halt;
use super::limits::Limits;
use super::releases::{Ended, ReleaseSettings, Releases};
use crate::failpoint::{Point, reached};
use crate::kafka::topics::Directory;
use crate::postgres::Lsn;
use crate::recovery::held::HeldEvent;
use crate::recovery::replay::reader::ReaderSettings;
use crate::recovery::replay::{Answer, Ask, Page, Reader, Refused};
use crate::telemetry::Metrics;

/// Between two tries of events that could not even be handed over: their topic is not known yet.
const RETRY: Duration = Duration::from_millis(200);

/// What became of a page.
#[derive(Debug, Default)]
struct Outcome {
    delivered: u64,
    refused: Vec<Refused>,
}

/// Where a replay is.
#[derive(Debug)]
enum Phase {
    /// Nothing is asked for.
    Idle,
    /// The reader works.
    Reading,
    /// A page is to be published at this time.
    Ready { page: Page, outcome: Outcome, at: Duration },
    /// It is with the producer.
    Publishing { page: Page, outcome: Outcome },
}

/// Sees to replays.
pub(super) struct Replayer {
    settings: ReaderSettings,
    releasing: ReleaseSettings,
    limits: Limits,
    metrics: Metrics,
    confirmed: watch::Sender<Lsn>,
    reader: Option<Reader>,
    answers: Vec<Answer>,
    releases: Option<Releases>,
    phase: Phase,
    /// Somebody has asked for something.
    is_called: bool,
    /// What was published is not written down yet.
    is_recording: bool,
    /// Before this time nothing more is published: the rate is kept.
    next_at: Duration,
}

impl Replayer {
    pub(super) fn new(settings: ReaderSettings, releasing: ReleaseSettings, limits: Limits, metrics: Metrics) -> Self {
        Self {
            settings,
            releasing,
            limits,
            metrics,
            confirmed: watch::Sender::new(Lsn::ZERO),
            reader: None,
            answers: Vec::new(),
            releases: None,
            phase: Phase::Idle,
            is_called: false,
            is_recording: false,
            next_at: Duration::ZERO,
        }
    }

    /// There may be a request.
    pub(super) const fn call(&mut self) {
        self.is_called = true;
    }

    /// Nothing is with the producer, and what was is written down.
    pub(super) const fn is_idle(&self) -> bool {
        !matches!(self.phase, Phase::Publishing { .. }) && !self.is_recording
    }

    /// Waits for the reader or for reports. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        let reports = async {
            match &mut self.releases {
                Some(releases) if releases.is_busy() => releases.wait().await,
                _ => std::future::pending().await,
            }
        };
        let answer = async {
            match &mut self.reader {
                Some(reader) => reader.answer().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = answer => self.answers.push(answer),
            () = reports => {}
        }
    }

    /// When there is something to do, if nothing else happens.
    pub(super) fn deadline(&self, may_publish: bool) -> Option<Duration> {
        match &self.phase {
            Phase::Ready { at, .. } if may_publish => Some(*at),
            Phase::Publishing { .. } => self.releases.as_ref().and_then(Releases::send_deadline),
            _ => None,
        }
    }

    /// Everything that can be done without waiting. `confirmed`: where the slot stands; `may_publish`: the slot is surely ours.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        (confirmed, may_publish): (Lsn, bool),
        directory: &Directory,
        want: impl Fn(&str),
    ) -> Result<(), Halt> {
        self.confirmed.send_if_modified(|known| std::mem::replace(known, confirmed) != confirmed);
        for answer in std::mem::take(&mut self.answers) {
            self.answered(answer, now);
        }
        if self.is_called && may_publish && matches!(self.phase, Phase::Idle) {
            self.is_called = false;
            let start = || Reader::start(self.settings.clone(), self.confirmed.subscribe());
            self.reader.get_or_insert_with(start).ask(Ask::Look);
            self.phase = Phase::Reading;
        }
        if matches!(self.phase, Phase::Ready { at, .. } if may_publish && at <= now) {
            self.publish(now, directory, want)?;
        }
        let ended = match &mut self.releases {
            Some(releases) => releases.proceed(now)?,
            None => None,
        };
        if let Some(ended) = ended {
            self.ended(ended, now);
        }
        Ok(())
    }

    fn answered(&mut self, answer: Answer, now: Duration) {
        match answer {
            Answer::Nothing => {
                self.phase = Phase::Idle;
                self.reader = None;
            }
            Answer::Recorded => {
                if std::mem::take(&mut self.is_recording) {
                    reached(Point::AfterReplayed);
                }
            }
            Answer::Page(page) => {
                self.phase = Phase::Ready { page, outcome: Outcome::default(), at: now.max(self.next_at) };
            }
            Answer::Ended => {
                self.is_recording = false;
                self.phase = Phase::Reading;
                self.ask(Ask::Look);
            }
        }
    }

    fn ask(&self, ask: Ask) {
        if let Some(reader) = &self.reader {
            reader.ask(ask);
        }
    }

    fn publish(&mut self, now: Duration, directory: &Directory, want: impl Fn(&str)) -> Result<(), Halt> {
        let Phase::Ready { page, outcome, .. } = std::mem::replace(&mut self.phase, Phase::Idle) else { return Ok(()) };
        reached(Point::BeforeReplay);
        let releases = match &mut self.releases {
            Some(releases) => releases,
            none => none.insert(Releases::new(self.releasing.clone(), self.limits, self.metrics.clone())?),
        };
        // Live events before these are through: the reader has waited for that.
        let is_clear = |_: &str, _, _| true;
        releases.begin((page.events.clone(), Vec::new()), directory, want, is_clear, now)?;
        if let Some(rate) = page.rate {
            self.next_at = now + Duration::from_secs_f64(page.events.len() as f64 / f64::from(rate));
        }
        self.phase = Phase::Publishing { page, outcome };
        Ok(())
    }

    /// The producer is done with a page, or with what it could take of it.
    fn ended(&mut self, ended: Ended, now: Duration) {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Publishing { mut page, mut outcome } = phase else {
            self.phase = phase;
            return;
        };
        reached(Point::AfterReplay);
        let Ended { settlement, closed, .. } = ended;
        self.metrics.replayed.inc_by(settlement.delivered.len() as u64);
        outcome.delivered += settlement.delivered.len() as u64;
        if let Some(closed) = closed.first() {
            self.fail(&closed.topic, &closed.reason);
            return;
        }
        let missing = settlement.failed.iter().find(|failed| failed.is_about_topic());
        if let Some(failed) = missing {
            let of_row = |event: &&HeldEvent| event.row() == failed.row;
            let topic = page.events.iter().find(of_row).and_then(|event| event.topic.clone()).unwrap_or_default();
            self.fail(&topic, &failed.reason);
            return;
        }
        outcome.refused.extend(settlement.failed.iter().map(|failed| Refused {
            event_id: failed.row.event_id().map(str::to_owned),
            reason: format!("{}: {}", failed.class, failed.reason),
        }));
        let is_through = |event: &HeldEvent| {
            let row = event.row();
            settlement.delivered.contains(&row) || settlement.failed.iter().any(|failed| failed.row == row)
        };
        page.events.retain(|event| !is_through(event));
        if page.events.is_empty() {
            self.is_recording = true;
            self.phase = Phase::Reading;
            self.ask(Ask::Next(outcome.delivered, outcome.refused));
        } else {
            self.phase = Phase::Ready { page, outcome, at: now + RETRY };
        }
    }

    /// A topic takes nothing: the request ends, and can be resumed where it stands.
    fn fail(&mut self, topic: &str, reason: &str) {
        self.phase = Phase::Reading;
        self.ask(Ask::Fail(format!("the topic {topic}: {reason}")));
    }

    /// The producer is fenced as the other one is.
    pub(super) fn fence(&mut self) {
        if let Some(releases) = &mut self.releases {
            let is_under_way = releases.is_under_way();
            releases.publisher().fence(is_under_way);
        }
    }

    pub(super) fn unfence(&mut self) {
        if let Some(releases) = &mut self.releases {
            releases.publisher().unfence();
        }
    }

    /// Ends the producer.
    pub(super) async fn close(&mut self) {
        if let Some(releases) = self.releases.take() {
            releases.close().await;
        }
    }
}
