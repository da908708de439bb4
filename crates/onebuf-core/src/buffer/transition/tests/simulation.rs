//! An executor over the model: performs each step's call there, and injects the requested failures.

use super::{
    super::{
        super::{alias::HOME, guard_entries::GuardEntry},
        Acquire, BufferState, Enqueued, Executor, On, Outcome, Refusal, RouteEnd, Step, StepFailed,
        Steps, Use, Uses, Without, perform_all, release_others, run, transition,
    },
    layout::Layout,
    world::{At, Checked, World, ensure},
};
use onebuf_hal::AccessState::{Acquired, Released, SharedRead};

/// A request of a buffer's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Take(GuardEntry),
    /// Takes the whole buffer without its contents; `finished` if everything is overwritten.
    Overwrite {
        alias: usize,
        finished: bool,
    },
    /// Drops the guard with this index.
    Drop(usize),
    ReleaseTo {
        alias: usize,
        write: bool,
    },
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call did nothing.
    Refused,
    /// The call performed the first of its two actions.
    HalfWay,
}

/// A step that fails, by its number among those that are performed.
pub type FaultAt = (usize, Fault);

/// Makes steps wrong, to test that the checks detect it.
pub type Spoil = fn(Steps) -> Steps;

#[derive(Debug)]
pub enum Error {
    /// The request was refused, or a call failed.
    Told,
    /// An invariant is violated.
    Wrong(String),
}

pub struct Simulation<'s> {
    pub world: World,
    pub layout: &'s Layout,
    pub faults: &'s [FaultAt],
    pub spoil: Option<Spoil>,
    taker: usize,
    /// The number of steps performed, including those that failed.
    pub made: usize,
    /// For each step, whether it could fail half way.
    pub halves: Vec<bool>,
}

impl<'s> Simulation<'s> {
    pub fn new(world: World, layout: &'s Layout, faults: &'s [FaultAt]) -> Self {
        Self { world, layout, faults, spoil: None, taker: 0, made: 0, halves: Vec::new() }
    }

    /// Makes the request, and checks what must hold whether it succeeds or not.
    pub fn request(&mut self, request: Request) -> Result<(), Error> {
        let done = match request {
            Request::Take(entry) => self.take(entry, true, true),
            Request::Overwrite { alias, finished } => {
                let span = self.world.buffer.whole;
                self.take(GuardEntry { span, alias, write: true }, false, finished)
            }
            Request::Drop(index) => self.drop_guard(index).map_err(Error::Wrong),
            Request::ReleaseTo { alias, write } => self.release_to(alias, write),
        };
        if matches!(done, Err(Error::Wrong(_))) {
            return done;
        }
        self.world.check_access(self.layout).map_err(Error::Wrong)?;
        self.check_held().map_err(Error::Wrong)?;
        done
    }

    fn take(&mut self, entry: GuardEntry, keep: bool, finished: bool) -> Result<(), Error> {
        let GuardEntry { alias, span, .. } = entry;
        let replica = self.world.buffer.aliases[alias].replica();
        let keep = keep || self.world.buffer.has_newest(replica);
        self.world.buffer.guard_entries.take(entry).map_err(|_| Error::Told)?;
        self.world.refresh(self.layout, span);
        self.taker = alias;
        let without = Without::default();
        let taken = run(self, Acquire { entry, keep, in_order: true, without });
        if let Err(error) = taken {
            self.world.buffer.guard_entries.give_back(&entry);
            return Err(error);
        }
        let used = self.use_it(&entry, keep, finished);
        used.map_err(Error::Wrong)
    }

    fn use_it(&mut self, entry: &GuardEntry, keep: bool, finished: bool) -> Checked {
        let GuardEntry { alias, write, span } = *entry;
        if write {
            self.world.check_alone(self.layout, alias)?;
        }
        self.world.kernel(self.layout, entry, keep)?;
        if write {
            self.world.wrote(self.layout, alias, span, keep || finished);
            if !keep && finished {
                self.world.buffer.written_at(alias);
            }
        }
        self.world.held.push(*entry);
        // All other requests are refused while a write guard is held, so drop it at once.
        if write { self.drop_guard(self.world.held.len() - 1) } else { Ok(()) }
    }

    /// Drops a guard. The caller may enqueue work until then, so a kernel runs first.
    fn drop_guard(&mut self, index: usize) -> Checked {
        let entry = self.world.held.remove(index);
        self.world.kernel(self.layout, &entry, false)?;
        let used = Use { span: entry.span, point: self.world.now(self.layout, entry.alias) };
        match entry.write {
            true => self.world.uses.note_write(used),
            false => self.world.uses.note_read(used),
        }
        self.world.buffer.guard_entries.give_back(&entry);
        Ok(())
    }

    fn release_to(&mut self, alias: usize, write: bool) -> Result<(), Error> {
        let entry = GuardEntry { span: self.world.buffer.whole, alias, write };
        self.world.buffer.guard_entries.take(entry).map_err(|_| Error::Told)?;
        let steps = release_others(&self.world.buffer, alias, write);
        let done = perform_all(self, &steps).map_err(|failed| failed.error);
        self.world.buffer.guard_entries.give_back(&entry);
        done
    }

    /// Checks that guards that are held may still use their bytes.
    fn check_held(&self) -> Checked {
        self.world.held.iter().try_for_each(|entry| self.world.allows(self.layout, entry))
    }

    fn queue(&self, on: On, alias: usize) -> usize {
        match on {
            On::Taker | On::Service => self.taker,
            On::Last => alias,
            On::AsIs => self.as_is(alias).1,
        }
    }

    fn as_is(&self, alias: usize) -> (usize, usize) {
        self.world.as_is(self.layout, alias, self.world.buffer.newest())
    }

    fn all_of(&self, alias: usize, write: bool) -> GuardEntry {
        GuardEntry { span: self.world.buffer.whole, alias, write }
    }

    fn enqueued(&self, queue: usize) -> Enqueued<At> {
        Enqueued { source: None, on: Some(self.world.now(self.layout, queue)) }
    }

    /// Performs a step's call, or the part of it that the fault leaves.
    fn call(&mut self, step: &Step, fault: Option<Fault>) -> Checked<Enqueued<At>> {
        let (layout, forbids) = (self.layout, self.layout.rules.forbids_copies);
        match *step {
            Step::Order(_) if fault.is_some() => {}
            Step::Order(order) => {
                let queue = self.queue(order.on, order.alias);
                let device = self.world.now(layout, queue).device_of();
                let before: Vec<At> =
                    self.world.uses.before(&order, device).map(|used| used.point).collect();
                before.iter().for_each(|point| self.world.order(queue, point));
            }
            Step::Change { alias, to, on, .. } => {
                let queue = self.queue(on, alias);
                let from = self.world.access_of(layout, alias);
                let to = match (fault, from, to) {
                    (None, _, to) => to,
                    (Some(Fault::Refused), ..) => return Ok(self.enqueued(queue)),
                    (_, Acquired, SharedRead) => Released,
                    (Some(Fault::HalfWay), ..) => Acquired,
                };
                self.world.change(layout, alias, to, queue)?;
                return Ok(self.enqueued(queue));
            }
            Step::MovePages { to, span, on } => {
                let queue = self.queue(on, HOME);
                ensure(!forbids, || "pages move, which is forbidden".into())?;
                if fault.is_none() {
                    self.world.move_pages(to, span, queue)?;
                }
                return Ok(self.enqueued(queue));
            }
            Step::Copy { from, to, on } => {
                let queue = self.queue(on, to);
                ensure(!forbids, || "a copy, which is forbidden".into())?;
                let source = match from.as_is {
                    true => self.as_is(from.alias),
                    false => self.world.handed_over(layout, from.alias),
                };
                if !from.as_is {
                    self.world.allows(layout, &self.all_of(from.alias, false))?;
                }
                self.world.allows(layout, &self.all_of(to, true))?;
                self.world.check_alone(layout, to)?;
                self.world.copy(layout, source, (to, queue), fault.is_some())?;
                let source = Some(self.world.now(layout, source.1));
                return Ok(Enqueued { source, ..self.enqueued(queue) });
            }
            Step::Leave { alias } => {
                ensure(!forbids, || "a staged copy instead, which is forbidden".into())?;
                if fault.is_none() {
                    self.world.leave(alias);
                }
            }
            Step::Look { .. } | Step::Written { .. } => {}
        }
        Ok(Enqueued::default())
    }
}

/// Whether a step's call consists of two actions. False while a guard on that memory is held: the first action alone may
/// take the memory away from the reader, whose next driver call then fails.
fn has_halves(step: &Step, world: &World, layout: &Layout) -> bool {
    let Step::Change { alias, to, .. } = *step else { return false };
    let read = world.held.iter().any(|held| world.shares_memory(layout, held.alias, alias));
    !read
        && matches!(
            (world.access_of(layout, alias), to),
            (Acquired, SharedRead) | (SharedRead, Released) | (Released, SharedRead)
        )
}

impl Executor for Simulation<'_> {
    type Point = At;
    type Error = Error;

    fn plan(&self, acquire: &Acquire, steps: &mut Steps) -> Result<(), Refusal> {
        transition(&self.world.buffer, acquire, steps)?;
        if let Some(spoil) = self.spoil {
            *steps = spoil(steps.clone());
        }
        Ok(())
    }

    fn state(&self) -> &BufferState {
        &self.world.buffer
    }

    fn parts(&mut self) -> (&mut BufferState, &mut Uses<At>) {
        (&mut self.world.buffer, &mut self.world.uses)
    }

    fn perform(&mut self, step: &Step) -> Outcome<At, Error> {
        let number = self.made;
        self.made += 1;
        self.halves.push(has_halves(step, &self.world, self.layout));
        let fault = self.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault);
        // Steps without a call do not fail.
        let fault = fault.filter(|_| !matches!(step, Step::Look { .. } | Step::Written { .. }));
        let blind = matches!(step, Step::Look { .. }) && !self.world.is_mapped(self.layout);
        let route = match *step {
            Step::Change { end, .. } => Some(end),
            Step::Look { .. } => Some(RouteEnd::Taker),
            _ => None,
        };
        let failed = |error, route| Err(StepFailed { error, route, of_work: false });
        match self.call(step, fault) {
            Err(wrong) => (Enqueued::default(), failed(Error::Wrong(wrong), None)),
            Ok(enqueued) if fault.is_some() || blind => (enqueued, failed(Error::Told, route)),
            Ok(enqueued) => (enqueued, Ok(())),
        }
    }

    fn failed(&mut self, step: &Step, _: &StepFailed<Error>) {
        if matches!(step, Step::Change { .. } | Step::MovePages { .. }) {
            self.world.refresh(self.layout, self.world.buffer.whole);
        }
    }

    fn refused(&mut self, _: Refusal) -> Error {
        Error::Told
    }

    fn again(&mut self, _: Error, _: Without) {}
}
