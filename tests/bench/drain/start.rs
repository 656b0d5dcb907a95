//! How long a start takes.

use std::time::{Duration, Instant};

use super::backlog::{REFERENCE, copy_slot};
use super::failure::Failure;
use super::relay::Measured;
use super::stage::Stage;
use super::stats::Spread;
use super::topic::Topic;
use super::way::Way;

/// The milliseconds from the start of the process to the receipt of the one event that waits for it.
pub(crate) async fn first_event_ms(stage: &Stage, starts: u32) -> Result<Spread, Failure> {
    eprintln!("bench: start: {starts} times");
    let feed = REFERENCE;
    feed.create(stage).await;
    feed.fill(stage, 1, 1).await;
    let mut times = Vec::new();
    for _ in 0..starts {
        copy_slot(stage).await;
        let topic = Topic::create(&stage.kafka).await;
        let consumer = topic.consume();
        // It has to know the topic's leaders before.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begin = Instant::now();
        let mut relay = Measured::outboxd(stage, &feed, Way::Unix, &topic, &[]);
        while consumer.count() == 0 {
            relay.has_ended()?;
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(Failure::new("the event that waits is not published"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        relay.terminate().await?;
        drop(consumer);
        topic.delete(&stage.kafka).await;
    }
    feed.remove(stage).await;
    Ok(Spread::of(times))
}
