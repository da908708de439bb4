//! A `Buffer` of opencl3, used by one kernel.
//!
//! # Safety
//! Both sides use one `cl_mem`, one after the other: each waits for its kernel.

#![allow(unsafe_code)]

use crate::{Neighbour, Opened, Result, Stop};
use onebuf::{Fence, ForeignContext, Hub, prelude::*};
use onebuf_bench::{RawWrap, Side, platforms, too_few_platforms};
use onebuf_opencl3::OpenCl3HubExt;
use opencl3::memory::{Buffer, retain_mem_object};
use std::cell::RefCell;

struct WithOpencl3 {
    buffer: RefCell<Buffer<u32>>,
    /// Where the program's work on the buffer ends.
    end: Fence,
    raw: RawWrap,
    side: Side,
    /// Keeps its context.
    _context: ForeignContext,
    hub: Hub,
}

pub fn open(hub: &Hub) -> Opened {
    let Some(device) = platforms(hub).into_iter().next() else {
        return Err(Stop::Absent(too_few_platforms(hub, 1)));
    };
    let context = hub.second_context(&device)?;
    let side = Side::new(&context.device())?;
    // SAFETY: the hub loaded OpenCL by its default name, and `context` is the queue's.
    let raw = unsafe { RawWrap::new(&side.queue, context.raw())? };
    // SAFETY: a live `cl_mem`; opencl3 releases the reference.
    unsafe { retain_mem_object(raw.mem()) }.map_err(|code| format!("clRetainMemObject: {code}"))?;
    let buffer = RefCell::new(Buffer::new(raw.mem()));
    let end = side.queue.fence();
    end.wait(hub.timeout())?;
    let hub = hub.clone();
    Ok(Box::new(WithOpencl3 { buffer, end, raw, side, _context: context, hub }))
}

impl Neighbour for WithOpencl3 {
    fn wrap(&self) -> Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        let wrapped = self.hub.opencl3_buffer(&mut buffer, &self.end)?.build()?;
        Ok(self.side.touch(&wrapped)?)
    }

    fn wrap_unused(&self) -> Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        Ok(self.hub.opencl3_buffer(&mut buffer, &self.end)?.build().map(drop)?)
    }

    fn raw(&self) -> Result<()> {
        Ok(self.raw.used()?)
    }

    fn raw_unused(&self) -> Result<()> {
        Ok(self.raw.unused()?)
    }

    fn words(&self) -> Result<[u32; 2]> {
        let mut buffer = self.buffer.borrow_mut();
        let wrapped = self.hub.opencl3_buffer(&mut buffer, &self.end)?.build()?;
        let mut first = [0];
        wrapped.read_range(0..1, &mut first)?;
        Ok([first[0], self.side.added().wrapping_add(self.raw.added())])
    }
}
