//! Memory by descriptors
//!
//! Shares memory with another API, library or process by file descriptors. The caller must close each descriptor that
//! onebuf returns. A descriptor that is passed to onebuf stays the caller's, whether the call succeeds or not.

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::entry,
    fault::Fault,
    handle::Noun,
    hub::onebuf_hub,
    input::{Blank, Options, Slot, array, options, out},
    kept::Buf,
    status::onebuf_status,
    words::{self, onebuf_access, onebuf_copies},
};
use onebuf::FdKind;
use std::os::fd::{BorrowedFd, IntoRawFd};

/// The kind of a memory descriptor.
pub type onebuf_fd_kind = u32;
/// An opaque descriptor, which only drivers of the same vendor understand.
pub const ONEBUF_FD_OPAQUE: onebuf_fd_kind = 0;
/// A dma-buf, which cameras, codecs and displays understand too.
pub const ONEBUF_FD_DMA_BUF: onebuf_fd_kind = 1;

/// A buffer's memory, described for another program to import.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_exported {
    /// The descriptor. The caller must close it once; -1 if the call failed. It keeps the memory allocated even after
    /// the buffer is freed.
    pub fd: i32,
    /// The kind of descriptor.
    pub kind: onebuf_fd_kind,
    /// The buffer's offset in the allocation, in bytes.
    pub offset: usize,
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The size of the allocation: most APIs import it as a whole.
    pub allocation_bytes: usize,
}

impl Blank for onebuf_exported {
    fn blank() -> Self {
        Self { fd: -1, kind: ONEBUF_FD_OPAQUE, offset: 0, bytes: 0, allocation_bytes: 0 }
    }
}

/// Memory to import.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_import_options {
    /// `sizeof(onebuf_import_options)`.
    pub size: usize,
    /// The descriptor. It stays the caller's: onebuf duplicates it.
    pub fd: i32,
    /// The kind of descriptor.
    pub kind: onebuf_fd_kind,
    /// The size of the allocation behind it.
    pub allocation_bytes: usize,
    /// The buffer's offset in the allocation.
    pub offset: usize,
    /// The size of the buffer in bytes; zero: the rest of the allocation from `offset` on.
    pub bytes: usize,
    /// How kernels access it.
    pub access: onebuf_access,
    /// What to do about implied copies. The stricter of this and the hub's policy applies.
    pub copies: onebuf_copies,
    /// Other devices that access it: by the same descriptor if they can import it, otherwise by copies.
    pub devices: *const onebuf_device,
    /// Number of devices.
    pub device_count: usize,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_import_options {}

fn kind(number: onebuf_fd_kind) -> Result<FdKind, Fault> {
    match number {
        ONEBUF_FD_OPAQUE => Ok(FdKind::OpaqueFd),
        ONEBUF_FD_DMA_BUF => Ok(FdKind::DmaBuf),
        _ => Err(Fault::invalid(format!("fd_kind {number}: choose one of 0 to 1"))),
    }
}

/// Returns a descriptor of the buffer's memory. The memory then holds the newest contents, and no work of onebuf uses
/// it. Order later use by others yourself. Others can write the memory from then on, so mappings and native kernels on
/// the buffer fail with ONEBUF_UNSUPPORTED, as for an offered buffer. ONEBUF_UNSUPPORTED unless the buffer was created
/// with ONEBUF_MEMORY_KIND_EXPORTABLE on a device that exports this kind of descriptor, and for a region; ONEBUF_BUSY
/// while a view is held.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_export(
    buffer: onebuf_buffer,
    kind: onebuf_fd_kind,
    exported: Slot<'_, onebuf_exported>,
) -> onebuf_status {
    entry(|| {
        let place = out(exported, "exported")?;
        let sort = self::kind(kind)?;
        let buffer = buffer.get()?;
        let Buf::Whole(buffer) = &buffer.buf else {
            return Err(Fault::from(onebuf::Error::unsupported(
                "the export of a part of a buffer",
                "the whole buffer: the importer would see the neighbouring bytes",
            )));
        };
        let found = buffer.export(sort)?;
        let onebuf::Exported { fd, offset, bytes, allocation_bytes, .. } = found;
        *place = onebuf_exported { fd: fd.into_raw_fd(), kind, offset, bytes, allocation_bytes };
        Ok(())
    })
}

/// Imports memory that another program exported as a buffer on a device. Order that program's work and onebuf's by
/// other means.
///
/// The caller guarantees that the descriptor refers to `allocation_bytes` bytes of memory exported by the device's own
/// driver or by one that the driver is specified to import from, or to a dma-buf, and that no untrusted process could
/// have written the file behind it before. Drivers cannot detect a forged descriptor: lavapipe trusts a header in the
/// file, and a forged header gives kernels access to any memory of the process. Kernels must stay in bounds whatever
/// values they read, because others may write the memory at any time.
///
/// ONEBUF_UNSUPPORTED if the device does not import such descriptors; ONEBUF_INVALID_ARGUMENT for a descriptor that is
/// not open, is a socket or pipe, or is a file shorter than the allocation, and for a range outside of the allocation;
/// ONEBUF_DRIVER if the driver rejects it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_import(
    hub: onebuf_hub,
    device: onebuf_device,
    options: *const onebuf_import_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        // SAFETY: guaranteed by the caller, for both.
        let (given, others) = unsafe {
            let given = self::options(options)?;
            (given, array(given.devices, given.device_count, "devices")?)
        };
        if given.fd < 0 {
            return Err(Fault::invalid(format!("{} is not a descriptor", given.fd)));
        }
        let (hub, device) = (hub.get()?, device.get()?);
        let others = others.iter().map(|device| device.get()).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: not -1. It is duplicated at once; duplicating a closed descriptor is an error.
        let fd = unsafe { BorrowedFd::borrow_raw(given.fd) };
        let rest = given.allocation_bytes.saturating_sub(given.offset);
        let bytes = if given.bytes == 0 { rest } else { given.bytes };
        let kind = kind(given.kind)?;
        // SAFETY: guaranteed by the caller.
        let import = unsafe { hub.hub.import::<u8>(fd, kind, given.allocation_bytes) };
        let import = import.range(given.offset, bytes).access(words::access(given.access)?);
        let import = import.copies(words::copies(given.copies)?);
        let import = import.shared_with(others.iter().map(|device| &**device));
        *buffer = onebuf_buffer::put(import.build(&device)?.into())?;
        Ok(())
    })
}
