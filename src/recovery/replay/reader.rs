//! The task that takes a request for a replay and reads its rows, page by page, as events to be published.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::plan::{PageSize, Plan, Wanted};
use super::store::{self, Advance, PageRow, Reached, Request};
use super::{HEADER_REPLAY, record};
use crate::claims::Store;
use crate::outbox::{Event, Mapping, MappingError, Receipt, Source, topic};
use crate::pgoutput::PgTimestamp;
use crate::postgres::{Conninfo, Error, Lsn, QualifiedName, publication, row, sql};
use crate::recovery::held::HeldEvent;
use crate::recovery::patience::Patience;
use crate::recovery::row::RowMapper;

/// The most rows, and about the most bytes of payloads, of one page.
const PAGE_ROWS: u32 = 1000;
const PAGE_BYTES: usize = 8 << 20;

/// While a page waits for the slot, how often it is looked whether somebody has cancelled the request.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);

/// What the relay wants of it.
#[derive(Debug)]
pub enum Ask {
    /// The first page of the request that is next.
    Look,
    /// The next page; so many events of the last one were published, and these were not.
    Next(u64, Vec<Refused>),
    /// To end the request for this reason.
    Fail(String),
}

/// What came of it.
#[derive(Debug)]
pub enum Answer {
    /// No request waits.
    Nothing,
    /// It is written down how far the replay has come.
    Recorded,
    /// Events to be published, in order.
    Page(Page),
    /// The request has ended; another may wait.
    Ended,
}

/// Events of one request.
#[derive(Debug)]
pub struct Page {
    /// The number of the request.
    pub request: i64,
    /// Its events; their numbers are their places in the page.
    pub events: Vec<HeldEvent>,
    /// The most events in a second.
    pub rate: Option<u32>,
}

/// An event that could not be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its id, as far as it is known.
    pub event_id: Option<String>,
    /// Why, without contents.
    pub reason: String,
}

/// How the reader is to work.
#[derive(Clone, Debug)]
pub struct ReaderSettings {
    /// The database.
    pub database: Conninfo,
    /// Whose requests.
    pub slot: String,
    /// What decides which columns are published.
    pub publication: String,
    /// The outbox.
    pub table: QualifiedName,
    /// How rows become records.
    pub mapping: Mapping,
    /// Where they come from.
    pub source: Source,
    /// The store of large payloads.
    pub claims: Option<Store>,
    /// The largest row.
    pub row_bytes_max: usize,
}

/// The relay's end. The task ends with it.
#[derive(Debug)]
pub struct Reader {
    asks: mpsc::UnboundedSender<Ask>,
    answers: mpsc::UnboundedReceiver<Answer>,
    task: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    /// Begins to work. `confirmed` tells where the slot stands.
    #[must_use]
    pub fn start(settings: ReaderSettings, confirmed: watch::Receiver<Lsn>) -> Self {
        let (asks, mut questions) = mpsc::unbounded_channel();
        let (reply, answers) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut session = Session { settings, confirmed, reply, client: None, current: None };
            while let Some(ask) = questions.recv().await {
                let answer = session.answer(ask).await;
                if session.reply.send(answer).is_err() {
                    return;
                }
            }
        });
        Self { asks, answers, task }
    }

    /// Asks; one question is open at a time.
    pub fn ask(&self, ask: Ask) {
        // Fails only when the task has ended, which it does with this handle.
        let _ = self.asks.send(ask);
    }

    /// The next answer. Cancel-safe.
    pub async fn answer(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

/// Why a request does not go on.
enum Trouble {
    /// It may, later.
    Passing(String),
    /// It cannot be done as it is.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        // What the request says does not suit the table: a value that its type does not have, a column or a privilege that is
        // not there. Everything else is the server's state.
        let is_wrong =
            error.sqlstate().is_some_and(|state| state.code().starts_with("22") || state.code().starts_with("42"));
        match is_wrong {
            true => Self::Wrong(error.to_string()),
            false => Self::Passing(error.to_string()),
        }
    }
}

/// The request that is under way.
struct Current {
    id: i64,
    wanted: Wanted,
    plan: Plan,
    mapper: RowMapper,
    done: u64,
    /// What stands in the request's row.
    recorded: Reached,
    /// What is to stand there.
    reached: Reached,
    /// The place of the last row of the page that is being published.
    page_end: Option<Vec<String>>,
}

struct Session {
    settings: ReaderSettings,
    confirmed: watch::Receiver<Lsn>,
    reply: mpsc::UnboundedSender<Answer>,
    client: Option<Client>,
    current: Option<Current>,
}

impl Session {
    async fn answer(&mut self, ask: Ask) -> Answer {
        let mut failure = None;
        match ask {
            Ask::Look => {}
            Ask::Next(delivered, refused) => {
                if let Some(current) = &mut self.current {
                    current.done += delivered;
                    current.reached.note(&refused);
                    current.reached.at = current.page_end.take().or(current.reached.at.take());
                }
            }
            Ask::Fail(reason) => failure = Some(reason),
        }
        let mut patience = Patience::new("the replay cannot go on");
        loop {
            match self.attempt(failure.as_deref()).await {
                Ok(answer) => {
                    patience.over();
                    return answer;
                }
                Err(Trouble::Passing(words)) => {
                    self.client = None;
                    patience.failed(&words).await;
                }
                Err(Trouble::Wrong(words)) => failure = Some(words),
            }
        }
    }

    async fn attempt(&mut self, failure: Option<&str>) -> Result<Answer, Trouble> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let client = sql::connect_and_spawn(&self.settings.database).await?;
            client.execute(sql::DURABLE, &[]).await.map_err(Error::from)?;
            self.client = Some(client);
        }
        if let Some(words) = failure {
            return self.fail(words).await;
        }
        if self.current.is_none() && !self.open().await? {
            return Ok(Answer::Nothing);
        }
        self.next_page().await
    }

    /// Ends the request that is under way, or that could not be begun with.
    async fn fail(&mut self, words: &str) -> Result<Answer, Trouble> {
        let Some(client) = &self.client else { return Err(Error::closed().into()) };
        let id = match &self.current {
            Some(current) => Some(current.id),
            None => store::next(client, &self.settings.slot).await?.map(|request| request.id),
        };
        if let Some(id) = id {
            store::finish(client, id, "failed", Some(words)).await?;
            tracing::warn!(request = id, "the replay has failed; the request says why");
        }
        self.current = None;
        Ok(Answer::Ended)
    }

    /// Takes the request that is next. False where there is none.
    async fn open(&mut self) -> Result<bool, Trouble> {
        let Self { settings, client: Some(client), .. } = self else { return Err(Error::closed().into()) };
        let Some(Request { id, wanted, done, reached }) = store::next(client, &settings.slot).await? else {
            return Ok(false);
        };
        let wanted = wanted.map_err(Trouble::Wrong)?;
        if wanted.to_topic.as_ref().is_some_and(|name| !topic::is_name(name)) {
            return Err(Trouble::Wrong("--to-topic is no name of a topic".to_owned()));
        }
        let columns = row::columns(client, &settings.table).await?;
        let found = publication::inspect(client, &settings.publication, &settings.table).await?;
        let names = found.map(|found| found.columns).unwrap_or_default();
        let published: Vec<_> = columns.iter().filter(|column| names.contains(&column.name)).cloned().collect();
        let mapper = RowMapper::new(&settings.table, &published, &settings.mapping);
        let mapper = mapper.map_err(|error| Trouble::Wrong(error.to_string()))?;
        let plan = Plan::new(&settings.table, &columns, &published, &settings.mapping, &wanted);
        let plan = plan
            .map_err(|errors| Trouble::Wrong(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
        let reached = match reached {
            Some(reached) => reached,
            None => {
                let (until, total, without) = store::measure(client, &plan).await?.unwrap_or_default();
                if without > 0 {
                    return Err(Trouble::Wrong(no_place(without)));
                }
                let reached = Reached { until, ..Reached::default() };
                tracing::info!(request = id, events = total, "a replay begins");
                store::begin(client, id, total, &reached).await?;
                reached
            }
        };
        let recorded = reached.clone();
        self.current = Some(Current { id, wanted, plan, mapper, done, recorded, reached, page_end: None });
        Ok(true)
    }

    /// Reads on until there is something to publish.
    async fn next_page(&mut self) -> Result<Answer, Trouble> {
        loop {
            let Self { settings, client: Some(client), current: Some(current), .. } = self else {
                return Ok(Answer::Ended);
            };
            if current.reached.until.is_empty() {
                return self.end().await;
            }
            let advance =
                Advance { id: current.id, done: current.done, before: &current.recorded, reached: &current.reached };
            let rate = current.wanted.rate.filter(|rate| *rate > 0);
            let rows = rate.map_or(PAGE_ROWS, |rate| rate.div_ceil(2).min(PAGE_ROWS)) as usize;
            let size = PageSize { rows, bytes: PAGE_BYTES, row_bytes: settings.row_bytes_max };
            let Some((rows, behind)) = store::page(client, advance, &current.plan, size).await? else {
                tracing::info!(request = current.id, "the replay was cancelled, or another relay goes on with it");
                self.current = None;
                return Ok(Answer::Ended);
            };
            current.recorded = current.reached.clone();
            // Nobody listens to it once the relay has gone.
            let _ = self.reply.send(Answer::Recorded);
            let Some(end) = rows.last().map(|row| row.place.clone()) else { return self.end().await };
            if !self.is_behind(behind).await {
                continue;
            }
            let Self { settings, client: Some(client), current: Some(current), .. } = self else {
                return Ok(Answer::Ended);
            };
            let (events, refused, left_out) = settings.events(current, &rows).await?;
            let ids: Vec<&str> = events.iter().filter_map(|event| event.event_id.as_deref()).collect();
            let held = store::held(client, &settings.slot, &ids).await?;
            let is_held = |event: &HeldEvent| event.event_id.as_ref().is_some_and(|id| held.contains(id));
            let (waiting, events): (Vec<_>, Vec<_>) = events.into_iter().partition(is_held);
            current.reached.note(&refused);
            current.reached.left_out += left_out + waiting.len() as u64;
            if events.is_empty() {
                current.reached.at = Some(end);
                continue;
            }
            current.page_end = Some(end);
            return Ok(Answer::Page(Page { request: current.id, events, rate }));
        }
    }

    /// Waits until the slot has confirmed this position. False where somebody may have cancelled the request meanwhile.
    async fn is_behind(&mut self, position: Lsn) -> bool {
        // When the relay has gone, so has this task.
        let wait = async { self.confirmed.wait_for(|confirmed| *confirmed >= position).await.is_ok() };
        tokio::time::timeout(CANCEL_INTERVAL, wait).await.unwrap_or(false)
    }

    /// Every row has been seen to.
    async fn end(&mut self) -> Result<Answer, Trouble> {
        let Self { client: Some(client), current: Some(current), .. } = self else { return Ok(Answer::Ended) };
        let message = current.reached.words();
        store::finish(client, current.id, "done", message.as_deref()).await?;
        tracing::info!(request = current.id, events = current.done, refused = current.reached.refused, "replayed");
        self.current = None;
        Ok(Answer::Ended)
    }
}

/// In words, that rows have no place in the order.
#[must_use]
pub fn no_place(rows: i64) -> String {
    format!("{rows} of the rows have NULL in the column that tells the order; name another with --order-by")
}

impl Reached {
    fn note(&mut self, refused: &[Refused]) {
        self.refused += refused.len() as u64;
        if let (None, Some(Refused { event_id, reason })) = (&self.first, refused.first()) {
            let event_id = event_id.as_deref().unwrap_or("?");
            self.first = Some(format!("event {event_id}: {reason}"));
        }
    }

    /// What is to be said beside the number of events.
    fn words(&self) -> Option<String> {
        let refused = (self.refused > 0).then(|| {
            format!("{} could not be published, the first: {}", self.refused, self.first.as_deref().unwrap_or("?"))
        });
        let left_out = (self.left_out > 0)
            .then(|| format!("{} were left out: they are held, or no events by filter or rule", self.left_out));
        let words: Vec<String> = refused.into_iter().chain(left_out).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

impl ReaderSettings {
    /// The events of a page's rows, those that are none by mistake, and how many are none by filter or rule.
    async fn events(
        &self,
        current: &Current,
        rows: &[PageRow],
    ) -> Result<(Vec<HeldEvent>, Vec<Refused>, u64), Trouble> {
        let (mut events, mut refused, mut left_out) = (Vec::new(), Vec::new(), 0);
        for row in rows {
            let now_us = now_us();
            let written_at = PgTimestamp::from_unix_us(row.written_us.unwrap_or(now_us));
            let event = match current.mapper.event(&row.texts(), written_at) {
                Ok(event) if event.filtered().is_some() => {
                    left_out += 1;
                    continue;
                }
                Ok(event) => event,
                Err(error) => {
                    refused.push(Refused { event_id: None, reason: error.to_string() });
                    continue;
                }
            };
            let topic = current.wanted.to_topic.as_deref();
            let mark = (HEADER_REPLAY, current.id.to_string());
            let made = match row.is_too_large {
                true => Err(MappingError::TooLarge { column: "the payload".to_owned() }),
                false => {
                    let event = self.stored(event.clone()).await?;
                    record::of(&event, &self.source, topic, mark, now_us)
                }
            };
            match made {
                Ok(held) => events.push(HeldEvent { id: i64::try_from(events.len()).unwrap_or(i64::MAX), ..held }),
                Err(error) => refused.push(Refused {
                    event_id: Some(String::from_utf8_lossy(event.id()).into_owned()),
                    reason: error.to_string(),
                }),
            }
        }
        Ok((events, refused, left_out))
    }

    /// The event with its payload in the store, where it belongs there.
    async fn stored(&self, mut event: Event) -> Result<Event, Trouble> {
        // What is wrong with it is told when its record is made.
        let (Ok(Some(object)), Some(claims)) = (event.to_store(&self.source), &self.claims) else { return Ok(event) };
        let receipt = Receipt::of(&object.payload);
        claims.put(&object.name, object.payload).await.map_err(|error| Trouble::Passing(error.to_string()))?;
        event.stored(receipt);
        Ok(event)
    }
}

/// The Unix time in microseconds.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}
