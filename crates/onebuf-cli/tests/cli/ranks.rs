//! `mpirun -n 4 onebuf demo`, with the launchers of two MPIs.

mod gpus;
mod ports;

use crate::support::{Cli, Ran, assert_has, private, skip};
use serde_json::Value;
use std::{
    fs,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A launcher, its options, and the variable in which ranks find their number.
struct Launcher {
    path: &'static str,
    options: &'static [&'static str],
    rank: &'static str,
}

const OPEN_MPI: Launcher = Launcher {
    path: "/usr/bin/mpirun.openmpi",
    options: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    rank: "OMPI_COMM_WORLD_RANK",
};

const MPICH: Launcher = Launcher { path: "/usr/bin/mpirun.mpich", options: &[], rank: "PMI_RANK" };

impl Launcher {
    fn is_there(&self) -> bool {
        let there = Path::new(self.path).is_file();
        if !there {
            skip(&format!("{} is missing", self.path));
        }
        there
    }

    /// The launcher with ranks of the program that have different options: `(ranks, arguments)` of each group.
    fn groups(&self, groups: &[(usize, Command)]) -> Command {
        let mut command = Command::new(self.path);
        command.args(self.options);
        for (number, (ranks, program)) in groups.iter().enumerate() {
            if number > 0 {
                command.arg(":");
            }
            command.args(["-n", &ranks.to_string()]).arg(program.get_program());
            command.args(program.get_args());
            let set = program.get_envs().filter_map(|(name, value)| Some((name, value?)));
            command.envs(set);
        }
        // Debian's PMIx warns about components that nothing here needs.
        command.env("PMIX_MCA_gds", "hash").env_remove("ONEBUF_LOG");
        command
    }

    fn run(&self, ranks: usize, program: Command) -> Ran {
        self.groups(&[(ranks, program)]).output().expect("the launcher starts").into()
    }
}

const SMALL: &str = "demo --json --samples 16384 --channels 61 --beams 5 --frames 9 --ring 3";

/// Channels of 256 samples. 61 channels do not divide among any number of ranks, and 16384 is no multiple of 61.
fn small() -> String {
    SMALL.replace("16384", &(61 * 256).to_string())
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {value}"))
}

/// The bytes that must cross between ranks: spectra of other ranks' frequencies, and a block of beams for rank 0.
fn expected_bytes(value: &Value) -> u64 {
    let ranks = value["ranks"].as_array().expect("a list");
    let most = ranks.iter().map(|rank| number(rank, "frequencies")).max().unwrap_or(0);
    let turned = |rank: &Value| number(rank, "channels") * (256 - number(rank, "frequencies"));
    let turned: u64 = ranks.iter().map(turned).sum();
    let gathered = (ranks.len() as u64 - 1) * number(value, "beams") * most;
    8 * number(value, "frames") * (turned + gathered)
}

/// Checks one run against what a single process has detected.
fn assert_whole(value: &Value, ranks: usize, alone: &Value) {
    assert_has(value, &["stages", "stream", "detections", "speedup", "mpi", "corner_turn_us"]);
    let all = value["ranks"].as_array().expect("a list");
    let sum = |field| all.iter().map(|rank| number(rank, field)).sum::<u64>();
    assert_eq!((all.len(), sum("channels"), sum("frequencies")), (ranks, 61, 256), "{value:#}");
    assert!(all.iter().all(|rank| rank["frames"] == 9), "{value:#}");
    assert_eq!((&value["frames"], &value["stream"]["checked_frames"]), (&9.into(), &9.into()));
    assert_eq!(number(value, "bytes_sent"), expected_bytes(value), "{ranks} ranks");
    assert_eq!(value["gpu_aware"], false);
    let [cuda, hip] = ["cuda", "hip"].map(|of| &value["gpu_claim"][of]);
    // Debian's Open MPI has no function for HIP; MPICH's has both.
    let says_hip = value["mpi"].as_str().is_some_and(|name| name.starts_with("MPICH"));
    assert!(cuda.is_boolean() && hip.is_boolean() == says_hip, "{cuda} {hip}");
    let places = |value: &Value| {
        let all = value["detections"].as_array().expect("a list");
        all.iter().map(|at| (number(at, "beam"), number(at, "bin"))).collect::<Vec<_>>()
    };
    assert_eq!(places(value), places(alone), "{ranks} ranks");
    assert!(value["max_rel_error"].as_f64().is_some_and(|error| error < 1e-4), "{value:#}");
}

#[test]
fn every_number_of_ranks_detects_what_one_process_does() {
    let cli = Cli::new();
    let alone = cli.run_bare(&small()).json();
    for (launcher, counts) in [(OPEN_MPI, &[1, 2, 3, 4, 7][..]), (MPICH, &[2, 3])] {
        if !launcher.is_there() {
            continue;
        }
        for &ranks in counts {
            let value = launcher.run(ranks, cli.bare_command(&small())).json();
            assert_whole(&value, ranks, &alone);
            let name = value["mpi"].as_str().unwrap_or_default().to_owned();
            assert!(name.contains("MPI"), "{name}");
        }
    }
}

/// A library that says yes in the place of the real one below it: users see that, and device memory is staged as before.
#[test]
fn what_mpi_says_of_device_memory_is_reported() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let [source, library] = ["claims.c", "libclaims.so"].map(|name| folder.path().join(name));
    fs::write(&source, "int MPIX_Query_cuda_support(void) { return 1; }\n").expect("a file");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).args([&library, &source]);
    let built = cc.arg("-l:libmpi.so.40").output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = |args: &str| {
        let mut program = cli.bare_command(args);
        program.env("ONEBUF_MPI_LIB", &library);
        OPEN_MPI.run(2, program)
    };
    let value = run(&small()).json();
    assert_eq!((&value["gpu_aware"], &value["gpu_claim"]["cuda"]), (&false.into(), &true.into()));
    let text = run(&small().replace(" --json", "")).stdout;
    let said =
        "MPI was given memory of the host alone; it says that it takes memory of CUDA devices";
    assert!(text.contains(said), "{text}");
}

/// Kernels of OpenCL on both sides of the corner turn; samples from a file; more ranks than channels; one trace of all ranks.
#[test]
fn ranks_use_devices_files_and_one_trace() {
    if !MPICH.is_there() {
        return;
    }
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let samples: Vec<u8> = (0..2 * 2 * 256 * 2)
        .flat_map(|at: u32| ((at as f32 * 0.7).sin() * 0.5).to_le_bytes())
        .collect();
    fs::write(folder.path().join("some.iq"), samples).expect("a file");
    let trace = folder.path().join("trace.json");
    let args = format!(
        "demo --json --samples 512 --channels 2 --beams 3 --frames 6 --devices opencl:0,opencl:0 --source file:{} --trace {}",
        folder.path().join("some.iq").display(),
        trace.display()
    );
    let value = MPICH.run(3, cli.command(&args)).json();
    assert_eq!((&value["frames"], &value["ranks"][2]["channels"]), (&6.into(), &0.into()));
    assert!(number(&value["stream"], "checked_frames") > 0, "{value:#}");
    let trace = fs::read(&trace).expect("a trace");
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    assert_causal(&trace, 3);
    assert_exchanged(&trace, &value);
}

/// Each rank's exchanges with every other one, for every frame: their bytes are those of the report.
fn assert_exchanged(trace: &Value, report: &Value) {
    let events = trace["traceEvents"].as_array().expect("a list");
    let ranks = report["ranks"].as_array().expect("a list");
    let mut sent = 0;
    for turn in ["corner turn", "gather"] {
        for (rank, other) in (0..3).flat_map(|rank| (0..3).map(move |other| (rank, other))) {
            let of_pair = |event: &&Value| {
                event["cat"] == turn
                    && number(event, "pid") >> 20 == rank
                    && event["name"] == format!("{turn}, rank {other}")
            };
            let (begins, ends): (Vec<_>, Vec<_>) =
                events.iter().filter(of_pair).partition(|event| event["ph"] == "b");
            let many = if rank == other { 0 } else { number(report, "frames") };
            assert_eq!((begins.len() as u64, ends.len() as u64), (many, many), "{turn} {rank}");
            for (frame, (begin, end)) in begins.into_iter().zip(ends).enumerate() {
                let args = &begin["args"];
                assert_eq!((number(args, "frame"), number(args, "partner")), (frame as u64, other));
                assert_eq!(begin["id"], end["id"]);
                let [from, to, waited] = [&begin["ts"], &end["ts"], &args["waited_us"]]
                    .map(|us| us.as_f64().expect("a time"));
                assert!(waited >= 0.0 && (to - from - waited).abs() < 1.0, "{begin} {end}");
                if turn == "corner turn" {
                    let own = number(&ranks[rank as usize], "frequencies");
                    let theirs = number(&ranks[other as usize], "channels");
                    assert_eq!(number(args, "bytes"), 8 * own * theirs, "{begin}");
                }
                sent += number(args, "bytes");
            }
        }
    }
    assert_eq!(sent, number(report, "bytes_sent"));
}

/// No rank forms the beams of a frame before every rank with channels has begun to transform it, on rank 0's clock.
fn assert_causal(trace: &Value, ranks: u64) {
    let events = trace["traceEvents"].as_array().expect("a list");
    let starts = |rank: u64, name: &str, frame: u64| {
        let at = events.iter().find(|event| {
            let stage = event["cat"] == "stage" && event["name"] == name;
            stage && number(event, "pid") >> 20 == rank && event["args"]["frame"] == frame
        });
        at.and_then(|event| event["ts"].as_f64())
    };
    for rank in 0..ranks {
        let names = events.iter().filter(|event| event["name"] == "process_name");
        let own = format!("rank {rank}: ");
        let named = |event: &Value| {
            event["args"]["name"].as_str().is_some_and(|name| name.starts_with(&own))
        };
        assert!(names.into_iter().any(named), "no process of rank {rank}");
        for frame in 0..6 {
            let beams = starts(rank, "beams", frame).expect("a stage of beams");
            for other in 0..ranks {
                let transform = starts(other, "delay+fft", frame).expect("a stage of transforms");
                // The clocks are aligned to half a round trip, which a busy machine makes long.
                assert!(transform < beams + 50_000.0, "frame {frame}: {other} before {rank}");
            }
        }
    }
}

#[test]
fn ranks_that_do_not_fit_together_say_so() {
    let cli = Cli::new();
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(Launcher::is_there) {
        let other = small().replace("--frames 9", "--frames 8");
        let groups = [(1, cli.bare_command(&small())), (2, cli.bare_command(&other))];
        let ran: Ran = launcher.groups(&groups).output().expect("the launcher starts").into();
        assert_ne!(ran.code, Some(0), "{}", ran.stderr);
        let why = "--frames: 9 (rank 0), 8 (ranks 1, 2)";
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        assert!(!ran.stdout.contains("schema"), "an answer: {}", ran.stdout);

        let missing = format!("{} --source file:/nonexistent", small());
        let zeros = tempfile::NamedTempFile::new().expect("a file");
        fs::write(zeros.path(), vec![0; 61 * 256 * 8]).expect("zeros");
        let there = format!("{} --source file:{}", small(), zeros.path().display());
        let groups = [(2, cli.bare_command(&there)), (1, cli.bare_command(&missing))];
        let ran: Ran = launcher.groups(&groups).output().expect("the launcher starts").into();
        assert_ne!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("rank 2: /nonexistent: No such file"), "{}", ran.stderr);
        assert!(!ran.stdout.contains("schema"), "an answer: {}", ran.stdout);
    }
    for option in ["--adaptive 4", "--batch 2", "--staged", "--source tcp:127.0.0.1:0"] {
        let refused = format!("{} {option}", small());
        let ran = MPICH.run(1, cli.bare_command(&refused));
        assert_ne!(ran.code, Some(0), "{option}");
        assert!(ran.stderr.contains("not with several ranks"), "{}", ran.stderr);
    }
}

/// A job whose ranks write their process ids, what they say and their exit status into a folder: launchers may lose the last words of a
/// job that they end, and give the status of one rank.
struct Running {
    job: Child,
    folder: tempfile::TempDir,
}

/// The launcher's SIGTERM is for the rank. Its shell goes on, to write the status.
const SCRIPT: &str = r#"
"$@" 2>> "$0/said" & echo $! > "$0/$RANK"
trap "" TERM
wait $!
status=$?
echo $status > "$0/$RANK.status"
exit $status
"#;

impl Running {
    fn start(launcher: &Launcher, ranks: usize, program: Command) -> Self {
        Self::groups(launcher, &[(ranks, program)])
    }

    fn groups(launcher: &Launcher, groups: &[(usize, Command)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let shell = |(ranks, program): &(usize, Command)| {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &SCRIPT.replace("RANK", launcher.rank)]).arg(folder.path());
            shell.arg(program.get_program()).args(program.get_args());
            shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
            (*ranks, shell)
        };
        let groups: Vec<_> = groups.iter().map(shell).collect();
        let mut command = launcher.groups(&groups);
        let job = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        Self { job: job.expect("the launcher starts"), folder }
    }

    /// The exit status of each rank, when the job has ended. `None` where the launcher has killed the rank's shell, too.
    fn statuses(&mut self, ranks: usize) -> Vec<Option<i32>> {
        self.wait("an end", |running| running.job.try_wait().expect("a child").is_some());
        let status = |rank| self.read(&format!("{rank}.status")).trim().parse().ok();
        (0..ranks).map(status).collect()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Waits until something holds, for at most 90 s.
    fn wait(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(90);
        while !holds(self) {
            assert!(Instant::now() < end, "{what}: {}", self.read("said"));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.job.kill();
        let _ = self.job.wait();
    }
}

/// Whatever fails, and wherever: no rank ends with 0. When the first has failed, MPICH's launcher kills those that are left, and Open MPI's
/// those that are left a second later.
#[test]
fn every_rank_fails_if_one_does() {
    let (cli, folder) = (Cli::new(), tempfile::tempdir().expect("a folder"));
    let file = |name: &str, byte: u8| {
        let path = folder.path().join(name);
        fs::write(&path, vec![byte; 61 * 256 * 8]).expect("a file");
        format!("{} --source file:{}", small(), path.display())
    };
    // Numbers near 0.5, where the others have zeros.
    let (zeros, others) = (file("zeros", 0), file("others", 0x3f));
    let cases = [
        ("nothing", zeros.clone(), zeros.clone()),
        ("other options", zeros.clone(), zeros.replace("--frames 9", "--frames 8")),
        ("no file", zeros.clone(), zeros.replace("zeros", "nonexistent")),
        // Rank 0 finds wrong numbers, in the end.
        ("other samples", zeros, others),
    ];
    for launcher in [OPEN_MPI, MPICH].into_iter().filter(Launcher::is_there) {
        for (what, most, last) in &cases {
            let groups = [(2, cli.bare_command(most)), (1, cli.bare_command(last))];
            let mut running = Running::groups(&launcher, &groups);
            let found = running.statuses(3);
            let ended = |good: &dyn Fn(i32) -> bool| {
                found.iter().all(|status| match status {
                    Some(status) => good(*status),
                    None => *what != "nothing",
                })
            };
            let right = if *what == "nothing" { ended(&|at| at == 0) } else { ended(&|at| at > 0) };
            let right = right && found.iter().any(Option::is_some);
            assert!(right, "{what} with {}: {found:?} {}", launcher.path, running.read("said"));
        }
    }
}

/// Rank 0 has the answer, and nowhere to put it.
#[test]
fn every_rank_fails_if_the_answer_cannot_be_given() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let cli = Cli::new();
    for args in [small(), small().replace(" --json", "")] {
        let program = cli.bare_command(&args);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"exec "$0" "$@" > /dev/full"#]).arg(program.get_program());
        shell.args(program.get_args());
        shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut running = Running::start(&OPEN_MPI, 3, shell);
        let found = running.statuses(3);
        let said = running.read("said");
        assert!(found.iter().all(|status| status.is_none_or(|at| at > 0)), "{found:?} {said}");
        assert!(said.contains("rank 0: No space left on device"), "{said}");
        // The launcher may end the others before they have said it.
        for (rank, _) in found.iter().enumerate().skip(1).filter(|(_, status)| **status == Some(1))
        {
            let line = format!("rank {rank}: rank 0: No space left on device");
            assert!(said.contains(&line), "{found:?} {said}");
        }
    }
}

/// Open MPI's launcher ends the ranks by SIGTERM, so that they can say which one has died. MPICH's kills them at once.
#[test]
fn a_rank_that_dies_is_named_by_the_others() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let endless = small().replace("--frames 9", "--frames 100000000");
    let (cli, sockets) = (Cli::new(), private());
    let mut program = cli.bare_command(&endless);
    program.env("XDG_RUNTIME_DIR", sockets.path());
    let mut running = Running::start(&OPEN_MPI, 3, program);
    running.wait("frames", |running| running.read("said").contains("frame "));
    let left = || names(&sockets.path().join("onebuf"));
    assert_eq!(left().len(), 6, "a socket and a lock of each rank: {:?}", left());
    let pid = running.read("1").trim().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    let statuses = running.statuses(3);
    assert!(statuses.iter().all(|status| status.is_none_or(|status| status > 0)), "{statuses:?}");
    let ran = running.job.wait().expect("a status");
    assert!(!ran.success(), "{ran}");
    let (said, mut answer) = (running.read("said"), String::new());
    let why = format!("rank 1 (process {pid} on ");
    assert!(said.contains(&why) && said.contains("gone)"), "{said}");
    running.job.stdout.take().map(|mut stdout| stdout.read_to_string(&mut answer));
    assert!(!answer.contains("schema"), "an answer: {answer}");
    // Also those of the rank that could not remove them.
    assert_eq!(left(), Vec::<String>::new());
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder of sockets").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// One view has all ranks; a stopped one is shown as such, and goes on.
#[test]
fn top_shows_all_ranks_in_one_place() {
    if !OPEN_MPI.is_there() {
        return;
    }
    let endless = small().replace("--frames 9", "--frames 100000000");
    let (cli, folder) = (Cli::new(), private());
    // Other tests publish programs, too.
    let command = |args: &str| {
        let mut command = cli.bare_command(args);
        command.env("XDG_RUNTIME_DIR", folder.path());
        command
    };
    let mut running = Running::start(&OPEN_MPI, 3, command(&endless));
    running.wait("frames", |running| running.read("said").contains("frame "));
    let pids = [0, 1, 2].map(|rank| running.read(&rank.to_string()).trim().to_owned());
    let top = |args: &str| Ran::from(command(args).output().expect("it starts"));
    // The name of one process is not needed, although each rank has one.
    let mut seen = Value::Null;
    let mut until = |what: &str, states: [&str; 3]| {
        running.wait(what, |_| {
            let ran = top("top --once --json");
            seen = serde_json::from_str(&ran.stdout).unwrap_or_default();
            [0, 1, 2].into_iter().all(|rank| seen["ranks"][rank]["state"] == states[rank])
        });
        seen.clone()
    };
    let view = until("three ranks", ["running"; 3]);
    for (rank, pid) in pids.iter().enumerate() {
        let seen = &view["ranks"][rank];
        assert_eq!(
            (number(seen, "rank"), number(seen, "pid")),
            (rank as u64, pid.parse().unwrap())
        );
        let line = &seen["pipelines"][0];
        assert!(line["stages"].as_array().is_some_and(|all| all.len() == 4), "{seen:#}");
    }
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pids[1]]).status().expect("kill").success());
    };
    send("-STOP");
    until("a stopped rank", ["running", "stopped", "running"]);
    let text = top("top --once").stdout;
    send("-CONT");
    assert!(text.contains("stopped, told "), "{text}");
    until("three ranks again", ["running"; 3]);
    let alone = top(&format!("top demo-{} --once --json", pids[2]));
    let alone: Value = serde_json::from_str(&alone.stdout).expect("JSON");
    assert_eq!(alone["ranks"], serde_json::json!([]), "another rank shows itself");
}
