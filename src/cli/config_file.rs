//! `--config`: what the file says becomes the defaults of the flags, so that flags and the environment win.

use clap::{Arg, Command};

use crate::config::file::ConfigFile;
use crate::config::run::Mistakes;

/// The command whose flags a file may set; other commands share some of them.
const RULING: &str = "run";

/// The command that has servers of its own.
const APART: &str = "demo";

/// Flags that make no sense in a file.
const NOT_IN_FILE: [&str; 3] = ["config", "help", "version"];

/// The file that was given.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenFile {
    pub(super) path: String,
    pub(super) content: ConfigFile,
    /// What is wrong with it.
    pub(super) mistakes: Mistakes,
}

impl GivenFile {
    /// Reads the file that the arguments or the environment name; `None` where they name none.
    pub(super) fn read(command: &Command) -> Option<Self> {
        // Everything else is looked at afterwards.
        let matches = command.clone().ignore_errors(true).try_get_matches().ok()?;
        let of_subcommand = matches.subcommand().and_then(|(_, matches)| matches.get_one::<String>("config"));
        let path = matches.get_one::<String>("config").or(of_subcommand)?.clone();
        let mut mistakes = Mistakes::default();
        let flags: Vec<String> = command.find_subcommand(RULING).map(flags).unwrap_or_default();
        let text = mistakes.note(&path, std::fs::read_to_string(&path));
        let content = text.map(|text| ConfigFile::parse(&path, &text, &flags, &mut mistakes));
        Some(Self { content: content.unwrap_or_default(), path, mistakes })
    }

    /// The command with the file's values as defaults.
    pub(super) fn fill(&self, command: Command) -> Command {
        command.mut_subcommands(|subcommand| match subcommand.get_name() {
            APART => subcommand,
            _ => subcommand.mut_args(|argument| self.fill_argument(argument)),
        })
    }

    fn fill_argument(&self, argument: Arg) -> Arg {
        match argument.get_long().and_then(|long| self.content.flags.get(long)) {
            Some(values) => argument.default_values(values.clone()),
            None => argument,
        }
    }
}

fn flags(command: &Command) -> Vec<String> {
    let long = |argument: &Arg| argument.get_long().map(str::to_owned);
    command.get_arguments().filter_map(long).filter(|long| !NOT_IN_FILE.contains(&long.as_str())).collect()
}
