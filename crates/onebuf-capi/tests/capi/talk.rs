//! Messages that C, C++ and Fortran programs get: refused values, and the log.

use crate::{
    programs::{devices, source},
    support::{Build, command, compile, said},
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// Runs the command and returns its standard error.
fn complained(mut command: Command) -> String {
    let output = command.output().expect("the program starts");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{err}", output.status);
    err
}

/// Runs a program with this log setting; `None` leaves the variable unset.
fn logging(program: &Path, args: &[&str], log: Option<&str>) -> String {
    let mut run = command(program);
    run.args(args).env_remove("ONEBUF_LOG");
    complained(match log {
        Some(log) => {
            run.env("ONEBUF_LOG", log);
            run
        }
        None => run,
    })
}

/// The number of logged implied copies. Drivers also write to standard error, so other lines are ignored.
fn copies(told: &str) -> usize {
    told.lines().filter(|line| line.contains("onebuf::copies: an implied copy")).count()
}

fn opencl() -> Option<&'static String> {
    devices().iter().find(|id| id.starts_with("opencl:"))
}

#[test]
fn values_of_another_kind_are_refused() {
    let Some(program) = compile(&source("c/values.c"), Build::Shared, &[]) else { return };
    for device in devices() {
        let mut run = command(&program);
        run.arg(device);
        assert!(said(run).contains(&format!("values work on {device}")));
    }
    let Some(checked) = compile(&source("c/values.c"), Build::Sanitized, &[]) else { return };
    assert!(said(command(&checked)).contains("values work on host"));
    let Some(program) = compile(&source("cpp/values.cpp"), Build::Shared, &[]) else { return };
    for device in devices().iter().filter(|id| *id != "host") {
        let mut run = command(&program);
        run.arg(device).env("ONEBUF_LOG", "off");
        assert!(said(run).contains(&format!("values work on {device}")));
    }
}

#[test]
fn implied_copies_are_told_in_c_and_cpp() {
    let Some(device) = opencl() else { return };
    for name in ["c/log.c", "cpp/values.cpp"] {
        let Some(program) = compile(&source(name), Build::Shared, &[]) else { return };
        let told = logging(&program, &[device], None);
        assert!(copies(&told) > 0, "{name}: {told}");
        let line = told.lines().find(|line| line.contains("an implied copy")).expect("a line");
        for part in ["onebuf: WARN", device.as_str(), "to=", "bytes="] {
            assert!(line.contains(part), "{name}: no `{part}` in: {line}");
        }
        assert_eq!(copies(&logging(&program, &[device], Some("off"))), 0, "{name}");
        assert_eq!(copies(&logging(&program, &[device], Some("error"))), 0, "{name}");
        assert!(copies(&logging(&program, &[device], Some("warn"))) > 0, "{name}");
        let told = logging(&program, &[device], Some("no such=level=here"));
        assert!(told.contains("ONEBUF_LOG is not understood") && copies(&told) > 0, "{told}");
    }
}

#[test]
fn a_function_takes_the_log() {
    let Some(device) = opencl() else { return };
    let Some(program) = compile(&source("c/log.c"), Build::Shared, &[]) else { return };
    let mut run = command(&program);
    run.args([device, "callback"]).env("ONEBUF_LOG", "off");
    assert!(said(run).contains(" taken\n"));
    // The second half of the run logs to standard error again: one copy in each direction.
    assert_eq!(copies(&logging(&program, &[device, "callback"], None)), 2);
}

/// Fortran programs use the same library.
#[test]
fn the_log_is_written_in_fortran() {
    let program = "bindings/fortran/tests/owners.f90";
    let Some(program) = crate::fortran::plain(program) else { return };
    let cache = tempfile::tempdir().expect("a folder");
    let folder = cache.path().join("onebuf");
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("its mode");
    fs::write(folder.join("verdicts.json"), "{ cut").expect("a file");
    let told = |log: &str| {
        let mut run = command(&program);
        run.env("XDG_CACHE_HOME", cache.path()).env("ONEBUF_LOG", log);
        run.env("ONEBUF_OPENCL_LIB", "none").env("ONEBUF_DEVICE", "host");
        complained(run)
    };
    assert!(told("warn").contains("cached verdicts are not used"), "{}", told("warn"));
    assert!(!told("").contains("cached verdicts are not used"), "{}", told(""));
}

/// PoCL compiles a kernel at its first launch, and crashes if the process exits meanwhile.
#[test]
fn a_program_in_c_ends_well_with_work_pending() {
    let Some(program) = compile(&source("c/pending.c"), Build::Shared, &[]) else { return };
    for device in devices().iter().filter(|id| id.starts_with("opencl:")) {
        for _ in 0..3 {
            let cache = tempfile::tempdir().unwrap();
            let mut run = command(&program);
            run.arg(device).env("POCL_CACHE_DIR", cache.path());
            assert!(said(run).contains(&format!("work pending on {device}")));
        }
    }
}
