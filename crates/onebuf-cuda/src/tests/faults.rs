//! Each driver call of a scenario fails once: an error or no effect, no panic, no leak.

use super::*;

/// A sequence of calls that stops at the first error.
type Scenario = fn(&Rig) -> Result<()>;

fn transfers(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    for memory_kind in [MemoryKind::Device, MemoryKind::MappedDevice] {
        let memory = rig.device.allocate(&spec(memory_kind, 8192), Some(&numbers(8192)))?;
        queue.fill(&*memory, 0, 4096, &[0])?;
        queue.fill(&*memory, 0, 3072, &[1, 2, 3])?;
        queue.copy(&*memory, 0, &*memory, 4096, 4096)?;
        let (mut back, from) = (vec![0; 4096], numbers(4096));
        // SAFETY: both outlive the waits; a failed wait is repeated.
        let (wrote, read) = unsafe {
            let wrote = queue.write(&*memory, 0, from.as_ptr(), 4096)?;
            let settled = wrote.wait(SECONDS).or_else(|_| wrote.wait(SECONDS));
            let read = queue.read(&*memory, 0, back.as_mut_ptr(), 4096);
            (settled, read?)
        };
        wrote?;
        read.wait(SECONDS)?;
    }
    Ok(())
}

fn imports(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default().profiled())?;
    let range = pages(8192);
    let first = rig.device.import(&Export::Host(range.clone()), Access::ReadWrite)?;
    let second = rig.other.import(&Export::Host(range), Access::Read)?;
    queue.fill(&*first, 0, 8192, &[1, 2])?;
    let pinned = rig.device.allocate(&spec(MemoryKind::MappedDevice, 4096), None)?;
    let alias = rig.other.import(&pinned.export(&*queue)?, Access::Read)?;
    drop((second, pinned, alias));
    let event = queue.mark()?;
    event.wait(SECONDS)?;
    event.profile().map(drop)
}

fn launches(rig: &Rig) -> Result<()> {
    let (queue, other) = (
        rig.device.queue(QueueSpec::default().profiled())?,
        rig.device.queue(QueueSpec::default())?,
    );
    let program = rig.device.build(&rig.source(PROGRAM))?;
    let (add, shape) = (program.kernel("add", 2)?, program.kernel("shape", 2)?);
    let memory = rig.device.allocate(&spec(MemoryKind::Device, 4096), None)?;
    let args = [Arg::Memory(&*memory, Access::ReadWrite, 4096), Arg::Bytes(&[1, 0, 0, 0])];
    let after = [other.mark()?];
    // SAFETY: 1024 words, and seven.
    let event = unsafe {
        let large = [Arg::Memory(&*memory, Access::ReadWrite, 4096), Arg::Local(60 << 10)];
        queue.launch(&*shape, &line(64), &large, &[], false)?;
        queue.launch(&*add, &line(1024), &args, &after, true)?
    };
    let event = event.ok_or_else(|| Error::invalid("no event"))?;
    event.wait(SECONDS)?;
    event.profile().map(drop)
}

/// Objects dropped while work runs are freed later, by other calls.
fn frees(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let nap = rig.device.build(&rig.source(PROGRAM))?.kernel("nap", 1)?;
    let memory = rig.device.allocate(&spec(MemoryKind::Device, 4096), None)?;
    let pages = rig.device.import(&Export::Host(pages(4096)), Access::ReadWrite)?;
    // SAFETY: the kernel accesses no memory.
    unsafe { queue.launch(&*nap, &line(1), &[Arg::Bytes(&[2, 0, 0, 0])], &[], false) }?;
    queue.fill(&*memory, 0, 4096, &[0])?;
    queue.fill(&*pages, 0, 4096, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    drop((memory, pages, nap, queue));
    Ok(())
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        for scenario in [transfers, imports, launches, frees] as [Scenario; 4] {
            sweep(flavor, scenario);
        }
    }
}

/// Returns the calls that were made to fail.
pub(super) fn sweep(flavor: Flavor, scenario: impl Fn(&Rig) -> Result<()>) -> Vec<&'static str> {
    sweep_of(|probe| found(flavor, probe), scenario)
}

/// Runs the sweep over devices from another discovery function.
pub(super) fn sweep_of(
    found: impl Fn(&Arc<Probe>) -> Option<Rig>,
    scenario: impl Fn(&Rig) -> Result<()>,
) -> Vec<&'static str> {
    let mut seen = std::collections::BTreeMap::new();
    let mut past_the_end = 0;
    // The number of polls in a wait varies, so the sweep ends after several runs without a failing call.
    for n in 1.. {
        let probe = Probe::new();
        let Some(rig) = found(&probe) else { return Vec::new() };
        probe.fail_nth(n, 1);
        let result = scenario(&rig).err().map(|why| why.to_string());
        let failed = probe.failed();
        match failed {
            Some(failed) => *seen.entry((failed, result)).or_insert(0) += 1,
            None => past_the_end += 1,
        }
        probe.fail_nth(0, 0);
        if n % 8 == 1 {
            scenario(&rig).unwrap_or_else(|why| panic!("again, after {failed:?} failed: {why}"));
        }
        drop(rig);
        assert!(
            probe.live().is_empty(),
            "{:?} after {failed:?} failed: {:?}",
            probe.live(),
            probe.trace()
        );
        if past_the_end == 5 {
            break;
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
    for ((call, result), times) in &seen {
        println!("  {times:>4} {call}: {}", result.as_deref().unwrap_or("went on"));
    }
    seen.into_keys().map(|(call, _)| call).collect()
}

#[test]
fn a_context_that_failed_is_tried_again() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(rig) = found(Flavor::Cuda, &probe) else { return };
    probe.fail_nth(1, 2);
    let failed = rig.device.queue(QueueSpec::default());
    let call = "cuDevicePrimaryCtxRetain";
    assert!(matches!(&failed, Err(Error::Driver { call: c, .. }) if *c == call), "{failed:?}");
    drop(rig.queue());
}

#[test]
fn no_memory_says_how_much_there_may_be() {
    each(|rig| {
        for memory_kind in [MemoryKind::Device, MemoryKind::MappedDevice] {
            let call = match (rig.flavor, memory_kind) {
                (Flavor::Cuda, MemoryKind::Device) => "cuMemAlloc_v2",
                (Flavor::Cuda, _) => "cuMemHostAlloc",
                (_, MemoryKind::Device) => "hipMalloc",
                (_, _) => "hipHostMalloc",
            };
            rig.probe.fail_always(call, 2);
            let memory = rig.memory(memory_kind, 4096);
            rig.probe.reset();
            let Err(Error::OutOfMemory { asked: 4096, limit: Some(_), .. }) = memory else {
                panic!("{memory:?}")
            };
        }
    });
}
