//! A scenario with features beyond one buffer on one queue: regions, queues of every kind, profiles, flags
//! and a pool. For the fault sweep and for the leak and race checkers.

use crate::{Side, Step, assert_same, random_words, step_model};
use onebuf::{
    Access, Buffer, Device, Error, HostAccess, MemoryKind, Pool, QueueSpec, Result, SubBuffer,
};
use std::time::Duration;

/// Two pages and a bit, in words: on every known driver a region may start at each page.
const N: usize = 2 * PAGE + 52;
const PAGE: usize = 1024;
const SECONDS: Duration = Duration::from_secs(20);

/// Runs the scenario on a device, with a buffer that may have been used in earlier runs: see [`fresh`].
///
/// # Errors
/// The first error of the library.
///
/// # Panics
/// When the library reports success and the data is wrong.
pub fn second_life(device: &Device, buffer: &Buffer<u32>) -> Result<()> {
    let first = Side::open(device)?;
    let second = Side::open_with(device, QueueSpec::default().profiled())?;
    let mut model = random_words(7, N);
    buffer.write(&model)?;
    regions(&first, &second, buffer, &mut model)?;
    if device.info().caps.out_of_order {
        let [one, two] = [0; 2].map(|_| Side::open_with(device, QueueSpec::out_of_order()));
        take_turns([&one?, &two?, &first], buffer, &mut model)?;
    }
    profiled(&second, buffer, &mut model)?;
    flags(&first)?;
    pooled(&first, buffer)?;
    assert_same(&buffer.to_vec()?, &model, "a second life");
    Ok(())
}

/// Creates a buffer for `second_life`.
///
/// # Errors
/// The errors of building the buffer.
pub fn fresh(device: &Device) -> Result<Buffer<u32>> {
    device.hub().buffer::<u32>(N).shared_with([device]).allocate_on(device).build()
}

fn step_region(side: &Side, region: &SubBuffer<'_, u32>, model: &mut [u32], n: u32) -> Result<()> {
    side.step_view(region.write_on(&side.queue)?, region.len(), Step::nth(n))?;
    step_model(&mut model[region.range()], Step::nth(n));
    Ok(())
}

fn regions(one: &Side, two: &Side, buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    let left = buffer.sub_buffer(..PAGE, Access::ReadWrite)?;
    let right = buffer.sub_buffer(PAGE.., Access::ReadWrite)?;
    for round in 0..2 {
        step_region(one, &left, model, round)?;
        step_region(two, &right, model, round + 5)?;
    }
    drop(buffer.sub_buffer(PAGE..2 * PAGE, Access::Read)?.read_on(&one.queue)?);
    right.fill(3)?;
    model[PAGE..].fill(3);
    left.write(&[4; PAGE])?;
    model[..PAGE].fill(4);
    let mut map = right.map_mut()?;
    map[1] = 9;
    map.unmap()?;
    model[PAGE + 1] = 9;
    assert_same(&left.map()?, &model[..PAGE], "the left");
    let mut back = vec![0; right.len()];
    right.read(&mut back)?;
    assert_same(&back, &model[PAGE..], "the right");
    Ok(())
}

/// Queues of two kinds take turns on one buffer, with the host in between.
fn take_turns(sides: [&Side; 3], buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    let other = fresh(&sides[0].device)?;
    let mut others = vec![0; N];
    for (n, side) in (0..6).zip(sides.iter().cycle()) {
        side.step(buffer, Step::nth(n))?;
        step_model(model, Step::nth(n));
        side.step(&other, Step::nth(n + 1))?;
        step_model(&mut others, Step::nth(n + 1));
    }
    drop(buffer.write_on(&sides[0].queue)?);
    sides[1].queue.wait_for(&sides[0].queue.fence())?;
    assert_same(&other.to_vec()?, &others, "the other");
    sides[0].queue.finish()
}

fn profiled(side: &Side, buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    let fence = side.step_view(buffer.write_on(&side.queue)?, N, Step::nth(8))?;
    step_model(model, Step::nth(8));
    fence.wait(SECONDS)?;
    match fence.profile() {
        Err(Error::Unsupported { needs, .. }) if needs.contains("measures them") => Ok(()),
        other => other.map(drop),
    }
}

fn flags(side: &Side) -> Result<()> {
    let contents = random_words(9, N);
    for &memory_kind in &side.device.info().caps.memory_kinds {
        let builder = side.device.hub().buffer::<u32>(N).shared_with([&side.device]);
        let builder = builder.allocate_on(&side.device).memory_kind(memory_kind);
        let made = builder.host_access(HostAccess::Read).init(&contents[..]).build()?;
        let mut model = contents.clone();
        side.step(&made, Step::nth(2))?;
        step_model(&mut model, Step::nth(2));
        assert_same(&made.to_vec()?, &model, "made with flags");
    }
    Ok(())
}

fn pooled(side: &Side, like: &Buffer<u32>) -> Result<()> {
    let hub = side.device.hub();
    let pool = Pool::new(hub);
    let memory_kind: MemoryKind = like.plan().memory_kind;
    let builder = hub.buffer::<u32>(N).shared_with([&side.device]).allocate_on(&side.device);
    let builder = builder.memory_kind(memory_kind);
    pool.prepare(&builder, 2)?;
    for n in 0..3 {
        let buffer = pool.get_cleared(&builder)?;
        side.step(&buffer, Step::nth(n))?;
        let mut model = vec![0; N];
        step_model(&mut model, Step::nth(n));
        assert_same(&buffer.to_vec()?, &model, "pooled");
    }
    pool.trim(0);
    Ok(())
}
