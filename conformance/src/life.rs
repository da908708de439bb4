//! One scenario on one device that uses every feature of a buffer once: for the fault sweep and for the leak and race checkers.

use crate::{Side, Step, assert_same, block_on, random_words, step_model};
use onebuf::{Buffer, Device, Error, MemoryKind, Result, RouteKind};
use std::time::Duration;

const N: usize = 1500;
const SECONDS: Duration = Duration::from_secs(20);

/// Opens a queue and a program, uses a buffer of every memory kind, then shares with the host by every route.
///
/// # Errors
/// The first error of the library.
///
/// # Panics
/// When the library reports success and the data is wrong.
pub fn life(device: &Device) -> Result<()> {
    let side = Side::open(device)?;
    for &memory_kind in &device.info().caps.memory_kinds {
        alone(&side, memory_kind)?;
    }
    let host = Side::open(&device.hub().host())?;
    for (from, to) in [(&host, &side), (&side, &host)] {
        let routes = device.hub().topology().between(from.device.index(), to.device.index());
        routes.iter().try_for_each(|route| together(from, to, route.kind))?;
    }
    side.queue.flush()?;
    side.queue.finish()
}

fn alone(side: &Side, memory_kind: MemoryKind) -> Result<()> {
    let hub = side.device.hub();
    let mut model = random_words(1, N);
    let builder = hub.buffer::<u32>(N).shared_with([&side.device]).allocate_on(&side.device);
    let [buffer, second] =
        [builder.clone().memory_kind(memory_kind), builder.memory_kind(memory_kind)];
    let (buffer, second) = (buffer.build()?, second.build()?);
    buffer.write_async(.., model.clone())?.wait(SECONDS)?;
    step(side, &buffer, &mut model, 1)?;
    second.copy_from(0, &buffer, ..)?;
    transfer(&second, &mut model)?;
    change(&second, &mut model)?;
    step(side, &second, &mut model, 2)?;
    assert_same(&second.to_vec()?, &model, "alone");
    second.fence().map_or(Ok(()), |fence| fence.wait(SECONDS))
}

fn transfer(buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    let mut back = buffer.read_async(.., vec![0; N])?.wait(SECONDS)?;
    assert_same(&back, model, "read by a wait");
    back[..9].fill(5);
    model.copy_from_slice(&block_on(buffer.write_async(.., back)?)?);
    let back = block_on(buffer.read_async(.., vec![0; N])?)?;
    assert_same(&back, model, "read by a future");
    Ok(())
}

fn change(buffer: &Buffer<u32>, model: &mut [u32]) -> Result<()> {
    assert_same(&buffer.map()?, model, "mapped");
    let mut map = buffer.map_mut()?;
    map[3] = 33;
    map.unmap()?;
    buffer.batch().write(4, &[44])?.write(100, &[55; 10])?.flush()?;
    buffer.fill_range(20..40, 66)?;
    (model[3], model[4]) = (33, 44);
    model[100..110].fill(55);
    model[20..40].fill(66);
    Ok(())
}

fn together(from: &Side, to: &Side, kind: RouteKind) -> Result<()> {
    let builder = from.device.hub().buffer::<u32>(N).shared_with([&from.device, &to.device]);
    let builder = builder.allocate_on(&from.device).route(kind).trust_declared(true);
    let buffer = match builder.build() {
        Err(Error::Unsupported { needs, .. }) if needs.contains("align") => return Ok(()),
        other => other?,
    };
    let mut model = buffer.write_async(.., random_words(2, N))?.wait(SECONDS)?;
    for (n, side) in (3..).zip([from, to, to, from, to]) {
        step(side, &buffer, &mut model, n)?;
    }
    assert_same(&from.look(&buffer)?, &model, "seen by the first");
    assert_same(&to.look(&buffer)?, &model, "seen by the second");
    drop([buffer.read_on(&from.queue)?, buffer.read_on(&to.queue)?]);
    Ok(())
}

fn step(side: &Side, buffer: &Buffer<u32>, model: &mut [u32], n: u32) -> Result<()> {
    side.step(buffer, Step::nth(n))?;
    step_model(model, Step::nth(n));
    Ok(())
}
