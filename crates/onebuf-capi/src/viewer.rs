//! Viewers
//!
//! Watches a program of the same user that has published its hub (onebuf_publish()), as `onebuf top` does.

use crate::{
    entry::{entry, free},
    fault::Fault,
    handle::{Noun, noun},
    input::{Slot, out, text, timeout},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{
    Error,
    live::{Viewer, names},
};
use std::{
    ffi::c_char,
    sync::{Mutex, TryLockError},
    time::Duration,
};

/// A viewer. Free it with onebuf_viewer_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_viewer {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_viewer, Mutex<Viewer>, 25);

/// The default timeout.
const PATIENCE: Duration = Duration::from_secs(10);

/// The names of published programs, one a line. Programs that have died may be among them.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_viewer_names(text: Slot<'_, onebuf_string>) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let lines = names().into_iter().map(|name| name + "\n");
            Ok(lines.collect::<String>().into_bytes())
        })
    })
}

/// Attaches to a published program, by its name or the path of its socket. The default timeout is 10 seconds. ONEBUF_UNAVAILABLE if
/// there is none; ONEBUF_PEER_REFUSED if it belongs to another user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_viewer_attach(
    name: *const c_char,
    timeout_ms: u64,
    viewer: Slot<'_, onebuf_viewer>,
) -> onebuf_status {
    entry(|| {
        let viewer = out(viewer, "viewer")?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name, "name")? };
        let found = Viewer::attach(name, timeout(timeout_ms).unwrap_or(PATIENCE))?;
        *viewer = onebuf_viewer::put(Mutex::new(found))?;
        Ok(())
    })
}

/// The next snapshot of the program as JSON: one at once after attaching, then two a second. ONEBUF_PEER_LOST if the program has
/// ended; ONEBUF_TIMEOUT if it sends nothing; ONEBUF_BUSY while another thread waits.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_viewer_next(
    viewer: onebuf_viewer,
    timeout_ms: u64,
    json: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(json, || {
            let viewer = viewer.get()?;
            let mut viewer = match viewer.try_lock() {
                Ok(viewer) => viewer,
                Err(TryLockError::Poisoned(viewer)) => viewer.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Busy { what: "another thread waits".into() }.into());
                }
            };
            let found = viewer.next(timeout(timeout_ms).unwrap_or(PATIENCE))?;
            serde_json::to_vec(&found).map_err(|why| Fault::invalid(why.to_string()))
        })
    })
}

/// Detaches.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_viewer_free(viewer: onebuf_viewer) -> onebuf_status {
    free(viewer)
}
