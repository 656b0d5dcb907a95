//! The twin of the relay's publisher: the same rules for generations, with the model's producer and virtual time.

use std::time::Duration;

use rdkafka::types::RDKafkaErrorCode as Code;

use super::ledger::{Guilt, PARTITIONS};
use super::producer::{Outcome, Producer, Record};
use super::relay::Halt;
use super::trace::Seen;
use super::world::World;
use crate::kafka::class::Class;
use crate::relay::core::{Core, SendOutcome};
use crate::relay::failure::{Verdict, on_refusal};
use crate::relay::lane::Handle;

/// How long the reports of what is in flight are awaited.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Before the next producer.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Ending { until: Option<Duration> },
    Waiting { until: Duration },
}

/// The sending side.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) life: u32,
    producer: Option<Producer>,
    phase: Phase,
    /// By partition.
    attempts: [u32; PARTITIONS],
    /// Reports of the present generation that have not been taken yet.
    reports: Vec<Outcome>,
    /// Reports of the generation before, which come late.
    stale: Vec<Outcome>,
    generation: u32,
    taken: Vec<(u32, Outcome)>,
}

impl Publisher {
    pub(super) fn new(life: u32, world: &mut World) -> Self {
        Self {
            life,
            producer: Some(world.new_producer(life)),
            phase: Phase::Running,
            attempts: [0; PARTITIONS],
            reports: Vec::new(),
            stale: Vec::new(),
            generation: 1,
            taken: Vec::new(),
        }
    }

    /// Takes the reports that have come, and moves on to the next phase where one is over.
    pub(super) fn proceed(&mut self, core: &mut Core<u32>, world: &mut World) -> Result<(), Halt> {
        let mut taken = std::mem::take(&mut self.taken);
        taken.extend(self.stale.drain(..).map(|report| (self.generation - 1, report)));
        taken.extend(self.reports.drain(..).map(|report| (self.generation, report)));
        for (generation, report) in taken.drain(..) {
            if generation == self.generation {
                self.report(report, core, world)?;
            }
        }
        self.taken = taken;
        match self.phase {
            Phase::Ending { until } if core.outstanding() == 0 || until.is_some_and(|until| world.now >= until) => {
                if let Some(producer) = self.producer.take() {
                    if world.rng.bool() {
                        producer.purge_flying(&mut self.reports);
                    }
                    world.abandon(producer);
                }
                self.phase = Phase::Waiting { until: world.now + PAUSE };
            }
            Phase::Waiting { until } if world.now >= until => {
                self.stale = std::mem::take(&mut self.reports);
                core.restart_generation();
                self.generation += 1;
                self.producer = Some(world.new_producer(self.life));
                self.phase = Phase::Running;
                world.trace.note("new producer for events", core.unresolved_events() as u64);
            }
            _ => {}
        }
        Ok(())
    }

    fn report(&mut self, outcome: Outcome, core: &mut Core<u32>, world: &mut World) -> Result<(), Halt> {
        match outcome {
            Outcome::Acknowledged(Record { tag, row }) => {
                let handle = Handle::from_tag(tag);
                if let Some(event) = core.event(handle) {
                    assert_eq!(*event, row, "a tag leads to another event");
                }
                if core.acknowledge(handle, world.now) {
                    world.trace.note("acknowledged", u64::from(row));
                    world.ledger.acknowledge(row);
                    self.attempts[world.ledger.row(row).partition()] = 0;
                }
                Ok(())
            }
            Outcome::Refused(Record { tag, row }, code) => {
                let handle = Handle::from_tag(tag);
                match core.give_back(handle) {
                    Some(is_alone) => self.refused(handle, row, code, is_alone, core, world),
                    None => Ok(()),
                }
            }
            Outcome::Fatal => {
                self.end(true, world);
                Ok(())
            }
        }
    }

    fn refused(
        &mut self,
        handle: Handle,
        row: u32,
        code: Code,
        is_alone: bool,
        core: &mut Core<u32>,
        world: &mut World,
    ) -> Result<(), Halt> {
        world.trace.note("refused", u64::from(row));
        let facts = *world.ledger.row(row);
        let class = Class::of(code);
        match on_refusal(class, is_alone, self.attempts[facts.partition()], false) {
            Verdict::Ignore => Ok(()),
            Verdict::Rewind { suspect } => {
                if suspect {
                    core.suspect(handle);
                }
                if self.end(true, world) {
                    self.attempts[facts.partition()] += 1;
                }
                Ok(())
            }
            Verdict::Hold | Verdict::HoldTopic => unreachable!("nothing can be held here"),
            Verdict::Halt if class == Class::Record => {
                assert_ne!(facts.guilt, Guilt::Innocent, "row {row} is innocent and halts the relay");
                world.ledger.tally.count(Seen::GuiltyHalt);
                Err(Halt::Guilty(row))
            }
            Verdict::Halt => {
                world.ledger.tally.count(Seen::TiredHalt);
                Err(Halt::Tired)
            }
        }
    }

    /// Hands over what may be sent.
    pub(super) fn send(&mut self, core: &mut Core<u32>, world: &mut World) -> Result<(), Halt> {
        let (Phase::Running, Some(producer)) = (&self.phase, &mut self.producer) else { return Ok(()) };
        let mut refused = None;
        core.send_ready(world.now, |handle, event| {
            let row = world.ledger.row(*event);
            let record = Record { tag: handle.to_tag(), row: *event };
            match producer.send(row.partition(), record, row.guilt) {
                Ok(()) => SendOutcome::Queued,
                Err(Code::QueueFull) => {
                    world.ledger.tally.count(Seen::QueueFull);
                    SendOutcome::Full
                }
                Err(code) => {
                    refused = Some((handle, *event, code));
                    SendOutcome::Refused
                }
            }
        });
        match refused {
            Some((handle, row, code)) => self.refused(handle, row, code, core.is_front(handle), core, world),
            None => Ok(()),
        }
    }

    /// Ends the generation; false where it is ending already.
    fn end(&mut self, purge: bool, world: &mut World) -> bool {
        let is_graceful = matches!(self.phase, Phase::Ending { until: None });
        if self.phase != Phase::Running && !(purge && is_graceful) {
            return false;
        }
        if purge {
            world.ledger.tally.count(Seen::Rewind);
            if let Some(producer) = &mut self.producer {
                producer.purge_queue(&mut self.reports);
            }
        }
        self.phase = Phase::Ending { until: purge.then(|| world.now + REQUEST_TIMEOUT) };
        true
    }

    /// The topics' limits have changed: a new producer, once all reports are in.
    pub(super) fn adapt(&mut self, world: &mut World) {
        self.end(false, world);
    }

    /// The producer, with the place for its reports.
    pub(super) fn producer(&mut self) -> Option<(&mut Producer, &mut Vec<Outcome>)> {
        Some((self.producer.as_mut()?, &mut self.reports))
    }

    /// The relay ends; what is in flight may land.
    pub(super) fn close(self, world: &mut World) {
        if let Some(producer) = self.producer {
            world.abandon(producer);
        }
    }
}
