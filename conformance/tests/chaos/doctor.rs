//! A helper of the doctor is stopped: that says nothing about the route, and the helper is gone afterwards.

use crate::Chaos;
use onebuf::{
    RouteKind,
    doctor::Doctor,
    topology::{Route, VerdictState},
};
use onebuf_conformance::helper;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

pub fn has_a_stopped_helper(chaos: &mut Chaos<'_>) {
    let rights = fs::Permissions::from_mode(0o700);
    let cache = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
    let hub = &chaos.machine.hub;
    let doctor = Doctor::new(helper("doctor-helper")).unwrap().cache(cache.path()).fresh(true);
    // A helper that is not stopped tells of its progress more often than this, with buffers that are not large: a GPU's driver that other
    // processes use, too, took more than 0.4 s to build the kernels.
    let doctor = doctor.silence(Duration::from_secs(2)).reach(64 << 20);
    let fake = |route: &Route| hub.topology().node(route.to).info.api.0 == "fake";
    let host = hub.host().index();
    let candidates: Vec<Route> = hub
        .topology()
        .routes()
        .iter()
        .filter(|route| route.from == host && route.kind == RouteKind::HostPointer && !fake(route))
        .cloned()
        .collect();
    let chosen = &candidates[chaos.random.below(candidates.len())];
    let wanted =
        |route: &Route| (route.from, route.to, route.kind) == (chosen.from, chosen.to, chosen.kind);
    let ended = AtomicBool::new(false);
    let (report, stopped) = thread::scope(|threads| {
        let stopper = threads.spawn(|| stop_a_helper(&ended));
        let report = doctor.run_where(hub, wanted, &mut |_| ());
        ended.store(true, Ordering::Relaxed);
        (report.unwrap(), stopper.join().unwrap())
    });
    for route in &report.routes {
        assert_ne!(route.verdict.state, VerdictState::Refuted, "{route:?}");
    }
    // The helper may have ended before it could be stopped.
    if let Some(pid) = stopped {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the helper {pid} is left");
        chaos.figures.stopped_helpers += 1;
    }
}

/// Stops the first helper that this process starts. `None` if none was seen before the end.
fn stop_a_helper(ended: &AtomicBool) -> Option<i32> {
    while !ended.load(Ordering::Relaxed) {
        if let Some(pid) = helpers().first() {
            // SAFETY: a signal to a child of ours, which the doctor has not waited for: it could still be a process that ends now,
            // but not another one, because its number is free only after that wait.
            let sent = unsafe { libc::kill(*pid, libc::SIGSTOP) };
            return (sent == 0).then_some(*pid);
        }
        thread::sleep(Duration::from_micros(500));
    }
    None
}

/// The running helpers of this process.
fn helpers() -> Vec<i32> {
    let own = std::process::id();
    let of_ours = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state parent …`: names are cut at 15 characters.
        let (head, rest) = stat.split_once(") ").unwrap_or_default();
        head.ends_with("(doctor-helper") && rest.split(' ').nth(1) == Some(&own.to_string())
    };
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(of_ours).collect()
}
