//! What a relay costs that has nothing to do.

use std::time::Duration;

use super::backlog::{REFERENCE, copy_slot};
use super::failure::Failure;
use super::meter::{Meter, memory_mib};
use super::relay::Measured;
use super::stage::Stage;
use super::topic::Topic;
use super::way::Way;

/// CPU in percent of a core, and resident memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) cpu_percent: f64,
    pub(crate) rss_mib: f64,
}

pub(crate) async fn idle(stage: &Stage, seconds: u32) -> Result<Idle, Failure> {
    eprintln!("bench: idle: {seconds} s");
    let feed = REFERENCE;
    feed.create(stage).await;
    feed.fill(stage, 1, 1).await;
    copy_slot(stage).await;
    let topic = Topic::create(&stage.kafka).await;
    let mut relay = Measured::outboxd(stage, &feed, Way::Unix, &topic, &[]);
    // Idle is after work: with all its connections, and one event done.
    while topic.count()? == 0 {
        relay.has_ended()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut meter = Meter::from_now(relay.pid());
    tokio::time::sleep(Duration::from_secs(u64::from(seconds))).await;
    meter.sample();
    let rss_mib = memory_mib(relay.pid(), "VmRSS:").unwrap_or_default();
    relay.terminate().await?;
    topic.delete(&stage.kafka).await;
    feed.remove(stage).await;
    Ok(Idle { cpu_percent: 100.0 * meter.cpu() / f64::from(seconds), rss_mib })
}
