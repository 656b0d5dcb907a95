//! An application that commits events at a steady rate.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::backlog::{AGGREGATES, Feed};
use super::options::Switch;
use super::stage::Stage;
use super::way::Way;

const CONNECTIONS: u32 = 4;

/// A rate, kept up for some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) events_per_s: u32,
    pub(crate) seconds: u32,
    pub(crate) synchronous_commit: Switch,
}

impl Load {
    /// How many events that makes.
    pub(crate) fn events(self) -> u32 {
        self.events_per_s / CONNECTIONS * CONNECTIONS * self.seconds
    }

    /// Inserts the events, one a transaction, and returns how long that took. They are numbered from `first` on.
    pub(crate) async fn write(self, stage: &Stage, feed: &Feed, first: i64) -> Duration {
        let each = self.events() / CONNECTIONS;
        let pause = Duration::from_secs(1) * CONNECTIONS / self.events_per_s;
        let mut sessions = Vec::new();
        for _ in 0..CONNECTIONS {
            let session = stage.session(Way::Unix).await;
            let set = format!("set synchronous_commit = {}", self.synchronous_commit.as_str());
            session.batch_execute(&set).await.unwrap();
            let insert = session.prepare(&feed.insert()).await.unwrap();
            sessions.push((session, insert));
        }
        let begin = Instant::now();
        let mut writers = JoinSet::new();
        for (number, (session, insert)) in (0..).zip(sessions) {
            writers.spawn(async move {
                // One after the other, not all at the same moment.
                tokio::time::sleep(pause / CONNECTIONS * number).await;
                let mut ticks = tokio::time::interval(pause);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let begin = first + i64::from(number * each);
                for n in begin..begin + i64::from(each) {
                    ticks.tick().await;
                    session.execute(&insert, &[&n, &fastrand::i32(1..=AGGREGATES)]).await.unwrap();
                }
            });
        }
        writers.join_all().await;
        begin.elapsed()
    }
}
