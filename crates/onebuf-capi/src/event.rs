//! Events
//!
//! Events of OpenCL go in as fences, and come out of fences. A user event is one that the host completes.

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

/// An event that the host completes. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_user_event {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_user_event, UserEvent, 14);

/// A `cl_event` that somebody else made, as a fence: a queue can wait for it, a buffer be told of it. Events
/// that the host completes are as good. One reference is held until the fence, and what waits for it, is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_fence_wrap(
    hub: onebuf_hub,
    cl_event: *mut c_void,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        // SAFETY: the caller's promise.
        let made = unsafe { hub.get()?.hub.wrap_event(native(cl_event, "cl_event")?)? };
        *fence = onebuf_fence::put(made)?;
        Ok(())
    })
}

/// The `cl_event`s that must complete for the fence to be reached, for code that enqueues by itself: as many
/// as `count` says then, none when it is known to have been reached. Each has a reference that is the caller's to
/// release. There is room for `capacity` of them: ONEBUF_INVALID_ARGUMENT, and none is given, where more is
/// needed. Zero, and NULL for `cl_events`, only asks how many there are: never more later. A fence of a queue
/// has one at most. ONEBUF_UNSUPPORTED for work on a device that has no such events.
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
                return Err(Fault::invalid(format!("{needed} events, and room for {capacity}")));
            }
            let all = found.into_iter().map(ClEventHandle::into_raw);
            for (at, raw) in all.collect::<onebuf::Result<Vec<_>>>()?.into_iter().enumerate() {
                // SAFETY: not null, and promised for `capacity` of them, which are no fewer.
                unsafe { cl_events.add(at).write(raw) };
            }
        }
        *count = needed;
        Ok(())
    })
}

/// A new event of the context. ONEBUF_UNSUPPORTED where the driver cannot wait for the host.
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

/// Lets what waits for it run. Again, it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_complete(event: onebuf_user_event) -> onebuf_status {
    entry(|| {
        event.get()?.complete();
        Ok(())
    })
}

/// The point that is reached when it is completed.
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

/// The `cl_event`, for the owner's commands to wait for. Valid until the event is freed; no reference is taken.
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

/// Frees a user event. One that was not completed fails, and with it what waits for it: nothing waits for ever.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_user_event_free(event: onebuf_user_event) -> onebuf_status {
    free(event)
}
