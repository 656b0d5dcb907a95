//! `outboxd dead-letters`.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_postgres::Client;

use super::brokers::positive;
use super::exit::{Class, Failed};
use super::requests::{Bar, wait_for};
use super::target::{Target, TargetArgs};
use crate::config::run::Mistakes;
use crate::postgres::sql;
use crate::recovery::held::letters::{self, Filter, Letter, Wish};
use crate::recovery::held::{State, store};
use crate::recovery::request;
use crate::terminal::say;

/// Between two looks at what is left of a requeue.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// One line an event.
    List,
    /// All of one event.
    Show,
    /// Publish dead letters (behind newer events of their keys) and release quarantined events (in their places).
    Requeue,
    /// Never publish them.
    Discard,
}

/// The arguments.
#[derive(Debug, Args)]
pub struct DeadLettersArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// What to do.
    #[arg(value_enum)]
    action: Action,
    /// The numbers of the events, as `list` shows them.
    ids: Vec<i64>,
    /// Every event that the other options leave in.
    #[arg(long)]
    all: bool,
    /// Only those in this state: dead, quarantined, parked, requeued or discarded [default for a list: all of them].
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,
    /// Only those for this topic.
    #[arg(long, value_name = "TOPIC")]
    for_topic: Option<String>,
    /// Only those that were refused for this kind of reason: too_large, no_key, unmappable, row_too_large, record, no_topic ...
    #[arg(long)]
    class: Option<String>,
    /// Only those of this event type.
    #[arg(long)]
    event_type: Option<String>,
    /// The most lines of a list.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// Tell what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the relay, which does it; after that a request that it has not taken is taken back.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    wait: String,
    /// JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// Shows held events, or has something done about them.
///
/// # Errors
/// Mistakes in the settings, events that are not there or in another state, or a relay that does not answer.
pub async fn run(args: DeadLettersArgs) -> Result<(), Failed> {
    let mut mistakes = Mistakes::default();
    let target = args.target.check(&mut mistakes);
    let filter = args.filter(&mut mistakes);
    let wait = positive("--wait", &args.wait, &mut mistakes);
    let Some(target) = target.filter(|_| mistakes.is_empty()) else {
        return Err(Failed::new(Class::Usage, mistakes));
    };
    let client = sql::connect_and_spawn(&target.database).await?;
    if let Some(problem) = store::problem(&client).await? {
        return Err(Failed::new(Class::Setup, format_args!("{problem}; `outboxd setup` makes the table")));
    }
    match args.action {
        Action::List => args.list(&client, &target, &filter).await,
        Action::Show => args.show(&client, &target, &filter).await,
        Action::Requeue => args.ask(&client, &target, filter, Wish::Requeue, wait).await,
        Action::Discard => args.ask(&client, &target, filter, Wish::Discard, wait).await,
    }
}

impl DeadLettersArgs {
    fn filter(&self, mistakes: &mut Mistakes) -> Filter {
        let known = State::ALL.map(|(name, _)| name);
        for state in self.state.iter().filter(|state| !known.contains(&state.as_str())) {
            mistakes.add("--state", format_args!("{state:?} is unknown; known are {}", known.join(", ")));
        }
        let is_chosen = !self.ids.is_empty()
            || !self.state.is_empty()
            || self.for_topic.is_some()
            || self.class.is_some()
            || self.event_type.is_some();
        match self.action {
            Action::Show if self.ids.is_empty() => {
                mistakes.add("show", "which one? Give its number, as `list` shows it")
            }
            Action::Requeue | Action::Discard if !is_chosen && !self.all => {
                mistakes.add(
                    "requeue and discard",
                    "which ones? Give numbers, --for-topic, --class, --event-type, or --all",
                );
            }
            _ => {}
        }
        Filter {
            ids: (!self.ids.is_empty()).then(|| self.ids.clone()),
            states: (!self.state.is_empty()).then(|| self.state.clone()),
            topic: self.for_topic.clone(),
            class: self.class.clone(),
            event_type: self.event_type.clone(),
        }
    }

    async fn list(&self, client: &Client, target: &Target, filter: &Filter) -> Result<(), Failed> {
        let found = letters::list(client, &target.slot, filter, i64::from(self.limit), false).await?;
        if self.json {
            return Ok(found.iter().try_for_each(|letter| say(summary(letter)))?);
        }
        found.iter().try_for_each(|letter| say(line(letter)))?;
        let counts = letters::count(client, &target.slot, filter).await?;
        let total: i64 = counts.iter().map(|(_, count)| count).sum();
        let words: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        match total {
            0 => say("nothing is held")?,
            _ => say(format_args!("{total} held: {}", words.join(", ")))?,
        }
        Ok(())
    }

    async fn show(&self, client: &Client, target: &Target, filter: &Filter) -> Result<(), Failed> {
        self.look_at_ids(client, target, None).await?;
        for letter in letters::list(client, &target.slot, filter, i64::MAX, true).await? {
            let whole = whole(&letter);
            if self.json {
                say(whole)?;
            } else {
                say(serde_json::to_string_pretty(&whole).map_err(|error| Failed::new(Class::Data, error))?)?;
            }
        }
        Ok(())
    }

    /// Numbers that are not there, or to which the wish cannot be done, are told before anything is changed.
    async fn look_at_ids(&self, client: &Client, target: &Target, wish: Option<Wish>) -> Result<(), Failed> {
        let ids = Some(self.ids.clone()).filter(|ids| !ids.is_empty());
        if ids.is_none() {
            return Ok(());
        }
        let filter = Filter { ids, ..Filter::default() };
        let found = letters::list(client, &target.slot, &filter, i64::MAX, false).await?;
        let mut wrong = Vec::new();
        for id in &self.ids {
            match (found.iter().find(|letter| letter.event.id == *id), wish) {
                (None, _) => wrong.push(format!("slot {:?} holds no event {id}", target.slot)),
                (Some(letter), Some(wish)) if !wish.takes(letter.event.state) => {
                    wrong.push(format!("event {id} is {}, so there is nothing to {}", letter.event.state, wish.name()));
                }
                (Some(letter), Some(Wish::Requeue)) if letter.event.topic.is_none() => wrong.push(format!(
                    "no record could be made of event {id}: {}; correct that, and insert the event anew",
                    letter.event.reason
                )),
                _ => {}
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(Failed::new(Class::Setup, wrong.join("\n"))) }
    }

    /// Has the relay do it, and waits for that.
    async fn ask(
        &self,
        client: &Client,
        target: &Target,
        mut filter: Filter,
        wish: Wish,
        wait: Duration,
    ) -> Result<(), Failed> {
        self.look_at_ids(client, target, Some(wish)).await?;
        let taken = State::ALL.into_iter().filter(|(_, state)| wish.takes(*state)).map(|(name, _)| name.to_owned());
        let given = filter.states.take();
        filter.states = Some(taken.filter(|name| given.as_ref().is_none_or(|given| given.contains(name))).collect());
        let counts = letters::count(client, &target.slot, &filter).await?;
        let total: i64 = counts.iter().map(|(_, count)| count).sum();
        if self.dry_run || total == 0 {
            return Ok(self.told(wish, &counts, total)?);
        }
        let ids = letters::ids(client, &target.slot, &filter).await?;
        let request = request::ask(client, &target.slot, wish.name(), &filter).await?;
        let mut bar = Bar::new(if wish == Wish::Requeue { "publishing" } else { "discarding" });
        let done = wait_for(client, &target.slot, request, wait, &mut bar).await?.done;
        let left = match wish {
            Wish::Requeue => self.publish(client, target, &ids, wait, &mut bar).await?,
            Wish::Discard => Left::default(),
        };
        drop(bar);
        match (self.json, wish) {
            (true, _) => say(json!({
                "action": wish.name(), "request": request, "events": done, "waiting": left.waiting, "refused": left.refused,
            })),
            (false, Wish::Discard) => say(format_args!("{done} events are discarded")),
            (false, Wish::Requeue) => say(format_args!("{}", left.words(ids.len()))),
        }?;
        Ok(())
    }

    /// Waits until the events that were released are published or refused once more.
    async fn publish(
        &self,
        client: &Client,
        target: &Target,
        ids: &[i64],
        wait: Duration,
        bar: &mut Bar,
    ) -> Result<Left, Failed> {
        let total = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let (mut since, mut before) = (Instant::now(), total);
        loop {
            let (waiting, refused) = letters::left(client, &target.slot, ids).await?;
            bar.at(total - waiting, total);
            if waiting < before {
                (since, before) = (Instant::now(), waiting);
            }
            // While it moves it is waited for.
            if waiting == 0 || since.elapsed() >= wait {
                return Ok(Left { waiting, refused });
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn told(&self, wish: Wish, counts: &[(String, i64)], total: i64) -> io::Result<()> {
        if self.json {
            let counts: serde_json::Map<String, Value> =
                counts.iter().map(|(state, count)| (state.clone(), json!(count))).collect();
            return say(json!({ "action": wish.name(), "dry_run": self.dry_run, "events": total, "states": counts }));
        }
        let words: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        match total {
            0 => say(format_args!("there is nothing to {}", wish.name())),
            _ => say(format_args!("would {} {total} events: {}", wish.name(), words.join(", "))),
        }
    }
}

/// What is left of a requeue.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    waiting: i64,
    refused: i64,
}

impl Left {
    fn words(self, total: usize) -> String {
        let Self { waiting, refused } = self;
        let published = i64::try_from(total).unwrap_or(i64::MAX) - waiting - refused;
        let mut words = format!(
            "{published} events are published: dead letters behind newer events of their keys, quarantined ones in their places"
        );
        if refused > 0 {
            words += &format!("; {refused} were refused once more");
        }
        if waiting > 0 {
            words += &format!("; {waiting} still wait for their turn");
        }
        if refused + waiting > 0 {
            words += "; see them with `outboxd dead-letters list`";
        }
        words
    }
}

/// A line of the list.
fn line(letter: &Letter) -> String {
    let event = &letter.event;
    let key = event.key.as_ref().map_or_else(|| "-".to_owned(), |key| String::from_utf8_lossy(key).into_owned());
    let topic = event.topic.as_deref().unwrap_or("-");
    let retry = letter.retry_at.as_ref().map_or_else(String::new, |at| format!(", again at {at}"));
    format!(
        "{:>6}  {:11}  {:13}  {topic}  {key}  {}  {}  attempts {}, first {}{retry}: {}",
        event.id,
        event.state.to_string(),
        event.class,
        event.event_type.as_deref().unwrap_or("-"),
        event.event_id.as_deref().unwrap_or("-"),
        event.attempts,
        letter.first_at,
        event.reason
    )
}

fn summary(letter: &Letter) -> Value {
    let event = &letter.event;
    json!({
        "id": event.id, "state": event.state, "scope": event.scope, "class": event.class, "reason": event.reason,
        "on_failure": event.on_failure, "attempts": event.attempts, "max_attempts": event.max_attempts,
        "topic": event.topic, "key": event.key.as_ref().map(|key| String::from_utf8_lossy(key)), "event_id": event.event_id,
        "event_type": event.event_type, "source": event.source, "position": event.position().to_string(),
        "commit_lsn": event.commit_lsn, "ordinal": event.ordinal, "value_bytes": letter.value_bytes,
        "first_at": letter.first_at, "last_at": letter.last_at, "retry_at": letter.retry_at, "released": event.released,
    })
}

/// With value, headers and row.
fn whole(letter: &Letter) -> Value {
    let event = &letter.event;
    let bytes = |bytes: &Option<Vec<u8>>| match bytes.as_ref().map(|bytes| std::str::from_utf8(bytes)) {
        None => Value::Null,
        Some(Ok(text)) => json!(text),
        Some(Err(_)) => json!({ "base64": bytes.as_ref().map(|bytes| STANDARD.encode(bytes)) }),
    };
    let mut shown = summary(letter);
    if let Some(shown) = shown.as_object_mut() {
        shown.insert("key".to_owned(), bytes(&event.key));
        shown.insert("value".to_owned(), bytes(&event.value));
        shown.insert("headers".to_owned(), json!(event.headers));
        shown.insert("partition".to_owned(), json!(event.partition));
        shown.insert("columns".to_owned(), json!(event.columns));
    }
    shown
}
