//! Memory that leaves for another program or library, and memory that comes from there: by file descriptors.
//!
//! # Safety
//! The one unsafe function passes the caller's promise about a descriptor on to the driver that imports it.

#![allow(unsafe_code)]

use super::{Buffer, Hold, core::HOME, imported::make_imported, make::Shape};
use crate::{device::Device, hub::Hub, queues::Queue};
use bytemuck::Pod;
use onebuf_hal::{
    Access, CopyPolicy, Error, Export, FdKind, FdRange, Result, descriptor, locks::Arc,
};
use std::{
    marker::PhantomData,
    os::fd::{AsFd, OwnedFd},
};

/// A buffer's memory as another program imports it. The descriptor keeps the memory, whatever becomes of the
/// buffer.
#[derive(Debug)]
pub struct Exported {
    /// What to pass on.
    pub fd: OwnedFd,
    /// What sort of descriptor it is.
    pub kind: FdKind,
    /// Where in the allocation the buffer begins, in bytes.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// How large the allocation is: most APIs import it whole.
    pub allocation_bytes: usize,
}

impl<T: Pod> Buffer<T> {
    /// A descriptor of the buffer's memory, for another API, library or process.
    ///
    /// The newest contents are in it when this returns, and nothing of ours is at work on it. What others do with it
    /// afterwards they have to order themselves: hold no view of the buffer while they use it.
    ///
    /// Others can write the memory from now on, for good, as that of a buffer that is offered to a peer (`onebuf::peer`): `map` and
    /// native kernels, which would give slices, are refused, and `read`, `write` and `fill` copy. It never returns to a pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the memory cannot be exported so: build the buffer with
    /// [`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable) on a device whose features name the descriptor. (Where ROCr
    /// exports, any memory of HIP's will do, and SVM that HIP uses in place; then the descriptor is of the whole
    /// block that the runtime has put it in, and shows what lies beside it.)
    /// [`Error::Busy`] while a view is held; [`Error::Timeout`].
    pub fn export(&self, kind: FdKind) -> Result<Exported> {
        let core = &*self.core;
        if !self.part().is_whole() {
            return Err(Error::unsupported(
                "the export of a part of a buffer",
                "the whole: others would see what lies beside it",
            ));
        }
        let queue_state = core.hub.service_queue_state(core.aliases[HOME].device)?;
        let queue = Queue { hub: core.hub.clone(), queue_state };
        // As if somebody wrote it there: everybody else lets go of it.
        drop(Hold::on(self.part(), &queue, Access::ReadWrite)?);
        queue.finish()?;
        let FdRange { fd, kind, offset, bytes, allocation_bytes, .. } = core.export_fd(kind)?;
        let fd = fd.try_clone().map_err(|why| {
            Error::invalid(format!("the descriptor of the memory cannot be duplicated: {why}"))
        })?;
        core.expose()?;
        Ok(Exported { fd, kind, offset, bytes, allocation_bytes })
    }
}

impl Hub {
    /// Memory that another program exported, as a buffer on a device. The descriptor is duplicated, and stays the
    /// caller's whether this succeeds or not.
    ///
    /// Nothing is known of what the others do with it: order their work and ours by other means, and finish the queues
    /// that used it before telling them of its end. Only devices see
    /// such memory; what the host maps or reads of it is a copy.
    ///
    /// # Safety
    /// The descriptor refers to memory of `allocation_bytes` bytes that the driver of the device it is built on, or one that
    /// this driver is specified to import from, has exported, or that is a dma-buf. No process that the caller does not trust
    /// was able to write the file behind it before it is built. A driver cannot tell a forged descriptor: lavapipe believes a
    /// header of 32 bytes in the file, and a forged one maps any memory of this process. Kernels that run on the buffer stay
    /// in bounds whatever they read, since others may write it at any time.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hub = onebuf::discover()?;
    /// # let (fd, allocation) = (std::fs::File::open("/dev/null")?, 2 << 20);
    /// let cuda = hub.device("cuda:0")?;
    /// // SAFETY: CUDA exported it in a program of ours.
    /// let frame = unsafe { hub.import::<u8>(&fd, onebuf::FdKind::OpaqueFd, allocation) };
    /// let frame = frame.range(4096, 1 << 20).build(&cuda)?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn import<T: Pod>(
        &self,
        fd: impl AsFd,
        kind: FdKind,
        allocation_bytes: usize,
    ) -> ImportBuilder<T> {
        ImportBuilder {
            hub: self.clone(),
            fd: fd.as_fd().try_clone_to_owned(),
            kind,
            offset: 0,
            bytes: allocation_bytes,
            allocation_bytes,
            shape: Shape::new(align_of::<T>(), self.copy_policy()),
            devices: Vec::new(),
            element: PhantomData,
        }
    }
}

/// What memory to import, and who else shall see it. Made by [`Hub::import`].
#[must_use = "nothing is imported before `build`"]
#[derive(Debug)]
pub struct ImportBuilder<T: Pod> {
    hub: Hub,
    fd: std::io::Result<OwnedFd>,
    kind: FdKind,
    offset: usize,
    bytes: usize,
    allocation_bytes: usize,
    shape: Shape,
    /// Kept until it is built: a foreign device's device entry is another's once it is left.
    devices: Vec<Device>,
    element: PhantomData<T>,
}

impl<T: Pod> ImportBuilder<T> {
    /// Which bytes of the allocation; all of them otherwise.
    pub fn range(mut self, offset: usize, bytes: usize) -> Self {
        (self.offset, self.bytes) = (offset, bytes);
        self
    }

    /// What kernels do with it; everything otherwise.
    pub fn access(mut self, access: Access) -> Self {
        self.shape.access = access;
        self
    }

    /// Who else sees it: by the same descriptor where they import such from that chip, else by copies.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        self.devices.extend(devices.into_iter().cloned());
        self
    }

    /// What to do about implied copies; as the hub says otherwise.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = super::stricter(self.shape.policy, policy);
        self
    }

    /// Imports it on that device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device does not import such descriptors; [`Error::InvalidArgument`] for a
    /// range that does not lie inside, or is no whole number of elements, or for a descriptor that is closed, that is a
    /// socket, a pipe or the like, or a file shorter than the allocation;
    /// [`Error::Driver`] where the driver finds it to be something else; [`Error::CopyForbidden`].
    pub fn build(mut self, device: &Device) -> Result<Buffer<T>> {
        let fd = self.fd.map_err(|why| Error::invalid(format!("the descriptor: {why}")))?;
        let Self { hub, kind, offset, bytes, allocation_bytes, .. } = self;
        let range =
            FdRange { fd: Arc::new(fd), kind, offset, bytes, allocation_bytes, memory_type: None };
        range.check()?;
        descriptor::check(&range.fd, kind, allocation_bytes as u64)
            .map_err(|why| Error::invalid(format!("the descriptor: {why}")))?;
        check_elements::<T>(offset, bytes)?;
        if let Some(other) = self.devices.iter().chain([device]).find(|d| !d.hub().is(&hub)) {
            return Err(Error::invalid(format!("device {other} belongs to another hub")));
        }
        for device in self.devices.iter().chain([device]) {
            self.shape.add_device(device.index());
        }
        self.shape.allocate_on = Some(device.index());
        Ok(Buffer::new(make_imported(&hub, &self.shape, &Export::Fd(range))?))
    }
}

fn check_elements<T>(offset: usize, bytes: usize) -> Result<()> {
    let whole = size_of::<T>() > 0 && bytes.is_multiple_of(size_of::<T>());
    if whole && offset.is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    let name = std::any::type_name::<T>();
    Err(Error::invalid(format!("{bytes} bytes at offset {offset} are no whole elements of {name}")))
}
