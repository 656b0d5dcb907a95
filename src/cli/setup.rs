//! `outboxd setup` and `outboxd drop`.

use clap::Args;
use serde_json::json;

use super::exit::{Class, Failed};
use super::target::TargetArgs;
use crate::config::run::Mistakes;
use crate::postgres::Conninfo;
use crate::postgres::setup::{self, Plan, Step};
use crate::postgres::slot::Holder;
use crate::terminal::say;

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
        // Who does not read the steps wants them all the same.
        let _ = say(if self.json { self.as_json(step).to_string() } else { self.as_text(step) });
    }

    fn as_json(&self, step: &Step) -> serde_json::Value {
        match step {
            Step::Present { what } => json!({ "step": what, "state": "present" }),
            Step::Done { what, sql } => {
                let state = if self.dry_run { "planned" } else { "done" };
                json!({ "step": what, "state": state, "sql": sql })
            }
            Step::Waiting(holders) => {
                let pids: Vec<i32> = holders.iter().map(|holder| holder.pid).collect();
                json!({ "step": "slot", "state": "waiting", "pids": pids })
            }
        }
    }

    fn as_text(&self, step: &Step) -> String {
        match step {
            Step::Present { what } => format!("-- there already: {what}"),
            Step::Done { what, sql } if self.dry_run => format!("-- {what}\n{sql};"),
            Step::Done { what, .. } => format!("done: {what}"),
            Step::Waiting(holders) => {
                let line = |holder: &Holder| {
                    let Holder { pid, application, state, age } = holder;
                    let end = format!("end it, or SELECT pg_terminate_backend({pid})");
                    format!("\n  pid {pid} ({application}), {state}, open for {age}: {end}")
                };
                let holders: String = holders.iter().map(line).collect();
                format!("the slot waits for transactions that began before it:{holders}")
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
    setup::setup(&database, &plan, args.dry_run, |step| args.print(&step)).await?;
    Ok(())
}

/// Removes slot and publication; table and rows stay.
///
/// # Errors
/// Mistakes in the settings, or what the server refused.
pub async fn drop(args: SetupArgs) -> Result<(), Failed> {
    let (database, plan) = args.plan()?;
    setup::drop(&database, &plan, args.dry_run, |step| args.print(&step)).await?;
    Ok(())
}
