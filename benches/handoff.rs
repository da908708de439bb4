//! Two OpenCL platforms take turns on one buffer: over shared pages, and by staged copies.
//!
//! The time of the shared hand-over must not depend on the size; that of the staged one does.

use criterion::{Criterion, Throughput};
use onebuf::{Buffer, Result, RouteKind};
use onebuf_bench::Side;
use onebuf_benches::{hub, platforms};
use std::time::Duration;

const SIZES: [usize; 2] = [1 << 20, 16 << 20];

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(10)
        .configure_from_args();
    let hub = hub(0)?;
    if let [a, b] = &platforms(&hub, 2, "hand-overs between two platforms")[..] {
        let sides = [Side::new(a)?, Side::new(b)?];
        let mut group = criterion.benchmark_group(format!("handoff/{a}_{b}"));
        for bytes in SIZES {
            // Declared routes are sufficient: the benchmark compares times and proves nothing about a route.
            let builder = hub.buffer::<u32>(bytes / 4).shared_with([a, b]).trust_declared(true);
            let shared = builder.clone().allocate_on(&hub.host()).route(RouteKind::HostPointer);
            let staged = builder.route(RouteKind::Staged);
            group.throughput(Throughput::Bytes(bytes as u64));
            for (name, builder) in [("shared", shared), ("staged", staged)] {
                let buffer = builder.build()?;
                group.bench_function(format!("{name}/{} MiB", bytes >> 20), |bench| {
                    bench.iter(|| round(&sides, &buffer))
                });
            }
        }
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}

/// One round trip: two hand-overs, two launches, one wait.
fn round(sides: &[Side; 2], buffer: &Buffer<u32>) {
    sides.iter().for_each(|side| side.touch(buffer).expect("a turn"));
    sides[1].queue.finish().expect("both turns end");
}
