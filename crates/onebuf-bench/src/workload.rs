//! The workloads, one per file.

pub mod bridge;
pub mod bus;
mod crossing;
pub mod fft;
pub mod graft;
pub mod growth;
pub mod handoff;
pub mod host_time;
pub mod imported;
pub mod launch;
pub mod mpi;
pub mod pipeline;
pub mod pool_get_put;
pub mod program;
pub mod route_lookup;
pub mod staged;
pub mod stream;
pub mod stream_udp;
pub mod sync_method;
pub mod udp;
pub mod udp_loopback;
pub mod view_idle;
pub mod wrap;
pub mod wrap_pointer;

use crate::{Bench, Case, Row, Stop, platforms, too_few_platforms};
use onebuf::Device;

/// A case for each OpenCL platform: the first by the plain name, the others with their ids.
fn per_platform(
    bench: &Bench,
    name: &'static str,
    run: fn(&Bench, &Device) -> Result<Row, Stop>,
) -> Vec<Case> {
    let platforms = platforms(&bench.hub);
    if platforms.is_empty() {
        return vec![absent(bench, name, 1)];
    }
    let case = |(number, device): (usize, Device)| {
        let name = if number == 0 { name.into() } else { format!("{name}_{device}") };
        Case::new(name.clone(), move |bench| {
            let row = run(bench, &device)?;
            let remark = device.info().platform.trim().to_owned();
            Ok(Row { name: name.clone(), remark, ..row })
        })
    };
    platforms.into_iter().enumerate().map(case).collect()
}

/// An absent case that needs this many platforms.
fn absent(bench: &Bench, name: &str, platforms: usize) -> Case {
    Case::absent(name, too_few_platforms(&bench.hub, platforms))
}
