//! Our transform compared with clFFT on every OpenCL platform; and grafted, compared with cuFFT in one stream.
//!
//! # Safety
//! A `cl_mem` is passed to clFFT.

#![allow(unsafe_code)]

use super::graft::{NO_CHIP, absent, chips};
use crate::{
    Bench, Case, Effort, RawClFft, Row, Stop, Unit, Workload, abba::compare,
    bandwidth::copy_bandwidth, platforms, solo::try_timed, too_few_platforms,
};
use onebuf::{
    Buffer, Complex32, Complex64, Device, Error, MemoryKind, Queue, Result,
    hal::DeviceKind,
    libs::{Fft, Fft1d},
};
use onebuf_demo::Transform;

/// Points of a batch on GPUs and on CPUs, unless one transform is longer.
const POINTS: usize = 1 << 22;
const CPU_POINTS: usize = 1 << 18;

/// Lengths as powers of two, and those for `--quick`.
const LOGS: [u32; 10] = [6, 8, 10, 11, 12, 14, 16, 18, 20, 22];
const QUICK_LOGS: [u32; 1] = [8];

/// Batches between two waits on a GPU, where a wait costs as much as a batch.
const ROUNDS: u64 = 8;

pub const CLFFT: Workload = Workload {
    name: "fft_<n>_<a>_clfft_ratio",
    about: "transforms of n points by onebuf's kernel, 4M points per batch, over clFFT",
    cases: |bench| {
        let all = platforms(&bench.hub).into_iter().map(|device| [device.clone(), device]);
        let none = too_few_platforms(&bench.hub, 1);
        cases(bench, CLFFT.name, all.collect(), none, run_clfft)
    },
};

pub const CUFFT: Workload = Workload {
    name: "fft_<n>_<a>_cufft_ratio",
    about: "transforms by the grafted OpenCL kernel, over cuFFT in the same stream",
    cases: |bench| cases(bench, CUFFT.name, chips(bench), NO_CHIP.into(), run_cufft),
};

/// The length of a transform, and their number.
#[derive(Clone, Copy)]
struct Batch {
    length: usize,
    count: usize,
}

/// A case for each length and each pair of devices, of which the first compiles the kernels and the second runs them; an absent
/// case for `none` if there is no pair.
fn cases(
    bench: &Bench,
    name: &'static str,
    all: Vec<[Device; 2]>,
    none: String,
    run: fn(&Bench, &[Device; 2], Batch) -> Result<Row, Stop>,
) -> Vec<Case> {
    if all.is_empty() {
        return vec![Case::absent(name, none)];
    }
    let case = |(pair, batch): ([Device; 2], Batch)| {
        let name = name.replace("<n>", &batch.length.to_string()).replace("<a>", pair[1].id());
        Case::new(name.clone(), move |bench| {
            run(bench, &pair, batch).map(|row| Row { name: name.clone(), ..row })
        })
    };
    let each = |pair: &[Device; 2]| {
        let pair = pair.clone();
        batches(bench, &pair[1]).into_iter().map(move |batch| (pair.clone(), batch))
    };
    all.iter().flat_map(each).map(case).collect()
}

fn batches(bench: &Bench, device: &Device) -> Vec<Batch> {
    let quick = bench.effort == Effort::QUICK;
    let all = (bench.bytes / size_of::<Complex32>()).min(POINTS);
    let points = if is_cpu(device) { all.min(CPU_POINTS) } else { all };
    let logs = if quick { &QUICK_LOGS[..] } else { &LOGS };
    let lengths = logs.iter().map(|log| 1_usize << log).filter(|&length| length <= all);
    lengths.map(|length| Batch { length, count: (points / length).max(1) }).collect()
}

fn is_cpu(device: &Device) -> bool {
    device.info().kind == DeviceKind::Cpu
}

impl Batch {
    /// The bytes that a transform in place reads and writes.
    fn moved(&self) -> usize {
        2 * self.length * self.count * size_of::<Complex32>()
    }

    fn samples(&self) -> Vec<Complex32> {
        let sample =
            |i: usize| Complex32::new((i * 7 % 23) as f32 - 11.0, (i * 5 % 19) as f32 - 9.0);
        (0..self.length * self.count).map(sample).collect()
    }

    /// The device's own memory: a `cl_mem` on OpenCL.
    fn buffer(&self, device: &Device) -> Result<Buffer<Complex32>> {
        let builder = device.hub().buffer(self.length * self.count).shared_with([device]);
        builder.memory_kind(MemoryKind::Device).init(self.samples()).build()
    }

    /// Checks the result, because a wrong result makes the measurement void. Leaves zeroes, because repeated transforms must stay
    /// finite.
    fn check(&self, found: &Buffer<Complex32>, whose: &str) -> Result<()> {
        let double = |x: Complex32| Complex64::new(x.re.into(), x.im.into());
        let mut wanted: Vec<Complex64> = self.samples().into_iter().map(double).collect();
        onebuf_demo::transform_of(self.length).process(&mut wanted);
        let power: f64 = wanted.iter().map(|x| x.norm_sqr()).sum();
        let found_all = found.to_vec()?;
        let off: f64 =
            wanted.iter().zip(&found_all).map(|(x, y)| (x - double(*y)).norm_sqr()).sum();
        let error = (off / power).sqrt();
        if error.is_nan() || error > 1e-5 {
            let needs = format!("one that is right, not off by {error:.1e}");
            return Err(Error::unsupported(format!("measuring {whose} transform"), needs));
        }
        found.fill(Complex32::ZERO)
    }
}

/// Nanoseconds per round; waits for the last one.
fn timed(
    rounds: u64,
    start: impl Fn() -> Result<()>,
    turn: impl Fn() -> Result<()>,
) -> Result<f64> {
    let mut left = rounds;
    let round = || {
        left -= 1;
        if left == 0 { turn() } else { start() }
    };
    Ok(try_timed(rounds, round)?.as_nanos() as f64 / rounds as f64)
}

fn rounds(device: &Device) -> u64 {
    if is_cpu(device) { 1 } else { ROUNDS }
}

/// Our transform, launched and waited for.
struct OurTransform {
    transform: Transform,
    queue: Queue,
    signal: Buffer<Complex32>,
    batch: Batch,
}

impl OurTransform {
    fn start(&self) -> Result<()> {
        self.transform.run(&self.queue, &self.signal, self.batch.count).map(drop)
    }

    fn turn(&self) -> Result<()> {
        self.start()?;
        self.queue.finish()
    }
}

fn run_clfft(bench: &Bench, [_, device]: &[Device; 2], batch: Batch) -> Result<Row, Stop> {
    let theirs = batch.buffer(device)?;
    let queue = device.queue()?;
    let mem = theirs.write_on(&queue)?.cl_mem()?;
    // SAFETY: the hub loaded OpenCL by its default name. The memory belongs to this queue's context and holds the batch. Besides
    // clFFT, only the code below uses it, between two waits.
    let raw = unsafe { RawClFft::new(&queue, mem, batch.length, batch.count) };
    let raw = raw.map_err(refused)?;
    raw.turn().map_err(refused)?;
    batch.check(&theirs, "clFFT's").map_err(absent)?;
    let transform = Transform::plain(device, device, batch.length)?;
    let signal = batch.buffer(device)?;
    let ours = OurTransform { transform, queue: device.queue()?, signal, batch };
    ours.turn()?;
    batch.check(&ours.signal, "our")?;
    let rounds = rounds(device);
    let found = compare(
        bench.effort,
        || timed(rounds, || ours.start(), || ours.turn()),
        || timed(rounds, || raw.transform(), || raw.turn()),
    )?;
    let row = found.row("", Unit::Us).of_copy(batch.moved(), copy_bandwidth(device)?);
    Ok(row.remark(device.info().platform.trim()))
}

/// What clFFT does not support is not our failure.
fn refused(error: Error) -> Stop {
    match error {
        Error::Driver { api: "clFFT", .. } => Stop::Absent(error.to_string()),
        other => absent(other),
    }
}

fn run_cufft(bench: &Bench, [cl, cuda]: &[Device; 2], batch: Batch) -> Result<Row, Stop> {
    let queue = cuda.queue()?;
    let (fft, plan) = (Fft::on(&queue).map_err(absent)?, Fft1d::forward(batch.length, batch.count));
    let theirs = batch.buffer(cuda)?;
    let start = || fft.transform(&plan, &mut theirs.write_on(&queue)?);
    let turn = || start().and_then(|()| queue.finish());
    turn()?;
    batch.check(&theirs, "cuFFT's")?;
    let transform = Transform::plain(cl, cuda, batch.length).map_err(absent)?;
    let signal = batch.buffer(cuda)?;
    let ours = OurTransform { transform, queue: queue.clone(), signal, batch };
    ours.turn()?;
    batch.check(&ours.signal, "our")?;
    let rounds = rounds(cuda);
    let found = compare(
        bench.effort,
        || timed(rounds, || ours.start(), || ours.turn()),
        || timed(rounds, start, turn),
    )?;
    Ok(found.row("", Unit::Us).of_copy(batch.moved(), copy_bandwidth(cuda)?).remark("one stream"))
}
