//! Objects of a context that the application created with `cuCtxCreate`, beside the primary context.
//!
//! # Safety
//! That of `application.rs`; the created context lives until its objects are gone.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason, above, for all raw calls")]

use super::{
    application::{App, Kind, everywhere},
    foreign::{add, adder, pointer, wrap},
    *,
};
use onebuf::prelude::*;
use onebuf_sys::cuda_like::{CuContext, DevicePtr, consts};

type Create = unsafe extern "C" fn(*mut CuContext, u32, i32) -> i32;
type Destroy = unsafe extern "C" fn(CuContext) -> i32;

/// A context beside the primary one.
struct Created {
    context: CuContext,
    destroy: Destroy,
}

impl Created {
    /// Creates a context on the application's device.
    fn new(app: &App, library: &str) -> Created {
        let library = std::ffi::CString::new(library).unwrap();
        // SAFETY: the driver is loaded already; the prototypes are those of cuda.h.
        unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
            let [create, destroy] = [c"cuCtxCreate_v2", c"cuCtxDestroy_v2"]
                .map(|name| libc::dlsym(library, name.as_ptr()));
            assert!(!create.is_null() && !destroy.is_null());
            let create = std::mem::transmute::<*mut c_void, Create>(create);
            let destroy = std::mem::transmute::<*mut c_void, Destroy>(destroy);
            let mut context = CuContext::NULL;
            assert_eq!(create(&mut context, 0, app.device), 0);
            // It is current now; `App::call_in` makes it so when it is needed.
            app.table.pop_current(&mut CuContext::NULL.clone()).unwrap();
            Created { context, destroy }
        }
    }
}

/// Runs a test with such a context: of the stub, and of the machine's first CUDA device if there is one.
fn created(test: impl Fn(&Hub, &Device, &App, &Created)) {
    everywhere(|hub, device, app| {
        if device.info().api.0 != "cuda" {
            return;
        }
        let library = match device.info().name.contains("stub") {
            true => cuda_stub().unwrap().to_string_lossy().into_owned(),
            false => "libcuda.so.1".to_owned(),
        };
        let made = Created::new(app, &library);
        test(hub, device, app, &made);
        // SAFETY: created above, and its objects are gone.
        assert_eq!(unsafe { (made.destroy)(made.context) }, 0);
    });
}

#[test]
fn memory_and_streams_of_a_created_context_are_refused() {
    created(|hub, device, app, made| {
        let (at, stream) = app.call_in(made.context, |table| unsafe {
            Ok((table.alloc(N * 4)?, table.create_stream(consts::STREAM_NON_BLOCKING)?))
        });
        // SAFETY: both are live, and refused.
        let refused = unsafe { wrap(hub, device, at.0) }.build().map(drop).unwrap_err();
        assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
        assert!(refused.to_string().contains("cuDevicePrimaryCtxRetain"), "{refused}");
        let refused = unsafe { hub.wrap_stream(device, stream.0) };
        let Err(refused @ Error::ForeignContext { .. }) = refused else { panic!("wrapped") };
        assert!(
            refused.to_string().contains("a context that the application created"),
            "{refused}"
        );
        app.call_in(made.context, |table| unsafe {
            table.destroy_stream(stream)?;
            table.free(at)
        });
    });
}

/// CUDA's streams wait for events of any context, and no call tells an event's context.
#[test]
fn events_of_a_created_context_are_fences() {
    created(|hub, device, app, made| {
        let (kernel, ours) = (adder(device), device.queue().unwrap());
        // Pinned memory belongs to no context.
        let at = app.memory(Kind::Pinned, N * 4);
        let (stream, event) = app.call_in(made.context, |table| unsafe {
            let stream = table.create_stream(consts::STREAM_NON_BLOCKING)?;
            Ok((stream, table.create_event(consts::EVENT_DISABLE_TIMING)?))
        });
        let held = app.hold_in(made.context, stream);
        app.call_in(made.context, |table| unsafe {
            table.fill_u32_async(DevicePtr(at), 8, N, stream)?;
            table.record_event(event, stream)
        });
        // SAFETY: the event lives until the fence is gone, and is not recorded again; the memory lives until `app` is dropped.
        let fence = unsafe { hub.wrap_stream_event(device, event.0) }.unwrap();
        let buffer = unsafe { wrap(hub, device, at) }.after(&fence).build().unwrap();
        add(&ours, &kernel, &buffer, 1);
        assert!(!fence.is_done().unwrap(), "the application holds the stream");
        let late = fence.wait(Duration::from_millis(20));
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        held.release();
        fence.wait_default().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [9; N]);
        drop((buffer, fence));
        app.call_in(made.context, |table| unsafe {
            table.destroy_event(event)?;
            table.destroy_stream(stream)
        });
        assert!(hub.pointer_info(device, pointer(at)).is_ok(), "the primary context is untouched");
    });
}
