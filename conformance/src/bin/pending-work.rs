//! A program that returns from `main` while PoCL is still compiling the kernels that it has launched: `pending-work HOW`, where
//! `drop` drops everything first, `forget` nothing, and `thread` ends with a thread that is building a program. Exits with 77
//! where there is no PoCL.

use onebuf::{Access, Device, Grid, Hub, ProgramCache, Result, Signature, Source, args};
use std::{process::ExitCode, thread, time::Duration};

const N: usize = 4096;

/// The last handler, for it is registered first: time for PoCL's threads to meet what other handlers have taken away.
extern "C" fn linger() {
    thread::sleep(Duration::from_millis(500));
}

fn main() -> ExitCode {
    // SAFETY: a function without arguments that does not unwind.
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
        // Time to get into the compiler.
        thread::sleep(Duration::from_millis(100));
    }
    (0..2).try_for_each(|kernel| launch(&hub, &device, kernel, how == "drop")).expect("a launch");
    if how != "drop" {
        std::mem::forget((hub, device));
    }
    ExitCode::SUCCESS
}

/// No two processes have one, so that no cache does.
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
    // SAFETY: work-item i touches x[i] only, and there are as many of them as elements.
    let busy = unsafe { device.program(&busy(kernel, 16))?.kernel("busy", signature)? };
    let (queue, buffer) = (device.queue()?, hub.buffer::<f32>(N).shared_with([device]).build()?);
    queue.launch(&busy, Grid::from([N]), args![buffer.write_on(&queue)?])?;
    queue.flush()?;
    if !drops {
        std::mem::forget((queue, buffer, busy));
    }
    Ok(())
}
