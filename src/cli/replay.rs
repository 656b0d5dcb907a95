//! `outboxd replay`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::brokers::positive;
use super::effective::Effective;
use super::exit::{Class, Failed};
use super::mapping::MappingArgs;
use super::requests::{Bar, wait_for};
use super::target::{Target, TargetArgs};
use crate::config::run::Mistakes;
use crate::outbox::{Mapping, topic};
use crate::postgres::{Error, row, sql};
use crate::recovery::held;
use crate::recovery::replay::{Plan, Wanted, reader, store};
use crate::recovery::request::{self, Progress};
use crate::terminal::say;

/// The name of these requests in the table.
const KIND: &str = "replay";

/// How many requests `--list` shows.
const LIST_MAX: i64 = 20;

/// The arguments.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    mapping: MappingArgs,
    #[command(flatten)]
    which: WhichArgs,
    /// All to this topic [default: each to the topic that it belongs to].
    #[arg(long, value_name = "TOPIC")]
    to_topic: Option<String>,
    /// The most events in a second; 0 is as many as go.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// The column that tells the order [default: seq, else the time].
    #[arg(long, value_name = "COLUMN")]
    order_by: Option<String>,
    /// The column that tells when a row was written [default: created_at, occurred_at, inserted_at or timestamp].
    #[arg(long, value_name = "COLUMN")]
    time_column: Option<String>,
    /// Tell how many events that are, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Ask for it, and do not wait until it is done.
    #[arg(long)]
    detach: bool,
    /// How long to wait for a relay that takes the request; after that it is taken back.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    wait: String,
    /// The last requests, and how they stand.
    #[arg(long, conflicts_with_all = ["watch", "cancel", "resume"])]
    list: bool,
    /// Wait for the request with this number.
    #[arg(long, value_name = "REQUEST", conflicts_with_all = ["cancel", "resume"])]
    watch: Option<i64>,
    /// End the request with this number, where it stands.
    #[arg(long, value_name = "REQUEST", conflicts_with = "resume")]
    cancel: Option<i64>,
    /// Go on with a request that was cancelled or failed, where it stands.
    #[arg(long, value_name = "REQUEST")]
    resume: Option<i64>,
    /// JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Which events: those to which everything applies that is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which events")]
struct WhichArgs {
    /// The event with this id. May be given several times.
    #[arg(long, value_name = "ID")]
    id: Vec<String>,
    /// Those about the aggregate with this id.
    #[arg(long, value_name = "ID")]
    aggregate: Option<String>,
    /// Those about aggregates of this type.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Option<String>,
    /// Those of this event type.
    #[arg(long = "event-type", visible_alias = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Those written at this time or later: 2026-12-01, "2026-12-01 10:00+01" (without a zone it is UTC), or 2h for two hours ago.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Those written before this time.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

impl WhichArgs {
    const fn is_given(&self) -> bool {
        !self.id.is_empty()
            || self.aggregate.is_some()
            || self.aggregate_type.is_some()
            || self.event_type.is_some()
            || self.from.is_some()
            || self.to.is_some()
    }
}

/// Has rows of the outbox published once more.
///
/// # Errors
/// Mistakes in the settings, events that are not there, or a relay that does not answer or cannot do it.
pub async fn run(args: ReplayArgs, effective: &Effective) -> Result<(), Failed> {
    let mut mistakes = effective.mistakes();
    let target = args.target.check(&mut mistakes);
    let mapping = args.mapping.mapping(effective, &mut mistakes);
    let wait = positive("--wait", &args.wait, &mut mistakes);
    args.check(&mut mistakes);
    let Some(target) = target.filter(|_| mistakes.is_empty()) else {
        return Err(Failed::new(Class::Usage, mistakes));
    };
    let client = sql::connect_and_spawn(&target.database).await?;
    if let Some(problem) = held::store::problem(&client).await? {
        return Err(Failed::new(Class::Setup, format_args!("{problem}; `outboxd setup` makes the table")));
    }
    let session = Session { args: &args, client, target, wait };
    match (args.list, args.watch, args.cancel, args.resume) {
        (true, ..) => session.list().await,
        (_, Some(id), ..) => session.watch(id).await,
        (_, _, Some(id), _) => session.cancel(id).await,
        (_, _, _, Some(id)) => session.resume(id).await,
        _ => session.replay(&mapping).await,
    }
}

impl ReplayArgs {
    fn check(&self, mistakes: &mut Mistakes) {
        let is_about_request = self.list || self.watch.is_some() || self.cancel.is_some() || self.resume.is_some();
        match (is_about_request, self.which.is_given()) {
            (false, false) => mistakes.add(
                "replay",
                "which events? Give --id, --aggregate, --aggregate-type, --event-type, --from or --to (--from 1970-01-01 is all)",
            ),
            (true, true) => mistakes.add("replay", "a request that is there already knows which events it is about"),
            _ => {}
        }
        if self.to_topic.as_ref().is_some_and(|name| !topic::is_name(name)) {
            mistakes.add("--to-topic", "is no name of a topic: letters, digits, '.', '_' and '-', at most 249");
        }
    }
}

struct Session<'a> {
    args: &'a ReplayArgs,
    client: Client,
    target: Target,
    wait: Duration,
}

impl Session<'_> {
    async fn replay(&self, mapping: &Mapping) -> Result<(), Failed> {
        let wanted = self.wanted().await?;
        let total = self.count(mapping, &wanted).await?;
        if self.args.dry_run || total == 0 {
            match self.args.json {
                true => say(json!({ "dry_run": self.args.dry_run, "events": total })),
                false if total == 0 => say("there is nothing to replay"),
                false => say(format_args!("would replay {total} events")),
            }?;
            return Ok(());
        }
        let id = request::ask(&self.client, &self.target.slot, KIND, &wanted).await?;
        if self.args.detach {
            match self.args.json {
                true => say(json!({ "request": id, "events": total })),
                false => say(format_args!(
                    "request {id}: {total} events; see it with --watch {id}, end it with --cancel {id}"
                )),
            }?;
            return Ok(());
        }
        self.watch(id).await
    }

    /// What is asked for; times as the server reads them now.
    async fn wanted(&self) -> Result<Wanted, Failed> {
        let ReplayArgs { which, to_topic, rate, order_by, time_column, .. } = self.args;
        Ok(Wanted {
            ids: which.id.clone(),
            aggregate: which.aggregate.clone(),
            aggregate_type: which.aggregate_type.clone(),
            event_type: which.event_type.clone(),
            from: self.time("--from", which.from.as_deref()).await?,
            to: self.time("--to", which.to.as_deref()).await?,
            to_topic: to_topic.clone(),
            rate: Some(*rate).filter(|rate| *rate > 0),
            order_by: order_by.clone(),
            time_column: time_column.clone(),
        })
    }

    async fn time(&self, flag: &str, text: Option<&str>) -> Result<Option<String>, Failed> {
        let Some(text) = text else { return Ok(None) };
        let query = "select (case when $2::float8 is null then $1::text::timestamptz \
            else clock_timestamp() - $2::float8 * interval '1 s' end)::text";
        let ago = humantime::parse_duration(text).ok().map(|ago| ago.as_secs_f64());
        // The server evaluates both branches of constants.
        let shown = if ago.is_some() { "now" } else { text };
        match self.client.query_one(query, &[&shown, &ago]).await.map_err(Error::from) {
            Ok(row) => Ok(Some(row.try_get(0).map_err(Error::from)?)),
            Err(error) if is_bad_value(&error) => Err(Failed::new(
                Class::Usage,
                format_args!("{flag}: {text:?} is no time: 2026-12-01, \"2026-12-01 10:00+01\" or 2h"),
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// How many events that are. Ids that no row has are told.
    async fn count(&self, mapping: &Mapping, wanted: &Wanted) -> Result<i64, Failed> {
        let columns = row::columns(&self.client, &self.target.table).await?;
        if columns.is_empty() {
            let what = format!("there is no table {}; choose another with --table", self.target.table);
            return Err(Failed::new(Class::Setup, what));
        }
        let mut unknown = String::new();
        for id in wanted.ids.iter().filter(|_| wanted.ids.len() > 1) {
            let one = Wanted { ids: vec![id.clone()], ..wanted.clone() };
            if self.measure(mapping, &columns, &one).await? == 0 {
                let _ = writeln!(unknown, "the table {} has no such row with the id {id:?}", self.target.table);
            }
        }
        let total = self.measure(mapping, &columns, wanted).await?;
        if let ([id], 0) = (wanted.ids.as_slice(), total) {
            let _ = writeln!(unknown, "the table {} has no such row with the id {id:?}", self.target.table);
        }
        if unknown.is_empty() { Ok(total) } else { Err(Failed::new(Class::Setup, unknown.trim_end())) }
    }

    async fn measure(&self, mapping: &Mapping, columns: &[row::TableColumn], wanted: &Wanted) -> Result<i64, Failed> {
        let plan = Plan::new(&self.target.table, columns, columns, mapping, wanted).map_err(|errors| {
            let words: Vec<String> = errors.iter().map(ToString::to_string).collect();
            Failed::new(Class::Usage, words.join("\n"))
        })?;
        match store::measure(&self.client, &plan).await {
            Ok(None) => Ok(0),
            Ok(Some((_, total, 0))) => Ok(total),
            Ok(Some((_, _, without))) => Err(Failed::new(Class::Setup, reader::no_place(without))),
            // An id that its type does not have, say.
            Err(error) if is_bad_value(&error) => Err(Failed::new(Class::Usage, error)),
            Err(error) => Err(error.into()),
        }
    }

    async fn watch(&self, id: i64) -> Result<(), Failed> {
        self.known(id).await?;
        let mut bar = Bar::new("replaying");
        let waiting = wait_for(&self.client, &self.target.slot, id, self.wait, &mut bar);
        let progress = tokio::select! {
            progress = waiting => progress,
            _ = tokio::signal::ctrl_c() => Err(Failed::new(
                Class::Interrupted,
                format_args!("request {id} goes on; see it with --watch {id}, end it with --cancel {id}"),
            )),
        };
        drop(bar);
        let Progress { done, message, .. } = progress?;
        match self.args.json {
            true => say(json!({ "request": id, "events": done, "message": message }))?,
            false => {
                let message = message.map_or_else(String::new, |message| format!("; {message}"));
                say(format_args!("{done} events are replayed{message}"))?;
            }
        }
        Ok(())
    }

    /// A request of this kind and number.
    async fn known(&self, id: i64) -> Result<Progress, Failed> {
        let found = request::progress(&self.client, id).await?.filter(|found| found.kind == KIND);
        found.ok_or_else(|| {
            Failed::new(Class::Setup, format_args!("there is no replay with the number {id}; see --list"))
        })
    }

    async fn cancel(&self, id: i64) -> Result<(), Failed> {
        let before = self.known(id).await?;
        match request::cancel(&self.client, id).await? {
            true if self.args.json => Ok(say(json!({ "request": id, "state": "cancelled" }))?),
            true => Ok(say(format_args!("request {id} ends where it stands; go on with --resume {id}"))?),
            false => Err(Failed::new(Class::Setup, format_args!("request {id} is {} already", before.state))),
        }
    }

    async fn resume(&self, id: i64) -> Result<(), Failed> {
        let before = self.known(id).await?;
        match request::resume(&self.client, &self.target.slot, id).await? {
            true => self.watch(id).await,
            false => Err(Failed::new(
                Class::Setup,
                format_args!("request {id} is {}; only one that is cancelled or failed can be resumed", before.state),
            )),
        }
    }

    async fn list(&self) -> Result<(), Failed> {
        let requests = request::list(&self.client, &self.target.slot, KIND, LIST_MAX).await?;
        if requests.is_empty() && !self.args.json {
            say("no replay was asked for")?;
        }
        for progress in requests {
            if self.args.json {
                say(serde_json::to_value(&progress).unwrap_or(Value::Null))?;
                continue;
            }
            let Progress { id, state, done, total, message, requested_at, .. } = progress;
            let of = total.map_or_else(String::new, |total| format!(" of {total}"));
            let message = message.map_or_else(String::new, |message| format!(": {message}"));
            say(format_args!("{id:>6}  {state:9}  {done}{of} events, asked for at {requested_at}{message}"))?;
        }
        Ok(())
    }
}

/// What was given is no value of its type (class 22).
fn is_bad_value(error: &Error) -> bool {
    error.sqlstate().is_some_and(|state| state.code().starts_with("22"))
}
