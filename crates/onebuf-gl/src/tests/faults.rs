//! Each driver call of a scenario fails once: an error or no effect, no panic, no leak.

use super::*;
use std::collections::BTreeMap;

/// A sequence of calls that stops at the first error.
type Scenario = fn(&Device) -> Result<()>;

fn transfers(device: &Device) -> Result<()> {
    let queue = device.queue(QueueSpec::default())?;
    for memory_kind in [MemoryKind::Device, MemoryKind::MappedDevice] {
        let memory = device.allocate(&spec(memory_kind, 8192), Some(&[1; 8192]))?;
        queue.fill(&*memory, 0, 4096, &[0])?;
        queue.fill(&*memory, 0, 3072, &[1, 2, 3])?;
        queue.copy(&*memory, 0, &*memory, 4096, 4096)?;
        let from = [7; 64];
        // SAFETY: the data is copied before the call returns.
        unsafe { queue.write(&*memory, 0, from.as_ptr(), 64)? }.wait(SECONDS)?;
        contents(&*queue, &*memory)?;
    }
    Ok(())
}

fn maps(device: &Device) -> Result<()> {
    let flushed = with_habits(device, Coherence::Flushed);
    let queue = flushed.queue(QueueSpec::default())?;
    let memory = flushed.allocate(&spec(MemoryKind::MappedDevice, 8192), None)?;
    queue.reside(&*memory, AccessState::Released)?;
    queue.reside(&*memory, AccessState::Acquired)?;
    memory.export(&*queue)?;
    let pages = flushed.import(&Export::Host(pages(8192)), Access::ReadWrite)?;
    queue.fill(&*pages, 0, 8192, &[1, 2])?;
    queue.flush()?;
    queue.mark()?.wait(SECONDS)
}

fn launches(device: &Device) -> Result<()> {
    let queue = device.queue(QueueSpec::default().profiled())?;
    let program = device.build(&source("step", STEP))?;
    let kernel = program.kernel("step", 3)?;
    let memory = device.allocate(&spec(MemoryKind::Device, 4096), None)?;
    let event = step(&*queue, &*kernel, &*memory, 3)?;
    event.wait(SECONDS)?;
    event.profile().map(drop)
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    for scenario in [transfers, maps, launches] as [Scenario; 3] {
        sweep(scenario);
    }
}

fn sweep(scenario: Scenario) {
    let mut seen = BTreeMap::new();
    let mut past_the_end = 0;
    // The number of polls in a wait varies, so the sweep ends after several runs without a failing call.
    for n in 1.. {
        let probe = Probe::new();
        let Some(device) = device(Some(probe.clone())) else { return };
        probe.fail_nth(n, [0x0505, 0x0502, 0x0501][n as usize % 3]);
        let result = scenario(&device).err().map(|why| why.to_string());
        let failed = probe.failed();
        match failed {
            Some(failed) => *seen.entry((failed, result)).or_insert(0) += 1,
            None => past_the_end += 1,
        }
        probe.fail_nth(0, 0);
        if n % 4 == 1 {
            scenario(&device).unwrap_or_else(|why| panic!("again, after {failed:?}: {why}"));
        }
        drop(device);
        assert!(probe.live().is_empty(), "{:?} after {failed:?} failed", probe.live());
        if past_the_end == 3 {
            break;
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
    for ((call, result), times) in &seen {
        println!("  {times:>4} {call}: {}", result.as_deref().unwrap_or("went on"));
    }
}

#[test]
fn discovery_tells_what_it_leaves_out() {
    let _alone = alone();
    let mut devices = 0;
    for n in 1.. {
        let probe = Probe::new();
        probe.fail_nth(n, 0x3003);
        let found = discover(None, Some(probe.clone()), &mut || Domain(1), &|_, _| None);
        let failed = probe.failed();
        match found {
            Err(missing) if !missing.loaded => return println!("skip: {missing}"),
            Err(missing) => assert!(failed.is_some() && !missing.hint.is_empty(), "{missing}"),
            Ok(found) => {
                devices = devices.max(found.devices.len());
                let told = found.devices.len() + found.problems.len();
                assert!(failed.is_none() || told > 0, "{failed:?}");
            }
        }
        assert!(probe.live().is_empty(), "{:?} after {failed:?} failed", probe.live());
        if failed.is_none() {
            break;
        }
    }
    assert!(devices > 0);
}

#[test]
fn an_old_driver_is_named_as_such() {
    let _alone = alone();
    let probe = Probe::new();
    // `EGL_BAD_MATCH`: the version is not available.
    probe.fail_always("eglCreateContext", 0x3009);
    let missing = discover(None, Some(probe), &mut || Domain(1), &|_, _| None).unwrap_err();
    if missing.loaded {
        assert!(missing.reason.contains("too old") && missing.hint.contains("newer"), "{missing}");
    }
}
