//! 6. A program that proves its own routes.
//!
//! `cargo run -p onebuf-examples --example 06-own-helper`
//!
//! A driver can crash or hang the process, so each experiment runs in a helper process.
//! `onebuf doctor` tests the whole machine. A program that cannot rely on `onebuf` being installed can be
//! its own helper.

use onebuf::{CopyPolicy, Device, RouteKind, doctor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Call this before anything loads a driver. In a process that was started as a helper it runs the
    // experiment and does not return.
    doctor::helper_main(onebuf::builder());

    let hub = onebuf::discover()?;
    let host = hub.host();
    let mut devices: Vec<Device> = hub.select("opencl");
    devices.dedup_by_key(|device| device.info().platform.clone());
    devices.truncate(2);
    if devices.is_empty() {
        println!("no OpenCL here: the host needs no proof");
    }

    // Test only the routes needed here: do these devices use host pages in place? Verdicts are
    // stored, so later runs repeat no experiment until a driver changes.
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

    // A hub's topology never changes, so a new hub is needed to use the new verdicts. Devices on the
    // same pages need no copy, so `Forbid` accepts the plan.
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
