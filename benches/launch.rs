//! A launch through onebuf and the same launch by raw C calls, on the same queue. criterion records the
//! distribution, `onebuf bench` the ratio.

use criterion::Criterion;
use onebuf::{Buffer, MemoryKind, Result};
use onebuf_bench::{RawLaunch, Side};
use onebuf_benches::{hub, platforms, skip};
use std::time::{Duration, Instant};

const BENCH: &str = "launches beside the raw C call";

/// Launches between two waits. Only enqueueing is timed, and the driver's queue stays bounded.
const BATCH: u64 = 64;

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
        .configure_from_args();
    let hub = hub(0)?;
    for device in platforms(&hub, 1, BENCH) {
        let side = Side::new(&device)?;
        let builder = hub.buffer::<u32>(1024).shared_with([&device]);
        let buffer = builder.memory_kind(MemoryKind::MappedDevice).build()?; // a cl_mem, for the raw call
        compare(&mut criterion, &side, &buffer)?;
    }
    criterion.final_summary();
    Ok(())
}

fn compare(criterion: &mut Criterion, side: &Side, buffer: &Buffer<u32>) -> Result<()> {
    let view = buffer.write_on(&side.queue)?;
    let Ok(mem) = view.cl_mem() else {
        skip(BENCH, "the buffer is no cl_mem here");
        return Ok(());
    };
    drop(view);
    // SAFETY: the hub loaded OpenCL by its default name, and the memory is of this queue's context. Only the
    // launches below use it, all on this queue, which is finished after each batch.
    let raw = unsafe { RawLaunch::new(&side.queue, mem)? };
    let mut group = criterion.benchmark_group(format!("launch_enqueue/{}", side.queue.device()));
    group.bench_function("onebuf", |bench| {
        bench.iter_custom(|launches| timed(launches, side, || side.touch(buffer)))
    });
    group.bench_function("raw", |bench| {
        bench.iter_custom(|launches| timed(launches, side, || raw.touch()))
    });
    group.finish();
    Ok(())
}

fn timed(launches: u64, side: &Side, mut launch: impl FnMut() -> Result<()>) -> Duration {
    let mut spent = Duration::ZERO;
    for start in (0..launches).step_by(BATCH as usize) {
        let clock = Instant::now();
        for _ in start..launches.min(start + BATCH) {
            launch().expect("a launch");
        }
        spent += clock.elapsed();
        side.queue.finish().expect("the launches end");
    }
    spent
}
