//! `onebuf send`: the received frames equal those sent, and injected losses are missing.

use crate::support::{Cli, Ran, assert_has};
use onebuf::{
    Complex32,
    pipeline::{
        sink::{Npy, Sink},
        source::{Arrival, Udp},
    },
};
use onebuf_demo::{Shape, signal};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    time::Duration,
};

const SAMPLES: usize = 4096;

/// A receiver, and the process that sends to it.
struct Two {
    udp: Udp,
    sender: Child,
}

impl Two {
    fn start(cli: &Cli, args: &str) -> Self {
        let udp = Udp::bind("127.0.0.1:0").unwrap().timeout(Duration::from_secs(60));
        let to = udp.address().unwrap();
        let args = format!("send --json --to udp:{to} --samples {SAMPLES} {args}");
        let mut command = cli.command(&args);
        let sender = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { udp, sender }
    }

    /// Every frame up to the end of the stream, and whether it is complete.
    fn frames(&mut self) -> Vec<(Vec<Complex32>, bool)> {
        let mut frames = Vec::new();
        loop {
            let mut frame = vec![Complex32::ZERO; SAMPLES];
            match self.udp.receive(&mut frame).unwrap() {
                Arrival::Whole { .. } => frames.push((frame, true)),
                Arrival::Holes { .. } => frames.push((frame, false)),
                Arrival::Silence => {}
                Arrival::End => return frames,
            }
        }
    }

    fn end(self) -> Ran {
        self.sender.wait_with_output().unwrap().into()
    }
}

fn computed(frame: u64, channels: usize) -> Vec<Complex32> {
    let mut samples = vec![Complex32::ZERO; SAMPLES];
    let shape = Shape { length: SAMPLES / channels, channels, beams: 16 };
    signal(&shape).frame(frame, &mut samples).unwrap();
    samples
}

#[test]
fn the_computed_signal_arrives() {
    let cli = Cli::new();
    let mut two = Two::start(&cli, "--frames 6 --rate 200fps --payload 1400");
    let frames = two.frames();
    assert_eq!(frames.len(), 6);
    for (number, (frame, whole)) in frames.iter().enumerate() {
        assert!(*whole && *frame == computed(number as u64, 64), "frame {number}");
    }
    let counts = two.udp.meter().counts();
    let json = two.end().json();
    let fields = ["to", "samples", "seconds", "mb_per_s", "frames_per_s", "refused"];
    assert_has(&json, &fields);
    assert_eq!((&json["frames"], &json["bytes"]), (&6.into(), &(6 * 8 * SAMPLES).into()));
    assert_eq!((&json["packets"], counts.packets), (&(6 * 24).into(), 6 * 24));
    assert_eq!((json["lost_packets"].as_u64(), counts.lost_packets), (Some(0), 0));
    assert_eq!(json["payload_bytes"], 1400);
}

/// Several threads send from several ports, and the receiver sees one stream. The computed frames repeat.
#[test]
fn several_threads_send_one_stream() {
    let cli = Cli::new();
    let mut two = Two::start(&cli, "--frames 70 --rate 400fps --payload 1400 --threads 3");
    let frames = two.frames();
    assert_eq!(frames.len(), 70);
    for (number, (frame, whole)) in frames.iter().enumerate() {
        assert!(*whole && *frame == computed(number as u64 % 64, 64), "frame {number}");
    }
    let counts = two.udp.meter().counts();
    let json = two.end().json();
    assert_eq!((&json["threads"], &json["packets"]), (&3.into(), &(70 * 24).into()));
    let wrong = counts.stray_packets + counts.malformed_packets + counts.lost_packets;
    assert_eq!((counts.packets, wrong), (70 * 24, 0), "{counts:?}");
}

#[test]
fn what_is_lost_on_purpose_is_missing() {
    let cli = Cli::new();
    let args = "--frames 20 --rate 400fps --payload 2048 --channels 32 --lose 0.05 --reorder 4 --duplicate 0.05";
    let mut two = Two::start(&cli, args);
    let frames = two.frames();
    for (number, (frame, whole)) in frames.iter().enumerate() {
        assert_eq!(*frame == computed(number as u64, 32), *whole, "frame {number}");
    }
    let counts = two.udp.meter().counts();
    let json = two.end().json();
    assert_eq!(json["lost_packets"], counts.lost_packets, "{json:#} {counts:?}");
    assert!(counts.lost_packets > 0 && counts.incomplete_frames > 0 && counts.frames > 0);
    let twice = counts.duplicate_packets + counts.late_packets;
    assert!(twice <= json["duplicate_packets"].as_u64().unwrap(), "{counts:?}");
}

#[test]
fn a_file_is_played_over_and_over() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("two.npy");
    let mut npy = Npy::create(&path, &[SAMPLES]).unwrap();
    (0..2).for_each(|number| npy.take(&computed(number, 16), number).unwrap());
    let file = format!("--file {}", path.display());
    let mut two = Two::start(&cli, &format!("{file} --frames 3 --rate 100fps"));
    let wanted = [0, 1, 0].map(|number| (computed(number, 16), true));
    assert!(two.frames() == wanted, "three frames of a file that has two");
    two.end().ok();
    let mut once = Two::start(&cli, &format!("{file} --rate 100fps"));
    assert_eq!(once.frames().len(), 2);
    once.end().ok();
    let wrong = cli.run(&format!("send --to udp:127.0.0.1:9 --samples 1000 {file}"));
    wrong.failed(1, "shape [2, 4096] does not divide into frames of 1000 elements");
}

/// A sender is killed by `kill -9` and another takes over: the receiver continues, all frames are right, and the takeover is
/// reported.
#[test]
fn a_sender_that_was_killed_is_replaced() {
    let cli = Cli::new();
    let args = format!("demo --json --source udp:127.0.0.1:0 --samples {SAMPLES} --frames 600");
    let mut receiver = cli.bare_command(&args);
    let mut receiver = receiver.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(receiver.stderr.take().unwrap());
    let mut heard = String::new();
    let mut until = |words: &str| {
        while !heard.contains(words) {
            assert_ne!(lines.read_line(&mut heard).unwrap(), 0, "no `{words}`: {heard}");
        }
        heard.clone()
    };
    let said = until("listening at udp:");
    let to = said.split_once("udp:").unwrap().1.split_once(' ').unwrap().0.to_owned();
    let send = || {
        let args = format!("send --to udp:{to} --samples {SAMPLES} --rate 100fps --frames 1000000");
        cli.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let end = |mut sender: Child| {
        sender.kill().unwrap();
        sender.wait().unwrap();
    };
    let first = send();
    let some = until("/s, ");
    end(first);
    assert!(some.contains("frame ") && !some.contains("frame 600 of"), "{some}");
    let second = send();
    lines.read_to_string(&mut String::new()).unwrap();
    end(second);
    let json = Ran::from(receiver.wait_with_output().unwrap()).json();
    assert_eq!(json["network"]["takeovers"], 1, "{json:#}");
    assert!(json["network"]["stray_packets"].as_u64().unwrap() > 0, "{json:#}");
}

#[test]
fn nobody_listening_is_told() {
    let nobody = Udp::bind("127.0.0.1:0").unwrap().address().unwrap();
    let args = format!("send --to udp:{nobody} --frames 4 --samples 1024 --rate 100fps");
    let ran = Cli::new().run(&args).ok();
    assert!(ran.stderr.contains("no receiver at udp:"), "{}", ran.stderr);
    assert!(ran.stdout.contains("4 frames of 8 KiB to udp:127.0.0.1"), "{}", ran.stdout);
}

#[test]
fn wrong_usage_is_told() {
    let cli = Cli::new();
    for (args, why) in [
        ("", "--to"),
        ("--to 127.0.0.1:9", "udp:HOST:PORT"),
        ("--to udp:127.0.0.1:9 --rate fast", "30fps or max"),
        ("--to udp:127.0.0.1:9 --lose 2", "from 0 to 1"),
        ("--to udp:127.0.0.1:9 --frames 0", "--frames"),
        ("--to udp:127.0.0.1:9 --threads 0", "1..=64"),
        ("--to udp:127.0.0.1:9 --file a --channels 3", "cannot be used with"),
    ] {
        cli.run(&format!("send {args}")).failed(2, why);
    }
    let send = |args: &str| cli.run(&format!("send --to udp:127.0.0.1:9 {args}"));
    send("--samples 64 --channels 7").failed(1, "--channels 7 do not divide --samples 64");
    send("--file no/such").failed(1, "no/such");
    send("--samples 65536 --payload 65535").failed(1, "must be 1 to 65467");
    cli.run("send --to udp:nonsense:9 --samples 64").failed(1, "HOST:PORT");
}
