//! How fast outboxd is on real servers, measured beside PostgreSQL's own `pg_recvlogical`, which reads the same log and publishes
//! nothing. tests/bench.sh prepares all it needs and runs it.
//!
//! | what | how |
//! |---|---|
//! | drain | a backlog behind a master slot; outboxd and `pg_recvlogical` in turns, each on a copy of that slot: all read the same log |
//! | latency | from `clock_timestamp()` in the INSERT to the consumer's receipt, one clock |
//! | bad | the same backlog with one row in a hundred that is no event, left alone and held, in turns |
//! | start | from the start of the process to the receipt of the one event that waits |
//! | idle | CPU and memory of a relay that has nothing to do |
//!
//! **The ratio** is outboxd's events per second over `pg_recvlogical`'s. For outboxd the time runs from the first to the last poll
//! of the topic's end offsets that saw progress, without the events that the first one saw; so its start (connect, check, first
//! metadata) is not in it. `start` measures that alone. For `pg_recvlogical`, which checks nothing, the time is that of the whole
//! process. Median over median.
//!
//! Before drain and latency the broker is warmed up with drains that are not measured; a cold one costs a third of the rate.
//! With `--quick` it stays half cold.
//!
//! The numbers compare only within one run of this program: machines differ, and one machine differs from hour to hour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod backlog;
mod bad;
mod drain;
mod failure;
mod generator;
mod idle;
mod latency;
mod meter;
mod options;
mod relay;
mod report;
#[allow(dead_code, unused_imports)]
#[path = "../../it/harness/servers/mod.rs"]
mod servers;
mod stage;
mod start;
mod stats;
mod topic;
mod way;

use std::process::ExitCode;

use clap::Parser;

use failure::Failure;
use options::{Options, Part};
use report::Report;
use stage::Stage;

#[tokio::main]
async fn main() -> ExitCode {
    match measure(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<(), Failure> {
    let stage = Stage::start(options).await;
    let mut report = Report::of(&stage).await;
    if [Part::Drain, Part::Latency, Part::Bad].into_iter().any(|part| options.includes(part)) {
        drain::warm_up(&stage, options).await?;
    }
    if options.includes(Part::Drain) {
        report.drains = drain::all(&stage, options).await?;
    }
    if options.includes(Part::Bad) {
        report.bad = Some(bad::all(&stage, options).await?);
    }
    if options.includes(Part::Latency) {
        report.latencies = latency::all(&stage, options).await?;
    }
    if options.includes(Part::Start) {
        report.first_event_ms = Some(start::first_event_ms(&stage, options.starts()).await?);
    }
    if options.includes(Part::Idle) {
        report.idle = Some(idle::idle(&stage, options.idle_seconds()).await?);
    }
    print!("{}", report.table());
    if options.json {
        println!("{}", report.json());
    }
    Ok(())
}
