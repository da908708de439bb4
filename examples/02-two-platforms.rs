//! 2. Two OpenCL platforms take turns on one buffer, without a copy.
//!
//! `cargo run -p onebuf-examples --example 02-two-platforms`
//!
//! Two independent drivers share memory only if both use the same pages, which no specification
//! guarantees. onebuf proves it once by experiment: run `onebuf doctor` or example 6 first.

use onebuf::{Complex32, CopyPolicy, Device, Each, Error, Hub, Result, Source, prelude::*};

const N: usize = 1 << 22; // 4M complex samples, 32 MiB
const TEXT: &str = "kernel void gain(global float2 *x, float by) { x[get_global_id(0)] *= by; }";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let turns = two_devices(&hub);
    for device in &turns {
        println!("{device}: {} ({})", device.info().name, device.info().platform);
    }

    // `Forbid` returns an error instead of making an implied copy. The error says what to do. This
    // example then continues with copies, so that the ledger shows them.
    let builder = hub.buffer::<Complex32>(N).shared_with(&turns);
    let signal = match builder.clone().copies(CopyPolicy::Forbid).build() {
        Err(error @ Error::CopyForbidden { .. }) => {
            println!("{error}\nso it is copied instead, and counted:");
            builder.build()?
        }
        built => built?,
    };
    signal.write(&vec![Complex32::new(1.0, 0.0); N])?;

    // The devices take turns. `write_on` orders the second queue after the first and makes the data
    // visible there, by the best sync method that the two drivers share.
    for device in &turns {
        // SAFETY: work-item i touches x[i] only.
        let gain = unsafe { device.kernel::<(Each<&mut Complex32>, f32)>(source(), "gain")? };
        let queue = device.queue()?;
        let view = signal.write_on(&queue)?;
        println!("{device} waits for the one before by {}", view.sync_method());
        gain.launch_on(&queue, [N], (view, 2.0))?;
    }

    assert!(signal.map()?.iter().all(|x| *x == Complex32::new(4.0, 0.0)));
    println!("both took their turn: {} samples are 4", signal.len());
    println!("{}", hub.ledger());
    Ok(())
}

/// Returns one device of each of two platforms. The host replaces missing ones.
fn two_devices(hub: &Hub) -> Vec<Device> {
    let mut found: Vec<Device> = hub.select("opencl");
    found.dedup_by_key(|device| device.info().platform.clone());
    if found.len() < 2 {
        println!("found {} OpenCL platforms; the host stands in for the missing ones", found.len());
    }
    found.into_iter().chain([hub.host(), hub.host()]).take(2).collect()
}

fn source() -> Source {
    Source::opencl_c(TEXT).with_native("gain", |args| {
        let by = args.value::<f32>(1)?;
        args.slice_mut::<Complex32>(0)?.iter_mut().for_each(|x| *x *= by);
        Ok(())
    })
}
