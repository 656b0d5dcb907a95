//! `outboxd check`.

use std::io;

use clap::Args;
use serde::Serialize;

use super::brokers::BrokerArgs;
use super::effective::Effective;
use super::exit::{Class, Failed};
use super::mapping::MappingArgs;
use super::target::TargetArgs;
use crate::check::{Finding, Grade, Settings, check};
use crate::config::run::Mistakes;
use crate::terminal::{self, Colour, say};

/// The arguments: those of `run` that say where things are.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    brokers: BrokerArgs,
    #[command(flatten)]
    mapping: MappingArgs,
    /// One JSON object, for programs.
    #[arg(long)]
    json: bool,
    /// Only what is not as it should be.
    #[arg(long, short)]
    quiet: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    findings: Vec<&'a Finding>,
}

/// Looks at both ends and prints what was found.
///
/// # Errors
/// Mistakes in the settings, or that there are errors among the findings.
pub async fn run(args: CheckArgs, effective: &Effective) -> Result<(), Failed> {
    let settings = args.settings(effective).map_err(|mistakes| Failed::new(Class::Usage, mistakes))?;
    let findings = check(&settings).await;
    let count = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    let (errors, warnings) = (count(Grade::Error), count(Grade::Warning));
    let shown: Vec<&Finding> = findings.iter().filter(|finding| !args.quiet || finding.grade > Grade::Note).collect();
    if args.json {
        let report = Report { ok: errors == 0, findings: shown };
        say(serde_json::to_string(&report).map_err(|error| Failed::new(Class::Data, error))?)?;
    } else {
        shown.iter().try_for_each(|finding| print(finding))?;
    }
    match (errors, warnings) {
        (0, 0) => Ok(()),
        (0, _) if args.json => Ok(()),
        (0, _) => {
            say(format_args!("ready to run; warnings: {warnings}"))?;
            Ok(())
        }
        _ => Err(Failed::new(Class::Verdict, format_args!("not ready to run; errors: {errors}, warnings: {warnings}"))),
    }
}

fn print(finding: &Finding) -> io::Result<()> {
    let grade = format!("{:<8}", finding.grade);
    let colour = match finding.grade {
        Grade::Ok => Colour::Green,
        Grade::Note => Colour::Grey,
        Grade::Warning => Colour::Yellow,
        Grade::Error => Colour::Red,
    };
    let grade = if terminal::has_colours(&std::io::stdout()) { colour.paint(grade) } else { grade };
    say(format_args!("{grade}{}", finding.what))?;
    match &finding.remedy {
        Some(remedy) => say(format_args!("        -> {remedy}")),
        None => Ok(()),
    }
}

impl CheckArgs {
    fn settings(&self, effective: &Effective) -> Result<Settings, Mistakes> {
        let mut mistakes = effective.mistakes();
        let target = self.target.check(&mut mistakes);
        let mapping = self.mapping.mapping(effective, &mut mistakes);
        // Nothing is published, so there is no window.
        let producer = self.brokers.producer((0, 0), effective, &mut mistakes);
        match target {
            Some(target) if mistakes.is_empty() => Ok(Settings {
                database: target.database,
                slot: target.slot,
                publication: target.publication,
                table: target.table,
                mapping,
                producer,
            }),
            _ => Err(mistakes),
        }
    }
}
