//! `outboxd status`.

use std::io;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::json;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::brokers::positive;
use super::exit::{Class, Failed};
use super::target::{Target, TargetArgs};
use crate::config::run::Mistakes;
use crate::postgres::status::{Reader, Status, look};
use crate::postgres::{self, sql};
use crate::terminal::say;

/// The arguments.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Look again and again, a line each time, until Ctrl-C.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    watch: Option<String>,
    /// One JSON object a look, for programs.
    #[arg(long)]
    json: bool,
}

/// Prints how the slot stands.
///
/// # Errors
/// Mistakes in the settings; without `--watch` also that there is no slot, or no database.
pub async fn run(args: StatusArgs) -> Result<(), Failed> {
    let mut mistakes = Mistakes::default();
    let target = args.target.check(&mut mistakes);
    let interval = args.watch.as_deref().map(|text| positive("--watch", text, &mut mistakes));
    let Some(target) = target.filter(|_| mistakes.is_empty()) else {
        return Err(Failed::new(Class::Usage, mistakes));
    };
    if let Some(interval) = interval {
        tokio::select! {
            ended = watch(&target, interval, args.json) => return Ok(ended?),
            // A handler that cannot be set leaves the signal's own effect.
            Ok(()) = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
    let client = sql::connect_and_spawn(&target.database).await?;
    let status = look(&client, &target.slot).await?;
    let Some(status) = status else { return Err(Failed::new(Class::Setup, no_slot(&target.slot))) };
    if args.json {
        say(to_json(&target.slot, &status))?;
    } else {
        print(&target.slot, &status)?;
    }
    Ok(())
}

fn no_slot(name: &str) -> String {
    format!("the slot {name:?} does not exist; outboxd setup --slot {name} creates it")
}

/// A line for each look. A server that is away is told and looked for again.
async fn watch(target: &Target, interval: Duration, as_json: bool) -> io::Result<()> {
    let mut client: Option<Client> = None;
    let mut before: Option<(Instant, u64)> = None;
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let at = humantime::format_rfc3339_seconds(SystemTime::now());
        match look_again(target, &mut client).await {
            Ok(Some(status)) => {
                let now = (Instant::now(), status.slot.confirmed.map_or(0, |end| end.lsn().get()));
                if as_json {
                    say(to_json(&target.slot, &status))?;
                } else {
                    say(format_args!("{at}  {}", line(&status, before, now)))?;
                }
                before = Some(now);
            }
            Ok(None) => tell(as_json, &at.to_string(), &no_slot(&target.slot))?,
            Err(error) => {
                client = None;
                tell(as_json, &at.to_string(), &error.to_string())?;
            }
        }
    }
}

async fn look_again(target: &Target, client: &mut Option<Client>) -> postgres::Result<Option<Status>> {
    let client = match client {
        Some(client) => client,
        None => client.insert(sql::connect_and_spawn(&target.database).await?),
    };
    look(client, &target.slot).await
}

fn tell(as_json: bool, at: &str, trouble: &str) -> io::Result<()> {
    if as_json { say(json!({ "error": trouble })) } else { say(format_args!("{at}  {trouble}")) }
}

fn line(status: &Status, before: Option<(Instant, u64)>, (now, confirmed): (Instant, u64)) -> String {
    let rate = before.map_or_else(String::new, |(then, was)| {
        let per_second = confirmed.saturating_sub(was) as f64 / (now - then).as_secs_f64();
        format!(", confirms {}/s", size(per_second as u64))
    });
    let reader = status.reader.as_ref().map_or_else(|| "no reader".to_owned(), |reader| format!("pid {}", reader.pid));
    format!(
        "{reader}, {} behind, lag {}, {} retained{rate}",
        status.lag_bytes().map_or_else(|| "unknown".to_owned(), size),
        lag(status),
        status.retained_bytes().map_or_else(|| "nothing".to_owned(), size),
    )
}

fn print(name: &str, status: &Status) -> io::Result<()> {
    let slot = &status.slot;
    let (plugin, database) = (slot.plugin.as_deref(), slot.database.as_deref());
    say(format_args!(
        "slot       {name}, {} of the database {}",
        plugin.unwrap_or("physical"),
        database.unwrap_or("none")
    ))?;
    say(format_args!("reader     {}", status.reader.as_ref().map_or_else(|| "nobody".to_owned(), reader)))?;
    let confirmed = slot.confirmed.map_or_else(|| "nothing".to_owned(), |end| end.lsn().to_string());
    let behind = status.lag_bytes().map_or_else(|| "unknown".to_owned(), size);
    say(format_args!("confirmed  {confirmed}, {behind} behind the end of the log"))?;
    say(format_args!("lag        {}", lag(status)))?;
    let retained = status.retained_bytes().map_or_else(|| "nothing".to_owned(), size);
    say(format_args!("retained   {retained} of the log, {}", slot.wal_status.as_deref().unwrap_or("unknown")))?;
    if let Some(left) = slot.safe_bytes {
        say(format_args!(
            "limit      {} more may be written before the slot is in danger",
            size(left.max(0).unsigned_abs())
        ))?;
    }
    if slot.is_lost() {
        let why = slot.invalidation.as_deref().unwrap_or("the log that it needs was removed");
        say(format_args!("LOST       invalidated by the server: {why}; `outboxd check` says what to do"))?;
    }
    Ok(())
}

fn reader(reader: &Reader) -> String {
    let mut text = format!("pid {}", reader.pid);
    if let Some(application) = reader.application.as_deref().filter(|name| !name.is_empty()) {
        text = format!("{application}, {text}");
    }
    let from = reader.address.as_deref().map(|address| format!(" from {address}")).unwrap_or_default();
    let state = reader.state.as_deref().map(|state| format!(", {state}")).unwrap_or_default();
    let since = reader.connected_for.map(|time| format!(", connected for {}", seconds(time))).unwrap_or_default();
    format!("{text}{from}{state}{since}")
}

fn seconds(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(time.as_secs()))
}

/// Known only while somebody reads.
fn lag_seconds(status: &Status) -> Option<f64> {
    let reader = status.reader.as_ref()?;
    match reader.lag {
        Some(lag) => Some(lag.as_secs_f64()),
        None if status.lag_bytes() == Some(0) => Some(0.0),
        None => None,
    }
}

fn lag(status: &Status) -> String {
    lag_seconds(status).map_or_else(|| "unknown".to_owned(), |seconds| format!("{seconds:.3} s"))
}

fn size(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

fn to_json(name: &str, status: &Status) -> serde_json::Value {
    let slot = &status.slot;
    let reader = status.reader.as_ref().map(|reader| {
        json!({
            "pid": reader.pid,
            "application": reader.application,
            "address": reader.address,
            "state": reader.state,
            "connected_seconds": reader.connected_for.map(|time| time.as_secs_f64()),
        })
    });
    json!({
        "slot": name,
        "plugin": slot.plugin,
        "database": slot.database,
        "reader": reader,
        "confirmed": slot.confirmed.map(|end| end.lsn().to_string()),
        "end": status.end.to_string(),
        "lag_bytes": status.lag_bytes(),
        "lag_seconds": lag_seconds(status),
        "retained_bytes": status.retained_bytes(),
        "wal_status": slot.wal_status,
        "safe_bytes": slot.safe_bytes,
        "lost": slot.is_lost(),
        "invalidation": slot.invalidation,
    })
}
