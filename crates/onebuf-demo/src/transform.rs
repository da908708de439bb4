//! The first stage in OpenCL C: channels are delayed, windowed and transformed in place. Lengths are powers of two up
//! to [`Shape::LONGEST`].
//!
//! ```text
//!   short:  signal ──delay, window, transform──► signal                                 a group has whole channels
//!   long:   signal ──delay, window, columns, turns──► scratch ──rows──► signal          N = N1 N2
//! ```
//!
//! A long channel is a matrix of N1 rows of N2 samples. First its columns are transformed, a few neighbours by each
//! group so that whole cache lines are read; then its rows, and the result is the transposed matrix. Between the two
//! passes it is stored in panels as wide as a group's columns: the first pass writes them contiguously, the second
//! reads a block of each. Samples are delayed as they are loaded.
//!
//! # Safety
//! The unsafe call declares the signatures of the kernels whose text is in `pass.rs`.

#![allow(unsafe_code)]

use crate::{
    Interpolator, Setup, Shape,
    delay::Tables,
    pass::{Part, Pass},
    stockham::{Stockham, turns},
};
use onebuf::{
    Buffer, Complex32, Device, Error, Grid, Kernel, MemoryKind, Queue, Result, Source, SyncMethod,
    args, hal::DeviceKind,
};

/// Maximum number of points of a group.
const POINTS: usize = 8192;

/// Maximum number of work-items of a group, because NVIDIA's OpenCL accepts no more if they need many registers; and the
/// approximate number for a group that has several whole channels.
const GROUP: usize = 256;
const SMALL_GROUP: usize = 64;

/// Neighbours that a group reads: a cache line of a CPU, and two sectors of an H200, where one is enough if that makes
/// the group smaller.
const COLUMNS: usize = 8;
const FEW_COLUMNS: usize = 4;
const FEW_POINTS: usize = 4096;

/// Numbers in the scratch memory; all channels go through it, some at a time.
const SCRATCH: usize = Shape::LONGEST;

/// The transform on its device.
pub struct Transform {
    channel: usize,
    way: Passes,
    /// The tables of delays and window; `None` for a transform without them.
    tables: Option<Tables>,
}

enum Passes {
    Whole(Step),
    Long { columns: Step, rows: Step, scratch: Buffer<Complex32> },
}

/// One kernel, and its table.
struct Step {
    kernel: Kernel,
    pass: Pass,
    turns: Buffer<Complex32>,
}

impl Transform {
    /// Creates a transform with delays and window. `compiler` is the device, or the device whose kernels are grafted onto it.
    pub fn of(compiler: &Device, device: &Device, setup: &Setup) -> Result<Self> {
        let site = Site { compiler, device, with: Some(setup.interpolator) };
        let (channel, tables) = (setup.shape.length, Tables::upload(device, setup)?);
        Ok(Self { channel, way: site.way(channel)?, tables: Some(tables) })
    }

    /// Creates a transform without delays and window.
    pub fn plain(compiler: &Device, device: &Device, channel: usize) -> Result<Self> {
        let site = Site { compiler, device, with: None };
        Ok(Self { channel, way: site.way(channel)?, tables: None })
    }

    /// All kernels that the transform launches.
    pub fn kernels(&self) -> Vec<&Kernel> {
        match &self.way {
            Passes::Whole(step) => vec![&step.kernel],
            Passes::Long { columns, rows, .. } => vec![&columns.kernel, &rows.kernel],
        }
    }

    /// Launches the transform on the first channels, and returns the sync method of the queue.
    pub fn run(
        &self,
        queue: &Queue,
        signal: &Buffer<Complex32>,
        channels: usize,
    ) -> Result<SyncMethod> {
        let (columns, rows, scratch) = match &self.way {
            Passes::Whole(step) => return self.run_whole(queue, step, signal, channels),
            Passes::Long { columns, rows, scratch } => (columns, rows, scratch),
        };
        let sync_method = signal.write_on(queue)?.sync_method();
        let at_once = scratch.len() / self.channel;
        for first in (0..channels).step_by(at_once) {
            let part = [first, (channels - first).min(at_once)];
            self.run_columns(queue, columns, signal, scratch, part)?;
            self.run_rows(queue, rows, scratch, signal, part)?;
        }
        Ok(sync_method)
    }

    fn run_whole(
        &self,
        queue: &Queue,
        step: &Step,
        signal: &Buffer<Complex32>,
        channels: usize,
    ) -> Result<SyncMethod> {
        let (view, turns) = (signal.write_on(queue)?, step.turns.read_on(queue)?);
        let (sync_method, grid, count) = (view.sync_method(), step.grid(channels), channels as u32);
        match &self.tables {
            None => queue.launch(&step.kernel, grid, args![view, turns, count])?,
            Some(Tables { places, window }) => {
                let (places, window) = (places.read_on(queue)?, window.read_on(queue)?);
                queue.launch(&step.kernel, grid, args![view, turns, places, window, count])?;
            }
        }
        Ok(sync_method)
    }

    fn run_columns(
        &self,
        queue: &Queue,
        step: &Step,
        signal: &Buffer<Complex32>,
        scratch: &Buffer<Complex32>,
        [first, many]: [usize; 2],
    ) -> Result<()> {
        let (from, to) = (signal.read_on(queue)?, scratch.write_on(queue)?);
        let (turns, grid) = (step.turns.read_on(queue)?, step.grid(many));
        let Some(Tables { places, window }) = &self.tables else {
            return queue.launch(&step.kernel, grid, args![from, to, turns, first as u32]);
        };
        let (places, window) = (places.read_on(queue)?, window.read_on(queue)?);
        queue.launch(&step.kernel, grid, args![from, to, turns, places, window, first as u32])
    }

    fn run_rows(
        &self,
        queue: &Queue,
        step: &Step,
        scratch: &Buffer<Complex32>,
        signal: &Buffer<Complex32>,
        [first, many]: [usize; 2],
    ) -> Result<()> {
        let (from, to) = (scratch.read_on(queue)?, signal.write_on(queue)?);
        let args = args![from, to, step.turns.read_on(queue)?, first as u32];
        queue.launch(&step.kernel, step.grid(many), args)
    }
}

impl Step {
    fn grid(&self, channels: usize) -> Grid {
        let group = self.pass.plan.group();
        Grid::from([self.pass.groups(channels) * group]).local([group])
    }
}

/// Where kernels are compiled, where they run, and whether they delay.
struct Site<'s> {
    compiler: &'s Device,
    device: &'s Device,
    with: Option<Interpolator>,
}

impl Site<'_> {
    fn way(&self, channel: usize) -> Result<Passes> {
        if !channel.is_power_of_two() || !(2..=Shape::LONGEST).contains(&channel) {
            return Err(Error::invalid(format!("a transform of {channel} samples")));
        }
        let unrolled = self.compiler.info().kind != DeviceKind::Cpu;
        let pass = |part, plan, panel| {
            // Only the first pass delays samples.
            let with = self.with.filter(|_| part != Part::Rows);
            Pass { part, channel, plan, panel, with, unrolled }
        };
        let ahead = self.with.map_or(0, Interpolator::order);
        if let Some(plan) = self.plan(channel, ahead, |items| SMALL_GROUP.div_ceil(items)) {
            let step = self.step(pass(Part::Whole, plan, 1), turns(channel).collect())?;
            return Ok(Passes::Whole(step));
        }
        let across = 1 << (channel.ilog2() / 2);
        let wide = |_| COLUMNS;
        let (columns, rows) = (self.plan(channel / across, 0, wide), self.plan(across, 0, wide));
        let (Some(columns), Some(rows)) = (columns, rows) else {
            let what = format!("a transform of {channel} samples on {}", self.compiler);
            return Err(Error::unsupported(what, "larger work-groups, or more local memory"));
        };
        let both = turns(columns.length).chain(turns(channel).take(across)).collect();
        let panel = columns.columns;
        let rows = self.step(pass(Part::Rows, rows, panel), turns(across).collect())?;
        let columns = self.step(pass(Part::Columns, columns, panel), both)?;
        let scratch = self.device.hub().buffer(SCRATCH).shared_with([self.device]);
        let scratch = scratch.memory_kind(MemoryKind::Device).build()?;
        Ok(Passes::Long { columns, rows, scratch })
    }

    /// As many columns as fit a group, up to the requested number; `None` if not even one fits.
    fn plan(
        &self,
        length: usize,
        ahead: usize,
        builder: impl Fn(usize) -> usize,
    ) -> Option<Stockham> {
        let info = self.compiler.info();
        let (caps, cpu) = (&info.caps, info.kind == DeviceKind::Cpu);
        let most = GROUP.min(caps.max_group_size).min(caps.max_group_sizes[0]);
        let fits = |plan: &Stockham| {
            let points = plan.length * plan.columns;
            let few = points <= FEW_POINTS || plan.columns <= FEW_COLUMNS;
            let local = plan.local_bytes() as u64 <= caps.local_memory_bytes;
            points <= POINTS && few && plan.group() <= most && local
        };
        // A CPU's local memory has no banks.
        let one =
            Stockham { length, columns: 1, butterflies: 1, split: false, padded: !cpu, ahead };
        let forms = |plan: Stockham| {
            let split = Stockham { split: true, ..plan };
            [plan, split, Stockham { padded: false, ..split }]
        };
        let twice = |plan: Stockham| [plan, Stockham { butterflies: 2, ..plan }];
        let widest = builder(one.items()).next_power_of_two();
        let widths = (0..=widest.ilog2()).rev().map(|log| Stockham { columns: 1 << log, ..one });
        widths.flat_map(forms).flat_map(twice).find(fits)
    }

    fn step(&self, pass: Pass, turns: Vec<Complex32>) -> Result<Step> {
        let program = self.compiler.program(&Source::opencl_c(pass.text()))?;
        // SAFETY: a group, whose size the text fixes, computes `columns` transforms. The kernel for whole channels neither reads
        // nor writes channels beyond the number that the launch states. In the kernels for columns and rows, the groups of a
        // channel cover all of its columns or rows, and every index is below the channel's length, in the signal and in the
        // scratch memory. `wanted` counts all of these elements. Taps are compared with the channel's ends before they are read.
        // Loops are bounded by constants.
        let kernel = unsafe { program.kernel("fft", pass.signature())? };
        if self.compiler.index() != self.device.index() {
            kernel.graft(self.device)?;
        }
        let builder = self.device.hub().buffer(turns.len()).shared_with([self.device]);
        Ok(Step { kernel, pass, turns: builder.init(turns).build()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{double, noise};

    /// The largest deviation from double precision, relative to the average magnitude.
    fn worst(length: usize, samples: &[Complex32], found: &[Complex32]) -> f64 {
        let mut wanted: Vec<_> = samples.iter().copied().map(double).collect();
        crate::transform_of(length).process(&mut wanted);
        let off = wanted.iter().zip(found).map(|(x, y)| (x - double(*y)).norm());
        off.fold(0.0, f64::max) / (length as f64).sqrt()
    }

    fn transformed(device: &Device, length: usize, samples: &[Complex32]) -> Vec<Complex32> {
        let builder = device.hub().buffer(samples.len()).shared_with([device]);
        let (signal, queue) = (builder.init(samples).build().unwrap(), device.queue().unwrap());
        let transform = Transform::plain(device, device, length).unwrap();
        transform.run(&queue, &signal, samples.len() / length).unwrap();
        signal.to_vec().unwrap()
    }

    /// Powers of two for a device; compiling each takes a second.
    fn are_right(device: &Device, logs: impl IntoIterator<Item = u32>) {
        for length in logs.into_iter().map(|log| 1 << log) {
            // Not a multiple of a group's channels; for long channels one more than the scratch memory holds.
            let channels = if length < SCRATCH / 2 { (SCRATCH / length + 1).min(67) } else { 3 };
            let samples = noise(length * channels);
            let mut found = transformed(device, length, &samples);
            let error = worst(length, &samples, &found);
            assert!(error < 2e-6, "{channels} of {length} on {device}: {error}");
            let last = found.len() - 1;
            found[last] += Complex32::new(4e-6 * (length as f32).sqrt(), 0.0);
            assert!(worst(length, &samples, &found) > 2e-6, "the control");
        }
    }

    /// One length of each kind: without an exchange, with several exchanges, and in two passes. `every_length_is_right` tests the
    /// others.
    #[test]
    fn transforms_are_right() {
        let hub = onebuf::discover().unwrap();
        let opencl = hub.select("opencl");
        if opencl.is_empty() {
            println!("skip: transforms on OpenCL: no device");
        }
        for (device, logs) in opencl.iter().zip([&[1, 9, 16][..], &[3, 6, 13], &[11]]) {
            are_right(device, logs.iter().copied());
        }
    }

    /// `cargo test -p onebuf-demo -- --ignored every_length` takes minutes, mostly for compilation.
    #[test]
    #[ignore = "minutes"]
    fn every_length_is_right() {
        let hub = onebuf::discover().unwrap();
        hub.select("opencl").iter().for_each(|device| are_right(device, 1..=22));
    }

    #[test]
    fn other_lengths_are_refused() {
        let hub = onebuf::discover().unwrap();
        for length in [0, 1, 3, 1 << 23] {
            let why = Transform::plain(&hub.host(), &hub.host(), length).err().unwrap();
            assert!(why.to_string().contains(&length.to_string()), "{why}");
        }
    }
}
