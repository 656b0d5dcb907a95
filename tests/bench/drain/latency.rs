//! From the insert to the consumer's receipt, under a steady load.

use std::time::{Duration, Instant};

use super::backlog::{Feed, REFERENCE, copy_slot};
use super::failure::Failure;
use super::generator::Load;
use super::meter::{Machine, Meter};
use super::options::Options;
use super::relay::Measured;
use super::stage::Stage;
use super::stats::{percentile, sorted};
use super::topic::{Consumer, Received, Topic};
use super::way::Way;

const RATES: [u32; 2] = [1_000, 5_000];

/// Before it is measured: connections, caches and the broker's just-in-time compiler come to their steady state.
const WARM_UP_SECONDS: u32 = 3;

/// The latencies of one rate, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) events_per_s: u32,
    /// Less than that, if the server did not keep up.
    pub(crate) events_per_s_written: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// CPU of the relay in percent of a core.
    pub(crate) cpu_percent: f64,
    /// CPU of the whole machine, with the load itself and both servers. Near 100 it is the machine that is measured.
    pub(crate) machine_percent: f64,
}

pub(crate) async fn all(stage: &Stage, options: &Options) -> Result<Vec<Latency>, Failure> {
    // An asynchronous commit is sent once the WAL writer has flushed it; the default of 200 ms would hide the relay.
    stage.set("wal_writer_delay", Some("1ms")).await;
    let mut latencies = Vec::new();
    for events_per_s in RATES {
        let seconds = options.latency_seconds();
        eprintln!("bench: latency: {events_per_s} events/s for {seconds} s");
        let load = Load { events_per_s, seconds, synchronous_commit: options.synchronous_commit };
        latencies.push(latency(stage, &REFERENCE, load).await?);
    }
    stage.set("wal_writer_delay", None).await;
    Ok(latencies)
}

async fn latency(stage: &Stage, feed: &Feed, load: Load) -> Result<Latency, Failure> {
    feed.create(stage).await;
    copy_slot(stage).await;
    let topic = Topic::create(&stage.kafka).await;
    let relay = Measured::outboxd(stage, feed, Way::Unix, &topic, &[]);
    let consumer = topic.consume();
    let warm_up = Load { seconds: WARM_UP_SECONDS, ..load };
    warm_up.write(stage, feed, 1).await;
    until_count(&consumer, warm_up.events()).await?;
    consumer.take();

    let (mut meter, machine) = (Meter::from_now(relay.pid()), Machine::from_now());
    let first = i64::from(warm_up.events()) + 1;
    let written_in = load.write(stage, feed, first).await.as_secs_f64();
    meter.sample();
    let machine_percent = machine.busy_percent();
    until_count(&consumer, load.events()).await?;
    relay.terminate().await?;
    let latencies = latencies(&consumer.take(), first, load)?;
    drop(consumer);
    topic.delete(&stage.kafka).await;
    feed.remove(stage).await;
    Ok(Latency {
        events_per_s: load.events_per_s,
        events_per_s_written: f64::from(load.events()) / written_in,
        p50_ms: percentile(&latencies, 50.0),
        p99_ms: percentile(&latencies, 99.0),
        max_ms: percentile(&latencies, 100.0),
        cpu_percent: 100.0 * meter.cpu() / written_in,
        machine_percent,
    })
}

async fn until_count(consumer: &Consumer, events: u32) -> Result<(), Failure> {
    let begin = Instant::now();
    while consumer.count() < events as usize {
        if begin.elapsed() > Duration::from_secs(60) {
            return Err(Failure::new(format!("the consumer received {} of {events} events", consumer.count())));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Sorted, in milliseconds; each event must have come once.
fn latencies(received: &[Received], first: i64, load: Load) -> Result<Vec<f64>, Failure> {
    let mut seen = vec![false; load.events() as usize];
    let mut latencies = Vec::with_capacity(received.len());
    for Received { at_unix, value } in received {
        let payload: serde_json::Value = serde_json::from_slice(value).unwrap();
        let index = usize::try_from(payload["n"].as_i64().unwrap() - first).unwrap_or(usize::MAX);
        match seen.get_mut(index) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(Failure::new(format!("an event came that was not to come: {payload}"))),
        }
        latencies.push((at_unix - payload["ts"].as_f64().unwrap()) * 1e3);
    }
    if latencies.len() < seen.len() {
        return Err(Failure::new(format!("{} of {} events came", latencies.len(), seen.len())));
    }
    Ok(sorted(latencies))
}
