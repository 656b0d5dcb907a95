//! What events that cannot be published cost the others: the same log with its bad events left alone, and with them held.
//!
//! One row in a hundred has headers that are no JSON object. A relay that is told of no headers publishes all rows; one that reads
//! them holds the bad ones.

use super::backlog::DEFAULT;
use super::drain::{Goal, Run, outboxd};
use super::failure::Failure;
use super::options::Options;
use super::stage::Stage;
use super::way::Way;

/// Runs without and with bad events, in turns.
#[derive(Debug, Default)]
pub(crate) struct Bad {
    pub(crate) clean: Vec<Run>,
    pub(crate) held: Vec<Run>,
}

pub(crate) async fn all(stage: &Stage, options: &Options) -> Result<Bad, Failure> {
    let (feed, rows) = (&DEFAULT, options.rows());
    feed.create(stage).await;
    let broken = "alter table outboxd.outbox alter column headers set default \
        case when random() < 0.01 then '[1]'::jsonb end";
    stage.sql.batch_execute(broken).await.unwrap();
    eprintln!("bench: bad events: {rows} rows into {}, one in a hundred is no event", feed.table);
    feed.fill(stage, rows, 10).await;
    let count = "select count(*) from outboxd.outbox where headers is not null";
    let bad: i64 = stage.sql.query_one(count, &[]).await.unwrap().get(0);
    let mut runs = Bad::default();
    for number in 1..=options.runs() {
        // What is held is not published a second time.
        stage.sql.batch_execute("truncate outboxd.held").await.unwrap();
        let clean = Goal { rows, records: rows, flags: &["--column", "headers="] };
        runs.clean.push(say(number, "clean", outboxd(stage, feed, Way::Unix, clean).await?));
        let held = Goal { rows, records: rows - bad.unsigned_abs(), flags: &[] };
        runs.held.push(say(number, "held", outboxd(stage, feed, Way::Unix, held).await?));
        let stored: i64 = stage.sql.query_one("select count(*) from outboxd.held", &[]).await.unwrap().get(0);
        if stored != bad {
            return Err(Failure::new(format!("{stored} of {bad} bad events are held")));
        }
    }
    feed.remove(stage).await;
    Ok(runs)
}

fn say(number: u32, what: &str, run: Run) -> Run {
    eprintln!("bench: bad events, run {number}: {what:<6} {:>8.0} events/s", run.events_per_s);
    run
}
