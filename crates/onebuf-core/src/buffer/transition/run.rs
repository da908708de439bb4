//! Performs the steps of a hand-over, and plans again without the route if one fails.

use super::{
    Acquire, BufferState, Enqueued, Point, Refusal, RouteEnd, Step, Steps, Uses, Without,
    transition,
};

/// Performs the driver calls of steps.
pub(crate) trait Executor {
    type Point: Point;
    type Error;

    /// Fills in the steps to perform.
    #[inline]
    fn plan(&self, acquire: &Acquire, steps: &mut Steps) -> Result<(), Refusal> {
        transition(self.state(), acquire, steps)
    }

    fn state(&self) -> &BufferState;

    /// The parts of the state that steps change.
    fn parts(&mut self) -> (&mut BufferState, &mut Uses<Self::Point>);

    /// Performs a step's call.
    fn perform(&mut self, step: &Step) -> Outcome<Self::Point, Self::Error>;

    /// Handles a failed step, after the work that it enqueued was recorded. If its call may have changed something, this must
    /// update the state.
    fn failed(&mut self, step: &Step, failed: &StepFailed<Self::Error>);

    /// Converts a refusal into an error.
    fn refused(&mut self, refusal: Refusal) -> Self::Error;

    /// Announces another attempt, without the ways that failed; `error` is that of the last attempt.
    fn again(&mut self, error: Self::Error, without: Without);
}

/// What a step enqueued, and whether it succeeded.
pub(crate) type Outcome<P, E> = (Enqueued<P>, Result<(), StepFailed<E>>);

/// Why a step failed.
#[derive(Debug)]
pub(crate) struct StepFailed<E> {
    pub error: E,
    /// The end whose route has failed, if any.
    pub route: Option<RouteEnd>,
    /// Whether the error may come from enqueued work instead of the call.
    pub of_work: bool,
}

/// Hands the buffer over; by a staged copy if the route fails.
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

/// Performs the steps until one fails.
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

/// Returns the ways to avoid after a failure; `None` if there is no alternative.
fn next(without: Without, failed: Option<RouteEnd>, left: bool) -> Option<Without> {
    match failed? {
        RouteEnd::Source if !without.source => Some(Without { source: true, ..without }),
        // The source's hand-over may succeed once the taker's route is no longer involved, so it is tried again.
        RouteEnd::Taker if !without.route && !left => Some(Without { route: true, source: false }),
        RouteEnd::Source | RouteEnd::Taker => None,
    }
}
