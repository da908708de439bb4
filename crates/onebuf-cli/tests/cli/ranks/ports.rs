//! `mpirun -n 3 onebuf demo --source udp:…`: each rank receives its channels at a port of its own.

use super::{Cli, Command, Launcher, MPICH, OPEN_MPI, Ran, Running, Value, number};
use onebuf::{
    Complex32,
    pipeline::{
        sink::{Faults, Sink, Udp},
        source::{FrameSource, Npy},
    },
};
use onebuf_demo::{Expected, Interpolator, Setup, Shape, signal};
use onebuf_mpi::share;
use std::{
    io::Read,
    net::{SocketAddr, UdpSocket},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

const SHAPE: Shape = Shape { length: 256, channels: 61, beams: 5 };
const BYTES: usize = SHAPE.length * size_of::<Complex32>();

fn demo(frames: usize, more: &str) -> String {
    format!("demo --json --samples 15616 --channels 61 --beams 5 --frames {frames} {more}")
}

/// A frame whose numbers differ from those of every other frame.
fn frame(number: usize) -> Vec<Complex32> {
    let mut samples = vec![Complex32::ZERO; SHAPE.samples()];
    signal(&SHAPE).frame(number as u64, &mut samples).expect("a signal");
    samples.iter_mut().for_each(|sample| *sample *= Complex32::new(1.0 + number as f32, 0.0));
    samples
}

/// Saved beams.
fn saved(path: &Path) -> Vec<Complex32> {
    let mut beams = vec![Complex32::ZERO; SHAPE.beams * SHAPE.length];
    let mut file = Npy::<Complex32>::open(path).expect("saved beams");
    file.fill(&mut beams).expect("whole beams");
    beams
}

/// The largest error of saved beams, if they are those of this frame.
fn error_of(beams: &Path, number: usize) -> f64 {
    let setup = Setup::new(SHAPE, Interpolator::new(3).expect("an order"));
    Expected::of(&setup, &frame(number)).max_rel_error(&saved(beams))
}

/// A job that listens.
struct Listening {
    running: Running,
    addresses: Vec<SocketAddr>,
}

impl Listening {
    fn start(launcher: &Launcher, ranks: usize, program: Command) -> Self {
        let mut running = Running::start(launcher, ranks, program);
        let address = |said: &str, rank| {
            let line = said.split_once(&format!("rank {rank}: listening at udp:"))?.1;
            line.split_once(' ').and_then(|(address, _)| address.parse().ok())
        };
        let mut addresses: Vec<SocketAddr> = Vec::new();
        running.wait("ports", |running| {
            let said = running.read("said");
            addresses = (0..ranks).filter_map(|rank| address(&said, rank)).collect();
            addresses.len() == ranks || running.job.try_wait().expect("a child").is_some()
        });
        assert_eq!(addresses.len(), ranks, "{}", running.read("said"));
        Self { running, addresses }
    }

    /// The answer of a job in which no rank has failed.
    fn end(mut self, ranks: usize) -> Value {
        let statuses = self.running.statuses(ranks);
        let said = self.running.read("said");
        assert!(statuses.iter().all(|status| *status == Some(0)), "{statuses:?} {said}");
        let mut answer = String::new();
        let stdout = self.running.job.stdout.as_mut().expect("a pipe");
        stdout.read_to_string(&mut answer).expect("text");
        serde_json::from_str(&answer).unwrap_or_else(|why| panic!("{why}: {answer} {said}"))
    }
}

fn connect(to: &SocketAddr) -> Udp {
    Udp::connect(to).expect("a socket").payload(BYTES / 4).expect("a payload")
}

/// Sends frames, of which some lack packets at some ranks, and returns how many packets were lost.
fn send(to: &[SocketAddr], frames: usize, lacks: impl Fn(usize, usize) -> f64) -> u64 {
    // Each rank's sender has a number of its own.
    let senders = to.iter().zip(1..).map(|(to, stream)| connect(to).stream(stream)).collect();
    let mut senders = send_parts(senders, frames, frame, lacks);
    let mut lost = 0;
    for udp in &mut senders {
        udp.finish().expect("an end");
        lost += udp.sent().lost_packets;
    }
    lost
}

/// Sends each rank's part of some frames.
fn send_parts(
    senders: Vec<Udp>,
    frames: usize,
    frame: impl Fn(usize) -> Vec<Complex32>,
    lacks: impl Fn(usize, usize) -> f64,
) -> Vec<Udp> {
    let mut senders: Vec<Option<Udp>> = senders.into_iter().map(Some).collect();
    let ranks = senders.len();
    for number in 0..frames {
        let samples = frame(number);
        for (rank, sender) in senders.iter_mut().enumerate() {
            let (own, lose) = (share(SHAPE.channels, ranks, rank), lacks(rank, number));
            let own = &samples[own.start * SHAPE.length..own.end * SHAPE.length];
            let faults = Faults { lose, ..Faults::default() };
            let mut udp = sender.take().expect("a sender").faults(faults);
            udp.take(own, number as u64).expect("a frame");
            *sender = Some(udp);
        }
        // Slow enough for the check of every frame.
        thread::sleep(Duration::from_millis(30));
    }
    senders.into_iter().flatten().collect()
}

/// Frames lack packets at single ranks, all their packets, or packets at two ranks. No rank processes them, none mixes two frames, and
/// each of them counts once.
#[test]
fn frames_that_one_rank_lacks_are_left_out_by_all() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let beams = folder.path().join("beams.npy");
    for (launcher, counts) in [(OPEN_MPI, [2, 3]), (MPICH, [2, 3])] {
        for ranks in counts.into_iter().filter(|_| launcher.is_there()) {
            let more = format!("--source udp:127.0.0.1:0 --save-beams {}", beams.display());
            // More frames than are sent: the end of the streams ends the run.
            let job = Listening::start(&launcher, ranks, cli.bare_command(&demo(100, &more)));
            let lacks = |rank, number| match (rank, number) {
                (0, 2) | (1, 6) => 0.5,
                (0, 4) | (1, 4 | 8) => 1.0,
                _ => 0.0,
            };
            let lost = send(&job.addresses, 14, lacks);
            let value = job.end(ranks);
            let of = |field| number(&value, field);
            let what = (of("frames"), of("incomplete_frames"), of("dropped_frames"));
            assert_eq!(what, (10, 4, 0), "{ranks} ranks: {value:#}");
            assert_eq!(
                (of("lost_packets"), number(&value["network"], "lost_packets")),
                (lost, lost)
            );
            let own = value["ranks"].as_array().expect("a list");
            let own = own.iter().map(|rank| number(&rank["network"], "lost_packets"));
            assert_eq!(own.sum::<u64>(), lost, "{value:#}");
            assert!(number(&value["stream"], "checked_frames") >= 1, "{value:#}");
            assert!(value["max_rel_error"].as_f64().is_some_and(|error| error < 1e-5), "{value:#}");
            let error = error_of(&beams, 13);
            assert!(error < 1e-5, "{ranks} ranks: {error}");
            assert!(error_of(&beams, 12) > 1e-2, "the control: another frame");
        }
    }
}

/// A sender dies, of which one rank has whole frames and the other none, and starts again. Its number tells the ranks not to combine
/// both runs' frames of the same numbers.
#[test]
fn two_runs_of_a_sender_are_not_mixed() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let beams = folder.path().join("beams.npy");
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(Launcher::is_there) {
        let more = format!("--source udp:127.0.0.1:0 --save-beams {}", beams.display());
        let job = Listening::start(&launcher, 2, cli.bare_command(&demo(100, &more)));
        // Numbers as `onebuf send --ranks` draws them.
        let open = |stream| job.addresses.iter().map(|to| connect(to).stream(stream)).collect();
        let lacks = |rank, _| if rank == 1 { 0.5 } else { 0.0 };
        let first = send_parts(open(0x6f62_0001), 8, |number| frame(50 + number), lacks);
        // No end is announced. After a quiet second another stream may take over.
        std::mem::forget(first);
        thread::sleep(Duration::from_millis(1500));
        let second = send_parts(open(0x6f62_0002), 8, frame, |_, _| 0.0);
        drop(second);
        let value = job.end(2);
        let of = |field| number(&value, field);
        let what = (of("frames"), of("incomplete_frames"), of("dropped_frames"));
        assert_eq!(what, (8, 0, 0), "{value:#}");
        let error = error_of(&beams, 7);
        assert!(error < 1e-5, "{error} {value:#}");
    }
}

/// `onebuf send` divides a frame as the ranks do: to consecutive ports, or one share by each of several senders. Every number is that of
/// a single process that receives the same frames.
#[test]
fn senders_of_shares_and_ranks_fit_together() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("beams.npy");
    let listen = |port: u16| {
        let source = format!("--source udp:127.0.0.1:{port} --save-beams {}", path.display());
        cli.bare_command(&demo(100, &source))
    };
    let send = |to: &str, more: &str| {
        format!(
            "send --json --to udp:{to} --samples 15616 --channels 61 --frames 12 --rate 20fps {more}"
        )
    };
    // The last frame is the twelfth in any case: the stream ends after it.
    let port = free_ports(1);
    let alone = listen(port).stderr(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut alone = alone.expect("a receiver");
    while UdpSocket::bind(("127.0.0.1", port)).is_ok() {
        thread::sleep(Duration::from_millis(50));
    }
    cli.run(&send(&format!("127.0.0.1:{port}"), "")).ok();
    assert!(alone.wait().expect("a status").success());
    let wanted = saved(&path);
    let strongest = wanted.iter().map(|number| number.norm()).fold(0.0, f32::max);
    let off = |beams: &[Complex32]| {
        let off = beams.iter().zip(&wanted).map(|(one, other)| (one - other).norm());
        off.fold(0.0, f32::max) / strongest
    };
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(Launcher::is_there) {
        let first = free_ports(3);
        let job = Listening::start(&launcher, 3, listen(first));
        let ports: Vec<u16> = job.addresses.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [first, first + 1, first + 2]);
        let sent = cli.run(&send(&format!("127.0.0.1:{first}"), "--ranks 3")).json();
        assert_eq!((number(&sent, "frames"), number(&sent, "ports")), (12, 3));
        assert_eq!(number(&sent, "bytes"), 12 * 8 * SHAPE.samples() as u64);
        let value = job.end(3);
        assert_eq!(number(&value, "lost_packets"), 0, "{value:#}");
        assert!(number(&value["stream"], "checked_frames") >= 1, "{value:#}");
        assert!(off(&saved(&path)) < 1e-6, "3 ranks: {}", off(&saved(&path)));

        let job = Listening::start(&launcher, 2, listen(0));
        let shares = job.addresses.iter().enumerate().map(|(rank, to)| {
            let args = send(&to.to_string(), &format!("--share {rank}/2"));
            cli.command(&args).stdout(Stdio::null()).spawn().expect("a sender")
        });
        let mut senders: Vec<_> = shares.collect();
        let value = job.end(2);
        assert!(senders.iter_mut().all(|sender| sender.wait().expect("a sender").success()));
        assert!(number(&value, "frames") > 0, "{value:#}");
        assert!(off(&saved(&path)) < 1e-6, "2 ranks: {}", off(&saved(&path)));
    }
    let mut other = wanted.clone();
    other[700] += Complex32::new(strongest * 1e-4, 0.0);
    assert!(off(&other) > 1e-5, "the control: one other number");
}

/// The first of several consecutive ports that are free now.
fn free_ports(many: u16) -> u16 {
    let free = |first: u16| {
        let bound =
            (0..many).map(|more| UdpSocket::bind(("127.0.0.1", first.checked_add(more)?)).ok());
        bound.collect::<Option<Vec<_>>>()
    };
    let any = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let tries = (0..100).map(|_| any().expect("a port").port());
    let mut found = tries.filter(|first| free(*first).is_some());
    found.next().expect("free ports")
}

/// A rank whose port another program has says so, and no rank ends with 0. A rank without channels needs no port.
#[test]
fn a_port_in_use_is_told_with_its_rank() {
    let cli = Cli::new();
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(Launcher::is_there) {
        let first = free_ports(2);
        let taken = UdpSocket::bind(("127.0.0.1", first + 1)).expect("a free port");
        let source = format!("--source udp:127.0.0.1:{first}");
        let mut running = Running::start(&launcher, 2, cli.bare_command(&demo(5, &source)));
        let (statuses, said) = (running.statuses(2), running.read("said"));
        assert!(
            statuses.iter().all(|status| status.is_none_or(|at| at > 0)),
            "{statuses:?} {said}"
        );
        assert!(statuses.iter().any(Option::is_some), "{said}");
        let why = format!("rank 1: udp:127.0.0.1:{}: ", first + 1);
        assert!(said.contains(&why) && said.contains("in use"), "{said}");
        assert!(!said.contains("listening"), "{said}");
        drop(taken);
    }
    let ran = MPICH.run(2, cli.bare_command(&demo(5, "--source udp:127.0.0.1:65535")));
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains("rank 1 would have the port 65535 + 1"), "{}", ran.stderr);
}

/// Rank 0 finds samples that are no numbers: the others end and name it, long before the timeout.
#[test]
fn a_rank_that_fails_ends_the_others_rounds() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let cli = Cli::new();
    let args = demo(1000, "--source udp:127.0.0.1:0 --rank-timeout 600");
    let mut job = Listening::start(&OPEN_MPI, 2, cli.bare_command(&args));
    let wrong = vec![Complex32::new(f32::NAN, 0.0); 31 * SHAPE.length];
    let mut senders = job.addresses.iter().map(|to| Udp::connect(to).expect("a socket"));
    let mut senders: [Udp; 2] = std::array::from_fn(|_| senders.next().expect("two"));
    let statuses = thread::scope(|threads| {
        let sending = threads.spawn(move || {
            for number in 0..100 {
                for (rank, udp) in senders.iter_mut().enumerate() {
                    let own = share(SHAPE.channels, 2, rank).len() * SHAPE.length;
                    udp.take(&wrong[..own], number).expect("a frame");
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let statuses = job.running.statuses(2);
        sending.join().expect("a sender");
        statuses
    });
    let said = job.running.read("said");
    assert!(statuses.iter().all(|status| status.is_none_or(|at| at > 0)), "{statuses:?} {said}");
    assert!(said.contains("samples that are not finite"), "{said}");
    // Rank 1 itself says so: it learns it in a round, or in an exchange of a frame. Lines of two ranks may mix.
    let mut own = said.lines().filter_map(|line| line.split_once("rank 1: "));
    let why = ["rank 0 stopped receiving", "rank 0 has stopped after"];
    assert!(own.any(|(_, own)| why.iter().any(|why| own.contains(why))), "{said}");
}

/// What is not a rank's own business is refused before anything starts.
#[test]
fn senders_refuse_what_has_no_meaning() {
    let cli = Cli::new();
    let run = |args: &str| -> Ran { cli.run(&format!("send --to udp:127.0.0.1:9 {args}")) };
    run("--ranks 2 --share 0/2").failed(2, "cannot be used with");
    run("--share 2/2").failed(2, "RANK/RANKS");
    run("--samples 512 --channels 2 --share 2/3").failed(1, "--share 2/3 of 2 channels has none");
    cli.run("send --to udp:127.0.0.1:65535 --ranks 2").failed(1, "do not exist");
    let channels = run("--file a --channels 3");
    channels.failed(2, "cannot be used with --file");
}
