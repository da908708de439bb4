//! The bandwidth of a device's own memory, as its copies reach it: the roof of work that only moves bytes.

use onebuf::{Device, MemoryKind, Result, hal::DeviceKind};
use std::time::Instant;

/// Larger than the caches of GPUs.
const BYTES: usize = 256 << 20;
const CPU_BYTES: usize = 64 << 20;
const ROUNDS: usize = 7;
/// Copies of a round, so that starting and waiting is a small part of it.
const COPIES: usize = 8;

/// Bytes read and written per nanosecond by copies within a device: the best of several rounds.
///
/// # Errors
/// The driver's errors.
pub fn copy_bandwidth(device: &Device) -> Result<f64> {
    let cpu = device.info().kind == DeviceKind::Cpu;
    let bytes = if cpu { CPU_BYTES } else { BYTES };
    let memory = || {
        let builder = device.hub().buffer::<u8>(bytes).shared_with([device]);
        if cpu { builder.build() } else { builder.memory_kind(MemoryKind::Device).build() }
    };
    let (from, to) = (memory()?, memory()?);
    let mut best = f64::INFINITY;
    // The first round includes what a driver does once.
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        for _ in 0..COPIES {
            to.copy_from(0, &from, ..)?;
        }
        if let Some(fence) = to.fence() {
            fence.wait_default()?;
        }
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    Ok((2 * bytes * COPIES) as f64 / best)
}

#[cfg(test)]
mod tests {
    use super::copy_bandwidth;

    #[test]
    fn the_host_copies() {
        let hub = onebuf::builder().only(["host"]).build().unwrap();
        let found = copy_bandwidth(&hub.host()).unwrap();
        assert!(found.is_finite() && found > 0.0, "{found}");
    }
}
