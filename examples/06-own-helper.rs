//! 6. A program that proves its own routes.
//!
//! `cargo run -p onebuf-examples --example 06-own-helper`
//!
//! Drivers crash and hang in ways that nobody can catch, so every experiment runs in a process of its
//! own. `onebuf doctor` does that for the whole machine; a program that cannot rely on it being
//! installed can be its own helper.

use onebuf::{CopyPolicy, Device, RouteKind, doctor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First thing, before anything loads a driver: when this process was started as a helper, this
    // makes the experiment and does not return.
    doctor::helper_main(onebuf::builder());

    let hub = onebuf::discover()?;
    let host = hub.host();
    let mut devices: Vec<Device> = hub.select("opencl");
    devices.dedup_by_key(|device| device.info().platform.clone());
    devices.truncate(2);
    if devices.is_empty() {
        println!("no OpenCL here: the host needs no proof");
    }

    // Only what we need: do these devices use the host's pages in place? Verdicts are remembered with
    // everything they depend on, so the next run makes no experiment until a driver changes.
    let wanted = |route: &onebuf::topology::Route| {
        route.from == host.index()
            && route.kind == RouteKind::HostPointer
            && devices.iter().any(|device| device.index() == route.to)
    };
    let report = doctor::Doctor::new(std::env::current_exe()?)?.run_where(
        &hub,
        wanted,
        &mut |progress| println!("{} of {} {}", progress.done, progress.total, progress.route),
    )?;
    for route in &report.routes {
        let (to, verdict) = (&report.devices[route.to.get()], &route.verdict);
        println!(
            "host -> {to}: {:?}, zero-copy {:?}, {}",
            verdict.state, verdict.zero_copy, verdict.why
        );
    }

    // A hub never changes; a new one knows what was found. Devices that see the same pages see what
    // the other wrote, and `Forbid` has nothing against it.
    let hub = onebuf::discover()?;
    let devices: Vec<Device> =
        devices.iter().map(|device| hub.device(device.id())).collect::<Result<_, _>>()?;
    let builder = hub.buffer::<f32>(1 << 22).shared_with(&devices).copies(CopyPolicy::Forbid);
    match builder.plan() {
        Ok(plan) => println!("planned without a copy:\n{}", plan.explain(hub.topology())),
        Err(error) => println!("not without a copy: {error}"),
    }
    Ok(())
}
