//! Frames and corner turns between ranks of MPI, compared with MPI's own calls on plain memory.
//!
//! The ranks are processes of their own: the program starts `mpirun` with itself (see [`Ranks`]), and each rank runs [`run_rank`]. Both
//! sides of a comparison run in the same ranks. Rank 0 prints the blocks, and the program evaluates them.

mod rank;

use crate::{
    Bar, Bench, Case, Row, Stop, Unit, Workload,
    abba::{Block, Compared},
};
use onebuf::Error;
use std::{
    env,
    io::Read,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use rank::run_rank;

/// How the program starts itself as a rank: its path, and the arguments before the row's name.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. The name of the row follows them.
    pub arguments: Vec<String>,
}

pub const STREAM_1MIB: Workload = Workload {
    name: "mpi_stream_1MiB",
    about: "GB/s of sink::Mpi to source::Mpi, over a ring of persistent requests on plain memory",
    cases: |_| vec![case("mpi_stream_1MiB", 2)],
};

pub const STREAM_8MIB: Workload = Workload {
    name: "mpi_stream_8MiB",
    about: "the same with frames of 8 MiB",
    cases: |_| vec![case("mpi_stream_8MiB", 2)],
};

pub const TURN: Workload = Workload {
    name: "mpi_corner_turn_<n>ranks",
    about: "GB/s that each rank receives in a corner turn, over MPI_Alltoall on plain memory",
    cases: |_| turns("mpi_corner_turn"),
};

pub const TURN_SHORT: Workload = Workload {
    name: "mpi_corner_turn_short_<n>ranks",
    about: "the same with rows of 1 KiB, for which MPI_Alltoall would have to be given packed blocks",
    cases: |_| turns("mpi_corner_turn_short"),
};

/// Two ranks, and four where each has a processor.
fn turns(name: &str) -> Vec<Case> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let counts: &[usize] = if processors < 4 { &[2] } else { &[2, 4] };
    counts.iter().map(|ranks| case(&format!("{name}_{ranks}ranks"), *ranks)).collect()
}

/// A row is above this part of what MPI's own calls do.
const BAR: Bar = Bar::RatioAtLeast(0.95);

/// No measurement takes longer.
const LIMIT: Duration = Duration::from_secs(180);

/// What goes before the lines that rank 0 prints.
const BLOCK: &str = "onebuf bench block:";
const LIBRARY: &str = "onebuf bench library:";

fn case(name: &str, ranks: usize) -> Case {
    let row = name.to_owned();
    Case::new(name, move |bench| run(bench, &row, ranks))
}

fn run(bench: &Bench, row: &str, ranks: usize) -> Result<Row, Stop> {
    let itself = bench.ranks.as_ref().ok_or_else(|| {
        Stop::Absent("this program does not start ranks of MPI; `onebuf bench` does".into())
    })?;
    let mpirun = mpirun().ok_or_else(|| Stop::Absent("mpirun is not in PATH".into()))?;
    let mut command = Command::new(mpirun);
    command.args(["-n", &ranks.to_string()]).arg(&itself.program).args(&itself.arguments).arg(row);
    prepare(&mut command);
    let said = said(command)?;
    let blocks: Option<Vec<Block>> = lines(&said, BLOCK).map(block).collect();
    let blocks = blocks.filter(|blocks| !blocks.is_empty());
    let blocks = blocks.ok_or_else(|| failed(format!("the ranks printed no result: {said}")))?;
    let unit = Unit::GbPerS(rank::bytes_of(row).unwrap_or(1));
    let library = lines(&said, LIBRARY).next().unwrap_or_default();
    Ok(Compared::of(&blocks).row(row, unit).bar(BAR).remark(library))
}

/// The launcher: the first of this name in `PATH`.
fn mpirun() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|file| Path::is_file(file))
}

/// Neither does a launcher bind a rank's threads to one processor, nor does it refuse more ranks than processors, or root: these
/// are what programs that measure are run with. Launchers ignore each other's variables.
fn prepare(command: &mut Command) {
    let variables = [
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    command.envs(variables).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// Runs a command to its end, and returns what it has printed.
fn said(mut command: Command) -> Result<String, Stop> {
    // A group of its own, so that the ranks end with their launcher.
    let child = command.process_group(0).spawn();
    let mut child = child.map_err(|why| failed(format!("mpirun does not start: {why}")))?;
    let [out, err] = [reader(child.stdout.take()), reader(child.stderr.take())];
    let success = ended(&mut child);
    let [out, err] = [out, err].map(|reader| reader.join().unwrap_or_default());
    match success {
        Some(true) => Ok(out),
        Some(false) => Err(failed(format!("the ranks failed: {}", err.trim()))),
        None => Err(failed(format!("the ranks did not end within {LIMIT:?}: {}", err.trim()))),
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is what there is.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the end: whether it was a success, or `None` if it was ended by force.
fn ended(child: &mut Child) -> Option<bool> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) => thread::sleep(Duration::from_millis(10)),
            Err(_) => break,
        }
    }
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    let _ = child.wait();
    None
}

fn failed(why: String) -> Stop {
    Stop::Failed(Error::invalid(why))
}

/// What follows a mark, in the lines that begin with it.
fn lines<'t>(text: &'t str, mark: &'t str) -> impl Iterator<Item = &'t str> {
    text.lines().filter_map(move |line| line.trim().strip_prefix(mark)).map(str::trim)
}

/// A block as rank 0 prints it.
fn block(line: &str) -> Option<Block> {
    let all: Vec<f64> = line.split(' ').map_while(|word| word.parse().ok()).collect();
    match all[..] {
        [a, b, c, d] => Some(Block { ours: [a, d], baseline: [b, c] }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<String, Stop> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        prepare(&mut command);
        said(command)
    }

    #[test]
    fn results_are_read_between_other_lines() {
        let text = format!("noise\n{BLOCK} 1 2 3 4.5\n{LIBRARY} some MPI\n{BLOCK} 5 6 7 8\n");
        let blocks: Option<Vec<Block>> = lines(&text, BLOCK).map(block).collect();
        let first = Block { ours: [1.0, 4.5], baseline: [2.0, 3.0] };
        assert_eq!(blocks.unwrap()[0], first);
        assert_eq!(lines(&text, LIBRARY).next(), Some("some MPI"));
        assert_eq!([block("1 2 3"), block("1 2 x 4")], [None, None]);
    }

    #[test]
    fn a_launcher_that_fails_is_quoted() {
        assert_eq!(shell("echo $OMPI_ALLOW_RUN_AS_ROOT").unwrap(), "1\n");
        let Err(Stop::Failed(why)) = shell("echo no slots >&2; exit 3") else { panic!() };
        assert!(why.to_string().contains("the ranks failed: no slots"), "{why}");
    }
}
