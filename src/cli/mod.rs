//! The command line: one file a command.

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub mod brokers;
pub mod check;
pub mod config_file;
pub mod dead_letters;
pub mod demo;
pub mod effective;
pub mod exit;
pub mod explain;
mod held;
pub mod mapping;
pub mod replay;
mod requests;
pub mod run;
pub mod setup;
mod shown;
pub mod status;
pub mod tail;
pub mod target;

use config_file::GivenFile;
use effective::Effective;
use exit::Failed;

/// Publishes committed outbox rows of PostgreSQL to Kafka: in order, without loss, without polling.
#[derive(Debug, Parser)]
#[command(name = "outboxd", version, max_term_width = 100, args_override_self = true, after_help = exit::TABLE)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How log lines look.
    #[arg(long, global = true, env = "OUTBOXD_LOG_FORMAT", value_enum, default_value_t)]
    log_format: crate::telemetry::LogFormat,
    /// A file of settings (TOML): flags by their names, librdkafka's settings, rules. Flags and the environment win.
    #[arg(long, global = true, value_name = "FILE", env = "OUTBOXD_CONFIG")]
    config: Option<String>,
    /// What was given, and where.
    #[arg(skip)]
    effective: Effective,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work: private servers, an application that writes, a relay that is killed, and a ledger that compares.
    Demo(demo::DemoArgs),
    /// Relay: read the slot, publish to Kafka, confirm. Needs a slot, a publication and a table, and never runs DDL.
    Run(Box<run::RunArgs>),
    /// Create what `run` needs, where it is missing: the table, then the publication, then the slot.
    Setup(setup::SetupArgs),
    /// Look at both ends: everything that `run` needs, each finding with its remedy. Changes nothing.
    Check(Box<check::CheckArgs>),
    /// What the relay would send for a row, and which rule decided. Publishes nothing.
    Explain(Box<explain::ExplainArgs>),
    /// See events as they are committed, as records. Publishes and confirms nothing.
    Tail(Box<tail::TailArgs>),
    /// Events that could not be published: see them, publish them, release them, discard them.
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Publish rows of the outbox once more: by id, aggregate, type or time. The relay does it, and live events go on.
    Replay(Box<replay::ReplayArgs>),
    /// How the slot stands: who reads it, how far behind, how much of the log it holds.
    Status(status::StatusArgs),
    /// Remove the slot and the publication. The table and its rows stay.
    Drop(setup::SetupArgs),
}

impl Cli {
    /// Reads the command line and the environment.
    ///
    /// # Errors
    /// What is wrong with them, or the help that was asked for.
    pub fn read() -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let given = GivenFile::read(&command);
        if let Some(given) = &given {
            command = given.fill(command);
        }
        let matches = command.clone().try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        if let Some((name, given)) = matches.subcommand() {
            cli.effective =
                command.find_subcommand(name).map(|subcommand| Effective::of(subcommand, given)).unwrap_or_default();
        }
        cli.effective.add_file(given);
        Ok(cli)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// What failed, with the exit code of its class.
    pub async fn run(self) -> Result<(), Failed> {
        crate::telemetry::init_log(self.log_format);
        // The others tell them together with their own.
        if let Command::Setup(_) | Command::DeadLetters(_) | Command::Status(_) | Command::Drop(_) = &self.command {
            let mistakes = self.effective.mistakes();
            if !mistakes.is_empty() {
                return Err(Failed::new(exit::Class::Usage, mistakes));
            }
        }
        match self.command {
            Command::Demo(args) => demo::run(args).await,
            Command::Run(args) => run::run(*args, &self.effective).await,
            Command::Setup(args) => setup::run(args).await,
            Command::Check(args) => check::run(*args, &self.effective).await,
            Command::Explain(args) => explain::run(*args, &self.effective).await,
            Command::Tail(args) => tail::run(*args, &self.effective).await,
            Command::DeadLetters(args) => dead_letters::run(args).await,
            Command::Replay(args) => replay::run(*args, &self.effective).await,
            Command::Status(args) => status::run(args).await,
            Command::Drop(args) => setup::drop(args).await,
        }
    }
}
