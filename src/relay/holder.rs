//! Events that cannot be published now: from the moment that this is known to their row in the table, and from there, when
//! their time has come, to the releases.
//!
//! Without the table there is no holder's work to do: every refusal halts the relay.

mod refusals;
mod rounds;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::core::Core;
use super::halt::{Halt, Reason};
use super::holds::{Holding, Holds};
use super::limits::Limits;
use super::releases::{ReleaseSettings, Releases};
use super::router::Router;
use crate::config::held::HeldSettings;
use crate::kafka::topics::Directory;
use crate::outbox::{Event, MappingError, Position, Source};
use crate::postgres::Lsn;
use crate::recovery::held::{Answer, Ask, HeldEvent, Keeper};
use crate::telemetry::Metrics;

/// Why an event is not published.
#[derive(Clone, Debug)]
pub(super) struct Why {
    /// The kind of the refusal, in one word.
    pub(super) class: &'static str,
    /// What is wrong, without contents.
    pub(super) reason: String,
    /// What the relay would stop for.
    pub(super) halt: Reason,
}

impl Why {
    /// No record can be made of it.
    pub(super) fn unmappable(error: &MappingError) -> Self {
        Self { class: "unmappable", reason: error.to_string(), halt: Reason::Unmappable }
    }
}

/// A row of which no event could be made.
#[derive(Clone, Debug, Default)]
pub(super) struct RawRow {
    pub(super) id: Option<String>,
    pub(super) committed_us: i64,
    pub(super) columns: BTreeMap<String, Option<String>>,
}

/// What the relay needs of the rest to hold events.
pub(super) struct Surroundings<'a> {
    pub(super) core: &'a mut Core<Event>,
    pub(super) router: &'a Router,
    pub(super) directory: &'a Directory,
    pub(super) now: Duration,
}

/// What is held, and what is to be done about it.
pub(super) struct Holder {
    settings: HeldSettings,
    releasing: ReleaseSettings,
    limits: Limits,
    source: Source,
    keeper: Option<Keeper>,
    /// What has come from the keeper and was not seen to.
    answers: Vec<Answer>,
    is_loaded: bool,
    /// The slot is surely ours.
    may_release: bool,
    holds: Holds,
    /// Events behind the slot's position that have a row already.
    durable: HashSet<Position>,
    /// To be stored, in order.
    shelf: BTreeMap<Position, HeldEvent>,
    /// On their way to the table.
    inserting: Vec<Holding>,
    is_inserting: bool,
    releases: Option<Releases>,
    /// By the rows of the batch under way: what each holds.
    batch: BTreeMap<i64, Holding>,
    probing: Option<String>,
    /// The batch under way has all but a few of the events that hold something: nothing more joins them, or under a steady load
    /// they would hold it for ever.
    is_closing: bool,
    /// How many of each kind were told of, so that a flood of them is not a flood of lines.
    told: HashMap<String, u64>,
    is_looking: bool,
    is_settling: bool,
    is_serving: bool,
    /// Somebody has asked since it was last looked.
    is_called: bool,
    look_at: Option<Duration>,
    serve_at: Duration,
    /// Where the slot stands.
    confirmed: Lsn,
    metrics: Metrics,
}

impl Holder {
    pub(super) fn new(settings: HeldSettings, releasing: ReleaseSettings, limits: Limits, metrics: Metrics) -> Self {
        let holds = Holds::new(settings.max_keys);
        Self {
            settings,
            source: releasing.source.clone(),
            releasing,
            limits,
            keeper: None,
            answers: Vec::new(),
            is_loaded: false,
            may_release: false,
            holds,
            durable: HashSet::new(),
            shelf: BTreeMap::new(),
            inserting: Vec::new(),
            is_inserting: false,
            releases: None,
            batch: BTreeMap::new(),
            probing: None,
            is_closing: false,
            told: HashMap::new(),
            is_looking: false,
            is_settling: false,
            is_serving: false,
            is_called: false,
            look_at: None,
            serve_at: Duration::ZERO,
            confirmed: Lsn::ZERO,
            metrics,
        }
    }

    /// A stream begins at this position: what is held is read before anything of it is taken. Without a keeper nothing can be
    /// held.
    pub(super) fn begin(&mut self, keeper: Option<Keeper>, confirmed: Lsn) {
        if self.keeper.is_none() {
            self.keeper = keeper;
        }
        self.is_loaded = self.keeper.is_none();
        if let Some(keeper) = &self.keeper {
            keeper.ask(Ask::Load(confirmed));
        }
    }

    /// There is a table for held events.
    pub(super) const fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    /// What is held is known, so events may be taken.
    pub(super) const fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// An operator asks for something.
    pub(super) const fn call(&mut self) {
        self.is_called = true;
    }

    /// Nothing more is to be taken until what is held is nearly nothing.
    pub(super) const fn is_closing(&self) -> bool {
        self.is_closing && self.may_release
    }

    /// Nothing waits to be stored or written down.
    pub(super) fn is_idle(&self) -> bool {
        let is_releasing = self.releases.as_ref().is_some_and(Releases::is_busy);
        self.shelf.is_empty() && !self.is_inserting && !is_releasing && !self.is_settling
    }

    /// Waits for the keeper or for reports of releases. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        let releases = async {
            match &mut self.releases {
                Some(releases) if releases.is_busy() => releases.wait().await,
                _ => std::future::pending().await,
            }
        };
        let answer = async {
            match &mut self.keeper {
                Some(keeper) => keeper.answer().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = answer => self.answers.push(answer),
            () = releases => {}
        }
    }

    /// When there is something to do, if nothing else happens. Only what [`Holder::turn`] then does: a time that is over and leads
    /// to nothing would keep the loop from everything else.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let is_at_work = self.is_loaded && self.may_release;
        let serve = (is_at_work && !self.is_serving).then_some(self.serve_at);
        let is_free = is_at_work && self.is_free();
        let look = self.look_at.filter(|_| is_free);
        let probe = self.holds.due_at().filter(|_| is_free);
        let sends = self.releases.as_ref().and_then(Releases::send_deadline);
        [serve, look, probe, sends].into_iter().flatten().min().filter(|_| self.keeper.is_some())
    }

    /// No batch is under way.
    fn is_free(&self) -> bool {
        !self.is_looking && !self.is_settling && !self.releases.as_ref().is_some_and(Releases::is_busy)
    }

    /// Everything that can be done without waiting. `confirmed`: where the slot stands; `may_release`: the slot is surely ours.
    pub(super) fn turn(
        &mut self,
        around: &mut Surroundings<'_>,
        confirmed: Lsn,
        may_release: bool,
        want: impl Fn(&str),
    ) -> Result<(), Halt> {
        if self.keeper.is_none() {
            return Ok(());
        }
        (self.confirmed, self.may_release) = (confirmed, may_release);
        for answer in std::mem::take(&mut self.answers) {
            self.answered(answer, around, &want)?;
        }
        self.store();
        let ended = match &mut self.releases {
            Some(releases) => releases.proceed(around.now)?,
            None => None,
        };
        if let Some(ended) = ended {
            self.ended(ended, around.now);
        }
        if self.is_loaded && may_release {
            self.look(around.now);
            if !self.is_serving && (self.is_called || around.now >= self.serve_at) {
                (self.is_serving, self.is_called) = (true, false);
                self.ask(Ask::Serve(confirmed));
            }
        }
        self.metrics.held_keys.set(self.holds.keys() as u64);
        self.metrics.held_topics.set(self.holds.topics().count() as u64);
        Ok(())
    }

    fn ask(&self, ask: Ask) {
        if let Some(keeper) = &self.keeper {
            keeper.ask(ask);
        }
    }

    /// The producer of releases is fenced as the other one is.
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

    /// Ends the producer of releases.
    pub(super) async fn close(&mut self) {
        if let Some(releases) = self.releases.take() {
            releases.close().await;
        }
    }
}

/// What an event holds.
fn holding(held: &HeldEvent) -> Option<Holding> {
    let topic = held.topic.clone().filter(|_| held.state.holds())?;
    Some(Holding { scope: held.scope, topic, key: held.key.clone() })
}
