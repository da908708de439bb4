//! Binaries, files, and the error of a device that accepts none of a source's forms.

use super::*;
use onebuf::{Error, Origin};
use onebuf_conformance::Watchdog;
use std::fs;
use tempfile::tempdir;

#[test]
fn a_binary_comes_back_as_a_program() {
    let _watchdog = Watchdog::new("binaries", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub) {
        let built = device.program(&text()).unwrap();
        if !gives_binaries(&built) {
            continue;
        }
        let binary = built.binary().unwrap();
        let loaded = device.program(&Source::binary(binary.clone())).unwrap();
        assert_eq!(loaded.origin(), Origin::Binary, "{device}");
        assert_works(&loaded);
        let both = device.program(&text().with_binary(binary)).unwrap();
        assert_eq!(both.origin(), Origin::Binary, "a binary comes before text: {device}");
    }
}

/// PoCL validates its binaries; other drivers are not tested with foreign bytes.
#[test]
fn a_binary_of_elsewhere_is_refused_or_replaced_by_text() {
    let _watchdog = Watchdog::new("binaries of elsewhere", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    let Ok(device) = hub.device("Portable Computing Language") else {
        return absent("PoCL", "not found");
    };
    let strange = || Source::binary(&b"from another machine"[..]);
    let refused = device.program(&strange()).unwrap_err();
    assert!(matches!(refused, Error::Build { .. }), "{refused}");
    assert!(refused.to_string().contains("not a binary of this device"), "{refused}");
    let program = device.program(&strange().with_opencl_c(TEXT)).unwrap();
    assert_eq!(program.origin(), Origin::Built);
    assert_works(&program);
    let empty = device.program(&Source::binary(Vec::new())).unwrap_err();
    assert!(matches!(empty, Error::InvalidArgument(_)), "{empty}");
}

#[test]
fn the_host_has_no_binaries_and_takes_only_functions() {
    let cache = tempdir().unwrap();
    let hub = builder(cache.path()).without(["opencl"]).build().unwrap();
    let native = Source::default().with_native("f", |_| Ok(()));
    let program = hub.host().program(&native).unwrap();
    assert_eq!((program.origin(), program.warm_up()), (Origin::Built, Ok(0)));
    assert_eq!(hub.host().program(&native).unwrap().origin(), Origin::Built, "not remembered");
    assert!(matches!(program.binary(), Err(Error::Unsupported { .. })));
    for source in [text(), Source::binary(vec![1]), Source::spirv(vec![1])] {
        let refused = hub.host().program(&source).map(drop);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
}

#[test]
fn a_failed_build_is_not_remembered() {
    let _watchdog = Watchdog::new("failed builds", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let probe = Probe::new();
    let hub = watched(cache.path(), &probe);
    for device in devices(&hub) {
        let wrong = Source::opencl_c("kernel void f(global uint *x) { x[0] = nowhere; }");
        probe.reset();
        for _ in 0..2 {
            let error = device.program(&wrong).unwrap_err();
            assert!(
                matches!(&error, Error::Build { log, .. } if log.contains("nowhere")),
                "{error}"
            );
            // As `main` prints it: the log's lines are lines.
            let told = format!("{error:?}");
            let mut lines = told.lines();
            assert!(lines.next().is_some_and(|first| first.starts_with("Build: program did not")));
            let text = lines.filter(|line| line.starts_with("  ") && line.contains("nowhere"));
            assert!(text.count() > 0 && !told.contains("\\n"), "{told}");
        }
        assert_eq!(builds(&probe), 2, "{device}");
    }
}

#[test]
fn a_file_is_a_program() {
    let _watchdog = Watchdog::new("files", LIMIT);
    let _alone = alone();
    let folder = tempdir().unwrap();
    let path = folder.path().join("program.cl");
    fs::write(&path, TEXT).unwrap();
    let source = Source::from_file(&path).unwrap();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub) {
        assert_works(&device.program(&source).unwrap());
        assert_eq!(
            device.program(&text()).unwrap().origin(),
            Origin::Memory,
            "one text, one program"
        );
    }
}

#[test]
fn warming_up_makes_every_kernel_once() {
    let _watchdog = Watchdog::new("warm kernels", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let probe = Probe::new();
    let hub = watched(cache.path(), &probe);
    for device in devices(&hub) {
        let live = || probe.live().get("kernel").copied().unwrap_or(0);
        let before = live();
        let program = device.program(&text()).unwrap();
        let old = ["OpenCL 1.0", "OpenCL 1.1"].iter().any(|v| device.info().version.starts_with(v));
        let kernels = if old { 0 } else { 2 };
        for _ in 0..2 {
            assert_eq!(program.warm_up(), Ok(kernels), "{device}");
        }
        assert_eq!(live() - before, kernels as i64, "{device}: made once");
        assert_works(&program);
    }
}

#[test]
fn a_device_that_takes_no_form_says_which_it_would() {
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub) {
        let native = Source::default().with_native("f", |_| Ok(()));
        let error = device.program(&native).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("native functions") && text.contains("OpenCL C"), "{text}");
    }
}
