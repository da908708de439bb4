//! Export and import of memory by file descriptors, for other programs and libraries.
//!
//! # Safety
//! The one unsafe function relies on the caller's promise about the descriptor that a driver imports.

#![allow(unsafe_code)]

use super::{Buffer, Hold, alias::HOME, imported::make_imported, make::Shape};
use crate::{device::Device, hub::Hub, queues::Queue};
use bytemuck::Pod;
use onebuf_hal::{
    Access, CopyPolicy, Error, Export, FdKind, FdRange, Result, descriptor, locks::Arc,
};
use std::{
    marker::PhantomData,
    os::fd::{AsFd, OwnedFd},
};

/// A descriptor of a buffer's memory, for import by another program. It keeps the memory alive after the buffer is
/// dropped.
#[derive(Debug)]
pub struct Exported {
    /// The descriptor.
    pub fd: OwnedFd,
    /// The kind of descriptor.
    pub kind: FdKind,
    /// The offset of the buffer in the allocation, in bytes.
    pub offset: usize,
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The size of the allocation in bytes; most APIs import the whole allocation.
    pub allocation_bytes: usize,
}

impl<T: Pod> Buffer<T> {
    /// Exports the buffer's memory as a descriptor, for another API, library or process.
    ///
    /// When this returns, the memory holds the newest contents and onebuf has no work on it. Later accesses by the importer are
    /// not ordered by onebuf: hold no view of the buffer while the importer uses the memory.
    ///
    /// From now on the memory counts as writable by others, like a buffer that is offered to a peer (`onebuf::peer`): `map` and
    /// native kernels are refused because they give slices, and `read`, `write` and `fill` copy. It never returns to a pool.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the memory has no such descriptor: build the buffer with
    /// [`MemoryKind::Exportable`](onebuf_hal::MemoryKind::Exportable) on a device whose features list the kind of descriptor.
    /// (Where ROCr exports, any HIP memory works, and so does SVM that HIP uses in place. The descriptor then covers the whole
    /// block in which the runtime placed the memory, including the neighbouring data.)
    /// [`Error::Busy`] while a view is held; [`Error::Timeout`].
    pub fn export(&self, kind: FdKind) -> Result<Exported> {
        let core = &*self.core;
        if !self.part().is_whole() {
            return Err(Error::unsupported(
                "the export of a part of a buffer",
                "the whole buffer: the importer would see the neighbouring bytes",
            ));
        }
        let queue_state = core.hub.service_queue_state(core.aliases[HOME].device)?;
        let queue = Queue { hub: core.hub.clone(), queue_state };
        // Taking the home for writing makes all other devices release the buffer.
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
    /// Imports memory that another program exported, as a buffer on a device. The descriptor is duplicated; the caller keeps
    /// its own, also if the import fails.
    ///
    /// onebuf does not order work with the exporter: use other means, and finish the queues that used the memory before
    /// telling the exporter that they are done. Only devices access imported memory directly; the host maps and reads a copy.
    ///
    /// # Safety
    /// The descriptor refers to memory of `allocation_bytes` bytes that the driver of the device it is built on, or one that
    /// this driver is specified to import from, has exported, or that is a dma-buf. No process that the caller does not trust
    /// was able to write the file behind the descriptor before the buffer is built. A driver cannot detect a forged descriptor:
    /// lavapipe trusts a 32-byte header in the file, and a forged header maps any memory of this process. Kernels that run on
    /// the buffer stay in bounds whatever they read, since other programs may write it at any time.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let hub = onebuf::discover()?;
    /// # let (fd, allocation) = (std::fs::File::open("/dev/null")?, 2 << 20);
    /// let cuda = hub.device("cuda:0")?;
    /// // SAFETY: CUDA exported the memory, in a program that we trust.
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

/// The properties of an import. Created by [`Hub::import`].
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
    /// Kept until the buffer is built: the device entry of a foreign device may be reused once its last handle is dropped.
    devices: Vec<Device>,
    element: PhantomData<T>,
}

impl<T: Pod> ImportBuilder<T> {
    /// Sets the bytes of the allocation to use; all of them by default.
    pub fn range(mut self, offset: usize, bytes: usize) -> Self {
        (self.offset, self.bytes) = (offset, bytes);
        self
    }

    /// Sets how kernels access the buffer; they read and write it by default.
    pub fn access(mut self, access: Access) -> Self {
        self.shape.access = access;
        self
    }

    /// Adds devices that use the buffer. Devices of the same chip that import this kind of descriptor use the same memory; others
    /// use staged copies.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        self.devices.extend(devices.into_iter().cloned());
        self
    }

    /// Sets the copy policy; the hub's by default. The stricter of the two applies.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = super::stricter(self.shape.policy, policy);
        self
    }

    /// Imports the memory on `device`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not import this kind of descriptor; [`Error::InvalidArgument`] for a
    /// range outside the allocation or not of whole elements, and for a descriptor that is closed, that is a
    /// socket, a pipe or the like, or a file shorter than the allocation;
    /// [`Error::Driver`] if the driver rejects the descriptor; [`Error::CopyForbidden`].
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
    Err(Error::invalid(format!(
        "{bytes} bytes at offset {offset} are not a whole number of aligned elements of {name}"
    )))
}
