//! Live view
//!
//! Lets other processes of the same user watch a hub while it works: `onebuf top` shows its buffers, copies and pipelines.

use crate::{
    entry::{entry, free},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Slot, out, text},
    pipeline::onebuf_pipeline,
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{live::Published, prelude::*};
use std::{ffi::c_char, os::unix::ffi::OsStrExt};

/// A hub that others can watch. Free it with onebuf_published_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_published {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_published, Published, 24);

/// Publishes a hub under a name, until the result is freed. Buffers created earlier are not listed. ONEBUF_BUSY if another
/// program uses the name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_publish(
    hub: onebuf_hub,
    name: *const c_char,
    published: Slot<'_, onebuf_published>,
) -> onebuf_status {
    entry(|| {
        let published = out(published, "published")?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name, "name")? };
        *published = onebuf_published::put(hub.get()?.hub.publish(name)?)?;
        Ok(())
    })
}

/// The path of the socket.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_published_path(
    published: onebuf_published,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(published.get()?.path().as_os_str().as_bytes().to_vec())))
}

/// Also publishes a pipeline. A pipeline of the same name is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_published_pipeline(
    published: onebuf_published,
    name: *const c_char,
    pipeline: onebuf_pipeline,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name, "name")? };
        published.get()?.pipeline(name, pipeline.get()?.handle.clone());
        Ok(())
    })
}

/// Ends the publication.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_published_free(published: onebuf_published) -> onebuf_status {
    free(published)
}
