//! Runs the conformance suite on the toy alone, on the host alone, and on both ordered pairs.

use onebuf::HubBuilder;
use onebuf_conformance::{Options, note, run};
use onebuf_toy::ToyBackend;

/// A hub with the host and the toy, without verdicts.
fn hub() -> HubBuilder {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    // SAFETY: the backend keeps to the contract of `onebuf_hal::Backend`.
    unsafe { builder.backend(Box::new(ToyBackend)) }
}

#[test]
fn the_suite_passes_alone_and_with_the_host() {
    let report = run(&hub, &Options::default());
    report.assert_passed();
    let checks = |devices: &[&str]| report.outcomes.iter().filter(|o| o.devices == devices).count();
    let places: [&[&str]; 4] = [&["host"], &["toy:0"], &["host", "toy:0"], &["toy:0", "host"]];
    let checks = places.map(checks);
    assert!(checks.iter().all(|checks| *checks > 10), "{checks:?} checks on {places:?}");
    let (toy, host) = (report.skips_with("toy:0"), report.skips_of("host"));
    note(&format!("{checks:?} checks on {places:?}; skipped: toy {toy}, host {host}"));
    assert!(toy <= host, "the toy skips {toy}, the host {host}:\n{report}");
}
