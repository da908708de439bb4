//! The ceiling of transfers: raw copies between the host and a chip, from pinned and from ordinary memory.
//!
//! # Safety
//! As for the other baselines: handles belong to onebuf's queue, which is kept alive, or are created here. Ordinary memory is only
//! passed to calls that are over before it is used again.

use super::{RawQueue, cuda, driver};
use onebuf::{Device, Error, Hub, Queue, Result, hal::DeviceKind};
use onebuf_sys::{
    CuStatus, Flavor, Refused,
    cuda_like::{CuContext, CuStream, CudaLike, DevicePtr, HostPtr},
    opencl::{ClMem, consts},
};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the device.
    Up,
    /// From the device to the host.
    Down,
}

/// Raw transfers of one size.
pub struct RawBus {
    bytes: usize,
    way: BusSide,
}

enum BusSide {
    Cuda(CudaBus),
    OpenCl(ClBus),
    /// The device's memory is the host's: one copy by one thread.
    Host([Vec<u8>; 2]),
}

impl RawBus {
    /// The bus of a device: by its own API if that is CUDA, HIP or OpenCL, otherwise by CUDA or HIP on the same chip. A device that
    /// runs on the CPU, by another API than OpenCL, is compared with a copy in host memory.
    ///
    /// # Safety
    /// The hub loaded the default libraries.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no API has pinned copies there; the driver's errors.
    pub unsafe fn of(hub: &Hub, device: &Device, bytes: usize) -> Result<Self> {
        let api = device.info().api.0;
        let is_cuda = |device: &Device| ["cuda", "hip"].contains(&device.info().api.0);
        let same = |other: &Device| other.info().physical.same_chip(&device.info().physical);
        let beside = hub.devices().into_iter().find(|other| is_cuda(other) && same(other));
        // SAFETY: guaranteed by the caller.
        let way = unsafe {
            match beside {
                _ if is_cuda(device) => BusSide::Cuda(CudaBus::new(&device.queue()?, bytes)?),
                _ if api == "opencl" => BusSide::OpenCl(ClBus::new(&device.queue()?, bytes)?),
                Some(beside) => BusSide::Cuda(CudaBus::new(&beside.queue()?, bytes)?),
                // Two vectors that are not shared zero pages.
                None if device.info().kind == DeviceKind::Cpu => {
                    BusSide::Host([vec![1; bytes], vec![2; bytes]])
                }
                None => {
                    let needs = "CUDA, HIP or OpenCL on the same chip";
                    return Err(Error::unsupported("raw pinned copies", needs));
                }
            }
        };
        Ok(Self { bytes, way })
    }

    /// One copy of pinned memory.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn pinned(&mut self, direction: Direction) -> Result<()> {
        match &mut self.way {
            BusSide::Cuda(bus) => bus.copy(direction, bus.pinned.0, self.bytes)?,
            BusSide::OpenCl(bus) => bus.copy(direction, bus.pinned, self.bytes)?,
            BusSide::Host([from, to]) => to.copy_from_slice(std::hint::black_box(from)),
        }
        Ok(())
    }

    /// One copy of ordinary memory, as the driver makes it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slice of another length; the driver's errors.
    pub fn ordinary(&mut self, direction: Direction, host: &mut [u8]) -> Result<()> {
        if host.len() != self.bytes {
            return Err(Error::invalid("a slice of another length than the buffer"));
        }
        let at = host.as_mut_ptr().cast();
        match &mut self.way {
            BusSide::Cuda(bus) => bus.copy(direction, at, self.bytes)?,
            BusSide::OpenCl(bus) => bus.copy(direction, at, self.bytes)?,
            BusSide::Host([other, _]) if direction == Direction::Up => other.copy_from_slice(host),
            BusSide::Host([other, _]) => host.copy_from_slice(other),
        }
        Ok(())
    }
}

struct CudaBus {
    cu: CudaLike,
    flavor: Flavor,
    device: i32,
    stream: CuStream,
    pinned: HostPtr,
    memory: DevicePtr,
    _owner: Queue,
}

impl CudaBus {
    /// # Safety
    /// The queue's hub loaded the default library.
    unsafe fn new(owner: &Queue, bytes: usize) -> Result<Self> {
        let (device, id) = (owner.device(), owner.device().id().to_owned());
        let flavor = if device.info().api.0 == "hip" { Flavor::Hip } else { Flavor::Cuda };
        let cu = CudaLike::load(flavor, None, None).map_err(|missing| Error::Unavailable {
            what: "CUDA".into(),
            tried: missing.tried,
            reason: missing.reason,
        })?;
        let ordinal = id.split_once(':').and_then(|(_, number)| number.parse().ok());
        let ordinal = ordinal.ok_or_else(|| Error::unsupported("raw CUDA", "a CUDA queue"))?;
        let refused = |refused| cuda::driver(&cu, refused);
        // SAFETY: the driver is initialised, because onebuf found the device; the context is pushed here and popped in `drop`.
        let (device, pinned, memory) = unsafe {
            let device = cu.device(ordinal).map_err(refused)?;
            if flavor == Flavor::Cuda {
                let context: CuContext = cu.retain_primary(device).map_err(refused)?;
                cu.push_current(context).map_err(refused)?;
            }
            let pinned = cu.host_alloc(bytes, 0).map_err(refused)?;
            pinned.0.cast::<u8>().write_bytes(1, bytes);
            (device, pinned, cu.alloc(bytes).map_err(refused)?)
        };
        let stream = CuStream(owner.raw() as *mut c_void);
        Ok(Self { cu, flavor, device, stream, pinned, memory, _owner: owner.clone() })
    }

    fn copy(&self, direction: Direction, host: *mut c_void, bytes: usize) -> Result<()> {
        let Self { cu, stream, memory, .. } = self;
        // SAFETY: `host` and the memory have this many bytes; the copy is over when this returns.
        let copied = unsafe {
            match direction {
                Direction::Up => cu.write_async(*memory, host, bytes, *stream),
                Direction::Down => cu.read_async(host, *memory, bytes, *stream),
            }
        };
        copied.and_then(|()| self.drain()).map_err(|refused| cuda::driver(cu, refused))
    }

    fn drain(&self) -> Result<(), Refused> {
        loop {
            // SAFETY: the stream is live.
            match unsafe { self.cu.stream_query(self.stream) } {
                Err(refused) if refused.status == CuStatus::NOT_READY => std::hint::spin_loop(),
                done => return done,
            }
        }
    }
}

impl Drop for CudaBus {
    fn drop(&mut self) {
        let mut popped = CuContext::NULL;
        // SAFETY: each was created here once, and is no longer used. A benchmark ignores refusals.
        unsafe {
            let _ = self.cu.free(self.memory);
            let _ = self.cu.host_free(self.pinned);
            if self.flavor == Flavor::Cuda {
                let _ = self.cu.pop_current(&raw mut popped);
                let _ = self.cu.release_primary(self.device);
            }
        }
    }
}

struct ClBus {
    on: RawQueue,
    mem: ClMem,
    /// Memory of the driver that stays mapped: pinned, if the device has its own memory.
    pinned: *mut c_void,
    mapped: ClMem,
}

impl ClBus {
    /// # Safety
    /// As for [`RawQueue::new`].
    unsafe fn new(owner: &Queue, bytes: usize) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let on = unsafe { RawQueue::new(owner)? };
        let mem = on.buffer(bytes)?;
        let flags = consts::CL_MEM_READ_WRITE | consts::CL_MEM_ALLOC_HOST_PTR;
        // SAFETY: these flags take no host pointer; the map blocks, and covers the whole buffer.
        let (mapped, pinned) = unsafe {
            let made = on.cl.create_buffer(on.context, flags, bytes, null_mut());
            let mapped = on.keep(made.map_err(driver("clCreateBuffer"))?, super::Made::Mem)?;
            let (flags, no) = (consts::CL_MAP_READ | consts::CL_MAP_WRITE, null_mut());
            let at = on.cl.enqueue_map_buffer(on.queue, mapped, 1, flags, 0, bytes, 0, null(), no);
            let at = at.map_err(driver("clEnqueueMapBuffer"))?;
            at.cast::<u8>().write_bytes(1, bytes);
            let at = at.as_ptr();
            (mapped, at)
        };
        Ok(Self { on, mem, pinned, mapped })
    }

    fn copy(&self, direction: Direction, host: *mut c_void, bytes: usize) -> Result<()> {
        let (RawQueue { cl, queue, .. }, mem, no) = (&self.on, self.mem, null_mut());
        // SAFETY: `host` and the memory have this many bytes; both calls block.
        unsafe {
            match direction {
                Direction::Up => {
                    let host = host.cast_const();
                    cl.enqueue_write_buffer(*queue, mem, 1, 0, bytes, host, 0, null(), no)
                        .map_err(driver("clEnqueueWriteBuffer"))
                }
                Direction::Down => cl
                    .enqueue_read_buffer(*queue, mem, 1, 0, bytes, host, 0, null(), no)
                    .map_err(driver("clEnqueueReadBuffer")),
            }
        }
    }
}

impl Drop for ClBus {
    fn drop(&mut self) {
        let RawQueue { cl, queue, .. } = &self.on;
        // SAFETY: mapped here, unmapped once; the queue is live. A benchmark ignores refusals.
        unsafe {
            let (at, no) = (self.pinned, null_mut());
            let _ = cl.enqueue_unmap_mem_object(*queue, self.mapped, at, 0, null(), no);
            let _ = cl.finish(*queue);
        }
    }
}
