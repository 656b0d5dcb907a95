//! One random history: events of all kinds, then a quiet time in which everything heals, then the account.

use std::time::Duration;

use super::relay::{Halt, Relay};
use super::server::Successor;
use super::trace::{Seen, Tally};
use super::world::World;

/// How many rounds the quiet time may take.
const QUIET_ROUNDS: u32 = 1500;

/// A history.
pub(super) struct History {
    world: World,
    relay: Option<Relay>,
    restart_at: Duration,
}

impl History {
    /// Runs the history of a seed; gives its hash and what it came through.
    pub(super) fn run(seed: u64, is_printed: bool) -> (u64, Tally) {
        let mut history = Self { world: World::new(seed, is_printed), relay: None, restart_at: Duration::ZERO };
        for _ in 0..history.world.rng.u32(20..90) {
            history.step();
        }
        history.heal();
        history.world.ledger.check_end(&history.world.server, &history.world.broker);
        (history.world.trace.hash(), history.world.ledger.tally)
    }

    fn step(&mut self) {
        self.pass_time();
        match self.world.rng.u8(..) {
            0..80 => self.commit(),
            80..90 => self.world.server.write_elsewhere(16),
            90..98 => self.world.server.checkpoint(),
            98..104 => self.world.server.copy(),
            104..116 => self.disconnect(),
            116..121 => self.crash_server(),
            121..127 => self.succeed(),
            127..133 => self.end_relay(),
            133..138 => self.drain(),
            138..142 => self.break_producer(),
            142..152 => self.stick(),
            152..156 => self.learn(),
            156..170 => self.world.haunt(),
            _ => {}
        }
        self.turn(6);
    }

    fn pass_time(&mut self) {
        let world = &mut self.world;
        let is_night = world.one_in(400);
        world.now += Duration::from_millis(world.rng.u64(..120));
        if is_night {
            world.now += Duration::from_secs(13 * 3600);
        }
    }

    /// The network works for a moment, and the relay takes a turn.
    fn turn(&mut self, work: u32) {
        let world = &mut self.world;
        let Some(relay) = &mut self.relay else {
            if world.now >= self.restart_at {
                self.relay = Some(Relay::new(world));
            }
            return;
        };
        for _ in 0..work {
            if let Some((producer, reports)) = relay.publisher.producer() {
                world.work(producer, reports);
            }
        }
        if world.one_in(2) {
            relay.deliver_status(world);
        }
        let budget = world.rng.u32(..12);
        let halted = relay.turn(world, budget);
        if let Err(halt) = halted {
            if let Halt::Guilty(row) = halt {
                world.ledger.mend(row);
            }
            world.trace.note("halt", 0);
        }
        if halted.is_err() || relay.is_over(world.now) {
            if let Some(relay) = self.relay.take() {
                relay.finish(world);
            }
            self.restart_at = world.now + Duration::from_millis(100);
        }
    }

    // ---- what happens to it ----------------------------------------------------------------------------------------

    fn commit(&mut self) {
        let world = &mut self.world;
        let count = match world.rng.u8(..) {
            0..40 => 0,
            40..200 => world.rng.u32(1..4),
            200..248 => world.rng.u32(4..9),
            _ => {
                world.ledger.tally.count(Seen::LargeTransaction);
                world.rng.u32(12..31)
            }
        };
        world.ledger.tally.count(Seen::Transaction);
        world.server.commit(count, &mut world.ledger, &mut world.rng);
        world.trace.note("committed rows", u64::from(count));
    }

    /// Ends the connection, and lets some of the statuses arrive.
    fn cut(&mut self) {
        if let Some(relay) = &mut self.relay {
            let arriving = self.world.rng.usize(..=relay.statuses());
            relay.disconnect(&mut self.world, arriving);
        }
    }

    fn disconnect(&mut self) {
        self.world.trace.note("disconnect", 0);
        self.world.ledger.tally.count(Seen::Disconnect);
        match &mut self.relay {
            Some(relay) if self.world.rng.u8(..) < 32 => relay.disconnect_with_stray(&mut self.world),
            _ => self.cut(),
        }
        self.world.server.disconnect();
    }

    fn crash_server(&mut self) {
        self.world.trace.note("server crash", 0);
        self.world.ledger.tally.count(Seen::ServerCrash);
        self.cut();
        self.world.server.crash();
    }

    /// A server with a shorter log takes over, and may have written more than was lost before the relay sees it.
    fn succeed(&mut self) {
        let is_standby = self.world.rng.bool();
        let (by, seen) = match is_standby {
            true => (Successor::Standby, Seen::Promotion),
            false => (Successor::RestoredCopy, Seen::Restore),
        };
        self.cut();
        if !self.world.server.succeed(by, &mut self.world.ledger) {
            return;
        }
        self.world.trace.note("succeeded by standby", u64::from(is_standby));
        self.world.ledger.tally.count(seen);
        for _ in 0..self.world.rng.u8(..5) {
            self.commit();
        }
        if self.world.rng.bool() {
            self.world.server.write_elsewhere(self.world.rng.u64(1..8) * 16);
        }
    }

    fn end_relay(&mut self) {
        if let Some(relay) = self.relay.take() {
            self.world.trace.note("relay crash", 0);
            self.world.ledger.tally.count(Seen::RelayCrash);
            relay.crash(&mut self.world);
            self.restart_at = self.world.now + Duration::from_millis(self.world.rng.u64(..500));
        }
    }

    fn drain(&mut self) {
        if let Some(relay) = &mut self.relay {
            self.world.trace.note("drain", 0);
            self.world.ledger.tally.count(Seen::Drain);
            relay.drain(self.world.now);
        }
    }

    fn break_producer(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        if self.world.rng.bool() {
            self.world.trace.note("other size limits", 0);
            relay.publisher.adapt(&mut self.world);
        } else if let Some((producer, reports)) = relay.publisher.producer() {
            self.world.trace.note("fatal error", 0);
            producer.break_down(reports);
        }
    }

    fn stick(&mut self) {
        let partition = self.world.rng.usize(..self.world.is_stuck.len());
        let is_stuck = &mut self.world.is_stuck[partition];
        *is_stuck = !*is_stuck;
    }

    fn learn(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.learn_topics();
        }
    }

    // ---- the quiet time ----------------------------------------------------------------------------------------------

    fn heal(&mut self) {
        self.world.trace.note("quiet", 0);
        self.world.is_quiet = true;
        self.world.is_stuck.fill(false);
        for _ in 0..QUIET_ROUNDS {
            self.world.now += Duration::from_millis(150);
            self.turn(24);
            if self.relay.as_ref().is_some_and(|relay| relay.is_done(&self.world)) {
                return;
            }
        }
        panic!("no end: {:?}", self.relay);
    }
}
