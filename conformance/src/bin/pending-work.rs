//! A program that returns from `main` while PoCL is still compiling the kernels that it launched: `pending-work HOW`. With
//! `drop` it drops everything first, with `forget` nothing, and with `thread` it ends while a thread is building a program.
//! Exits with 77 without PoCL.

use onebuf::{Access, Device, Grid, Hub, ProgramCache, Result, Signature, Source, args};
use std::{process::ExitCode, thread, time::Duration};

const N: usize = 4096;

/// Runs as the last exit handler, because it is registered first. Gives PoCL's threads time to use what other handlers freed.
extern "C" fn linger() {
    thread::sleep(Duration::from_millis(500));
}

fn main() -> ExitCode {
    // SAFETY: the function takes no arguments and does not unwind.
    unsafe { libc::atexit(linger) };
    let how = std::env::args().nth(1).unwrap_or_default();
    let hub = onebuf::builder().without(["cuda", "hip", "vulkan", "gl"]);
    let hub = hub.verdicts(Default::default()).program_cache(ProgramCache::Off).build();
    let hub = hub.expect("a hub");
    let Some(device) = hub.select("portable computing language").into_iter().next() else {
        return ExitCode::from(77);
    };
    if how == "thread" {
        let device = device.clone();
        thread::spawn(move || device.program(&busy(7, 2000)).map(drop));
        // Gives the thread time to enter the compiler.
        thread::sleep(Duration::from_millis(100));
    }
    (0..2).try_for_each(|kernel| launch(&hub, &device, kernel, how == "drop")).expect("a launch");
    if how != "drop" {
        std::mem::forget((hub, device));
    }
    ExitCode::SUCCESS
}

/// Returns a text that differs in each process, so that no cache has it.
fn busy(kernel: usize, terms: usize) -> Source {
    let seed = std::process::id();
    let term = |n| format!("v = v * {n}.5f + v * v * {seed}.25f + {kernel}.0f;\n");
    let terms: String = (0..terms).map(term).collect();
    Source::opencl_c(format!(
        "kernel void busy(global float *x) {{ float v = x[get_global_id(0)]; {terms} x[get_global_id(0)] = v; }}"
    ))
}

fn launch(hub: &Hub, device: &Device, kernel: usize, drops: bool) -> Result<()> {
    let signature = Signature::new().buffer::<f32>(Access::ReadWrite);
    // SAFETY: work-item i touches x[i] only, and there are as many items as elements.
    let busy = unsafe { device.program(&busy(kernel, 16))?.kernel("busy", signature)? };
    let (queue, buffer) = (device.queue()?, hub.buffer::<f32>(N).shared_with([device]).build()?);
    queue.launch(&busy, Grid::from([N]), args![buffer.write_on(&queue)?])?;
    queue.flush()?;
    if !drops {
        std::mem::forget((queue, buffer, busy));
    }
    Ok(())
}
