//! A `CudaSlice` of cudarc, used by one kernel on the stream that the program has.
//!
//! # Safety
//! Both sides use the same memory and stream, one after the other: each waits for its kernel.

#![allow(unsafe_code)]

use crate::{BYTES, LEN, Neighbour, Opened, Result, Stop};
use cudarc::driver::{CudaContext, CudaSlice, DevicePtrMut};
use onebuf::Hub;
use onebuf_bench::{RawCuda, Side, TOUCH};
use onebuf_cudarc::{CudarcHubExt, CudarcStream};
use std::cell::{RefCell, RefMut};

struct WithCudarc {
    /// Over the memory of `raw`: leaked at the end, not freed. `Some` until then.
    slice: RefCell<Option<CudaSlice<u32>>>,
    side: Side,
    raw: RawCuda,
    stream: CudarcStream,
}

pub fn open(hub: &Hub) -> Opened {
    // cudarc panics without the driver, so onebuf is asked first.
    hub.device("cuda:0").map_err(|why| Stop::Absent(why.to_string()))?;
    let stream = hub.cudarc_stream(&CudaContext::new(0)?.new_stream()?)?;
    let side = Side::build(stream.queue(), TOUCH)?;
    // SAFETY: the hub loaded CUDA by its default name.
    let raw = unsafe { RawCuda::with_memory(stream.queue(), BYTES)? };
    let at = raw.pointer().addr() as u64;
    // SAFETY: live memory of this device, with as many words. The slice never frees it.
    let slice = unsafe { stream.cudarc().upgrade_device_ptr::<u32>(at, LEN) };
    Ok(Box::new(WithCudarc { slice: RefCell::new(Some(slice)), side, raw, stream }))
}

impl WithCudarc {
    fn slice(&self) -> RefMut<'_, CudaSlice<u32>> {
        RefMut::map(self.slice.borrow_mut(), |slice| {
            slice.as_mut().unwrap_or_else(|| unreachable!("only `drop` takes it"))
        })
    }

    fn wait(&self) -> Result<()> {
        Ok(self.stream.cudarc().synchronize()?)
    }
}

impl Neighbour for WithCudarc {
    fn wrap(&self) -> Result<()> {
        self.stream.wrap(&mut *self.slice())?.run(|shared| self.side.touch(shared))?;
        self.wait()
    }

    fn wrap_unused(&self) -> Result<()> {
        Ok(self.stream.wrap(&mut *self.slice())?.run(|_| Ok(()))?)
    }

    fn raw(&self) -> Result<()> {
        let mut slice = self.slice();
        let (_, end) = slice.device_ptr_mut(self.stream.cudarc());
        self.raw.query()?;
        self.raw.touch()?;
        drop(end);
        self.wait()
    }

    fn raw_unused(&self) -> Result<()> {
        let mut slice = self.slice();
        let (_, end) = slice.device_ptr_mut(self.stream.cudarc());
        self.raw.query()?;
        drop(end);
        Ok(())
    }

    fn words(&self) -> Result<[u32; 2]> {
        let mut first = [0];
        let mut slice = self.slice();
        self.stream.wrap(&mut *slice)?.run(|shared| shared.read_range(0..1, &mut first))?;
        Ok([first[0], self.side.added().wrapping_add(self.raw.added())])
    }
}

impl Drop for WithCudarc {
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            slice.leak();
        }
    }
}
