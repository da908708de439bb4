//! What the driver says about an object before onebuf gets its handle: its context, and the platforms of that.
//!
//! opencl3's own accessors panic if a driver answers with another type; the queries here compare sizes.

use onebuf::{Error, Hub, Result, prelude::*};
use opencl3::{
    command_queue::{CL_QUEUE_CONTEXT, get_command_queue_data},
    context::context::{CL_CONTEXT_DEVICES, get_context_data},
    device::{CL_DEVICE_PLATFORM, get_device_data},
    event::{CL_EVENT_CONTEXT, get_event_data},
    memory::{CL_MEM_CONTEXT, get_mem_object_data},
};
use std::ffi::c_void;

/// The kinds of objects that belong to a context.
#[derive(Clone, Copy)]
pub(crate) enum Object {
    Context(*mut c_void),
    Queue(*mut c_void),
    Buffer(*mut c_void),
    Event(*mut c_void),
}

impl Object {
    /// Checks that the object belongs to drivers that the hub has loaded. Otherwise its handle means nothing to the hub.
    pub fn check(self, hub: &Hub) -> Result<()> {
        let (raw, what) = match self {
            Self::Context(raw) => (raw, "cl_context"),
            Self::Queue(raw) => (raw, "cl_command_queue"),
            Self::Buffer(raw) => (raw, "cl_mem"),
            Self::Event(raw) => (raw, "cl_event"),
        };
        if raw.is_null() {
            return Err(Error::invalid(format!("a {what}: null")));
        }
        let context = match self {
            Self::Context(raw) => raw,
            Self::Queue(raw) => {
                one("clGetCommandQueueInfo", get_command_queue_data(raw, CL_QUEUE_CONTEXT))?
            }
            Self::Buffer(raw) => {
                one("clGetMemObjectInfo", get_mem_object_data(raw, CL_MEM_CONTEXT))?
            }
            Self::Event(raw) => one("clGetEventInfo", get_event_data(raw, CL_EVENT_CONTEXT))?,
        };
        let devices = handles("clGetContextInfo", get_context_data(context, CL_CONTEXT_DEVICES))?;
        for device in devices {
            let platform = one("clGetDeviceInfo", get_device_data(device, CL_DEVICE_PLATFORM))?;
            if hub.knows_cl_platform(platform)? {
                return Ok(());
            }
        }
        Err(Error::ForeignContext {
            have: format!("a {what} of an OpenCL platform that this hub has not found"),
            want: "one of the OpenCL library that the hub has loaded".to_owned(),
        })
    }
}

type Answer = std::result::Result<Vec<u8>, i32>;

/// The handles in an answer.
fn handles(call: &'static str, answer: Answer) -> Result<Vec<*mut c_void>> {
    let bytes = answer.map_err(|code| refused(call, code))?;
    let handle = |bytes: &[u8]| {
        bytes.try_into().map(usize::from_ne_bytes).map(|handle| handle as *mut c_void)
    };
    let whole = bytes.chunks(size_of::<usize>()).map(handle).collect::<std::result::Result<_, _>>();
    whole.map_err(|_| Error::invalid(format!("{call} returned {} bytes of handles", bytes.len())))
}

fn one(call: &'static str, answer: Answer) -> Result<*mut c_void> {
    let all = handles(call, answer)?;
    all.first().copied().ok_or_else(|| Error::invalid(format!("{call} returned no handle")))
}

pub(crate) fn refused(call: &'static str, code: i32) -> Error {
    let name = opencl3::error_codes::error_text(code).to_owned();
    Error::Driver { api: "opencl", call, code, name }
}
