//! Turns: wgpu's submissions between two other users of a buffer.

use crate::Gpu;
use bytemuck::Pod;
use onebuf::{Buffer, ReadView, Result, SyncMethod, WriteView};
use std::{fmt, marker::PhantomData};

/// wgpu's turn on a buffer. What the program submits meanwhile is ordered after the buffer's earlier users, and before its later
/// ones.
///
/// It is a guard like a [`ReadView`] or [`WriteView`]: other devices may read under a turn that reads, and no other device may use the buffer
/// under one that writes.
#[must_use = "the turn ends when it is dropped"]
pub struct Turn<'b, T: Pod> {
    view: View<'b, T>,
    /// Its queue submits by wgpu's.
    gpu: PhantomData<&'b Gpu>,
}

enum View<'b, T: Pod> {
    Read(ReadView<'b, T>),
    Write(WriteView<'b, T>),
}

impl<'b, T: Pod> Turn<'b, T> {
    pub(crate) fn take(gpu: &'b Gpu, buffer: &'b Buffer<T>, writes: bool) -> Result<Self> {
        let queue = gpu.native_queue();
        let view = match writes {
            true => View::Write(buffer.write_on(queue)?),
            false => View::Read(buffer.read_on(queue)?),
        };
        Ok(Self { view, gpu: PhantomData })
    }

    /// How wgpu's queue was ordered after the earlier users: [`SyncMethod::HostWait`] if this thread had to wait for them.
    pub fn sync_method(&self) -> SyncMethod {
        match &self.view {
            View::Read(view) => view.sync_method(),
            View::Write(view) => view.sync_method(),
        }
    }
}

impl<T: Pod> fmt::Debug for Turn<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("sync", &self.sync_method()).finish_non_exhaustive()
    }
}
