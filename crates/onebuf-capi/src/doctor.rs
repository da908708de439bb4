//! The doctor
//!
//! The doctor proves each route between devices by experiment, in helper processes, and stores the verdicts. Hubs
//! discovered afterwards use them for planning.

use crate::{
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, array, options, path_if_given, timeout},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::{
    Device,
    doctor::{Doctor, ExperimentProgress, GraftVerdict, helper_main},
    topology::{DeviceIx, Route},
};
use serde_json::json;
use std::ffi::{CString, c_char, c_void};

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
    /// Checks every page of buffers up to this many bytes; zero: 1 GiB.
    pub reach_bytes: u64,
    /// Not zero: repeats all experiments, also those with a stored verdict.
    pub fresh: u32,
    /// Not zero: also tests whether OpenCL programs can be grafted onto CUDA and HIP devices. The JSON then has `"grafts"`.
    pub grafts: u32,
    /// The devices between which routes are tested; NULL: all.
    pub devices: *const onebuf_device,
    /// Number of devices.
    pub device_count: usize,
    /// Called before each experiment, with the route as text and the numbers of routes done and in total; NULL: none. It
    /// must not throw.
    pub progress: Option<
        unsafe extern "C" fn(user: *mut c_void, route: *const c_char, done: usize, total: usize),
    >,
    /// The first argument of `progress`.
    pub progress_user: *mut c_void,
}
// SAFETY: plain numbers and pointers, the size first; functions may be null; handles are numbers.
unsafe impl Options for onebuf_doctor_options {}

impl onebuf_doctor_options {
    fn tell(&self, now: &ExperimentProgress) {
        let Some(progress) = self.progress.filter(|_| now.done < now.total) else { return };
        let route = CString::new(now.route.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: the caller's function; its arguments outlive the call.
        unsafe { progress(self.progress_user, route.as_ptr(), now.done, now.total) };
    }
}

/// # Safety
/// As for [`onebuf_doctor_run`].
unsafe fn doctor(given: &onebuf_doctor_options) -> Result<Doctor> {
    // SAFETY: guaranteed by the caller, for all of these.
    let (helper, folder) =
        unsafe { (path_if_given(given.helper), path_if_given(given.cache_folder)) };
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
            // SAFETY: guaranteed by the caller, also for what the options point at.
            let (given, doctor, chosen) = unsafe {
                let given = self::options(options)?;
                (given, doctor(&given)?, array(given.devices, given.device_count, "devices")?)
            };
            let chosen = chosen.iter().map(|device| Ok(device.get()?.index()));
            let chosen = chosen.collect::<Result<Vec<_>>>()?;
            let is_chosen = |device: DeviceIx| chosen.is_empty() || chosen.contains(&device);
            let mut progress = |now: &ExperimentProgress| given.tell(now);
            let wanted = |route: &Route| is_chosen(route.from) && is_chosen(route.to);
            let report = doctor.run_where(&hub.hub, wanted, &mut progress)?;
            let cached = &report.cached;
            let notes = [&cached.not_read, &cached.not_saved].into_iter().flatten();
            let notes: Vec<String> = notes.map(ToString::to_string).collect();
            let mut found = json!({
                "schema": 2, "routes": report.to_json(), "experiments": report.experiments,
                "notes": notes,
            });
            if given.grafts != 0 {
                let wanted = |a: &Device, b: &Device| is_chosen(a.index()) && is_chosen(b.index());
                let grafts = doctor.grafts(&hub.hub, wanted, &mut progress)?;
                let id = |device| hub.hub.topology().node(device).id.as_str();
                let row = |GraftVerdict { from, to, verdict }: &GraftVerdict| {
                    json!({
                        "from": id(*from), "to": id(*to), "state": verdict.state, "why": verdict.why,
                    })
                };
                found["grafts"] = grafts.found.iter().map(row).collect();
            }
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
