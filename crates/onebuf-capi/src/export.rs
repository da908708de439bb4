//! Memory by descriptors
//!
//! A buffer's memory for another API, library or process, and theirs as a buffer: by file descriptors. Who owns a
//! descriptor is simple: what onebuf gives is the caller's, to be closed once; what onebuf is given stays the
//! caller's, whether the call succeeds or not.

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

/// What sort of descriptor memory is passed on as.
pub type onebuf_fd_kind = u32;
/// One that only drivers of the chip's own vendor understand.
pub const ONEBUF_FD_OPAQUE: onebuf_fd_kind = 0;
/// A dma-buf, which cameras, codecs and displays understand too.
pub const ONEBUF_FD_DMA_BUF: onebuf_fd_kind = 1;

/// A buffer's memory as another program imports it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_exported {
    /// The caller's, to be closed once; -1 when the call failed. It keeps the memory, whatever becomes of the
    /// buffer.
    pub fd: i32,
    /// What sort of descriptor it is.
    pub kind: onebuf_fd_kind,
    /// Where in the allocation the buffer begins, in bytes.
    pub offset: usize,
    /// How many bytes the buffer has.
    pub bytes: usize,
    /// How large the allocation is: most APIs import it whole.
    pub allocation_bytes: usize,
}

impl Blank for onebuf_exported {
    fn blank() -> Self {
        Self { fd: -1, kind: ONEBUF_FD_OPAQUE, offset: 0, bytes: 0, allocation_bytes: 0 }
    }
}

/// What memory to import.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_import_options {
    /// `sizeof(onebuf_import_options)`.
    pub size: usize,
    /// The descriptor. It stays the caller's: onebuf works with a duplicate.
    pub fd: i32,
    /// What sort of descriptor it is.
    pub kind: onebuf_fd_kind,
    /// How large the allocation behind it is.
    pub allocation_bytes: usize,
    /// Where in it the buffer begins.
    pub offset: usize,
    /// How many bytes the buffer has; zero: all from `offset` on.
    pub bytes: usize,
    /// What kernels do with it.
    pub access: onebuf_access,
    /// What to do about implied copies; of this and the hub's choice the stricter holds.
    pub copies: onebuf_copies,
    /// Who else sees it: by the same descriptor where they import such from that chip, else by copies.
    pub devices: *const onebuf_device,
    /// How many devices.
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

/// A descriptor of the buffer's memory. The newest contents are in it then, and nothing of onebuf's is at work on it;
/// what others do with it afterwards they order themselves. They can write the memory for good: from then on maps and host
/// functions as kernels are ONEBUF_UNSUPPORTED, as for a buffer that is offered. ONEBUF_UNSUPPORTED unless the buffer was made with
/// ONEBUF_STRATEGY_EXPORTABLE on a device that exports such, and for a region; ONEBUF_BUSY while a view is held.
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
                "the whole: others would see what lies beside it",
            )));
        };
        let found = buffer.export(sort)?;
        let onebuf::Exported { fd, offset, bytes, allocation_bytes, .. } = found;
        *place = onebuf_exported { fd: fd.into_raw_fd(), kind, offset, bytes, allocation_bytes };
        Ok(())
    })
}

/// Memory that another program exported, as a buffer on a device. Order their work and onebuf's by other means.
///
/// The caller promises that the descriptor refers to memory of `allocation_bytes` bytes which the device's own driver, or one
/// that it is specified to import from, exported, or to a dma-buf, and that no process which the caller does not trust was able
/// to write the file behind it before. No driver can tell a forged descriptor: lavapipe believes a header in the file, and a
/// forged one gives kernels any memory of the process. Kernels stay in bounds whatever they read, since others may write the
/// memory at any time.
///
/// ONEBUF_UNSUPPORTED where the device does not import such descriptors; ONEBUF_INVALID_ARGUMENT for one that is not
/// open, that is a socket, a pipe or the like, or a file shorter than the allocation, and for a range that does not lie inside;
/// ONEBUF_DRIVER where the driver finds it to be something else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_import(
    hub: onebuf_hub,
    device: onebuf_device,
    options: *const onebuf_import_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        // SAFETY: the caller's promise, for both.
        let (given, others) = unsafe {
            let given = self::options(options)?;
            (given, array(given.devices, given.device_count, "devices")?)
        };
        if given.fd < 0 {
            return Err(Fault::invalid(format!("the descriptor {} is none", given.fd)));
        }
        let (hub, device) = (hub.get()?, device.get()?);
        let others = others.iter().map(|device| device.get()).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: not -1. It is duplicated at once, and one that is closed is an error of that.
        let fd = unsafe { BorrowedFd::borrow_raw(given.fd) };
        let rest = given.allocation_bytes.saturating_sub(given.offset);
        let bytes = if given.bytes == 0 { rest } else { given.bytes };
        let kind = kind(given.kind)?;
        // SAFETY: the caller's promise.
        let import = unsafe { hub.hub.import::<u8>(fd, kind, given.allocation_bytes) };
        let import = import.range(given.offset, bytes).access(words::access(given.access)?);
        let import = import.copies(words::copies(given.copies)?);
        let import = import.shared_with(others.iter().map(|device| &**device));
        *buffer = onebuf_buffer::put(import.build(&device)?.into())?;
        Ok(())
    })
}
