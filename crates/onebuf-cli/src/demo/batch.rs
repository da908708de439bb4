//! How many frames a stage processes before the other takes over.

use crate::{out::Result, units};
use onebuf::{RouteKind, pipeline::smallest_batch, plan::Plan, topology::Topology};
use onebuf_demo::{Frame, Pipeline};
use std::time::{Duration, Instant};

/// Number of timings for the decision.
const TIMES: usize = 5;

/// Frames per switch, and the reason.
pub struct Batch {
    pub frames: usize,
    pub why: String,
    /// The time of one frame in each stage alone, if it was measured.
    pub stage_us: Option<[f64; 2]>,
}

impl Batch {
    pub fn asked(frames: usize) -> Self {
        Self { frames, why: "as asked".into(), stage_us: None }
    }

    /// As few frames as keep the share of switching small, by the costs of a switch and of the stages.
    pub fn measured(pipeline: &Pipeline, frame: &Frame, most: usize) -> Result<Self> {
        let (plan, stage_us) = (frame.signal.plan(), stage_us(pipeline, frame)?);
        if plan.routes.iter().any(|hop| hop.kind == RouteKind::Staged) {
            let why = "every frame is copied anyway".into();
            return Ok(Self { frames: 1, why, stage_us: Some(stage_us) });
        }
        let topology = pipeline.devices[0].hub().topology();
        let switch_us = match verdict_us(topology, plan) {
            Some(us) => us,
            None => handoff_us(pipeline, frame)?,
        };
        let frames = choose(switch_us, stage_us, most);
        Ok(Self { frames, why: why(switch_us, stage_us, frames), stage_us: Some(stage_us) })
    }
}

/// The verdict's cost of the most expensive hand-over in the plan; zero if nothing is handed over.
fn verdict_us(topology: &Topology, plan: &Plan) -> Option<f64> {
    let of = |hop: &onebuf::plan::Hop| {
        if hop.to == plan.allocate_on || hop.kind == RouteKind::Same {
            return Some(0.0);
        }
        let mut routes = topology.between(plan.allocate_on, hop.to).iter();
        routes.find(|route| route.kind == hop.kind)?.verdict.handoff_us
    };
    plan.routes.iter().map(of).try_fold(0.0, |most: f64, us| Some(most.max(us?)))
}

/// As the library chooses for a pipeline.
fn choose(switch_us: f64, stage_us: [f64; 2], most: usize) -> usize {
    let micros = |us: f64| Duration::from_secs_f64(us.max(0.0) / 1e6);
    smallest_batch(micros(switch_us), micros(stage_us.iter().sum()), most)
}

fn why(switch_us: f64, [first, second]: [f64; 2], frames: usize) -> String {
    let share = 200.0 * switch_us / ((first + second) * frames as f64);
    format!(
        "a switch costs {} each way, the stages {} and {} a frame: {share:.0} % for switching",
        units::time(switch_us),
        units::time(first),
        units::time(second)
    )
}

/// The time of each stage alone, on contents that are already on its device.
fn stage_us(pipeline: &Pipeline, frame: &Frame) -> Result<[f64; 2]> {
    let timed = |stage: &dyn Fn() -> onebuf::Result<()>| -> Result<f64> {
        // Warm-up: drivers compile and pages are allocated on first use.
        stage()?;
        let start = Instant::now();
        stage()?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    Ok([timed(&|| pipeline.run_first(frame))?, timed(&|| pipeline.run_second(frame))?])
}

/// The cost of handing over to the second device: its time for a few samples after the first device's turn, minus the
/// same after its own.
pub fn handoff_us(pipeline: &Pipeline, frame: &Frame) -> Result<f64> {
    let touch_second = || -> Result<f64> {
        let start = Instant::now();
        pipeline.touch_second(frame)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let once = |_| -> Result<f64> {
        pipeline.touch_first(frame)?;
        let crossed = touch_second()?;
        Ok(crossed - touch_second()?)
    };
    // The first measurement, in which drivers plan and compile, is discarded. A difference below the clock's noise may be
    // negative; it is clamped at the end, because clamping each would make the median too large.
    let all: Vec<f64> = (0..=2 * TIMES + 1).map(once).collect::<Result<_>>()?;
    Ok(median(all[1..].to_vec()).max(0.0))
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::{choose, why};

    #[test]
    fn switching_stays_a_small_share() {
        assert_eq!(choose(0.0, [1.0, 1.0], 64), 1, "nothing to save");
        assert_eq!(choose(10.0, [4000.0, 9000.0], 64), 1);
        assert_eq!(choose(10.0, [100.0, 60.0], 64), 2);
        assert_eq!(choose(10.0, [30.0, 30.0], 64), 4);
        assert_eq!(choose(10.0, [20.0, 10.0], 64), 8);
        assert_eq!(choose(140.0, [264.0, 34.0], 64), 8, "more would wait for too many frames");
        assert_eq!(choose(140.0, [264.0, 34.0], 3), 3, "there are no more");
    }

    #[test]
    fn the_reason_has_the_numbers() {
        let why = why(140.0, [264.0, 36.0], 8);
        assert!(why.contains("140.0 µs each way") && why.ends_with("12 % for switching"), "{why}");
    }
}
