//! Turns: wgpu's submissions between two other users of a buffer.

use crate::{Gpu, gl};
use bytemuck::Pod;
use onebuf::{Buffer, ReadView, Result, SyncMethod, WriteView};
use std::fmt;

/// wgpu's turn on a buffer. What the program submits meanwhile is ordered after the buffer's earlier users, and before its later
/// ones.
///
/// It is a guard like a [`ReadView`] or [`WriteView`]: other devices may read under a turn that reads, and no other device may use the buffer
/// under one that writes.
#[must_use = "the turn ends when it is dropped"]
pub struct Turn<'b, T: Pod> {
    gpu: &'b Gpu,
    /// `None` when it has ended.
    view: Option<View<'b, T>>,
}

enum View<'b, T: Pod> {
    Read(ReadView<'b, T>),
    Write(WriteView<'b, T>),
}

impl<'b, T: Pod> Turn<'b, T> {
    pub(crate) fn take(gpu: &'b Gpu, buffer: &'b Buffer<T>, writes: bool) -> Result<Self> {
        let queue = gpu.native_queue();
        let take = || match writes {
            true => buffer.write_on(queue).map(View::Write),
            false => buffer.read_on(queue).map(View::Read),
        };
        let view = match gpu.is_gl() {
            true => gl::current(gpu.wgpu_device(), take).unwrap_or_else(|| Err(gpu.unsupported())),
            false => take(),
        };
        Ok(Self { gpu, view: Some(view?) })
    }

    /// How wgpu's queue was ordered after the earlier users: [`SyncMethod::HostWait`] if this thread had to wait for them.
    pub fn sync_method(&self) -> SyncMethod {
        match &self.view {
            Some(View::Read(view)) => view.sync_method(),
            Some(View::Write(view)) => view.sync_method(),
            None => SyncMethod::SameQueue,
        }
    }
}

impl<T: Pod> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let Some(view) = self.view.take() else { return };
        if !self.gpu.is_gl() {
            return drop(view);
        }
        // The fence behind wgpu's calls is made in its context.
        let mut view = Some(view);
        let ended = gl::current(self.gpu.wgpu_device(), || {
            drop(view.take());
            Ok(())
        });
        if let Some(Err(why)) = ended {
            tracing::error!("wgpu's work has no fence: {why}");
        }
    }
}

impl<T: Pod> fmt::Debug for Turn<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("sync", &self.sync_method()).finish_non_exhaustive()
    }
}
