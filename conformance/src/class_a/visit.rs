//! A complete use of class A's objects by onebuf: the scenario of the fault sweep and of the checkers.

use super::{ClassA, Counts, Own};
use crate::{Side, Step, assert_same, random_words, step_model};
use onebuf::{Access, Hub, Result, prelude::*};
use onebuf_sys::opencl::{ClEvent, ClMem, consts::CL_MEM_READ_WRITE};

const N: usize = 2048;

/// The objects that class A passes: memory, a part of it, and the event of work on it.
#[derive(Debug)]
pub struct Handed<'t> {
    a: &'t ClassA,
    mem: Own<ClMem>,
    part: Own<ClMem>,
    event: Own<ClEvent>,
}

impl<'t> Handed<'t> {
    /// Creates the objects and uses the memory once.
    pub fn new(a: &'t ClassA) -> Self {
        let mem = a.words(&random_words(1, N));
        let part = a.sub_buffer(&mem, CL_MEM_READ_WRITE, 0, 4096);
        let event = a.step(&a.queue, &mem, N, Step::nth(9), &[]);
        Self { a, mem, part, event }
    }

    /// The reference counts of all these objects.
    pub fn reference_counts(&self) -> Counts {
        self.a.reference_counts(&[&self.mem, &self.part], &[&self.event])
    }
}

/// Uses everything once: each kind of wrap, work by both, events in and out, a share; then releases it all.
///
/// # Errors
/// The first error of the library.
///
/// # Panics
/// When the library reports success and the data is wrong.
pub fn visit(hub: &Hub, handed: &Handed<'_>) -> Result<()> {
    let Handed { a, mem, part, event } = handed;
    // SAFETY: class A holds references to all objects, and uses them only as written here.
    let (owners, done, foreign) = unsafe {
        let foreign = hub.foreign_context(a.context.raw())?;
        (hub.wrap_queue(a.queue.raw())?, hub.wrap_event(event.raw())?, foreign)
    };
    // SAFETY: as above.
    let wrap = |mem: &Own<ClMem>| unsafe { hub.wrap_buffer::<u32>(mem.raw()) };
    let side = Side::open(&foreign.device())?;
    let model = a.read(&a.queue, mem, N);
    let buffer = wrap(mem).len(N).after(&done).build()?;
    side.step(&buffer, Step::nth(1))?;
    let mut stepped = model.clone();
    step_model(&mut stepped, Step::nth(1));
    assert_same(&buffer.to_vec()?, &stepped, "after a step");
    {
        let window = wrap(part).build()?;
        side.step(&window, Step::nth(2))?;
        step_model(&mut stepped[..1024], Step::nth(2));
        assert_same(&window.map()?, &stepped[..1024], "the part");
        let region = buffer.sub_buffer(1024.., Access::ReadWrite)?;
        drop(region.write_on(&side.queue)?);
    }
    buffer.hand_to(&owners)?;
    let events = side.queue.fence().cl_events()?;
    drop(events.into_iter().map(|event| event.raw()).collect::<Vec<_>>());
    a.step(&a.queue, mem, N, Step::nth(3), &[]);
    step_model(&mut stepped, Step::nth(3));
    buffer.written_until(&owners.fence())?;
    buffer.read_until(&done)?;
    let mut map = buffer.map_mut()?;
    assert_same(&map, &stepped, "after class A's step");
    map[0] = 1;
    map.unmap()?;
    stepped[0] = 1;
    drop(buffer);
    let host = hub.host();
    let shared = wrap(mem).shared_with([&host]).build()?;
    let there = Side::open(&host)?;
    there.step(&shared, Step::nth(4))?;
    step_model(&mut stepped, Step::nth(4));
    side.step(&shared, Step::nth(5))?;
    step_model(&mut stepped, Step::nth(5));
    assert_same(&shared.to_vec()?, &stepped, "shared");
    if let Ok(host_signal) = foreign.user_event() {
        host_signal.complete();
    }
    hub.queue_for(&shared)?.finish()
}
