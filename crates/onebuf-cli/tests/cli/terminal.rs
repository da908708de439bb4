//! What is different on a terminal: colour, and lines that fit.

use crate::support::Cli;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{fs::File, io::Read};

/// Runs the program with the host alone on a terminal of so many columns.
fn shown(args: &str, columns: u16, no_colour: bool) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("its other end");
    let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("ASCII");
    let inner = File::options().read(true).write(true).open(name).expect("the other end opens");
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&inner, size).expect("its size");
    let cli = Cli::new();
    let mut command = cli.command(args);
    for api in ["OPENCL", "VULKAN", "EGL"] {
        command.env(format!("ONEBUF_{api}_LIB"), "none");
    }
    command.env("TERM", "xterm");
    command.stdout(inner.try_clone().expect("a second handle")).stderr(inner);
    if no_colour {
        command.env("NO_COLOR", "1");
    }
    let mut child = command.spawn().expect("the program starts");
    // Its handles of the terminal must be gone, or else there is no end to read.
    drop(command);
    let mut bytes = Vec::new();
    // The end of a terminal is an error (EIO) once the other side is closed.
    let _ = File::from(terminal).read_to_end(&mut bytes);
    let status = child.wait().expect("it ends");
    let text = String::from_utf8(bytes).expect("UTF-8");
    assert!(status.success(), "{text}");
    text
}

#[test]
fn colour_on_a_terminal_unless_refused() {
    assert!(shown("devices", 200, false).contains("\x1b["));
    assert!(!shown("devices", 200, true).contains("\x1b["));
}

#[test]
fn lines_fit_the_terminal() {
    for command in ["devices", "plan --devices host", "demo --samples 64"] {
        for line in shown(command, 60, true).lines().take_while(|line| !line.is_empty()) {
            assert!(line.chars().count() <= 60, "{command}: {line}");
        }
    }
}

#[test]
fn the_doctor_runs_on_a_terminal() {
    assert!(shown("doctor", 80, false).contains("one device alone"));
}

#[test]
fn the_benchmarks_run_on_a_terminal() {
    assert!(shown("bench --quick route_lookup_ns", 120, false).contains("route_lookup_ns "));
}
