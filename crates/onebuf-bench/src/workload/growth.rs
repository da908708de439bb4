//! How the pipeline of `onebuf demo` scales with the frame size and with the slots of its ring. Zero-copy, compared
//! with the staged copy and with all stages on the second device, which is the limit of a single API.

use super::{
    graft::absent,
    pipeline::{BEAMS, ORDER, check, pairs, round, setup},
};
use crate::{Bench, Case, Effort, Row, Stop, Unit, Workload, abba::compare, too_few_platforms};
use onebuf::{
    BufferBuilder, Complex32, Device, Error, Result, RouteKind,
    pipeline::{self, Filled},
};
use onebuf_demo::{Frame, Interpolator, Pipeline, Setup, Shape};
use onebuf_sys::system_memory::available_bytes;
use std::{cell::RefCell, time::Instant};

/// Frame sizes in bytes, and those for `--quick`.
const SIZES: [usize; 8] = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30];
const QUICK_SIZES: [usize; 2] = [1 << 16, 1 << 18];

/// Ring sizes, and those for `--quick`.
const DEPTHS: [usize; 4] = [1, 2, 4, 8];
const QUICK_DEPTHS: [usize; 1] = [4];

/// Frames between two readings of the clock: four times the largest ring.
const FRAMES: u64 = 32;
const QUICK_FRAMES: u64 = 8;

/// Maximum number of bytes that a row measures, at four frames per block.
const VOLUME: usize = 4 << 30;

/// Memory of a row, in frames: three on devices, and the reference on the host.
const COPIES: u64 = 6;

pub const SIZE: Workload = Workload {
    name: "growth_<a>_<b>_<size>_us",
    about: "a frame of this size through the pipeline, over the same with a staged copy between",
    cases: |bench| sizes(bench, SIZE.name, Rival::Staged),
};

pub const SIZE_LIMIT: Workload = Workload {
    name: "growth_limit_<a>_<b>_<size>_us",
    about: "a frame of this size, over both stages on b: the limit of one API alone",
    cases: |bench| sizes(bench, SIZE_LIMIT.name, Rival::OneApi),
};

pub const RING: Workload = Workload {
    name: "ring_<a>_<b>_<slots>_us",
    about: "a frame in a stream through a ring of this many slots, over the same with a staged copy between",
    cases: |bench| rings(bench, RING.name, Rival::Staged),
};

pub const RING_LIMIT: Workload = Workload {
    name: "ring_limit_<a>_<b>_<slots>_us",
    about: "a frame in a stream through such a ring, over both stages on b",
    cases: |bench| rings(bench, RING_LIMIT.name, Rival::OneApi),
};

/// The baseline of zero-copy.
#[derive(Clone, Copy)]
enum Rival {
    Staged,
    OneApi,
}

fn sizes(bench: &Bench, name: &'static str, rival: Rival) -> Vec<Case> {
    let (all, most) = match bench.effort == Effort::QUICK {
        true => (&QUICK_SIZES[..], bench.bytes),
        // At 256 MiB unless requested otherwise, up to 1 GiB.
        false => (&SIZES[..], 4 * bench.bytes),
    };
    let all = all.iter().copied().filter(move |&bytes| bytes <= most);
    let all = all.map(|bytes| (bytes, size_name(bytes))).collect();
    cases(bench, name, all, move |bench, pair, bytes| run_size(bench, pair, rival, bytes))
}

fn rings(bench: &Bench, name: &'static str, rival: Rival) -> Vec<Case> {
    let all = if bench.effort == Effort::QUICK { &QUICK_DEPTHS[..] } else { &DEPTHS };
    let all = all.iter().map(|&slots| (slots, format!("ring{slots}"))).collect();
    cases(bench, name, all, move |bench, pair, slots| run_ring(bench, pair, rival, slots))
}

fn cases(
    bench: &Bench,
    name: &'static str,
    all: Vec<(usize, String)>,
    run: impl Fn(&Bench, &[Device; 2], usize) -> Result<Row, Stop> + Copy + 'static,
) -> Vec<Case> {
    let pairs = pairs(&bench.hub);
    if pairs.is_empty() {
        return vec![Case::absent(name, too_few_platforms(&bench.hub, 2))];
    }
    let case = |(pair, (number, text)): ([Device; 2], (usize, String))| {
        let name = name.replace("<a>", pair[0].id()).replace("<b>", pair[1].id());
        let name = name.replace("<size>", &text).replace("<slots>", &text);
        Case::new(name.clone(), move |bench| {
            run(bench, &pair, number).map(|row| Row { name: name.clone(), ..row })
        })
    };
    let both = pairs.iter().flat_map(|pair| all.iter().map(|one| (pair.clone(), one.clone())));
    both.map(case).collect()
}

/// A size as the HTML page parses it: `64KiB`.
pub(super) fn size_name(bytes: usize) -> String {
    match bytes.ilog2() / 10 {
        0 => format!("{bytes}B"),
        1 => format!("{}KiB", bytes >> 10),
        2 => format!("{}MiB", bytes >> 20),
        _ => format!("{}GiB", bytes >> 30),
    }
}

/// One way through both stages.
struct Way<'w> {
    pipeline: Pipeline,
    request: BufferBuilder<'w, Complex32>,
}

/// Zero-copy, and its baseline.
fn ways<'w>(
    bench: &'w Bench,
    pair: &[Device; 2],
    setup: &Setup,
    rival: Rival,
) -> Result<[Way<'w>; 2], Stop> {
    let shared = |devices: &[Device]| {
        bench.hub.buffer::<Complex32>(setup.shape.samples()).shared_with(devices)
    };
    let direct = shared(pair).trust_declared(true);
    let plan = direct.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    if plan.routes.iter().any(|hop| hop.kind == RouteKind::Staged) {
        let [a, b] = pair;
        return Err(Stop::Absent(format!("no route but a copy between {a} and {b}")));
    }
    let open = |pair: &[Device; 2]| Pipeline::open(pair, setup.clone()).map_err(absent);
    let rival = match rival {
        Rival::Staged => {
            let request = shared(pair).allocate_on(&pair[0]).route(RouteKind::Staged);
            Way { pipeline: open(pair)?, request }
        }
        Rival::OneApi => {
            let [_, second] = pair;
            let pipeline = open(&[second.clone(), second.clone()])?;
            Way { pipeline, request: shared(std::slice::from_ref(second)) }
        }
    };
    Ok([Way { pipeline: open(pair)?, request: direct }, rival])
}

fn run_size(bench: &Bench, pair: &[Device; 2], rival: Rival, bytes: usize) -> Result<Row, Stop> {
    affordable(pair, bytes, COPIES)?;
    let shape = Shape::of(bytes / size_of::<Complex32>(), BEAMS).map_err(Error::invalid)?;
    let setup = Setup::new(shape, Interpolator::new(ORDER).map_err(Error::invalid)?);
    let [ours, theirs] = ways(bench, pair, &setup, rival)?;
    let frames = |way: &Way<'_>| -> Result<Vec<Frame>> {
        let frames = way.pipeline.frames(&way.request, 1)?;
        check(&way.pipeline, &frames)?;
        Ok(frames)
    };
    let (one, other) = (frames(&ours)?, frames(&theirs)?);
    let effort = bench.effort.at_most((VOLUME / 4 / bytes).max(3));
    let found =
        compare(effort, || round(&ours.pipeline, &one), || round(&theirs.pipeline, &other))?;
    Ok(found.row("", Unit::Us).remark(shape_name(&shape)))
}

fn shape_name(shape: &Shape) -> String {
    format!("{} x {}, {} beams", shape.channels, shape.length, shape.beams)
}

/// Excludes sizes at which the machine would swap, with this many buffers, or a driver refuse.
pub(super) fn affordable(devices: &[Device], bytes: usize, copies: u64) -> Result<(), Stop> {
    let bytes = bytes as u64;
    let (needs, has) = (copies * bytes, available_bytes());
    if has.is_some_and(|has| needs > has) {
        let (needs, has) = (needs >> 20, has.unwrap_or(0) >> 20);
        return Err(Stop::Absent(format!("{needs} MiB are needed, {has} MiB are there")));
    }
    let small = devices.iter().find(|device| {
        let most = device.info().caps.max_alloc_bytes;
        most > 0 && bytes > most
    });
    match small {
        Some(device) => Err(Stop::Absent(format!("{device} has no buffers of {bytes} bytes"))),
        None => Ok(()),
    }
}

fn run_ring(bench: &Bench, pair: &[Device; 2], rival: Rival, slots: usize) -> Result<Row, Stop> {
    let setup = setup(bench, pair)?;
    let both = ways(bench, pair, &setup, rival)?;
    for way in &both {
        check(&way.pipeline, &way.pipeline.frames(&way.request, 1)?)?;
    }
    let frames = if bench.effort == Effort::QUICK { QUICK_FRAMES } else { FRAMES };
    let [ours, theirs] = both.each_ref().map(|way| ring(way, slots, frames).map(RefCell::new));
    let (ours, theirs) = (ours?, theirs?);
    let found = compare(bench.effort, || stream(&ours, frames), || stream(&theirs, frames))?;
    Ok(found.row("", Unit::Us).remark(shape_name(&setup.shape)))
}

type Ring<'r> = pipeline::Pipeline<'r, Frame>;

/// A pipeline that sends zeroes through all stages. The sink waits for the last number of a frame.
fn ring<'r>(way: &'r Way<'_>, slots: usize, frames: u64) -> Result<Ring<'r>> {
    let (run, shape) = (&way.pipeline, way.pipeline.shape());
    let product = run.setup.product();
    let builder = pipeline::Pipeline::builder(slots, |_| {
        let frame = run.frame(&way.request)?;
        frame.signal.fill(Complex32::ZERO)?;
        Ok(frame)
    });
    let filled = move |number| if number == frames { Filled::End } else { Filled::Frame };
    let builder = builder.source(move |_, number| Ok(filled(number)));
    let builder = builder.stage("first", &run.devices[0], move |work| {
        run.spectrum().run_on(work.queue, &work.slot.signal, shape.channels).map(drop)
    });
    let builder = builder.stage("second", &run.devices[1], move |work| {
        let Frame { signal, beams } = work.slot;
        run.beams().run_on(work.queue, &product, signal, beams).map(drop)
    });
    let last = shape.results() - 1;
    let builder = builder
        .sink(move |slot, _| slot.beams.read_range(last..=last, &mut [Complex32::ZERO]).map(drop));
    builder.build()
}

/// Nanoseconds per frame.
fn stream(ring: &RefCell<Ring<'_>>, frames: u64) -> Result<f64> {
    let clock = Instant::now();
    ring.borrow_mut().run().map_err(|failure| failure.error)?;
    Ok(clock.elapsed().as_nanos() as f64 / frames as f64)
}

#[cfg(test)]
mod tests {
    use super::{SIZES, size_name};

    #[test]
    fn sizes_are_named_as_people_write_them() {
        let names = SIZES.map(size_name);
        assert_eq!(names[0], "64KiB");
        assert_eq!((&*names[3], &*names[7]), ("4MiB", "1GiB"));
    }
}
