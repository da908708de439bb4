//! Every driver call of a scenario fails once: an error or no effect, no panic, no object left.

use super::*;
use onebuf_hal::{AccessState, Export, HostRange};
use std::ptr::NonNull;

/// A sequence of operations, up to the first error.
type Scenario = fn(&Rig) -> Result<()>;

/// Separate from the others, because compiling takes most of the time.
fn launches(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let add = rig.program(PROGRAM)?.kernel("add", 2)?;
    for memory_kind in rig.memory_kinds() {
        let memory = rig.memory(memory_kind, 4096)?;
        let args =
            [Arg::Memory(&*memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&[1, 0, 0, 0])];
        // SAFETY: 1024 words.
        unsafe { launch(&*queue, &*add, &line(1024, None), &args) }?;
    }
    Ok(())
}

/// Launches with everything that a launch can have: regions, an offset, events, times, out of order.
fn rich_launches(rig: &Rig) -> Result<()> {
    let order = match rig.device.info().caps.out_of_order {
        true => QueueOrder::OutOfOrder,
        false => QueueOrder::InOrder,
    };
    let queue = rig.device.queue(QueueSpec { order, profiling: true })?;
    let other = rig.device.queue(QueueSpec::default())?;
    let add = rig.program(PROGRAM)?.kernel("add", 2)?;
    let mut events = Vec::new();
    for memory_kind in rig.memory_kinds() {
        let whole = rig.memory(memory_kind, 8192)?;
        let part = whole.region(4096, 4096, Access::ReadWrite)?;
        queue.fill(&*part, 0, 4096, &[0])?;
        let args = [Arg::Memory(&*part, Access::ReadWrite, usize::MAX), Arg::Bytes(&[1, 0, 0, 0])];
        let grid = Grid { offset: [24, 0, 0], ..line(1000, None) };
        let after = [queue.mark()?, other.mark()?];
        // SAFETY: 1024 words.
        let event = unsafe { queue.launch(&*add, &grid, &args, &after, true) }?;
        events.push(event.ok_or_else(|| Error::invalid("no event"))?);
    }
    // Last, because the number of polls in a wait varies.
    events.iter().try_for_each(|event| event.wait(SECONDS))?;
    events.iter().try_for_each(|event| match event.profile() {
        Err(Error::Unsupported { .. }) => Ok(()),
        times => times.map(drop),
    })
}

/// Flags, contents, and a fill of memory that the host must not write.
fn made_for(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    for host in [HostAccess::Read, HostAccess::Write, HostAccess::None] {
        let spec = AllocSpec { host, ..spec(MemoryKind::Device, 4098) };
        let memory = rig.device.allocate(&spec, Some(&numbers(4098)))?;
        queue.fill(&*memory, 0, 4098, &[1, 2, 3])?;
    }
    queue.mark()?.wait(SECONDS)
}

fn hand_overs(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    for memory_kind in rig.memory_kinds() {
        let memory = rig.memory(memory_kind, 4096)?;
        queue.fill(&*memory, 0, 4096, &[0])?;
        queue.fill(&*memory, 0, 3072, &[1, 2, 3])?;
        queue.reside(&*memory, AccessState::SharedRead)?;
        queue.reside(&*memory, AccessState::Released)?;
        queue.reside(&*memory, AccessState::Acquired)?;
        if memory_kind != MemoryKind::Device {
            let export = memory.export(&*queue)?;
            queue.reside(&*memory, AccessState::Acquired)?;
            let again = rig.device.import(&export, Access::Read)?;
            queue.reside(&*again, AccessState::Released)?;
        }
    }
    Ok(())
}

fn waits(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let pages = Arc::new(vec![0u8; 8192]);
    let start = pages.as_ptr().align_offset(4096);
    let range = HostRange { pointer: NonNull::from(&pages[start]), bytes: 4096, owner: pages };
    let pages = rig.device.import(&Export::Host(range), Access::Read)?;
    queue.reside(&*pages, AccessState::Released)?;
    let host_signal = match rig.device.info().caps.host_signals {
        true => Some(queue.host_signal()?),
        false => None,
    };
    let event = queue.mark()?;
    let other = rig.device.queue(QueueSpec::default())?;
    other.wait_for(std::slice::from_ref(&event))?;
    event.poll()?;
    let _ = event.wait(Duration::from_millis(1));
    if let Some(host_signal) = host_signal {
        event.on_complete(Box::new(|_| ())).map_err(|(why, _)| why)?;
        host_signal.open(Ok(()));
    }
    event.wait(SECONDS)?;
    other.mark()?.wait(SECONDS)
}

#[test]
fn each_call_fails_once() {
    let _alone = alone();
    for index in 0..rigs().len() {
        for scenario in [launches, rich_launches, made_for, hand_overs, waits] {
            sweep(index, scenario);
        }
    }
}

fn sweep(index: usize, scenario: Scenario) {
    let mut seen = std::collections::BTreeMap::new();
    let mut past_the_end = 0;
    // The number of polls in a wait varies, so the sweep ends after several runs without a call left to fail.
    for n in 1.. {
        let rig = rigs().swap_remove(index);
        if n == 1 {
            println!("on {}", rig.name());
        }
        rig.probe.fail_nth(n, -6);
        let result = scenario(&rig).err().map(|why| why.to_string());
        match rig.probe.failed() {
            Some(failed) => *seen.entry((failed, result)).or_insert(0) += 1,
            None => past_the_end += 1,
        }
        let failed = rig.probe.failed();
        if n % 8 == 1 {
            rig.probe.fail_nth(0, 0);
            scenario(&rig).unwrap_or_else(|why| panic!("again, after {failed:?} failed: {why}"));
        }
        let probe = rig.probe.clone();
        drop(rig);
        settled(&probe);
        if past_the_end == 5 {
            break;
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
    for ((call, result), times) in seen {
        println!("  {times:>4} {call}: {}", result.unwrap_or_else(|| "went on".to_owned()));
    }
}

#[test]
fn a_context_that_failed_is_tried_again() {
    each(|rig| {
        rig.probe.fail_nth(1, -6);
        let failed = rig.device.queue(QueueSpec::default());
        assert!(matches!(failed, Err(Error::Driver { call: "clCreateContext", .. })), "{failed:?}");
        rig.queue();
    });
}

#[test]
fn no_memory_says_how_much_there_may_be() {
    each(|rig| {
        rig.queue();
        for code in [-4, -5, -6, -61] {
            rig.probe.fail_nth(1, code);
            let memory = rig.memory(MemoryKind::Device, 4096);
            let Err(Error::OutOfMemory { asked: 4096, limit: Some(_), .. }) = memory else {
                panic!("{memory:?}")
            };
        }
    });
}
