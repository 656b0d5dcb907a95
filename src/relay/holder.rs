//! Events that cannot be published now: from the moment that this is known to their row in the table, and from there, when
//! their time has come, to the releases.
//!
//! Without the table there is no holder's work to do: every refusal halts the relay.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::core::Core;
use super::failure::{Fate, fate};
use super::halt::{Halt, Reason};
use super::holds::{Holding, Holds};
use super::lane::Handle;
use super::limits::Limits;
use super::releases::{Closed, Ended, ReleaseSettings, Releases};
use super::router::Router;
use crate::config::held::HeldSettings;
use crate::failpoint::{Point, reached};
use crate::kafka::class::Class;
use crate::kafka::topics::Directory;
use crate::outbox::{Event, MappingError, OnFailure, Position, Record, Role, Source};
use crate::postgres::Lsn;
use crate::recovery::held::{Answer, Ask, HeldEvent, HeldHeader, Keeper, Loaded, Next, Scope, State};
use crate::telemetry::Metrics;

/// The most events, and about the most bytes of them, that are stored at once.
const INSERT_EVENTS: usize = 500;
const INSERT_BYTES: usize = 8 << 20;

/// How often operators' requests are looked for.
const SERVE_INTERVAL: Duration = Duration::from_millis(500);

/// Between two looks for what may be published, where the last one led to nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

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
    is_looking: bool,
    is_settling: bool,
    is_serving: bool,
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
            is_looking: false,
            is_settling: false,
            is_serving: false,
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

    /// Nothing waits to be stored or written down.
    pub(super) fn is_idle(&self) -> bool {
        let is_releasing = self.releases.as_ref().is_some_and(Releases::is_busy);
        self.shelf.is_empty() && !self.is_inserting && !is_releasing && !self.is_settling
    }

    // ---- from the stream ---------------------------------------------------------------------------------------------

    /// The event has a row already, from before the relay or the server was started.
    pub(super) fn is_durable(&mut self, position: Position) -> bool {
        !self.durable.is_empty() && self.durable.remove(&position)
    }

    /// What happens to the event when it cannot be published.
    fn policy(&self, event: Option<&Event>) -> OnFailure {
        if self.keeper.is_none() {
            return OnFailure::Halt;
        }
        event.and_then(Event::on_failure).or(self.settings.on_failure).unwrap_or_default()
    }

    /// Whether an event of this topic has to go behind held ones. The key is only made where there is something held.
    pub(super) fn holds(&self, topic: &str, event: &Event) -> Option<Scope> {
        if self.holds.is_empty() || self.policy(Some(event)) == OnFailure::Halt {
            return None;
        }
        let key = event.key().ok().flatten();
        self.holds.holds(topic, key.as_deref())
    }

    /// An event goes behind held ones.
    pub(super) fn park(
        &mut self,
        event: &Event,
        topic: &str,
        scope: Scope,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let why = Why { class: "behind", reason: "behind a held event".to_owned(), halt: Reason::Refused };
        let held = self.held(event, Some(topic), &why, State::Parked, scope, 0);
        to.0.shelve(event.position(), event.len(), to.1);
        self.put(held)
    }

    /// An event can never be published as it is.
    pub(super) fn refuse(
        &mut self,
        event: &Event,
        topic: Option<&str>,
        why: &Why,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let held = self.judged(event, topic, why)?;
        to.0.shelve(event.position(), event.len(), to.1);
        self.put(held)
    }

    /// No event can be made of a row.
    pub(super) fn refuse_row(
        &mut self,
        position: Position,
        row: RawRow,
        why: &Why,
        to: (&mut Core<Event>, Duration),
    ) -> Result<(), Halt> {
        let (state, policy) = self.judge(None, why, position)?;
        let held = HeldEvent {
            event_id: row.id,
            columns: Some(row.columns),
            committed_us: row.committed_us,
            on_failure: policy,
            ..self.blank(position, why, state, Scope::Event, 1, self.settings.max_attempts)
        };
        to.0.shelve(position, held.len(), to.1);
        self.put(held)
    }

    /// State and policy of an event that is refused for good.
    fn judge(&self, event: Option<&Event>, why: &Why, position: Position) -> Result<(State, OnFailure), Halt> {
        let policy = self.policy(event);
        match fate(true, 1, 1, policy) {
            Fate::Dead => Ok((State::Dead, policy)),
            Fate::Quarantined => Ok((State::Quarantined, policy)),
            Fate::Halt | Fate::Retry(_) => Err(Halt::new(why.halt, Some(position), &why.reason)),
        }
    }

    fn judged(&self, event: &Event, topic: Option<&str>, why: &Why) -> Result<HeldEvent, Halt> {
        let (state, _) = self.judge(Some(event), why, event.position())?;
        Ok(self.held(event, topic, why, state, Scope::Event, 1))
    }

    fn blank(&self, position: Position, why: &Why, state: State, scope: Scope, attempts: u32, max: u32) -> HeldEvent {
        let retry = self.settings.dead_retry.filter(|_| state == State::Dead);
        HeldEvent {
            id: 0,
            commit_lsn: position.commit(),
            ordinal: position.ordinal().get(),
            source: self.source.as_str().to_owned(),
            event_id: None,
            event_type: None,
            topic: None,
            key: None,
            value: None,
            headers: Vec::new(),
            partition: None,
            timestamp_ms: None,
            committed_us: 0,
            columns: None,
            state,
            scope,
            on_failure: OnFailure::default(),
            class: why.class.to_owned(),
            reason: why.reason.clone(),
            attempts,
            max_attempts: max,
            retry_in: retry.map(|retry| retry.as_secs_f64()),
            released: false,
        }
    }

    /// The whole record of an event; its columns where there is none.
    fn held(
        &self,
        event: &Event,
        topic: Option<&str>,
        why: &Why,
        state: State,
        scope: Scope,
        attempts: u32,
    ) -> HeldEvent {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let committed_us = event.committed_at().unix_us();
        let max_attempts = event.max_attempts().unwrap_or(self.settings.max_attempts);
        let mut held = HeldEvent {
            event_id: Some(text(event.id())),
            event_type: event.role(Role::EventType).map(text),
            committed_us,
            on_failure: self.policy(Some(event)),
            ..self.blank(event.position(), why, state, scope, attempts, max_attempts)
        };
        match (topic, Record::of(event, &self.source, committed_us / 1000)) {
            (Some(topic), Ok(record)) => {
                held.topic = Some(topic.to_owned());
                held.headers = record.headers.iter().map(HeldHeader::from).collect();
                held.partition = event.partition(u32::MAX).ok().flatten().and_then(|number| i32::try_from(number).ok());
                held.timestamp_ms = event.has_own_timestamp().then_some(record.timestamp_ms);
                held.key = record.key.map(std::borrow::Cow::into_owned);
                held.value = record.value.map(std::borrow::Cow::into_owned);
            }
            _ => held.columns = Some(event.columns()),
        }
        held
    }

    /// Puts an event on the shelf, from where it is stored.
    fn put(&mut self, held: HeldEvent) -> Result<(), Halt> {
        if let Some(holding) = holding(&held)
            && !self.holds.add(&holding)
        {
            let what = format!("more than {} keys are held", self.settings.max_keys);
            return Err(Halt::new(Reason::TooManyHeld, Some(held.position()), what));
        }
        self.metrics.held.inc();
        if self.metrics.held.get() == 1 || held.state != State::Parked {
            tracing::warn!(
                position = %held.position(),
                class = held.class,
                state = %held.state,
                "an event cannot be published and is held: {}",
                held.reason
            );
        }
        self.shelf.insert(held.position(), held);
        Ok(())
    }

    // ---- from the producer -------------------------------------------------------------------------------------------

    /// The brokers refuse this event for good.
    pub(super) fn refused(&mut self, handle: Handle, code: &str, around: &mut Surroundings<'_>) -> Result<(), Halt> {
        let lane = handle.lane();
        let topic = around.router.target(lane).map(|(topic, _)| topic.to_owned()).unwrap_or_default();
        let why = Why { class: "record", reason: format!("topic {topic} refuses it: {code}"), halt: Reason::Refused };
        let Some(event) = around.core.event(handle).cloned() else { return Ok(()) };
        let held = self.judged(&event, Some(&topic), &why)?;
        let is_keeping = held.state.holds() && held.key.is_some();
        let (key, position) = (held.key.clone(), held.position());
        around.core.take_out(lane, |this, _| this == handle);
        self.put(held)?;
        if is_keeping {
            let behind = around.core.take_out(lane, |_, other| {
                other.position() > position && other.key().ok().flatten().as_deref() == key.as_deref()
            });
            self.park_all(behind, &topic, Scope::Event)?;
        }
        Ok(())
    }

    fn park_all(&mut self, events: Vec<(Position, Event)>, topic: &str, scope: Scope) -> Result<(), Halt> {
        let why = Why { class: "behind", reason: "behind a held event".to_owned(), halt: Reason::Refused };
        for (position, event) in events {
            if self.policy(Some(&event)) == OnFailure::Halt {
                let what = format!("the topic {topic} does not take it");
                return Err(Halt::new(Reason::Refused, Some(position), what));
            }
            let held = self.held(&event, Some(topic), &why, State::Parked, scope, 0);
            self.put(held)?;
        }
        Ok(())
    }

    /// A topic takes no events. False where nothing can be held.
    pub(super) fn close_topic(&mut self, topic: &str, class: Class, now: Duration) -> bool {
        if self.keeper.is_none() {
            return false;
        }
        if self.holds.holds(topic, None).is_none() {
            tracing::warn!(topic, %class, "the topic does not take events; they are held until it does");
            self.holds.close(topic, class == Class::NoTopic, now);
        }
        true
    }

    /// There are topics that take no events.
    pub(super) fn has_closed(&self) -> bool {
        self.holds.has_closed()
    }

    /// Whether the policy for this event lets it wait among the held ones.
    pub(super) fn can_hold(&self, event: &Event) -> bool {
        self.policy(Some(event)) != OnFailure::Halt
    }

    /// What is in the lanes of closed topics goes to the held ones, where nothing of it is with the producer: at the beginning of
    /// a generation, or where nothing was sent yet.
    pub(super) fn drain_closed(&mut self, around: &mut Surroundings<'_>) -> Result<(), Halt> {
        for topic in self.holds.blocked() {
            for lane in around.router.lanes(&topic) {
                if around.core.is_unsent(*lane) {
                    let events = around.core.take_out(*lane, |_, _| true);
                    self.park_all(events, &topic, Scope::Topic)?;
                }
            }
        }
        Ok(())
    }

    /// A closed topic has events with the producer, which only a rewind gets back.
    pub(super) fn wants_rewind(&self, core: &Core<Event>, router: &Router) -> bool {
        let mut missing = self.holds.missing();
        missing.any(|topic| router.lanes(topic).iter().any(|lane| !core.is_unsent(*lane)))
    }

    /// The brokers have told of topics. Whether one that was waited for is there.
    pub(super) fn learn_topics(&mut self, directory: &Directory) {
        let there: Vec<String> = self.holds.missing().map(str::to_owned).collect();
        for topic in there.iter().filter(|topic| directory.get(topic).is_some() && !directory.is_missing(topic)) {
            tracing::info!(topic, "the topic is there; what was held for it goes first");
            self.holds.open(topic);
            self.look_at = Some(Duration::ZERO);
        }
    }

    // ---- the table ---------------------------------------------------------------------------------------------------

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
            if !self.is_serving && around.now >= self.serve_at {
                self.is_serving = true;
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

    fn answered(&mut self, answer: Answer, around: &mut Surroundings<'_>, want: &impl Fn(&str)) -> Result<(), Halt> {
        match answer {
            Answer::Loaded(loaded) => {
                self.durable = loaded.durable.iter().copied().collect();
                self.is_loaded = true;
                self.load(&loaded, around.now)
            }
            Answer::Inserted(positions) => {
                reached(Point::AfterHold);
                self.is_inserting = false;
                self.inserting.clear();
                for position in positions {
                    around.core.stored(position);
                }
                // Events behind those that are being released are to follow them; copies are to be made.
                self.look_soon(around.now);
                Ok(())
            }
            Answer::Next(next) => {
                self.is_looking = false;
                self.release(next, around, want)
            }
            Answer::Settled(loaded) => {
                reached(Point::AfterSettle);
                self.is_settling = false;
                for holding in std::mem::take(&mut self.batch).values().filter(|_| loaded.is_none()) {
                    self.holds.remove(holding);
                }
                self.look_at = Some(self.look_at.unwrap_or(around.now).min(around.now));
                loaded.map_or(Ok(()), |loaded| self.load(&loaded, around.now))
            }
            Answer::TopicFailed(loaded, halts) => {
                if halts {
                    let what = "the topic of held events does not take them";
                    return Err(Halt::new(Reason::Refused, None, what));
                }
                self.load(&loaded, around.now)
            }
            Answer::Served(loaded) => {
                self.is_serving = false;
                self.serve_at = around.now + SERVE_INTERVAL;
                loaded.map_or(Ok(()), |loaded| self.load(&loaded, around.now))
            }
        }
    }

    /// What the table has, and what is still on its way there.
    fn load(&mut self, loaded: &Loaded, now: Duration) -> Result<(), Halt> {
        let shelf: Vec<Holding> = self.shelf.values().filter_map(holding).collect();
        if loaded.has_work {
            self.look_at = Some(now);
        }
        match self.holds.load(loaded, shelf.iter().chain(&self.inserting)) {
            true => Ok(()),
            false => {
                let what = format!("more than {} keys are held", self.settings.max_keys);
                Err(Halt::new(Reason::TooManyHeld, None, what))
            }
        }
    }

    /// Sends what is on the shelf to the table.
    fn store(&mut self) {
        if self.is_inserting || self.shelf.is_empty() || !self.is_loaded {
            return;
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < INSERT_EVENTS && bytes < INSERT_BYTES {
            let Some((_, held)) = self.shelf.pop_first() else { break };
            bytes += held.len();
            self.inserting.extend(holding(&held));
            events.push(held);
        }
        self.is_inserting = true;
        reached(Point::BeforeHold);
        self.ask(Ask::Insert(events));
    }

    fn look_soon(&mut self, now: Duration) {
        let soon = now + LOOK_INTERVAL;
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// Asks what may be published, where there may be something and nothing is under way.
    fn look(&mut self, now: Duration) {
        if !self.is_free() {
            return;
        }
        if let Some((topic, is_missing)) = self.holds.due(now) {
            if is_missing {
                // The brokers have been asked about it again and again, and it is still not there.
                self.fail_topic(
                    Closed { topic, class: Class::NoTopic, reason: "the topic does not exist".into() },
                    now,
                );
                return;
            }
            self.holds.probe(&topic);
            let blocked = self.holds.blocked().into_iter().filter(|other| *other != topic).collect();
            self.probing = Some(topic.clone());
            self.is_looking = true;
            self.ask(Ask::Next { blocked, probe: Some(topic) });
        } else if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.is_looking = true;
            self.ask(Ask::Next { blocked: self.holds.blocked(), probe: None });
        }
    }

    fn fail_topic(&mut self, closed: Closed, now: Duration) {
        let Closed { topic, class, reason } = closed;
        let attempts = self.holds.close(&topic, class == Class::NoTopic, now);
        tracing::warn!(topic, %class, attempts, "the topic still does not take events: {reason}");
        self.ask(Ask::FailTopic { topic, class: class.to_string(), reason, confirmed: self.confirmed });
    }

    // ---- releases ----------------------------------------------------------------------------------------------------

    fn release(&mut self, next: Next, around: &mut Surroundings<'_>, want: &impl Fn(&str)) -> Result<(), Halt> {
        let Next { events, copies, due_in } = next;
        if let Some(due_in) = due_in {
            let at = around.now + due_in;
            self.look_at = Some(self.look_at.map_or(at, |look| look.min(at)));
        }
        if events.is_empty() && copies.is_empty() {
            if let Some(topic) = self.probing.take() {
                // Nothing of it is left.
                self.holds.open(&topic);
            }
            return Ok(());
        }
        let releases = match &mut self.releases {
            Some(releases) => releases,
            none => none.insert(Releases::new(self.releasing.clone(), self.limits, self.metrics.clone())?),
        };
        self.batch = events.iter().filter_map(|held| Some((held.id, holding(held)?))).collect();
        let (core, router) = (&*around.core, around.router);
        let is_clear = |topic: &str, partition: u32, position: Position| {
            let front = router.lane(topic, partition).and_then(|lane| core.front(lane));
            front.is_none_or(|front| front > position)
        };
        releases.begin((events, copies), around.directory, want, is_clear, around.now)
    }

    fn ended(&mut self, ended: Ended, now: Duration) {
        let Ended { settlement, closed, is_progress } = ended;
        reached(Point::AfterRelease);
        self.metrics.released.inc_by(settlement.delivered.len() as u64);
        // What was not delivered goes on holding.
        self.batch.retain(|id, _| settlement.delivered.contains(id));
        if let Some(topic) = self.probing.take() {
            match is_progress && closed.is_empty() {
                true => {
                    tracing::info!(topic, "the topic takes events again; what was held for it goes first");
                    self.holds.open(&topic);
                }
                false if closed.is_empty() => self.holds.close_again(&topic, now + LOOK_INTERVAL),
                false => {}
            }
        }
        for closed in closed {
            self.fail_topic(closed, now);
        }
        match is_progress {
            true => {
                self.is_settling = true;
                self.ask(Ask::Settle(settlement, self.confirmed));
            }
            false => {
                self.batch.clear();
                self.look_soon(now);
            }
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
