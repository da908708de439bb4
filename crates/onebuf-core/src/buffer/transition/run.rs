//! Steps made one by one, and what happens when one fails: planning again without the route that failed.

use super::{
    Acquire, BufferState, Enqueued, Point, Refusal, RouteEnd, Step, Steps, Uses, Without,
    transition,
};

/// Makes the calls.
pub(crate) trait Executor {
    type Point: Point;
    type Error;

    /// Fills in the steps to make.
    #[inline]
    fn plan(&self, acquire: &Acquire, steps: &mut Steps) -> Result<(), Refusal> {
        transition(self.state(), acquire, steps)
    }

    fn state(&self) -> &BufferState;

    /// What steps change.
    fn parts(&mut self) -> (&mut BufferState, &mut Uses<Self::Point>);

    /// Makes a step's call.
    fn perform(&mut self, step: &Step) -> Outcome<Self::Point, Self::Error>;

    /// A step failed, and what it left to wait for was noted. Where its call may have changed something, the state is to
    /// say what.
    fn failed(&mut self, step: &Step, failed: &StepFailed<Self::Error>);

    /// The error of a refusal.
    fn refused(&mut self, refusal: Refusal) -> Self::Error;

    /// There is another way; the error of the last one.
    fn again(&mut self, error: Self::Error, without: Without);
}

/// What a step gave to queues, and how it went.
pub(crate) type Outcome<P, E> = (Enqueued<P>, Result<(), StepFailed<E>>);

/// Why a step could not be made.
#[derive(Debug)]
pub(crate) struct StepFailed<E> {
    pub error: E,
    /// Which end has to do without its route.
    pub route: Option<RouteEnd>,
    /// Whether the error may be that of work, and not of a call.
    pub of_work: bool,
}

/// Hands the buffer over; by a staged copy where the route fails.
pub(crate) fn run<X: Executor>(executor: &mut X, mut acquire: Acquire) -> Result<(), X::Error> {
    let mut steps = Steps::default();
    loop {
        let done = match executor.plan(&acquire, &mut steps) {
            Ok(()) => perform_all(executor, &steps),
            Err(refusal) => {
                let route = (refusal == Refusal::HomeLeft).then_some(RouteEnd::Taker);
                Err(StepFailed { error: executor.refused(refusal), route, of_work: false })
            }
        };
        let Err(StepFailed { error, route, .. }) = done else { return Ok(()) };
        let left = executor.state().aliases[acquire.entry.alias].own.is_some();
        match next(acquire.without, route, left) {
            None => return Err(error),
            Some(without) => acquire.without = without,
        }
        executor.again(error, acquire.without);
    }
}

/// Makes the steps until one fails.
pub(crate) fn perform_all<X: Executor>(
    executor: &mut X,
    steps: &Steps,
) -> Result<(), StepFailed<X::Error>> {
    for step in steps.iter() {
        let (given, done) = executor.perform(step);
        let (state, uses) = executor.parts();
        if done.is_ok() {
            state.apply(step);
        }
        uses.note_step(step, done.is_ok(), state.whole, given);
        if let Err(failed) = done {
            executor.failed(step, &failed);
            return Err(failed);
        }
    }
    Ok(())
}

/// What to do without after a failure; `None` when there is no other way.
fn next(without: Without, failed: Option<RouteEnd>, left: bool) -> Option<Without> {
    match failed? {
        RouteEnd::Source if !without.source => Some(Without { source: true, ..without }),
        // What could not be handed over to the source may work once nothing is asked of the taker's route.
        RouteEnd::Taker if !without.route && !left => Some(Without { route: true, source: false }),
        RouteEnd::Source | RouteEnd::Taker => None,
    }
}
