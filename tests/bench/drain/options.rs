//! What to measure, and how long.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// One of the things that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Drain,
    Latency,
    Start,
    Idle,
    Bad,
}

/// PostgreSQL's wish for an asynchronous or a synchronous commit.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// How fast outboxd is on this machine: a table, and with --json one JSON object as the last line of standard output.
#[derive(Debug, Parser)]
#[command(name = "tests/bench.sh")]
pub(crate) struct Options {
    /// How many rows a drain's backlog has
    #[arg(long)]
    rows: Option<u64>,
    /// How many times each drain is run
    #[arg(long)]
    runs: Option<u32>,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub(crate) json: bool,
    /// Small numbers, to see whether all works; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Measure one thing only
    #[arg(long)]
    only: Option<Part>,
    /// How the measured transactions of the latency commit
    #[arg(long, default_value = "off")]
    pub(crate) synchronous_commit: Switch,
    /// The program to measure
    #[arg(long, default_value = env!("CARGO_BIN_EXE_outboxd"))]
    pub(crate) outboxd: PathBuf,
    /// Cargo passes it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub(crate) fn includes(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows.unwrap_or(if self.quick { 50_000 } else { 500_000 })
    }

    pub(crate) fn warm_up_rows(&self) -> u64 {
        if self.quick { 50_000 } else { 200_000 }
    }

    pub(crate) fn warm_ups(&self) -> u32 {
        if self.quick { 4 } else { 12 }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// How long each rate of events is kept up while the latency is measured.
    pub(crate) fn latency_seconds(&self) -> u32 {
        if self.quick { 4 } else { 20 }
    }

    pub(crate) fn starts(&self) -> u32 {
        if self.quick { 3 } else { 5 }
    }

    pub(crate) fn idle_seconds(&self) -> u32 {
        if self.quick { 4 } else { 20 }
    }
}
