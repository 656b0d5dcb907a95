//! `outboxd setup` and `outboxd drop`.

use clap::Args;
use serde_json::json;

use super::exit::{Class, Failed};
use super::target::TargetArgs;
use crate::config::run::Mistakes;
use crate::postgres::setup::{self, Plan, Step};
use crate::postgres::{self, Conninfo};

/// The arguments of both commands.
#[derive(Debug, Args)]
pub struct SetupArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Print the SQL and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// One JSON object a line, for programs.
    #[arg(long)]
    json: bool,
}

impl SetupArgs {
    fn plan(&self) -> Result<(Conninfo, Plan), Failed> {
        let mut mistakes = Mistakes::default();
        match self.target.check(&mut mistakes).filter(|_| mistakes.is_empty()) {
            Some(target) => {
                let plan = Plan { table: target.table, publication: target.publication, slot: target.slot };
                Ok((target.database, plan))
            }
            None => Err(Failed::new(Class::Usage, mistakes)),
        }
    }

    fn print(&self, step: &Step) {
        match (self.json, step) {
            (true, Step::Present { what }) => println!("{}", json!({ "step": what, "state": "present" })),
            (true, Step::Done { what, sql }) => {
                let state = if self.dry_run { "planned" } else { "done" };
                println!("{}", json!({ "step": what, "state": state, "sql": sql }));
            }
            (true, Step::Waiting(holders)) => {
                let pids: Vec<i32> = holders.iter().map(|holder| holder.pid).collect();
                println!("{}", json!({ "step": "slot", "state": "waiting", "pids": pids }));
            }
            (false, Step::Present { what }) => println!("-- there already: {what}"),
            (false, Step::Done { what, sql }) if self.dry_run => println!("-- {what}\n{sql};"),
            (false, Step::Done { what, .. }) => println!("done: {what}"),
            (false, Step::Waiting(holders)) => {
                println!("the slot waits for transactions that began before it:");
                for holder in holders {
                    println!(
                        "  pid {} ({}), {}, open for {}: end it, or SELECT pg_terminate_backend({})",
                        holder.pid, holder.application, holder.state, holder.age, holder.pid
                    );
                }
            }
        }
    }
}

/// Creates table, publication and slot, in that order, where they are missing.
///
/// # Errors
/// Mistakes in the settings, or what the server refused.
pub async fn run(args: SetupArgs) -> Result<(), Failed> {
    let (database, plan) = args.plan()?;
    setup::setup(&database, &plan, args.dry_run, |step| args.print(&step)).await.map_err(failed)
}

/// Removes slot and publication; table and rows stay.
///
/// # Errors
/// Mistakes in the settings, or what the server refused.
pub async fn drop(args: SetupArgs) -> Result<(), Failed> {
    let (database, plan) = args.plan()?;
    setup::drop(&database, &plan, args.dry_run, |step| args.print(&step)).await.map_err(failed)
}

/// The class of what a server refused.
pub(super) fn failed(error: postgres::Error) -> Failed {
    let class = if error.is_connection_lost() || error.is_starting_or_stopping() {
        Class::Unavailable
    } else if error.is_authentication() || error.is_privilege() {
        Class::Forbidden
    } else {
        Class::Setup
    };
    match error.remedy() {
        Some(remedy) => Failed::new(class, format_args!("{error}; {remedy}")),
        None => Failed::new(class, error),
    }
}
