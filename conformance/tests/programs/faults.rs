//! A driver that fails while a program is loaded or stored: the program works anyway.

use super::*;
use onebuf::{Error, Origin};
use onebuf_conformance::{Watchdog, note};
use std::collections::BTreeMap;
use tempfile::tempdir;

/// Out of resources, out of host memory, invalid value, invalid binary, build failure.
const CODES: [i32; 5] = [-5, -6, -30, -42, -11];

/// Makes the n-th driver call of getting a program fail, for every n; returns these calls and their outcomes.
fn sweep(
    device: &str,
    prepare: impl Fn(&Path),
) -> Vec<(&'static str, std::result::Result<Origin, Error>)> {
    let mut outcomes = Vec::new();
    for n in 1.. {
        let cache = tempdir().unwrap();
        prepare(cache.path());
        let probe = Probe::new();
        let hub = watched(cache.path(), &probe);
        let device = hub.device(device).unwrap();
        device.queue().unwrap(); // so that the context exists
        probe.fail_nth(n, CODES[n as usize % CODES.len()]);
        let program = device.program(&text());
        let Some(call) = probe.failed() else {
            probe.fail_nth(0, 0);
            break;
        };
        if let Ok(program) = &program {
            assert_works(program);
        }
        outcomes.push((call, program.map(|program| program.origin())));
        // Nothing is damaged: the next hub works with whatever is on disk.
        assert_works(
            &super::hub(cache.path()).device(device.id()).unwrap().program(&text()).unwrap(),
        );
        drop((device, hub));
        assert!(!probe.live().contains_key("program"), "{call}: {:?}", probe.live());
    }
    outcomes
}

fn ids() -> Vec<String> {
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    devices(&hub).iter().map(|device| device.id().to_owned()).collect()
}

fn told(what: &str, outcomes: &[(&str, std::result::Result<Origin, Error>)]) {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (call, outcome) in outcomes {
        let end = outcome.as_ref().map_or("error".into(), |origin| format!("{origin:?}"));
        *counts.entry(format!("{call} → {end}")).or_default() += 1;
    }
    note(&format!("{what}: {counts:?}"));
}

#[test]
fn loading_that_fails_ends_in_compiling() {
    let _watchdog = Watchdog::new("loading that fails", LIMIT);
    let _alone = alone();
    for id in ids() {
        loading(&id);
    }
}

fn loading(id: &str) {
    let outcomes = sweep(id, |cache| {
        hub(cache).device(id).unwrap().program(&text()).unwrap();
    });
    told(&format!("{id} loading"), &outcomes);
    for (call, outcome) in &outcomes {
        let origin = outcome.as_ref().unwrap_or_else(|e| panic!("{call} failed: {e}"));
        // A program that was loaded without its build log is complete.
        let wanted = match *call {
            "clCreateProgramWithBinary" | "clBuildProgram" => Origin::Built,
            _ => Origin::Disk,
        };
        assert_eq!(*origin, wanted, "{call}");
    }
    for call in ["clCreateProgramWithBinary", "clBuildProgram"] {
        assert!(outcomes.iter().any(|(swept, _)| *swept == call), "{call} was not swept");
    }
}

#[test]
fn keeping_that_fails_changes_nothing() {
    let _watchdog = Watchdog::new("keeping that fails", LIMIT);
    let _alone = alone();
    for id in ids() {
        let outcomes = sweep(&id, |_| {});
        told(&format!("{id} keeping"), &outcomes);
        for (call, outcome) in &outcomes {
            let compiles = ["clCreateProgramWithSource", "clBuildProgram"].contains(call);
            assert_eq!(outcome.is_err(), compiles, "{id}: {call}: {outcome:?}");
        }
        assert!(outcomes.iter().any(|(call, _)| *call == "clGetProgramInfo"));
    }
}
