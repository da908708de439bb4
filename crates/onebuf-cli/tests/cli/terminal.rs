//! What is different on a terminal: colour, and lines that fit.

use crate::support::Cli;
use onebuf::{
    Complex32,
    pipeline::sink::{Sink, Udp},
};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{fs::File, io::Read, process::Child};

/// The program with the host alone, on a terminal of so many columns.
struct Terminal {
    screen: File,
    child: Child,
    /// Kept as long as the program uses it.
    _cli: Cli,
}

impl Terminal {
    fn start(args: &str, columns: u16, no_colour: bool) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("its other end");
        let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("ASCII");
        let inner = File::options().read(true).write(true).open(name).expect("the other end opens");
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&inner, size).expect("its size");
        let cli = Cli::new();
        // Its handles of the terminal go with the command, or else there is no end to read.
        let mut command = cli.bare_command(args);
        command.env("TERM", "xterm");
        command.stdout(inner.try_clone().expect("a second handle")).stderr(inner);
        if no_colour {
            command.env("NO_COLOR", "1");
        }
        let child = command.spawn().expect("the program starts");
        Self { screen: terminal.into(), child, _cli: cli }
    }

    /// What it shows until this is there.
    fn until(&mut self, part: &str) -> String {
        let mut text = String::new();
        let mut bytes = [0; 4096];
        while !text.contains(part) {
            let count = self.screen.read(&mut bytes).unwrap_or(0);
            assert!(count > 0, "it ended without `{part}`: {text}");
            text += &String::from_utf8_lossy(&bytes[..count]);
        }
        text
    }

    /// The rest.
    fn end(mut self) -> String {
        let mut bytes = Vec::new();
        // The end of a terminal is an error (EIO) once the other side is closed.
        let _ = self.screen.read_to_end(&mut bytes);
        let status = self.child.wait().expect("it ends");
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert!(status.success(), "{text}");
        text
    }
}

fn shown(args: &str, columns: u16, no_colour: bool) -> String {
    Terminal::start(args, columns, no_colour).end()
}

/// Some lines, drawn again and again, and gone when it is over.
#[test]
fn the_demo_shows_how_it_does() {
    let args = "demo --source udp:127.0.0.1:0 --samples 1024 --frames 2";
    let mut terminal = Terminal::start(args, 60, true);
    let before = terminal.until("detect p50");
    let address = before.split_once("udp:").and_then(|(_, rest)| rest.split_once(' '));
    let mut sender = Udp::connect(address.expect("where it listens").0).expect("an address");
    assert!(before.contains("frame 0 of 2") && before.contains("ring 0 of 4"), "{before}");
    let again = terminal.until("detect p50");
    assert!(again.contains("\x1b[6A\x1b[J"), "over the last lines: {again:?}");
    (0..2).for_each(|number| sender.take(&[Complex32::ONE; 1024], number).expect("it is sent"));
    let after = terminal.end();
    assert!(after.contains("A\x1b[J2 frames of 32 x 32"), "nothing is left of them: {after:?}");
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
