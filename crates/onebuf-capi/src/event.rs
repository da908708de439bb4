//! Events
//!
//! Conversion between OpenCL events and fences. A user event is an event that the host completes.

use crate::{
    entry::{entry, free},
    fault::Fault,
    fence::onebuf_fence,
    foreign::{native, onebuf_context},
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Slot, out},
    status::onebuf_status,
};
use onebuf::{ClEventHandle, UserEvent, prelude::*};
use std::ffi::c_void;

/// An event that the host completes. Free it with onebuf_user_event_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_user_event {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_user_event, UserEvent, 14);

/// Wraps a `cl_event` as a fence: queues can wait for it, and buffers can be told about it. User events are supported.
/// onebuf holds one reference until the fence, and everything that waits for it, is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_fence_wrap(
    hub: onebuf_hub,
    cl_event: *mut c_void,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        // SAFETY: guaranteed by the caller.
        let made = unsafe { hub.get()?.hub.wrap_event(native(cl_event, "cl_event")?)? };
        *fence = onebuf_fence::put(made)?;
        Ok(())
    })
}

/// The `cl_event`s that must complete before the fence is reached, for code that enqueues commands itself. `count` gets
/// their number, which is zero if the fence is known to be reached. The caller must release each event. `capacity` is
/// the size of the array; if it is too small the call fails with ONEBUF_INVALID_ARGUMENT and returns no event. A
/// capacity of zero with `cl_events` NULL only queries the number, which never grows later. A fence of a queue has at
/// most one event. ONEBUF_UNSUPPORTED for work on a device without such events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_fence_cl_events(
    fence: onebuf_fence,
    cl_events: *mut *mut c_void,
    capacity: usize,
    count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        let count = out(count, "count")?;
        if capacity > 0 && cl_events.is_null() {
            return Err(Fault::Null("cl_events"));
        }
        let found = fence.get()?.cl_events()?;
        let needed = found.len();
        if capacity > 0 {
            if needed > capacity {
                return Err(Fault::invalid(format!(
                    "{needed} events do not fit an array of {capacity}"
                )));
            }
            let all = found.into_iter().map(ClEventHandle::into_raw);
            for (at, raw) in all.collect::<onebuf::Result<Vec<_>>>()?.into_iter().enumerate() {
                // SAFETY: not null; the caller guarantees room for `capacity` events, which is enough.
                unsafe { cl_events.add(at).write(raw) };
            }
        }
        *count = needed;
        Ok(())
    })
}

/// Creates a user event in the context. ONEBUF_UNSUPPORTED if the driver cannot wait for the host.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_create(
    context: onebuf_context,
    event: Slot<'_, onebuf_user_event>,
) -> onebuf_status {
    entry(|| {
        let event = out(event, "event")?;
        *event = onebuf_user_event::put(context.get()?.context.user_event()?)?;
        Ok(())
    })
}

/// Completes the event, so that work waiting for it can run. Completing it twice has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_complete(event: onebuf_user_event) -> onebuf_status {
    entry(|| {
        event.get()?.complete();
        Ok(())
    })
}

/// A fence that is reached when the event is completed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_fence(
    event: onebuf_user_event,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        *fence = onebuf_fence::put(event.get()?.fence())?;
        Ok(())
    })
}

/// The `cl_event`, for commands that are to wait for it. Valid until the event is freed; no reference is added.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_native(
    event: onebuf_user_event,
    native: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        *out(native, "native")? = event.get()?.raw();
        Ok(())
    })
}

/// Frees a user event. If it was not completed, it fails, and so does work that waits for it; nothing waits forever.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_free(event: onebuf_user_event) -> onebuf_status {
    free(event)
}
