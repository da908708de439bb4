//! 13. A library function that works on its caller's `cl_command_queue` and `cl_mem`.
//!
//! `cargo run -p onebuf-examples --example 13-wrap-foreign`

use onebuf::{CopyPolicy, Each, ForeignBufferInfo, ForeignQueueInfo, Hub, Result, prelude::*};
use onebuf_conformance::{Step, class_a::ClassA, step_model};
use std::ffi::c_void;

const N: usize = 1 << 16;
const TEXT: &str = "kernel void mul(global uint *x, uint by) { x[get_global_id(0)] *= by; }";

/// The library: multiplies the caller's buffer, between the caller's own commands.
///
/// # Safety
/// `queue` is a live queue and `mem` a live buffer of its context that holds `u32`s. All pending work on
/// the buffer was enqueued on that queue.
unsafe fn multiply(hub: &Hub, queue: *mut c_void, mem: *mut c_void, by: u32) -> Result<()> {
    // Inspect the handles. Null, images and wrong sizes are errors.
    // SAFETY: the caller's promise, here and below.
    let (buffer, caller) =
        unsafe { (ForeignBufferInfo::query(hub, mem)?, ForeignQueueInfo::query(hub, queue)?) };
    println!("the caller's buffer: {buffer}");
    println!("the caller's queue: {:?}", caller.spec.order);

    // The caller's queue becomes an ordinary queue: its fence covers the work that the caller has enqueued.
    // SAFETY: as above.
    let theirs = unsafe { hub.wrap_queue(queue) }?;
    // The wrap holds one reference. `Forbid` succeeds because nothing is copied within the caller's
    // context.
    // SAFETY: as above.
    let builder = unsafe { hub.wrap_buffer::<u32>(mem) };
    let words = builder
        .len(buffer.elements::<u32>()?)
        .after(&theirs.fence())
        .copies(CopyPolicy::Forbid)
        .build()?;

    // Work on a separate queue in the caller's context, so that our calls do not delay the caller's queue.
    let ours = hub.queue_for(&words)?;
    // SAFETY: work-item i touches x[i] only.
    let mul = unsafe { ours.device().kernel::<(Each<&mut u32>, u32)>(TEXT, "mul")? };
    let view = words.write_on(&ours)?;
    println!("we wait for the caller by {}", view.sync_method());
    mul.launch_on(&ours, [words.len()], (view, by))?;

    // `hand_to` orders the caller's next commands after our work. The CPU does not wait.
    let sync_method = words.hand_to(&theirs)?;
    println!("the caller waits for us by {sync_method}");
    Ok(())
}

/// The application, which uses OpenCL and does not use onebuf itself.
fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let Some(app) = ClassA::all().into_iter().next() else {
        println!("no OpenCL here: none of the caller's memory to wrap");
        return Ok(());
    };
    println!("the caller is on {}", app.platform);
    let mut model: Vec<u32> = (0..N as u32).collect();
    let mem = app.words(&model);
    let references = mem.count();

    // The application's kernel, the library, and another kernel, without a wait in between.
    app.step(&app.queue, &mem, N, Step::nth(1), &[]);
    step_model(&mut model, Step::nth(1));
    // SAFETY: the queue and the buffer are the application's and alive; the first kernel is on that queue.
    unsafe { multiply(&hub, app.queue.raw(), mem.raw(), 3)? };
    model.iter_mut().for_each(|x| *x = x.wrapping_mul(3));
    app.step(&app.queue, &mem, N, Step::nth(2), &[]);
    step_model(&mut model, Step::nth(2));

    assert!(app.read(&app.queue, &mem, N) == model, "all three, in that order");
    // A driver's thread may release a finished command slightly later.
    let given_back = |_| mem.count() == references || wait_a_moment();
    assert!((0..1000).any(given_back), "{} references, there were {references}", mem.count());
    println!("{}", hub.ledger());
    Ok(())
}

/// Sleeps for a millisecond and returns `false`, so that the caller checks again.
fn wait_a_moment() -> bool {
    std::thread::sleep(std::time::Duration::from_millis(1));
    false
}
