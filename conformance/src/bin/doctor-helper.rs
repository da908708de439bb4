//! The doctor in a separate process, so that a test can choose its driver. The program is also the
//! helper of its own experiments.
//!
//! `doctor-helper CACHE SILENCE_MS [fresh] [staged] [use] [from=ID,…] [to=ID,…] [only=API,…] [reach=BYTES]` prints one JSON object. Staged
//! routes are tested only with `staged`; `from` and `to` select routes by their devices; `only` loads the drivers of these APIs
//! alone; `use` then shares a buffer with the resulting verdicts.

use onebuf::{
    CopyPolicy, Result, RouteKind,
    doctor::{Doctor, helper_main},
    topology::{DeviceIx, Route},
};
use onebuf_conformance::{Side, Step};
use serde_json::{Value, json};
use std::{path::Path, process::exit, time::Duration};

fn main() {
    helper_main(onebuf::builder());
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [cache, silence_ms, words @ ..] = args.as_slice() else {
        eprintln!(
            "usage: doctor-helper CACHE SILENCE_MS [fresh] [staged] [use] [from=ID,…] [to=ID,…] [only=API,…] [reach=BYTES]"
        );
        exit(2);
    };
    let silence = Duration::from_millis(silence_ms.parse().unwrap_or(10_000));
    match report(Path::new(cache), silence, words) {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("{error}");
            exit(1);
        }
    }
}

fn report(cache: &Path, silence: Duration, words: &[String]) -> Result<Value> {
    let says = |word: &str| words.iter().any(|w| w == word);
    let listed =
        |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let builder = onebuf::builder().cache(cache);
    let builder = match listed("only") {
        Some(apis) => builder.only(apis.split(',')),
        None => builder,
    };
    let hub = builder.build()?;
    let helper = std::env::current_exe().unwrap_or_default();
    let doctor = Doctor::new(helper)?.cache(cache).silence(silence).fresh(says("fresh"));
    let doctor = match listed("reach").and_then(|bytes| bytes.parse().ok()) {
        Some(bytes) => doctor.reach(bytes),
        None => doctor,
    };
    let staged = says("staged");
    let is_listed = |name: &str, device: DeviceIx| {
        let id = &hub.topology().node(device).id;
        listed(name).is_none_or(|ids| ids.split(',').any(|one| one == id))
    };
    let wanted = |route: &Route| {
        let is_chosen = is_listed("from", route.from) && is_listed("to", route.to);
        is_chosen && (staged || route.kind != RouteKind::Staged)
    };
    let report = doctor.run_where(&hub, wanted, &mut |_| ())?;
    let cached = [&report.cached.not_read, &report.cached.not_saved];
    Ok(json!({
        "not_read": cached[0].as_ref().map(ToString::to_string),
        "not_saved": cached[1].as_ref().map(ToString::to_string),
        "devices": report.devices,
        "unavailable": hub.unavailable(),
        "notes": hub.notes().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "routes": report.to_json(),
        "experiments": report.experiments,
        "use": if says("use") { share(cache)? } else { Value::Null },
    }))
}

/// Shares a host buffer with the first device, using the verdicts in the cache. Reports whether that
/// is possible without copies, and the implied bytes of one turn of both.
fn share(cache: &Path) -> Result<Value> {
    let hub = onebuf::builder().cache(cache).build()?;
    let (host, device) = (Side::open(&hub.host())?, Side::open(&hub.device("opencl:0")?)?);
    let builder = hub.buffer::<u32>(10_000).shared_with([&host.device, &device.device]);
    let builder = builder.allocate_on(&host.device);
    let forbidden = builder.clone().copies(CopyPolicy::Forbid).build().err();
    let chosen = builder.plan()?.routes.iter().map(|hop| hop.kind).max();
    // If every route copies, the fastest is chosen, which on a busy machine may be any of them.
    let buffer = builder.route(RouteKind::HostPointer).build()?;
    host.step(&buffer, Step::nth(1))?;
    device.step(&buffer, Step::nth(2))?;
    host.step(&buffer, Step::nth(3))?;
    Ok(json!({
        "forbidden": forbidden.map(|error| error.to_string()),
        "route": chosen,
        "implied_bytes": hub.ledger().implied_bytes(),
    }))
}
