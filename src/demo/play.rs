//! While events flow: the numbers, and the kills.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, interval};

use super::consumer::Consumer;
use super::error::Error;
use super::ledger::Ledger;
use super::relay::{Relay, RelayCommand};
use super::screen::Screen;
use super::show::is_written;
use super::stage::Stage;
use super::{Settings, locked};
use crate::terminal::Colour;

/// How often the demo looks at its parts.
const TICK: Duration = Duration::from_millis(20);

/// Without a new event for this long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// The state between the start of the relay and its last kill.
pub(super) struct Play<'a> {
    settings: &'a Settings,
    ledger: &'a Mutex<Ledger>,
    command: &'a RelayCommand,
    random: fastrand::Rng,
    kills: usize,
    /// So many events have arrived when the next kill comes.
    kill_at: usize,
    started_at: Instant,
    /// What had arrived, and since when no more has.
    progress: (usize, Instant),
    announced: bool,
    /// Where the log ended when everything was written and had arrived.
    end: Option<String>,
}

impl<'a> Play<'a> {
    pub(super) fn new(settings: &'a Settings, ledger: &'a Mutex<Ledger>, command: &'a RelayCommand) -> Self {
        let now = Instant::now();
        let mut play = Self {
            settings,
            ledger,
            command,
            random: fastrand::Rng::with_seed(settings.seed),
            kills: 0,
            kill_at: 0,
            started_at: now,
            progress: (0, now),
            announced: false,
            end: None,
        };
        play.plan_kill();
        play
    }

    /// Each kill has its share of the events and comes somewhere in it; the last share has none.
    fn plan_kill(&mut self) {
        let share = self.settings.events / (self.settings.kills + 1);
        self.kill_at = share * self.kills + share / 4 + self.random.usize(..share.max(1));
    }

    /// Until everything is written, has arrived, and all kills are done. Returns the number of kills.
    pub(super) async fn run(mut self, stage: &mut Stage, screen: &mut Screen) -> Result<usize, Error> {
        let mut tick = interval(TICK);
        loop {
            tick.tick().await;
            let is_written = is_written(&mut stage.writer)?;
            if stage.consumer.as_ref().is_some_and(Consumer::has_ended) {
                // Its end tells why.
                return Ok(self.kills);
            }
            let (arrived, is_settled) = self.look(screen);
            let is_over = is_written && is_settled;
            if is_over && self.kills >= self.settings.kills && self.is_confirmed(stage).await? {
                return Ok(self.kills);
            }
            self.check_stall(arrived, stage.relay.as_ref())?;
            self.attend(&mut stage.relay, arrived, is_over, screen).await?;
        }
    }

    /// Whether the last relay streams and has confirmed everything, so that it repeats nothing more.
    async fn is_confirmed(&mut self, stage: &Stage) -> Result<bool, Error> {
        let Some(database) = &stage.database else { return Ok(false) };
        let end = match &self.end {
            Some(end) => end,
            None => self.end.insert(database.log_end().await?),
        };
        Ok(stage.relay.as_ref().is_some_and(Relay::is_ready) && database.is_confirmed(end).await?)
    }

    fn look(&self, screen: &mut Screen) -> (usize, bool) {
        let ledger = locked(self.ledger);
        let (committed, arrived, delivered) = (ledger.committed(), ledger.arrived(), ledger.seen().len());
        screen.progress(format_args!(
            "{:3.0} s  {committed} committed, {} rolled back, {delivered} delivered, {} of them repeats, {}/{} kills",
            self.started_at.elapsed().as_secs_f64(),
            ledger.rolled_back(),
            delivered.saturating_sub(arrived),
            self.kills,
            self.settings.kills,
        ));
        (arrived, ledger.is_settled())
    }

    fn check_stall(&mut self, arrived: usize, relay: Option<&Relay>) -> Result<(), Error> {
        if arrived > self.progress.0 {
            self.progress = (arrived, Instant::now());
        }
        if self.progress.1.elapsed() < STALL {
            return Ok(());
        }
        let words = relay.map(Relay::last_words).unwrap_or_default();
        Err(Error::failed(format_args!("no event has arrived for {} s", STALL.as_secs()), words))
    }

    /// Kills the relay when it is time, and starts another one.
    async fn attend(
        &mut self,
        relay: &mut Option<Relay>,
        arrived: usize,
        is_over: bool,
        screen: &mut Screen,
    ) -> Result<(), Error> {
        let Some(current) = relay.as_mut() else { return Ok(()) };
        current.check()?;
        if !current.is_ready() {
            return Ok(());
        }
        let pid = current.pid();
        if !self.announced {
            screen.say(Some(Colour::Green), format_args!("relay {pid} streams"));
            self.announced = true;
        }
        if self.kills >= self.settings.kills || (arrived < self.kill_at && !is_over) {
            return Ok(());
        }
        if let Some(current) = relay.take() {
            current.kill().await;
        }
        self.kills += 1;
        self.announced = false;
        self.plan_kill();
        screen.say(Some(Colour::Yellow), format_args!("kill -9 {pid}: {arrived} events had arrived; starting again"));
        *relay = Some(self.command.start()?);
        Ok(())
    }
}
