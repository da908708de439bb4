//! `onebuf demo`: its detections and its frame counters.

use crate::support::{Cli, Ran, assert_fields, assert_has};
use onebuf::{
    Complex32,
    pipeline::{
        Filled,
        sink::{Faults, Sink, Udp},
        source::{FrameSource, Npy, Synthetic},
    },
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStderr, Stdio},
};

const STREAM: [&str; 14] = [
    "frames",
    "checked_frames",
    "seconds",
    "frames_per_s",
    "gb_per_s",
    "latency_us",
    "source_us",
    "stages",
    "detect_us",
    "ring",
    "batch",
    "one_thread",
    "bytes_copied",
    "detections",
];

/// The beam and bin of each detection.
fn places(value: &Value) -> Vec<(u64, u64)> {
    let all = value["detections"].as_array().expect("a list");
    let number = |at: &Value, name: &str| at[name].as_u64().expect("a number");
    all.iter().map(|at| (number(at, "beam"), number(at, "bin"))).collect()
}

/// Three waves come from the directions of the first, the middle and the last beam; every order detects them there.
#[test]
fn the_demo_finds_the_waves() {
    let cli = Cli::new();
    for order in 3..=5 {
        let args = format!("demo --json --samples 16384 --channels 64 --beams 8 --order {order}");
        let value = cli.run_bare(&format!("{args} --frames 3 --ring 2")).json();
        assert_eq!((&value["order"], &value["channels"]), (&json!(order), &json!(64)));
        assert_fields(&value["detections"], &["degrees", "frequency", "power", "over_noise_db"]);
        // 3/16, 0.05 and -0.31 cycles per sample, as bins of 256.
        let found = places(&value);
        for place in [(3, 48), (0, 13), (7, 177)] {
            assert!(found.contains(&place), "{place:?} in {found:?}");
        }
        assert!(!found.contains(&(5, 48)), "a beam that looks elsewhere: {found:?}");
    }
}

/// The saved beams are those that the detections were found in.
#[test]
fn the_demo_saves_its_beams() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("beams.npy");
    let args = "demo --json --samples 16384 --channels 64 --beams 8 --frames 3 --ring 2";
    let value = cli.run_bare(&format!("{args} --save-beams {}", path.display())).json();
    let mut saved = Npy::<Complex32>::open(&path).unwrap();
    assert_eq!(saved.shape(), [8, 256]);
    let mut beams = vec![Complex32::ZERO; 8 * 256];
    assert_eq!(saved.fill(&mut beams).unwrap(), Filled::Frame);
    let powers = |row: u64, bin: u64| f64::from(beams[(row * 256 + bin) as usize].norm_sqr());
    let detections = value["detections"].as_array().unwrap();
    let known = detections.iter().map(|one| one["power"].as_f64().unwrap());
    let found: Vec<f64> = places(&value).into_iter().map(|(row, bin)| powers(row, bin)).collect();
    assert!(!found.is_empty());
    for (found, known) in found.into_iter().zip(known) {
        assert!((found / known - 1.0).abs() < 1e-5, "{found} instead of {known}");
    }
    assert!(powers(5, 48) < powers(3, 48) / 100.0, "the control: a beam that looks elsewhere");
    cli.run_bare(&format!("{args} --save-beams /nonexistent/beams.npy"))
        .failed(1, "/nonexistent/beams.npy");
}

/// No device can transform a channel of 65536 samples in one work-group.
#[test]
fn waves_are_found_in_long_channels() {
    let args = "demo --json --samples 131072 --channels 2 --beams 2 --frames 2 --ring 2";
    let value = Cli::new().run_bare(args).json();
    assert_eq!((&value["samples"], &value["channels"]), (&json!(131_072), &json!(2)));
    let found = places(&value);
    assert!(found.contains(&(0, 12288)), "3/16 of 65536: {found:?}");
    assert!(value["max_rel_error"].as_f64().is_some_and(|error| error < 1e-4), "{value}");
}

/// Weights are adapted to the first channels; the waves are detected with them too.
#[test]
fn the_demo_adapts_its_weights() {
    let cli = Cli::new();
    let args = "demo --samples 16384 --channels 64 --beams 4 --frames 3 --ring 2";
    let value = cli.run_bare(&format!("{args} --adaptive 24 --json")).json();
    assert_eq!(value["adaptive"]["channels"], 24);
    assert_eq!(value["adaptive"]["device"], "host");
    assert!(value["adaptive"]["max_rel_error"].as_f64().unwrap() < 1e-3, "{value:#}");
    assert!(value["max_rel_error"].as_f64().unwrap() < 1e-5);
    let found = places(&value);
    assert!([(1, 48), (0, 13), (3, 177)].iter().all(|place| found.contains(place)), "{found:?}");
    assert!(cli.run_bare(&format!("{args} --json")).json()["adaptive"].is_null());
    cli.run_bare(&format!("{args} --adaptive 65")).failed(2, "of 64 channels");
}

#[test]
fn the_demos_frames_are_counted_and_timed() {
    let value = Cli::new().run_bare("demo --json --samples 1024 --frames 9 --batch 2").json();
    let stream = &value["stream"];
    assert_has(stream, &STREAM);
    let is = |name: &str, wanted: u64| assert_eq!(stream[name], json!(wanted), "{name}");
    [("frames", 9), ("checked_frames", 9), ("bytes_copied", 0), ("ring", 4), ("batch", 2)]
        .into_iter()
        .for_each(|(name, wanted)| is(name, wanted));
    assert_fields(&stream["stages"], &["name", "device", "us", "busy_us"]);
    assert_eq!(stream["stages"][0]["name"], "delay+fft+beams", "one device, one stage");
    assert!(stream["latency_us"]["p99"].as_f64() >= stream["latency_us"]["p50"].as_f64());
    assert_eq!((&value["dropped_frames"], &value["incomplete_frames"]), (&json!(0), &json!(0)));
}

/// A running `onebuf demo` that listens for frames.
struct Listening {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Listening {
    /// Starts it on the host alone, and reads the address it listens at.
    fn start(cli: &Cli, protocol: &str) -> Self {
        let args =
            format!("demo --json --samples 4096 --frames 100 --source {protocol}:127.0.0.1:0");
        let mut command = cli.bare_command(&args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let at = line.split_once(&format!("{protocol}:")).map(|(_, rest)| rest);
        let at = at.and_then(|rest| rest.split_once(' ')).map(|(address, _)| address.parse());
        let address = at.unwrap_or_else(|| panic!("no address in {line}")).unwrap();
        assert!(line.contains("64 channels of 64 samples"), "{line}");
        Self { child, stderr, address }
    }

    fn end(mut self) -> Ran {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        let output = self.child.wait_with_output().unwrap();
        Ran { stderr, ..Ran::from(output) }
    }
}

fn frame(number: u64) -> Vec<Complex32> {
    let mut frame = vec![Complex32::ZERO; 4096];
    Synthetic::new(64, 64).frame(number, &mut frame).unwrap();
    frame
}

/// Packets are lost on the way: every frame is either complete, or counted as incomplete.
#[test]
fn the_demo_receives_packets_and_misses_those_that_are_lost() {
    let cli = Cli::new();
    let demo = Listening::start(&cli, "udp");
    let mut sender = Udp::connect(demo.address).unwrap().rate(2e6).unwrap();
    sender = sender.faults(Faults { lose: 0.1, ..Faults::default() });
    (0..16).for_each(|number| sender.take(&frame(number), number).unwrap());
    sender.finish().unwrap();
    let (sent, value) = (sender.sent(), demo.end().json());
    assert!(sent.lost_packets > 0, "nothing to miss: {sent:?}");
    assert_eq!(value["lost_packets"], sent.lost_packets);
    assert_eq!(value["network"]["packets"], sent.packets);
    let count = |name: &str| value[name].as_u64().unwrap();
    assert!(count("incomplete_frames") > 0 && count("incomplete_frames") <= sent.lost_packets);
    let all = count("frames") + count("dropped_frames") + count("incomplete_frames");
    assert_eq!((all, count("frames") > 0), (16, true), "{value:#}");
    assert!(value["stream"]["checked_frames"].as_u64().unwrap() >= 1);
    assert!(value["max_rel_error"].as_f64().unwrap() < 1e-5);
}

#[test]
fn the_demo_receives_over_a_connection() {
    let cli = Cli::new();
    let demo = Listening::start(&cli, "tcp");
    let mut sender = TcpStream::connect(demo.address).unwrap();
    for number in 0..5 {
        sender.write_all(onebuf::bytemuck::cast_slice(&frame(number))).unwrap();
    }
    drop(sender);
    let value = demo.end().json();
    assert_eq!((&value["frames"], &value["lost_packets"]), (&json!(5), &json!(0)));
    assert!(value["network"].is_null());
}

#[test]
fn the_demo_refuses_what_is_no_signal() {
    let cli = Cli::new();
    let demo = Listening::start(&cli, "tcp");
    let mut sender = TcpStream::connect(demo.address).unwrap();
    let nonsense = vec![Complex32::new(f32::NAN, 0.0); 4096];
    sender.write_all(onebuf::bytemuck::cast_slice(&nonsense)).unwrap();
    drop(sender);
    demo.end().failed(1, "not finite");
}

#[test]
fn the_demo_needs_a_whole_frame() {
    let cli = Cli::new();
    let demo = Listening::start(&cli, "tcp");
    drop(TcpStream::connect(demo.address).unwrap());
    demo.end().failed(1, "no complete frame arrived");
}
