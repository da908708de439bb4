//! onebuf's own overhead, without a driver: look-ups, plans, guards and the ledger.

use criterion::Criterion;
use onebuf::{
    Result,
    plan::{Request, plan},
    topology::DeviceIx,
};
use onebuf_benches::{hub, platforms};
use std::{hint::black_box, time::Duration};

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700))
        .sample_size(30)
        .configure_from_args();
    routes(&mut criterion)?;
    views(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

fn routes(criterion: &mut Criterion) -> Result<()> {
    let hub = hub(4)?;
    let topology = hub.topology();
    let last = DeviceIx(topology.nodes().len() as u16 - 1);
    criterion.bench_function("route_lookup", |bench| {
        bench.iter(|| topology.between(black_box(DeviceIx(0)), black_box(last)))
    });
    let devices = vec![DeviceIx(0), DeviceIx(last.0 - 1), last];
    let request = Request { devices, bytes: 1 << 20, ..Request::default() };
    criterion.bench_function("plan_three_devices", |bench| {
        bench.iter(|| plan(topology, black_box(&request)))
    });
    Ok(())
}

/// Guards that need no wait, and a write small enough for its ledger record to matter.
fn views(criterion: &mut Criterion) -> Result<()> {
    let hub = hub(0)?;
    let devices = platforms(&hub, 1, "idle views on OpenCL");
    for device in [hub.host()].iter().chain(&devices) {
        let buffer = hub.buffer::<u32>(1024).shared_with([device]).build()?;
        let queue = device.queue()?;
        buffer.write_on(&queue)?;
        queue.finish()?;
        criterion.bench_function(&format!("idle_read_view/{device}"), |bench| {
            bench.iter(|| buffer.read_on(&queue).map(drop))
        });
        criterion.bench_function(&format!("idle_write_view/{device}"), |bench| {
            bench.iter(|| buffer.write_on(&queue).map(drop))
        });
    }
    let buffer = hub.buffer::<u32>(1024).build()?;
    criterion.bench_function("write_one_element/host", |bench| {
        bench.iter(|| buffer.write_range(7..8, black_box(&[1])))
    });
    Ok(())
}
