//! The flags about events that cannot be published.

use clap::Args;

use super::brokers::positive;
use crate::config::held::HeldSettings;
use crate::config::run::Mistakes;
use crate::outbox::topic;

/// What happens to an event that cannot be published.
#[derive(Debug, Args)]
#[command(next_help_heading = "Events that cannot be published")]
pub(super) struct HeldArgs {
    /// In the end: dead-letter (it gives up its place and is kept in outboxd.held), quarantine (it keeps its place, and its key
    /// waits until an operator releases it) or halt (the relay stops in front of it) [default: dead-letter where the table
    /// outboxd.held is there, else halt].
    #[arg(long, value_name = "POLICY", env = "OUTBOXD_ON_FAILURE")]
    on_failure: Option<String>,
    /// How often an event is tried, after 1, 2, 4 s and so on up to 300 s, where the cause may pass: a topic that is missing or
    /// forbidden. The row's column max_retries goes before it.
    #[arg(long, env = "OUTBOXD_MAX_ATTEMPTS", default_value = "5")]
    max_attempts: String,
    /// The most keys that may wait behind held events; one more stops the relay.
    #[arg(long, env = "OUTBOXD_MAX_HELD_KEYS", default_value = "100000")]
    max_held_keys: String,
    /// A topic that gets a copy of each dead letter, with headers that say why.
    #[arg(long, value_name = "TOPIC", env = "OUTBOXD_DEAD_LETTER_TOPIC")]
    dead_letter_topic: Option<String>,
    /// After this time dead letters are tried again, again and again, such as 6h [default: never].
    #[arg(long, value_name = "TIME", env = "OUTBOXD_RETRY_DEAD_LETTERS")]
    retry_dead_letters: Option<String>,
}

impl HeldArgs {
    pub(super) fn settings(&self, mistakes: &mut Mistakes) -> HeldSettings {
        let on_failure = self.on_failure.as_ref();
        let dead_letter_topic = self.dead_letter_topic.clone().filter(|name| {
            let is_name = topic::is_name(name);
            if !is_name {
                mistakes.add(
                    "--dead-letter-topic",
                    "is no name of a topic: letters, digits, '.', '_' and '-', at most 249",
                );
            }
            is_name
        });
        let dead_retry = self.retry_dead_letters.as_ref();
        HeldSettings {
            on_failure: on_failure.and_then(|text| mistakes.note("--on-failure", text.parse())),
            max_attempts: number("--max-attempts", &self.max_attempts, 1, mistakes),
            max_keys: number("--max-held-keys", &self.max_held_keys, 1, mistakes) as usize,
            dead_letter_topic,
            dead_retry: dead_retry.map(|text| positive("--retry-dead-letters", text, mistakes)),
        }
    }
}

fn number(flag: &str, text: &str, at_least: u32, mistakes: &mut Mistakes) -> u32 {
    let number: Result<u32, _> = text.parse().map_err(|_| format!("{text:?} is no number"));
    match mistakes.note(flag, number) {
        Some(number) if number >= at_least => number,
        Some(_) => {
            mistakes.add(flag, format_args!("must be at least {at_least}"));
            at_least
        }
        None => at_least,
    }
}
