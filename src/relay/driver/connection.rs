//! What happens on the link: servers come, go, change their history and shut down.

use tokio::time::Instant;

use super::{FINISH_LIMIT, Relay};
use crate::outbox::OnFailure;
use crate::postgres;
use crate::recovery::held::Keeper;
use crate::recovery::held::keeper::KeeperSettings;
use crate::recovery::held::store::Owner;
use crate::relay::halt::{Halt, Reason};
use crate::relay::link::{Failure, LinkEvent, Session, classify_lost};
use crate::relay::sentinel::Word;

impl Relay {
    pub(super) async fn linked(&mut self, event: LinkEvent) -> Result<(), Halt> {
        match event {
            LinkEvent::Block(block) => {
                self.last_word = Instant::now();
                self.intake.put(block, &mut self.core);
                self.link.progressed();
                Ok(())
            }
            LinkEvent::Connected(session) => self.connected(session).await,
            LinkEvent::Failed(failure) => self.failed(failure),
            LinkEvent::Lost(error) => self.lost(error),
            LinkEvent::Word(word) => {
                self.heard(word);
                Ok(())
            }
            LinkEvent::Called => {
                self.holder.call();
                self.replayer.call();
                Ok(())
            }
        }
    }

    /// A server is there. It goes on with what is known only if it is the same system on the same timeline and not behind;
    /// the proof that its history is the same then comes with the stream.
    async fn connected(&mut self, session: Box<Session>) -> Result<(), Halt> {
        let is_same = self.system.as_ref().is_some_and(|known| {
            (known.system_id, known.timeline) == (session.identity.system_id, session.identity.timeline)
        });
        let is_behind = self.core.is_ahead_of(session.identity.flushed);
        if self.is_ready && (!is_same || is_behind) {
            if self.core.unresolved_events() > 0 || self.intake.pending().is_some() {
                tracing::warn!(
                    timeline = session.identity.timeline,
                    "the server has another history; waiting until what came before is published"
                );
            }
            self.newcomer = Some(session);
            return self.welcome().await;
        }
        self.begin(session).await
    }

    /// A server with another history is begun with once nothing of the old one is under way.
    pub(super) async fn welcome(&mut self) -> Result<(), Halt> {
        if self.core.unresolved_events() > 0 || self.intake.pending().is_some() {
            return Ok(());
        }
        match self.newcomer.take() {
            Some(session) => {
                self.core.forget_history();
                // What it holds is read anew; what it had under way stays in the table.
                let holder = Self::holder(&self.settings, &self.source, &self.metrics);
                std::mem::replace(&mut self.holder, holder).close().await;
                let replayer = Self::replayer(&self.settings, &self.source, &self.metrics);
                std::mem::replace(&mut self.replayer, replayer).close().await;
                self.begin(session).await
            }
            None => Ok(()),
        }
    }

    async fn begin(&mut self, session: Box<Session>) -> Result<(), Halt> {
        let identity = session.identity.clone();
        self.intake.set_heirs(session.heirs.clone());
        let confirmed = session.confirmed;
        let keeper = self.keeper(&session)?;
        if let Err(failure) = self.link.start(*session).await {
            return self.failed(failure);
        }
        tracing::info!(%confirmed, timeline = identity.timeline, "streaming from slot {:?}", self.settings.slot);
        self.system = Some(identity);
        self.core.resume(confirmed);
        self.holder.begin(keeper, confirmed.lsn());
        self.publisher.set_can_hold(self.holder.has_keeper());
        self.last_word = Instant::now();
        self.publisher.unfence();
        self.holder.unfence();
        self.replayer.unfence();
        if !self.is_ready {
            self.is_ready = true;
            tracing::info!("ready: {}", self.settings.summary);
        }
        Ok(())
    }

    /// Who keeps the events that cannot be published, if there is a table for them and somebody wants that.
    fn keeper(&self, session: &Session) -> Result<Option<Keeper>, Halt> {
        let held = &self.settings.held;
        match &session.held_table {
            _ if self.holder.has_keeper() => Ok(None),
            _ if held.on_failure == Some(OnFailure::Halt) && !self.settings.mapping.holds() => Ok(None),
            Some(problem) if held.on_failure.is_some() || self.settings.mapping.holds() => {
                Err(Halt::new(Reason::NoHeldTable, None, problem))
            }
            Some(problem) => {
                tracing::warn!(
                    "{problem}: an event that cannot be published stops the relay; `outboxd setup` makes the table"
                );
                Ok(None)
            }
            None => {
                let owner = Owner { slot: self.settings.slot.clone(), system: session.identity.system_id.to_string() };
                Ok(Some(Keeper::start(KeeperSettings {
                    database: self.settings.database.clone(),
                    owner,
                    max_keys: held.max_keys,
                    dead_retry: held.dead_retry,
                    copies: held.dead_letter_topic.is_some(),
                })))
            }
        }
    }

    fn failed(&mut self, failure: Failure) -> Result<(), Halt> {
        let error = match failure {
            Failure::Retry(error) => error,
            // While it runs, a role may be about to get a new password; a slot that is gone stays gone.
            Failure::Halt(halt) if self.is_ready && halt.reason() == Reason::Forbidden => {
                let pause = self.link.retry();
                tracing::error!("{halt}; trying again in {pause:.1?}");
                return Ok(());
            }
            Failure::Halt(halt) => return Err(halt),
        };
        self.metrics.reconnects.inc();
        // A second relay waits for the slot as long as the first one has it.
        let is_standing_by = error.is_slot_active();
        if !self.is_ready && !is_standing_by && self.started_at.elapsed() >= self.settings.times.start_limit {
            return Err(Halt::new(Reason::Unreachable, None, error));
        }
        let pause = self.link.retry();
        tracing::warn!("no connection to PostgreSQL: {error}; trying again in {pause:.1?}");
        Ok(())
    }

    /// The stream has ended. What is in the window stays there and is published.
    pub(super) fn lost(&mut self, error: postgres::Error) -> Result<(), Halt> {
        self.disconnected();
        match classify_lost(error, &self.settings) {
            Failure::Retry(error) => {
                tracing::warn!("the connection to PostgreSQL was lost: {error}");
                Ok(())
            }
            Failure::Halt(halt) => Err(halt),
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.metrics.reconnects.inc();
        self.stopping_until = None;
        self.intake.stream_ended();
        self.core.stream_ended();
        self.link.retry();
    }

    /// A server in fast shutdown waits until everything that it sent is confirmed. What is not acknowledged by now comes again
    /// after its restart, unless its report comes before that.
    pub(super) async fn let_server_stop(&mut self) {
        let status = self.status(self.started_at.elapsed());
        if let Err(error) = self.link.finish(status, FINISH_LIMIT / 2).await {
            tracing::debug!(%error, "the server did not answer the end of the stream");
        }
        tracing::info!(
            events = self.core.unresolved_events(),
            "the connection is closed so that the server can shut down"
        );
        self.disconnected();
    }

    fn heard(&mut self, word: Word) {
        match word {
            Word::Nothing => {}
            Word::Ours(at) => {
                self.last_word = self.last_word.max(at);
                self.stopping_until = None;
            }
            Word::NotOurs => {
                tracing::warn!("slot {:?} is no longer read by this connection", self.settings.slot);
                self.publisher.fence(self.core.unresolved_events() > 0);
                self.holder.fence();
                self.replayer.fence();
                self.disconnected();
            }
            Word::Stopping if self.stopping_until.is_none() => {
                tracing::info!("the server is shutting down; publishing what has come");
                self.stopping_until = Some(Instant::now() + self.settings.times.shutdown_grace);
            }
            Word::Stopping => {}
        }
    }
}
