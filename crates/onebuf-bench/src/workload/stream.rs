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
    pipeline::{Filled, Pipeline, source::FrameSource},
};
use std::{cell::RefCell, time::Instant};

/// Elements of a page.
pub(super) const PAGE: usize = 4096 / size_of::<u32>();
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

/// The devices that the kernel runs on.
pub(super) fn devices(bench: &Bench) -> Vec<Device> {
    let runs = |device: &Device| ["opencl", "cuda", "hip"].contains(&device.info().api.0);
    bench.hub.devices().into_iter().filter(runs).collect()
}

pub(super) const NO_DEVICE: &str = "devices of OpenCL, CUDA or HIP: found 0";

fn cases(bench: &Bench) -> Vec<Case> {
    let devices = devices(bench);
    if devices.is_empty() {
        return vec![Case::absent(MEMORY.name, NO_DEVICE)];
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
pub(super) struct Slot {
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
    let mut pipeline = through(device, &kernel, pages, stamped(frames), |number| number as u32)?;
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

pub(super) fn stamps(device: &Device) -> Result<Kernel> {
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

/// Frames whose every page has the frame's number.
fn stamped(frames: u64) -> impl FnMut(&mut [u32]) -> Result<Filled> {
    let mut number = 0;
    move |frame| {
        if number == frames {
            number = 0;
            return Ok(Filled::End);
        }
        stamp(frame, number as u32);
        number += 1;
        Ok(Filled::Frame)
    }
}

/// Writes the stamp to every page.
pub(super) fn stamp(frame: &mut [u32], stamp: u32) {
    frame.iter_mut().step_by(PAGE).for_each(|first| *first = stamp);
}

/// Frames of a source go to the device, a kernel takes the stamp of every page, and the sink compares each with what it should be.
pub(super) fn through<'p>(
    device: &'p Device,
    kernel: &'p Kernel,
    pages: usize,
    source: impl FrameSource<u32> + Send + 'p,
    expected: impl Fn(u64) -> u32 + Send + 'p,
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
    let take = move |stamps: &[u32], number: u64| match stamps
        .iter()
        .position(|stamp| *stamp != expected(number) + 1)
    {
        None => Ok(()),
        Some(page) => Err(Error::invalid(format!("page {page} of frame {number} is wrong"))),
    };
    Pipeline::builder(SLOTS, slot)
        .feed(source, |slot: &Slot| &slot.frame)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames pass if every page arrives, and fail with the page's number if its stamp is another one.
    #[test]
    fn a_wrong_stamp_is_found() {
        let hub = onebuf::builder().only(["opencl"]).verdicts(Default::default()).build().unwrap();
        let Ok(device) = hub.device("opencl:0") else {
            assert!(std::env::var_os("ONEBUF_STRICT").is_none(), "no OpenCL");
            return println!("skip: stamps: no OpenCL device");
        };
        let kernel = stamps(&device).unwrap();
        let run = |expected: fn(u64) -> u32| {
            let pipeline = through(&device, &kernel, 16, stamped(20), expected);
            pipeline.unwrap().run().map_err(|failure| failure.error.to_string())
        };
        assert_eq!(run(|number| number as u32).map(|report| report.frames), Ok(20));
        let other = run(|number| if number < 3 { number as u32 } else { 99 });
        assert!(other.as_ref().is_err_and(|why| why.contains("page 0 of frame 3")), "{other:?}");
    }
}
