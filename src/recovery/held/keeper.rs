//! The task that keeps the held events: one question after the other, each asked again until the database has answered.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::event::HeldEvent;
use super::store::{self, Loaded, Next, Owner, Settlement};
use crate::outbox::Position;
use crate::postgres::{Conninfo, Error, Lsn, sql};
use crate::recovery::patience::Patience;

/// What the relay wants of the table.
#[derive(Debug)]
pub enum Ask {
    /// What is held, for a slot that stands at this position.
    Load(Lsn),
    /// To store these events.
    Insert(Vec<HeldEvent>),
    /// What may be published now.
    Next {
        /// Topics whose events wait.
        blocked: Vec<String>,
        /// The first event of this topic alone.
        probe: Option<String>,
    },
    /// To write down what became of a batch; the slot stands at this position.
    Settle(Settlement, Lsn),
    /// To write down that a whole topic was refused once more.
    FailTopic {
        /// The topic.
        topic: String,
        /// The kind of the refusal.
        class: String,
        /// Why.
        reason: String,
        /// Where the slot stands.
        confirmed: Lsn,
    },
    /// To do what operators have asked for, and what is due; the slot stands at this position.
    Serve(Lsn),
}

/// What came of it, in the order of the questions.
#[derive(Debug)]
pub enum Answer {
    /// What is held.
    Loaded(Loaded),
    /// These events are stored.
    Inserted(Vec<Position>),
    /// What may be published now.
    Next(Next),
    /// It is written down; with what is held now, if events were refused.
    Settled(Option<Loaded>),
    /// What is held now, and whether an event wants the relay to halt.
    TopicFailed(Loaded, bool),
    /// What is held now, if that has changed.
    Served(Option<Loaded>),
}

/// How the keeper is to work.
#[derive(Clone, Debug)]
pub struct KeeperSettings {
    /// The database.
    pub database: Conninfo,
    /// Whose events.
    pub owner: Owner,
    /// The most keys that may be held.
    pub max_keys: usize,
    /// After this time dead letters are tried again.
    pub dead_retry: Option<Duration>,
    /// Dead letters go to a topic as well.
    pub copies: bool,
}

/// The relay's end. The task ends with it.
#[derive(Debug)]
pub struct Keeper {
    asks: mpsc::UnboundedSender<Ask>,
    answers: mpsc::UnboundedReceiver<Answer>,
    task: JoinHandle<()>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keeper {
    /// Begins to work.
    #[must_use]
    pub fn start(settings: KeeperSettings) -> Self {
        let (asks, mut questions) = mpsc::unbounded_channel();
        let (reply, answers) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut session = Session { settings, client: None };
            while let Some(ask) = questions.recv().await {
                if reply.send(session.answer(&ask).await).is_err() {
                    return;
                }
            }
        });
        Self { asks, answers, task }
    }

    /// Asks; the caller has few questions open at a time.
    pub fn ask(&self, ask: Ask) {
        // Fails only when the task has ended, which it does with this handle.
        let _ = self.asks.send(ask);
    }

    /// The next answer. Cancel-safe.
    pub async fn answer(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

struct Session {
    settings: KeeperSettings,
    client: Option<Client>,
}

impl Session {
    /// Asks until there is an answer.
    async fn answer(&mut self, ask: &Ask) -> Answer {
        let mut patience = Patience::new("the table outboxd.held cannot be used");
        loop {
            match self.attempt(ask).await {
                Ok(answer) => {
                    patience.over();
                    return answer;
                }
                Err(error) => {
                    self.client = None;
                    patience.failed(&error).await;
                }
            }
        }
    }

    async fn attempt(&mut self, ask: &Ask) -> Result<Answer, Error> {
        let Self { settings, client } = self;
        if client.as_ref().is_none_or(Client::is_closed) {
            let new = sql::connect_and_spawn(&settings.database).await?;
            new.execute(sql::DURABLE, &[]).await?;
            *client = Some(new);
        }
        let Some(client) = client else { return Err(Error::closed()) };
        let (owner, max_keys) = (&settings.owner, settings.max_keys);
        Ok(match ask {
            Ask::Load(confirmed) => Answer::Loaded(store::load(client, owner, *confirmed, max_keys).await?),
            Ask::Insert(events) => {
                store::insert(client, owner, events).await?;
                Answer::Inserted(events.iter().map(HeldEvent::position).collect())
            }
            Ask::Next { blocked, probe } => {
                Answer::Next(store::next(client, owner, blocked, probe.as_deref(), settings.copies).await?)
            }
            Ask::Settle(settlement, confirmed) => {
                store::settle(client, owner, settlement).await?;
                Answer::Settled(match settlement.failed.is_empty() {
                    true => None,
                    false => Some(store::load(client, owner, *confirmed, max_keys).await?),
                })
            }
            Ask::FailTopic { topic, class, reason, confirmed } => {
                let halts = store::fail_topic(client, owner, topic, class, reason, settings.dead_retry).await?;
                Answer::TopicFailed(store::load(client, owner, *confirmed, max_keys).await?, halts)
            }
            Ask::Serve(confirmed) => {
                let is_retried = store::housekeep(client, owner, *confirmed).await?;
                let has_changed = store::serve(client, owner).await? || is_retried;
                let loaded = match has_changed {
                    true => Some(store::load(client, owner, *confirmed, max_keys).await?),
                    false => None,
                };
                Answer::Served(loaded)
            }
        })
    }
}
