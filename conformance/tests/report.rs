//! Tests the suite itself: a failing device is named with its case, and options select what runs.

use onebuf::{
    HubBuilder, Probe,
    fake::FakeConfig,
    hal::{Api, DeviceInfo, DeviceKind},
};
use onebuf_conformance::{
    CASES, Ending, Hardware, Options, Report, Scope, measured, missing_devices, run,
};
use std::{collections::BTreeSet, fs, sync::Arc};

const CASE: &str = "pairs::readers_on_both_sides_share";

/// A hub with the host and two fake devices.
fn hub(probe: &Option<Arc<Probe>>) -> HubBuilder {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    let config = FakeConfig { probe: probe.clone(), ..FakeConfig::default() };
    builder.fake(config).fake(FakeConfig::default())
}

fn report(probe: Option<Arc<Probe>>, devices: &[&str], strict: bool) -> Report {
    let devices = devices.iter().map(|&name| name.to_owned()).collect();
    run(
        &|| hub(&probe),
        &Options { filter: vec![CASE.into()], devices, strict, ..Options::default() },
    )
}

#[test]
fn a_failure_names_the_case_and_both_devices() {
    let probe = Probe::new();
    probe.fail_always("fake_read", -7);
    let report = report(Some(probe), &[], true);
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(!failures.is_empty(), "{report}");
    for failure in &failures {
        assert!(failure.starts_with(&format!("fail: {CASE} on ")), "{failure}");
        assert!(failure.contains("fake:0") && failure.contains(" -> "), "{failure}");
        assert!(failure.contains("fake_read"), "{failure}");
    }
    // The working device has no failures, and its pairs were still tested.
    let mut others = report.outcomes.iter().filter(|one| one.devices == ["host", "fake:1"]);
    assert!(others.clone().count() > 0);
    assert!(others.all(|one| one.ending == Ending::Passed), "{report}");
    let caught = std::panic::catch_unwind(|| report.assert_passed()).unwrap_err();
    let text = caught.downcast_ref::<String>().expect("a text");
    assert!(text.contains(CASE) && text.contains("fake:0"), "{text}");
}

#[test]
fn pairs_are_those_of_the_devices_under_test() {
    let pairs = |devices| {
        let report = report(None, devices, true);
        report.assert_passed();
        let mut pairs: Vec<_> = report.outcomes.into_iter().map(|one| one.devices).collect();
        pairs.dedup();
        pairs
    };
    assert_eq!(pairs(&[]).len(), 6);
    let with_the_first = pairs(&["fake:0"]);
    assert_eq!(with_the_first.len(), 4, "{with_the_first:?}");
    assert!(with_the_first.iter().all(|pair| pair.contains(&"fake:0".to_owned())));
}

#[test]
fn a_device_that_is_not_there_is_a_skip_or_a_failure() {
    let lenient = report(None, &["host", "no such device"], false);
    lenient.assert_passed();
    assert_eq!(lenient.skips().count(), 1, "{lenient}");
    let strict = report(None, &["host", "no such device"], true);
    let failures: Vec<String> = strict.failures().map(ToString::to_string).collect();
    assert!(failures[0].contains("`no such device`"), "{failures:?}");
    assert_eq!(failures.len(), 1);
}

#[test]
fn the_names_of_cases_are_unique() {
    let mut names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
}

#[test]
fn device_files_tell_what_hardware_there_is() {
    let dev = tempfile::tempdir().unwrap();
    let all = [Hardware::Nvidia, Hardware::TwoNvidia, Hardware::Amd, Hardware::RenderNode];
    let found = || all.map(|one| one.is_in(dev.path()));
    assert_eq!(found(), [false; 4]);
    for name in ["nvidiactl", "nvidia0", "nvidia-uvm"] {
        fs::write(dev.path().join(name), "").unwrap();
    }
    assert_eq!(found(), [true, false, false, false]);
    fs::write(dev.path().join("nvidia11"), "").unwrap();
    fs::write(dev.path().join("kfd"), "").unwrap();
    fs::create_dir(dev.path().join("dri")).unwrap();
    assert_eq!(found(), [true, true, true, false]);
    fs::write(dev.path().join("dri/renderD128"), "").unwrap();
    assert_eq!(found(), [true; 4]);
}

/// Hardware makes its own drivers mandatory: another one of the same API is not enough.
#[test]
fn hardware_needs_its_own_drivers() {
    let device = |api, platform: &str, kind| DeviceInfo {
        api: Api(api),
        platform: platform.into(),
        kind,
        ..fake_info()
    };
    let nvidia = [
        device("cuda", "NVIDIA CUDA", DeviceKind::Gpu),
        device("opencl", "NVIDIA CUDA", DeviceKind::Gpu),
        device("gl", "NVIDIA Corporation", DeviceKind::Gpu),
        device("vulkan", "NVIDIA", DeviceKind::Gpu),
    ];
    let amd = [
        device("hip", "AMD HIP", DeviceKind::Gpu),
        device("opencl", "AMD Accelerated Parallel Processing", DeviceKind::Gpu),
    ];
    let mesa = [
        device("opencl", "rusticl", DeviceKind::Cpu),
        device("gl", "Mesa/X.org", DeviceKind::Cpu),
        device("vulkan", "llvmpipe", DeviceKind::Cpu),
    ];
    let all = |_: &str| true;
    let wants = |hardware, here: &[DeviceInfo]| {
        let found = missing_devices(&[hardware], all, here).into_iter();
        found.map(|(api, _)| api).collect::<Vec<_>>()
    };
    assert_eq!(wants(Hardware::Nvidia, &mesa), ["cuda", "opencl", "gl", "vulkan"]);
    assert_eq!(wants(Hardware::Amd, &mesa), ["hip", "opencl"]);
    assert_eq!(wants(Hardware::RenderNode, &mesa), ["gl", "vulkan"]);
    assert_eq!(wants(Hardware::Amd, &nvidia), ["hip", "opencl"], "neither API of the other GPU");
    assert!(wants(Hardware::Nvidia, &nvidia).is_empty());
    assert!(wants(Hardware::RenderNode, &nvidia).is_empty());
    assert!(wants(Hardware::Amd, &amd).is_empty());
    assert_eq!(wants(Hardware::Nvidia, &nvidia[..3]), ["vulkan"]);
    let without_gl = missing_devices(&[Hardware::RenderNode], |api| api != "gl", &mesa);
    assert_eq!(
        without_gl,
        [("vulkan", Hardware::RenderNode)],
        "what is switched off is not wanted"
    );
}

fn fake_info() -> DeviceInfo {
    let hub = onebuf::builder().only(["host"]).verdicts(Default::default()).build().unwrap();
    hub.host().info().clone()
}

#[test]
fn a_measurement_is_repeated_until_it_fits_but_not_forever() {
    let mut count = 0;
    let mut next = || {
        count += 1;
        count
    };
    assert_eq!(measured(&mut next, |&found| found == 2), 2);
    assert_eq!(measured(&mut next, |_| false), 6, "the last of four");
}

/// The sets of devices of all checks of two groups, with the devices under test and the scope.
fn places(devices: &[&str], scope: Scope) -> BTreeSet<BTreeSet<String>> {
    let devices = devices.iter().map(|&name| name.to_owned()).collect();
    let filter = ["pairs::readers", "pairs::three", "alone::fences"].map(str::to_owned).into();
    let report = run(&|| hub(&None), &Options { filter, devices, strict: true, scope });
    assert_eq!(report.failures().count(), 0, "{report}");
    report.outcomes.into_iter().map(|one| one.devices.into_iter().collect()).collect()
}

#[test]
fn a_scope_selects_checks_by_their_devices() {
    let set = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<BTreeSet<String>>();
    let (alone, pair) = (set(&["fake:1"]), set(&["host", "fake:1"]));
    let all = set(&["host", "fake:0", "fake:1"]);
    assert_eq!(places(&["fake:1"], Scope::Exactly), BTreeSet::from([alone]));
    assert_eq!(places(&["host", "fake:1"], Scope::Exactly), BTreeSet::from([pair]));
    assert_eq!(places(&[], Scope::Many), BTreeSet::from([all]));
    assert!(places(&["fake:1"], Scope::Any).len() > 3);
}
