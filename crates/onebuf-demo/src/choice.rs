//! A choice between two ways to compute the same, by measurement: once for each device and shape, remembered among the verdicts.

use onebuf::{
    Hub, Queue, Result, Verdicts,
    topology::{Verdict, VerdictState},
};
use std::time::Instant;

/// Rounds of a measurement. The ways take turns, so that a change of the machine's speed affects both.
const ROUNDS: usize = 7;
/// Runs of one way in a round, so that launching is not what is measured.
const RUNS: usize = 10;

/// Whether `other` is faster than `usual` on the queue's device. `what` names both ways and the shape.
///
/// If their times overlap, the machine was too busy to tell, or they are equally fast: the answer is `usual`, and is not remembered.
///
/// # Errors
/// Those of the two ways.
pub fn is_faster(
    queue: &Queue,
    what: &str,
    mut other: impl FnMut() -> Result<()>,
    mut usual: impl FnMut() -> Result<()>,
) -> Result<bool> {
    let device = queue.device();
    let (hub, node) = (device.hub(), device.hub().topology().node(device.index()));
    if let Some(known) = hub.verdicts().find_choice(node, what) {
        return Ok(known.state == VerdictState::Proven);
    }
    let (mut others, mut usuals) = (Vec::new(), Vec::new());
    // The first round of each includes what a driver does only once.
    for round in 0..=ROUNDS {
        let times = [time(queue, &mut other)?, time(queue, &mut usual)?];
        if round > 0 {
            others.push(times[0]);
            usuals.push(times[1]);
        }
    }
    let verdict = judge(&others, &usuals);
    if verdict.state != VerdictState::Declared {
        remember(hub, |verdicts| verdicts.insert_choice(node, what, verdict.clone()));
    }
    Ok(verdict.state == VerdictState::Proven)
}

/// Nanoseconds of one round.
fn time(queue: &Queue, run: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..RUNS {
        run()?;
    }
    queue.finish()?;
    Ok(start.elapsed().as_nanos() as f64 / RUNS as f64)
}

/// Proven if every round of `others` was shorter than every round of `usuals`, refuted if every one was longer.
fn judge(others: &[f64], usuals: &[f64]) -> Verdict {
    let [least, most] = [f64::min, f64::max];
    let end = |times: &[f64], of: fn(f64, f64) -> f64| times.iter().copied().reduce(of);
    let apart = |short: &[f64], long: &[f64]| end(short, most) < end(long, least);
    let state = match (apart(others, usuals), apart(usuals, others)) {
        (true, _) => VerdictState::Proven,
        (_, true) => VerdictState::Refuted,
        _ => VerdictState::Declared,
    };
    let micros = |times: &[f64]| {
        let [least, most] = [least, most].map(|of| end(times, of).unwrap_or(0.0) / 1e3);
        format!("{least:.1} to {most:.1} µs")
    };
    let why = format!("{} against {}", micros(others), micros(usuals));
    Verdict { state, why, ..Verdict::default() }
}

/// A hub without a folder remembers nothing, and a folder that cannot be written is no reason to fail.
fn remember(hub: &Hub, insert: impl FnOnce(&mut Verdicts)) {
    let Some(folder) = hub.cache_folder() else { return };
    let mut verdicts = Verdicts::default();
    insert(&mut verdicts);
    if let Err(error) = verdicts.save(folder) {
        tracing::debug!(%error, "a choice is not remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn state(others: &[f64], usuals: &[f64]) -> VerdictState {
        judge(others, usuals).state
    }

    #[test]
    fn only_times_that_do_not_overlap_decide() {
        assert_eq!(state(&[1.0, 2.0], &[3.0, 9.0]), VerdictState::Proven);
        assert_eq!(state(&[3.0, 9.0], &[1.0, 2.0]), VerdictState::Refuted);
        assert_eq!(state(&[1.0, 4.0], &[3.0, 9.0]), VerdictState::Declared);
        assert_eq!(state(&[1.0], &[1.0]), VerdictState::Declared);
        assert_eq!(judge(&[1e3, 2e3], &[4e3]).why, "1.0 to 2.0 µs against 4.0 to 4.0 µs");
    }

    #[test]
    fn a_choice_is_measured_once_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Cell::new(0);
        let chosen = |what: &str, short: u64, long: u64| {
            let hub = onebuf::builder().only(["host"]).cache(folder.path()).build().unwrap();
            let queue = hub.host().queue().unwrap();
            let sleep = |millis| {
                runs.set(runs.get() + 1);
                std::thread::sleep(std::time::Duration::from_millis(millis));
                Ok(())
            };
            is_faster(&queue, what, || sleep(short), || sleep(long)).unwrap()
        };
        // A busy machine may stop the shorter way for longer than the other one sleeps; then nothing is remembered.
        assert!((0..10).any(|_| chosen("sleep: 0 or 5", 0, 5)));
        let measured = runs.replace(0);
        assert_eq!(measured % (2 * RUNS * (ROUNDS + 1)), 0);
        assert!(chosen("sleep: 0 or 5", 5, 0), "remembered, not measured again");
        assert_eq!(runs.get(), 0);
        assert!(!chosen("sleep: 5 or 0", 5, 0), "another choice");
    }
}
