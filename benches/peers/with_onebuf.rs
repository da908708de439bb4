//! The operations with onebuf.

use crate::{LEN, Library, Result};
use onebuf::{Buffer, Device};
use onebuf_bench::{RawQueue, Side, TOUCH};
use std::ffi::c_void;

pub struct WithOnebuf {
    device: Device,
    side: Side,
    buffer: Buffer<u32>,
}

impl WithOnebuf {
    pub fn new(device: &Device) -> Result<Self> {
        let buffer = device.hub().buffer(LEN).shared_with([device]).build()?;
        Ok(Self { device: device.clone(), side: Side::new(device)?, buffer })
    }

    /// The raw `cl_device_id`, for the other libraries.
    pub fn device_id(&self) -> Result<*mut c_void> {
        // SAFETY: the hub loaded OpenCL by its default name.
        Ok(unsafe { RawQueue::new(&self.side.queue)? }.device())
    }
}

impl Library for WithOnebuf {
    fn name(&self) -> &'static str {
        "onebuf"
    }

    fn launch(&self) -> Result<()> {
        Ok(self.side.touch(&self.buffer)?)
    }

    fn finish(&self) -> Result<()> {
        Ok(self.side.queue.finish()?)
    }

    fn create_buffer(&self) -> Result<()> {
        let hub = self.device.hub();
        let buffer = hub.buffer::<u32>(LEN).shared_with([&self.device]).build()?;
        Ok(buffer.fence().map_or(Ok(()), |fence| fence.wait(hub.timeout()))?)
    }

    fn reuse_program(&self) -> Result<()> {
        Ok(Side::build(&self.side.queue, TOUCH).map(drop)?)
    }

    fn sums(&self) -> Result<[u32; 2]> {
        let mut first = [0];
        self.buffer.read_range(0..1, &mut first)?;
        Ok([first[0], self.side.added()])
    }
}
