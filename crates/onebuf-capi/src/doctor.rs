//! The doctor
//!
//! The doctor proves each route between devices by experiment, in helper processes, and stores the verdicts. Hubs
//! discovered afterwards use them for planning.

use crate::{
    entry::entry,
    fault::Fault,
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, options, path_if_given, timeout},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::doctor::{Doctor, helper_main};
use serde_json::json;
use std::ffi::c_char;

/// Options of the doctor. Zero in every field means the default, except for `helper`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_doctor_options {
    /// `sizeof(onebuf_doctor_options)`.
    pub size: usize,
    /// The program that runs the experiments: the path of `onebuf`, or of a program that calls
    /// onebuf_doctor_helper_main() first, such as the caller itself (`/proc/self/exe`).
    pub helper: *const c_char,
    /// The folder for verdicts; NULL: the user's cache folder.
    pub cache_folder: *const c_char,
    /// Time without output after which a helper counts as hung, in milliseconds; zero: 10 seconds.
    pub silence_ms: u64,
    /// Checks every page of buffers up to this many bytes; zero: 256 MiB.
    pub reach_bytes: u64,
    /// Not zero: repeats all experiments, also those with a stored verdict.
    pub fresh: u32,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_doctor_options {}

/// # Safety
/// As for [`onebuf_doctor_run`].
unsafe fn doctor(given: *const onebuf_doctor_options) -> crate::fault::Result<Doctor> {
    // SAFETY: guaranteed by the caller, for all of these.
    let (given, helper, folder) = unsafe {
        let given = options(given)?;
        (given, path_if_given(given.helper), path_if_given(given.cache_folder))
    };
    let mut doctor = Doctor::new(helper.ok_or(Fault::Null("helper"))?)?.fresh(given.fresh != 0);
    if let Some(folder) = folder {
        doctor = doctor.cache(folder);
    }
    if let Some(limit) = timeout(given.silence_ms).filter(|_| given.silence_ms > 0) {
        doctor = doctor.silence(limit);
    }
    Ok(if given.reach_bytes > 0 { doctor.reach(given.reach_bytes) } else { doctor })
}

/// Tests every route between different devices of the hub that has no verdict yet, which takes seconds for each.
/// Returns all verdicts as JSON: `{"schema":2,"routes":[{"from","to","kind","state","zero_copy",…}],
/// "experiments":n,"notes":[…]}`. The hub itself does not change: discover a new one. A cache that cannot be read or
/// written is not an error; the notes report it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_doctor_run(
    hub: onebuf_hub,
    options: *const onebuf_doctor_options,
    json: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(json, || {
            let hub = hub.get()?;
            // SAFETY: guaranteed by the caller.
            let report = unsafe { doctor(options)? }.run(&hub.hub, &mut |_| ())?;
            let (routes, experiments) = (report.to_json(), report.experiments);
            let cached = &report.cached;
            let notes = [&cached.not_read, &cached.not_saved].into_iter().flatten();
            let notes: Vec<String> = notes.map(ToString::to_string).collect();
            let found = json!({
                "schema": 2, "routes": routes, "experiments": experiments, "notes": notes,
            });
            Ok(found.to_string().into_bytes())
        })
    })
}

/// Does nothing unless the doctor started this process as its helper. A helper runs the experiment and does not return.
/// Call this first in `main`, before anything loads a driver.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_doctor_helper_main() -> onebuf_status {
    entry(|| {
        helper_main(onebuf::builder());
        Ok(())
    })
}
