//! Ranks that are killed or stopped: the others say which one, and nothing is left behind.

use crate::{
    launch::{self, Mpi, wait_for},
    ranks::{SOON, hub, join, on_each, value},
    turns::turning,
};
use onebuf::{Error, Hub, pipeline::Filled};
use onebuf_mpi::{CornerTurn, World};
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

/// The rank that something happens to, of three.
const VICTIM: usize = 1;
const RANKS: usize = 3;
/// Where ranks leave what they have to say.
pub const FOLDER: &str = "ONEBUF_MPI_FOLDER";

/// Runs a rank so that the launcher does not notice its end before the others have reported. Launchers with other options, or
/// of other machines, are as slow; these here would kill the others at once.
pub const UNNOTICED: [&str; 4] = [
    "sh",
    "-c",
    r#""$@"; status=$?; for i in $(seq 600); do
    [ -e $ONEBUF_MPI_FOLDER/said0 ] && [ -e $ONEBUF_MPI_FOLDER/said2 ] && break; sleep 0.1; done; exit $status"#,
    "sh",
];

/// A launcher and its ranks, with temporary files in a folder of their own.
struct Failing {
    folder: tempfile::TempDir,
    ended: launch::Ended,
    name: &'static str,
    /// The launcher has killed the ranks, before they could end.
    ranks_were_killed: bool,
}

impl Failing {
    fn run(mpi: &Mpi, under: &[&str], test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let temporary = folder.path().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let [here, temporary] = [folder.path(), &temporary].map(|path| path.to_str().unwrap());
        let environment = [(FOLDER, here), ("TMPDIR", temporary)];
        let job = mpi.start_under(under, RANKS, test, &environment);
        let ended = job.wait(Duration::from_secs(100));
        let name = mpi.name;
        let ranks_were_killed = !folder.path().join("said0").exists();
        Self { folder, ended, name, ranks_were_killed }
    }

    /// What a rank left; the launcher's output if it left nothing.
    fn left(&self, what: &str, rank: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("{what}{rank}"))).unwrap_or_else(|_| {
            panic!("no {what} of rank {rank}, {}: {}", self.name, self.ended.said)
        })
    }

    /// Every survivor has named the rank, its process and its state, in each line.
    fn check_names(&self, state: &str) {
        let process: u32 = self.left("process", VICTIM).trim().parse().unwrap();
        let named = format!("rank {VICTIM} (process {process} on ");
        for rank in (0..RANKS).filter(|&rank| rank != VICTIM) {
            let said = self.left("said", rank);
            assert!(said.lines().count() >= 2, "{}: {said}", self.name);
            for line in said.lines() {
                assert!(line.contains(&named) && line.contains(state), "{}: {line}", self.name);
            }
        }
    }

    fn check_failed(&self) {
        assert!(!self.ended.success, "{}: {}", self.name, self.ended.said);
    }

    /// The files that the ranks had mapped are gone, as are the temporary ones.
    fn check_traces(&self) {
        let mapped: BTreeSet<String> = (0..RANKS)
            .flat_map(|rank| {
                self.left("files", rank).lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .filter(|file| !file.is_empty())
            .collect();
        let left = mapped.iter().filter(|file| Path::new(file).exists());
        let left: Vec<_> = left.filter(|file| !self.is_known_to_stay(file)).collect();
        assert!(left.is_empty(), "{}: {left:?}", self.name);
        let temporary = fs::read_dir(self.folder.path().join("tmp")).unwrap().flatten();
        let left: Vec<PathBuf> = temporary.map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{}: {left:?}", self.name);
    }
}

impl Failing {
    /// MPICH 5 unlinks its shared memory when it is finalised, which a rank that the launcher kills cannot do.
    fn is_known_to_stay(&self, file: &str) -> bool {
        self.ranks_were_killed
            && file.starts_with("/dev/shm/mpich_shm_")
            && fs::remove_file(file).is_ok()
    }
}

/// Leaves a text for the test and the other ranks, all of it or nothing.
pub fn leave(what: &str, rank: usize, text: &str) {
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    let (part, whole) = (folder.join(format!("part{rank}")), folder.join(format!("{what}{rank}")));
    fs::write(&part, format!("{text}\n")).unwrap();
    fs::rename(part, whole).unwrap();
}

/// The files in memory and in temporary folders that this process has mapped or opened.
fn files() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.display().to_string()));
    let program = env::current_exe().unwrap().display().to_string();
    let temporary = |file: &String| {
        let is_code = *file == program || file.contains(".so");
        (file.starts_with("/dev/shm/") || file.starts_with("/tmp/")) && !is_code
    };
    let all: BTreeSet<String> = mapped.chain(open).filter(temporary).collect();
    // The launcher's own files for the output of a rank end with the launcher.
    all.into_iter().filter(|file| !file.ends_with("(deleted)")).collect::<Vec<_>>().join("\n")
}

/// What a rank does until the signal comes, and what the survivors find out: a line for each call that must fail.
fn hit(hub: &Hub, world: &World, signal: i32, timeout: Duration) -> Vec<String> {
    let rank = world.rank();
    // Launchers ask ranks to end before they force them.
    // SAFETY: ignoring a signal calls nothing.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    leave("process", rank, &process::id().to_string());
    leave("files", rank, &files());
    world.barrier(SOON).unwrap();
    let turn = CornerTurn::new(world, 6, 600).timeout(timeout);
    let source = move |_: &_, frame| {
        if rank == VICTIM && frame == 20 {
            // SAFETY: a signal to this process alone.
            unsafe { libc::raise(signal) };
        }
        Ok(Filled::Frame)
    };
    let builder = turning(hub, turn, [6, 600], 3, 0).source(source).sink(|_, _| Ok(()));
    let failure = builder.build().unwrap().run().unwrap_err();
    assert_eq!(failure.at, "turn");
    let mut said = world.ailing();
    assert_eq!(said.len(), 1, "{said:?}");
    said.push(failure.to_string().replace('\n', " "));
    said
}

/// The ranks that are left send each other messages.
fn talk(hub: &Hub, world: &World, other: usize) {
    let own: Vec<u32> = (0..50_000).map(|at| value(world.rank(), 0, at)).collect();
    let from = hub.buffer_from(&own).build().unwrap();
    let into = hub.buffer::<u32>(own.len()).build().unwrap();
    let mut came = world.receive(&into, other, 9).unwrap();
    world.send(&from, other, 9).unwrap().wait(SOON).unwrap();
    came.wait(SOON).unwrap();
    drop(came);
    let got = into.map().unwrap();
    assert!((0..got.len()).all(|at| got[at] == value(other, 0, at)));
}

/// Reports, and ends with a failure when the other survivor has reported, too: then the launcher ends the rest.
fn report(world: World, said: &[String]) -> ! {
    let (rank, other) = (world.rank(), RANKS - 1 - world.rank());
    leave("said", rank, &said.join("\n"));
    drop(world);
    let path = PathBuf::from(env::var_os(FOLDER).unwrap()).join(format!("said{other}"));
    assert!(wait_for(&path, SOON).is_some(), "rank {other} does not report");
    process::exit(3)
}

#[test]
fn a_killed_rank_is_named_by_the_others() {
    on_each(|mpi| {
        let job = Failing::run(mpi, &UNNOTICED, "failures::rank_killed");
        job.check_names("gone");
        job.check_failed();
        job.check_traces();
    });
}

#[test]
#[ignore = "a rank"]
fn rank_killed() {
    let (hub, world) = (hub(), join());
    let mut said = hit(&hub, &world, libc::SIGKILL, SOON);
    let into = hub.buffer::<u32>(100).build().unwrap();
    let came = world.receive(&into, VICTIM, 3).unwrap().wait(SOON);
    said.extend([came, world.barrier(SOON)].map(|failed| failed.unwrap_err().to_string()));
    assert!(world.has_failed());
    report(world, &said)
}

#[test]
fn a_stopped_rank_is_named_by_the_others() {
    on_each(|mpi| {
        let job = Failing::run(mpi, &[], "failures::rank_stopped");
        job.check_names("stopped");
        job.check_failed();
        job.check_traces();
    });
}

#[test]
#[ignore = "a rank"]
fn rank_stopped() {
    let (hub, world) = (hub(), join());
    let said = hit(&hub, &world, libc::SIGSTOP, Duration::from_secs(6));
    report(world, &said)
}

#[test]
fn a_launcher_that_ends_the_job_leaves_nothing() {
    on_each(|mpi| {
        let job = Failing::run(mpi, &[], "failures::rank_killed");
        job.check_failed();
        job.check_traces();
    });
}

#[test]
fn the_others_go_on_where_mpi_can() {
    let Some(mpi) = launch::with_ulfm() else { return };
    let job = Failing::run(&mpi, &[], "failures::rank_remaining");
    for rank in [0, 2] {
        assert_eq!(job.left("said", rank).trim(), format!("{} of 2", rank / 2), "{:?}", job.ended);
    }
    // Without that ability it is refused.
    for mpi in launch::all().into_iter().filter(|mpi| mpi.name == "Open MPI") {
        mpi.run(2, "failures::rank_cannot_go_on", &[]);
    }
}

#[test]
#[ignore = "a rank"]
fn rank_remaining() {
    let (hub, world) = (hub(), join());
    hit(&hub, &world, libc::SIGKILL, SOON);
    let world = world.remaining().unwrap();
    talk(&hub, &world, 1 - world.rank());
    world.barrier(SOON).unwrap();
    let turn = CornerTurn::new(&world, 5, 70);
    let report = turning(&hub, turn, [5, 70], 2, 10).build().unwrap().run().unwrap();
    assert_eq!(report.frames, 10);
    leave("said", world.rank() * 2, &format!("{} of {}", world.rank(), world.size()));
}

#[test]
#[ignore = "a rank"]
fn rank_cannot_go_on() {
    let refused = join().remaining().unwrap_err();
    assert!(matches!(&refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("MPIX_Comm_shrink"), "{refused}");
}
