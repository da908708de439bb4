//! Frames from memory through a device: uploads, a kernel, downloads, all at the same time. Over raw copies of pinned memory alone.
//!
//! # Safety
//! Queues are passed to raw C calls. The unsafe call declares the signature of the kernel whose text is in this file.

#![allow(unsafe_code)]

use super::growth::affordable;
use crate::{
    Bar, Bench, Case, Direction, Effort, RawBus, Row, Stop, Unit, Workload, abba::compare,
};
use onebuf::{
    Access, Buffer, Call, Device, Error, Kernel, MemoryKind, Result, Signature, Source, args,
    hal::DeviceKind,
    pipeline::{Filled, Pipeline},
};
use std::{cell::RefCell, time::Instant};

/// Elements of a page.
const PAGE: usize = 4096 / size_of::<u32>();
/// Pages of a frame: 32 MiB, on CPUs and for `--quick` less.
const PAGES: usize = 8192;
const FEW_PAGES: usize = 256;
/// Slots of the ring.
const SLOTS: usize = 8;
/// Frames of a run, and those for `--quick`.
const FRAMES: u64 = 200;
const QUICK_FRAMES: u64 = 40;

pub const MEMORY: Workload = Workload {
    name: "stream_memory_<a>",
    about: "frames of pinned memory through a kernel, each page stamped before and checked after, over raw pinned copies",
    cases,
};

/// Takes the stamp of every page, and adds one to show that it was there.
const TEXT: &str = "kernel void stamps(global const uint *x, global uint *out) {
    out[get_global_id(0)] = x[get_global_id(0) * 1024] + 1;
}";
const TEXT_CUDA: &str =
    "extern \"C\" __global__ void stamps(const unsigned *x, unsigned *out, unsigned long long n) {
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i * 1024] + 1;
}";

fn cases(bench: &Bench) -> Vec<Case> {
    let runs = |device: &Device| ["opencl", "cuda", "hip"].contains(&device.info().api.0);
    let devices: Vec<Device> = bench.hub.devices().into_iter().filter(runs).collect();
    if devices.is_empty() {
        return vec![Case::absent(MEMORY.name, "devices of OpenCL, CUDA or HIP: found 0")];
    }
    let case = |device: Device| {
        let name = MEMORY.name.replace("<a>", device.id());
        Case::new(name.clone(), move |bench| {
            run(bench, &device).map(|row| Row { name: name.clone(), ..row })
        })
    };
    devices.into_iter().map(case).collect()
}

/// One frame: the memory that is filled, and the stamps that the kernel found.
struct Slot {
    frame: Buffer<u32>,
    stamps: Buffer<u32>,
}

fn run(bench: &Bench, device: &Device) -> Result<Row, Stop> {
    let quick = bench.effort == Effort::QUICK;
    let cpu = device.info().kind == DeviceKind::Cpu;
    let pages = if quick || cpu { FEW_PAGES } else { PAGES };
    let frames = if quick || cpu { QUICK_FRAMES } else { FRAMES };
    let bytes = pages * PAGE * size_of::<u32>();
    affordable(std::slice::from_ref(device), bytes, 2 * SLOTS as u64)?;
    let kernel = stamps(device)?;
    let mut pipeline = stream(device, &kernel, pages, frames)?;
    let remark = pipeline.explain().lines().next().unwrap_or_default().to_owned();
    pipeline.run().map_err(|failure| failure.error)?;
    // SAFETY: the hub loaded the default libraries.
    let raw = unsafe { RawBus::of(&bench.hub, device, bytes) };
    let (raw, pipeline) = (RefCell::new(raw?), RefCell::new(pipeline));
    let ours = || -> Result<f64> {
        let start = Instant::now();
        pipeline.borrow_mut().run().map_err(|failure| failure.error)?;
        Ok(start.elapsed().as_nanos() as f64 / frames as f64)
    };
    let theirs = || -> Result<f64> {
        let start = Instant::now();
        for _ in 0..frames {
            raw.borrow_mut().pinned(Direction::Up)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / frames as f64)
    };
    let found = compare(bench.effort.at_most(25), ours, theirs)?;
    let per_second = 1e9 / found.ours_ns;
    let row = found.row("", Unit::GbPerS(bytes as u64));
    let row = row.remark(format!("{per_second:.0} frames/s; {remark}"));
    Ok(if cpu { row } else { row.bar(Bar::RatioAtLeast(0.9)) })
}

fn stamps(device: &Device) -> Result<Kernel> {
    let program =
        device.program(&Source::opencl_c(TEXT).with_cuda_c(TEXT_CUDA).with_hip_c(TEXT_CUDA))?;
    let native = device.info().api.0 == "opencl";
    let fits = move |call: &Call<'_>| {
        let pages = call.len(1);
        let count = if native { Some(pages as u64) } else { call.value::<u64>(2) };
        let one_each = call.global() == [pages, 1, 1] && count == Some(pages as u64);
        match one_each && call.len(0) == pages * PAGE {
            true => Ok(()),
            false => Err("a frame of another size".into()),
        }
    };
    let signature = Signature::new().buffer::<u32>(Access::Read).buffer::<u32>(Access::Write);
    let signature = if native { signature } else { signature.value::<u64>() };
    // SAFETY: by `fits` each work-item reads the first element of a page and writes one stamp, both inside the buffers; work-items beyond
    // the count do nothing.
    unsafe { program.kernel("stamps", signature.require(fits)) }
}

/// The source stamps every page with the frame's number, and the sink checks every stamp.
fn stream<'p>(
    device: &'p Device,
    kernel: &'p Kernel,
    pages: usize,
    frames: u64,
) -> Result<Pipeline<'p, Slot>> {
    let native = device.info().api.0 == "opencl";
    let memory = move |len| {
        let builder = device.hub().buffer::<u32>(len).shared_with([device]);
        match device.info().kind {
            DeviceKind::Cpu => builder.build(),
            _ => builder.memory_kind(MemoryKind::Device).build(),
        }
    };
    let slot = move |_| Ok(Slot { frame: memory(pages * PAGE)?, stamps: memory(pages)? });
    let mut number = 0;
    let fill = move |frame: &mut [u32]| {
        if number == frames {
            number = 0;
            return Ok(Filled::End);
        }
        frame.iter_mut().step_by(PAGE).for_each(|stamp| *stamp = number as u32);
        number += 1;
        Ok(Filled::Frame)
    };
    let take = |stamps: &[u32], number: u64| match stamps
        .iter()
        .position(|stamp| *stamp != number as u32 + 1)
    {
        None => Ok(()),
        Some(page) => Err(Error::invalid(format!("page {page} of frame {number} is wrong"))),
    };
    Pipeline::builder(SLOTS, slot)
        .feed(fill, |slot: &Slot| &slot.frame)
        .stage("stamps", device, move |work| {
            let (from, to) =
                (work.slot.frame.read_on(work.queue)?, work.slot.stamps.write_on(work.queue)?);
            match native {
                true => work.queue.launch(kernel, [pages], args![from, to]),
                false => work.queue.launch(kernel, [pages], args![from, to, pages as u64]),
            }
        })
        .drain(take, |slot: &Slot| &slot.stamps)
        .build()
}
