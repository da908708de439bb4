//! Every driver call of a scenario fails once: an error or no effect, no panic, no object left.

use super::*;
use onebuf_hal::FdKind;
use std::collections::BTreeMap;

type Scenario = fn(&Rig) -> Result<()>;

/// The name of lavapipe's memory files.
const MEMORY: &str = "llvmpipe memory fd";

fn transfers(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let memory = rig.device.allocate(&spec(MemoryKind::Device, 8192), Some(&numbers(8192)))?;
    queue.fill(&*memory, 0, 3072, &[1, 2, 3])?;
    queue.copy(&*memory, 0, &*memory, 4096, 4096)?;
    let from = vec![7; 4096];
    let mut back = vec![0; 8192];
    // SAFETY: both are kept until the queue is dropped, which waits for its work.
    let read = unsafe {
        let wrote = queue.write(&*memory, 0, from.as_ptr(), 4096);
        let read = wrote.and_then(|_| queue.read(&*memory, 0, back.as_mut_ptr(), 8192));
        read.and_then(|read| read.wait(SECONDS))
    };
    drop(queue);
    read
}

fn launches(rig: &Rig) -> Result<()> {
    let (queue, other) =
        (rig.device.queue(QueueSpec::default())?, rig.device.queue(QueueSpec::default())?);
    let kernel = rig.device.build(&glsl("step", STEP))?.kernel("step", 3)?;
    let memory = rig.device.allocate(&spec(MemoryKind::MappedDevice, 4096), None)?;
    let host_signal = queue.host_signal()?;
    step(&*queue, &*kernel, &*memory, 1024, 3)?;
    let event = queue.mark()?;
    host_signal.open(Ok(()));
    other.wait_for(&[event])?;
    step(&*other, &*kernel, &*memory, 1024, 3)?;
    other.mark()?.wait(SECONDS)
}

fn shares(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    if rig.device.info().caps.imports_host_pages {
        let pages = rig.device.import(&Export::Host(pages(8192)), Access::ReadWrite)?;
        queue.fill(&*pages, 0, 8192, &[1])?;
    }
    if rig.has(MemoryKind::Exportable) {
        let memory = rig.device.allocate(&spec(MemoryKind::Exportable, 8192), None)?;
        let range = memory.export_fd(FdKind::OpaqueFd)?;
        let name = &rig.device.info().name;
        assert!(!name.contains("llvmpipe") || descriptors(MEMORY) > 0, "none to count on {name}");
        let alias = rig.device.import(&Export::Fd(range), Access::ReadWrite)?;
        queue.copy(&*memory, 0, &*alias, 4096, 4096).or(Ok::<_, Error>(()))?;
    }
    queue.mark()?.wait(SECONDS)
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    for scenario in [transfers, launches, shares] as [Scenario; 3] {
        sweep(scenario);
    }
}

fn sweep(scenario: Scenario) {
    let mut seen = BTreeMap::new();
    let mut past_the_end = 0;
    let before = descriptors(MEMORY);
    for n in 1.. {
        let probe = Probe::new();
        let Ok(rigs) = found(&probe) else { return println!("skip: no Vulkan") };
        let rig = &rigs[0];
        probe.fail_nth(n, -1);
        let result = scenario(rig).err().map(|why| why.to_string());
        let failed = probe.failed();
        match failed {
            Some(failed) => *seen.entry((failed, result)).or_insert(0) += 1,
            None => past_the_end += 1,
        }
        probe.fail_nth(0, 0);
        if n % 8 == 1 {
            scenario(rig).unwrap_or_else(|why| panic!("again, after {failed:?} failed: {why}"));
        }
        drop(rigs);
        let (live, trace) = (probe.live(), probe.trace());
        assert!(live.is_empty(), "{live:?} after {failed:?} failed: {trace:?}");
        // The number of queries in a wait varies, so the sweep ends after several runs without a call left to fail.
        if past_the_end == 3 {
            break;
        }
    }
    assert_eq!(descriptors(MEMORY), before, "a descriptor was lost");
    assert!(seen.len() > 8, "{seen:?}");
    for ((call, result), times) in &seen {
        println!("  {times:>4} {call}: {}", result.as_deref().unwrap_or("went on"));
    }
}
