//! Output on a terminal: colour, and lines that fit.

use crate::support::{Cli, private};
use onebuf::{
    Complex32,
    live::HubLiveExt,
    pipeline::{
        Filled, Pipeline,
        sink::{Sink, Udp},
    },
};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;
use std::{fs::File, io::Read, process::Child, sync::mpsc::channel, thread, time::Duration};

/// The program on the host alone, on a terminal with a given number of columns.
struct Terminal {
    screen: File,
    child: Child,
    /// Kept as long as the program uses it.
    _cli: Cli,
}

fn size(columns: u16) -> Winsize {
    Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    fn start(args: &str, columns: u16, no_colour: bool) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("its other end");
        let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("ASCII");
        let inner = File::options().read(true).write(true).open(name).expect("the other end opens");
        tcsetwinsize(&inner, size(columns)).expect("its size");
        let cli = Cli::new();
        // `command` is dropped at the end of this function, and closes its handles of the terminal. Otherwise `end` would never
        // see the end.
        let mut command = cli.bare_command(args);
        command.env("TERM", "xterm");
        command.stdout(inner.try_clone().expect("a second handle")).stderr(inner);
        if no_colour {
            command.env("NO_COLOR", "1");
        }
        let child = command.spawn().expect("the program starts");
        Self { screen: terminal.into(), child, _cli: cli }
    }

    /// Reads until this text is shown. Returns everything read.
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

    /// The next view, without cursor movements.
    fn next_view(&mut self) -> String {
        let text = self.until("\x1b[J").replace('\r', "");
        ["\x1b[H", "\x1b[K", "\x1b[J"].iter().fold(text, |text, code| text.replace(code, ""))
    }

    /// Reads everything up to the end, and checks the exit status.
    fn end(mut self) -> String {
        let mut bytes = Vec::new();
        // Reading returns an error (EIO) once the other side of the terminal is closed.
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

/// Progress lines are redrawn in place, and removed at the end.
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
    assert!(shown("doctor", 80, false).contains("only one device"));
}

#[test]
fn the_benchmarks_run_on_a_terminal() {
    assert!(shown("bench --quick route_lookup_ns", 120, false).contains("route_lookup_ns "));
}

#[track_caller]
fn assert_fits(text: &str, columns: usize) {
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "{line}");
    }
}

/// `onebuf top` shows a pipeline of this process whose sink hangs, then continues and ends.
#[test]
fn top_shows_a_stall_and_an_end_in_lines_that_fit() {
    let folder = private();
    let path = folder.path().join("x.sock").display().to_string();
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.verdicts(Default::default()).build().expect("a hub");
    let published = hub.publish(&path).expect("it can be seen");
    let (go_on, hangs) = channel::<()>();
    let mut pipeline = Pipeline::builder(2, |_| hub.buffer::<u32>(64).name("frame").build())
        .source(|_, frame| Ok(if frame < 1000 { Filled::Frame } else { Filled::End }))
        .sink(move |_, frame| {
            if frame == 500 {
                // Blocks until the other end is dropped.
                let _ = hangs.recv();
            }
            Ok(())
        })
        .build()
        .expect("a pipeline");
    published.pipeline("with a rather long name, for columns", pipeline.handle());
    let cli = Cli::new();
    let seen = || cli.run_bare(&format!("top {path} --once --json")).json()["pipelines"][0].clone();
    let until = |what: &str, fits: &dyn Fn(&Value) -> bool| {
        for _ in 0..600 {
            let seen = seen();
            if fits(&seen) {
                return seen;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("it never {what}: {}", seen());
    };
    assert_eq!(seen()["state"], "ready");
    thread::scope(|threads| {
        let running = threads.spawn(|| pipeline.run());
        let stalled = until("stalled", &|seen| seen["stalled_us"].is_number());
        assert_eq!((&stalled["state"], &stalled["frames"]), (&"running".into(), &500.into()));
        assert_eq!(stalled["on_the_way"], 2, "up to now, and not up to the last frame");
        until("came to rest", &|seen| seen["frames_per_second"] == 0.0);

        let once = shown(&format!("top {path} --once"), 60, true);
        assert_fits(&once, 60);
        assert!(once.contains("columns stalled for") && once.contains('…'), "{once}");
        let mut terminal = Terminal::start(&format!("top {path}"), 70, true);
        let view = terminal.next_view();
        assert_fits(&view, 70);
        assert!(view.contains("columns stalled for"), "{view}");
        tcsetwinsize(&terminal.screen, size(30)).expect("another size");
        let mut views = (0..20).map(|_| terminal.next_view());
        let narrow = views.find(|view| view.lines().all(|line| line.chars().count() <= 30));
        assert!(narrow.is_some(), "another size is noticed: {:?}", terminal.next_view());
        terminal.child.kill().expect("it can be ended");
        terminal.child.wait().expect("it ends");
        let whole = cli.run_bare(&format!("top {path} --once")).ok().stdout;
        assert!(whole.contains("0.0/s") && whole.contains("0 incomplete\n"), "{whole}");
        drop(go_on);
        running.join().expect("no panic").expect("it finishes");
    });
    let finished = until("finished", &|seen| seen["state"] == "finished");
    assert_eq!((&finished["frames"], &finished["on_the_way"]), (&1000.into(), &0.into()));
    assert!(finished["average_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{finished}");
    let text = cli.run_bare(&format!("top {path} --once")).ok().stdout;
    assert!(text.contains("columns finished after") && text.contains("/s on average"), "{text}");
}
