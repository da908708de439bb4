//! `mpirun -n 2 onebuf doctor --mpi`: libraries that say that they take device memory, above the stub driver of CUDA.

use super::{Cli, Command, OPEN_MPI, Ran, Value, number};
use crate::peers::cuda_stub;
use std::{fs, path::PathBuf};
use tempfile::TempDir;

struct Claiming {
    cli: Cli,
    folder: TempDir,
    cuda: String,
    mpi: PathBuf,
}

impl Claiming {
    /// `None`, after a printed skip, without Open MPI or a C compiler.
    fn new() -> Option<Self> {
        if !OPEN_MPI.is_there() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let cuda = cuda_stub(&folder)?;
        let [source, mpi] = ["gpus.c", "libgpus.so"].map(|name| folder.path().join(name));
        fs::write(&source, include_str!("../../../../onebuf-mpi/tests/mpi/gpus.c"))
            .expect("a file");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,--no-as-needed", "-o"]);
        let built = cc.args([&mpi, &source]).arg("-l:libmpi.so.40").output().expect("cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(Self { cli: Cli::new(), folder, cuda, mpi })
    }

    /// Two ranks of the program, with a library that behaves so.
    fn run(&self, shim: &str, args: &str) -> Ran {
        let mut program = self.cli.bare_command(args);
        program.env("ONEBUF_CUDA_LIB", &self.cuda).env("ONEBUF_NVRTC_LIB", &self.cuda);
        program.env("ONEBUF_MPI_LIB", &self.mpi).env("SHIM", shim);
        OPEN_MPI.run(2, program)
    }

    /// The row of the one device.
    fn doctor(&self, shim: &str, more: &str) -> Value {
        let args = format!("doctor --mpi --devices cuda:0 --reach 1MiB --json {more}");
        let value = self.run(shim, &args).json();
        let rows = value["device_memory"].as_array().expect("rows");
        assert!(rows.len() == 1 && rows[0]["device"] == "cuda:0", "{value:#}");
        rows[0].clone()
    }
}

#[test]
fn a_claim_is_proven_or_refuted_by_what_mpi_does() {
    let Some(claiming) = Claiming::new() else { return };
    let row = claiming.doctor("good", "");
    assert_eq!((&row["state"], &row["stored"]), (&"proven".into(), &false.into()), "{row:#}");
    assert_eq!(number(&row, "bytes"), 262_144, "the largest size up to 1 MiB");
    assert!(row["gb_per_s"].as_f64() > row["staged_gb_per_s"].as_f64(), "{row:#}");
    // The verdict is stored for other runs, and holds for this library alone.
    let again = claiming.doctor("corrupt", "");
    assert_eq!((&again["state"], &again["stored"]), (&"proven".into(), &true.into()), "{again:#}");
    for (shim, why) in [
        ("corrupt", "1 words are wrong, the first in page 2"),
        ("short", "1025 words are wrong, the first in page 0"),
        ("stale", "a wrong word in page"),
        ("slow", "slower than the staged route"),
    ] {
        let row = claiming.doctor(shim, "--fresh");
        assert_eq!(row["state"], "refuted", "{shim}: {row:#}");
        assert!(row["why"].as_str().is_some_and(|text| text.contains(why)), "{shim}: {row:#}");
    }
    let stored = claiming.doctor("good", "");
    assert_eq!((&stored["state"], &stored["stored"]), (&"refuted".into(), &true.into()));
}

/// A library that ends the process in the experiment is refuted by that.
#[test]
fn a_claim_that_ends_the_process_stays_refuted() {
    let Some(claiming) = Claiming::new() else { return };
    let ran = claiming.run("crash", "doctor --mpi --devices cuda:0 --reach 1MiB --json");
    assert_ne!(ran.code, Some(0), "{}", ran.stdout);
    let row = claiming.doctor("good", "");
    assert_eq!((&row["state"], &row["stored"]), (&"refuted".into(), &true.into()), "{row:#}");
    assert!(row["why"].as_str().is_some_and(|why| why.contains("did not end")), "{row:#}");
    let text = claiming.run("good", "doctor --mpi --devices cuda:0 --fresh --reach 1MiB").stdout;
    assert!(text.contains("memory of cuda:0, given to MPI: proven (every page"), "{text}");
    assert!(claiming.folder.path().exists());
}

/// Without a claim nothing is tried, and one rank cannot try anything.
#[test]
fn nothing_is_tried_without_a_claim_or_a_second_rank() {
    let Some(claiming) = Claiming::new() else { return };
    let program = || {
        let mut program = claiming.cli.bare_command("doctor --mpi --json");
        program.env("ONEBUF_CUDA_LIB", &claiming.cuda).env("ONEBUF_NVRTC_LIB", &claiming.cuda);
        program
    };
    let value = OPEN_MPI.run(2, program()).json();
    let row = &value["device_memory"][0];
    assert!(row["state"].is_null(), "{row:#}");
    assert!(row["why"].as_str().is_some_and(|why| why.contains("staged")), "{row:#}");
    assert!(!claiming.cli.verdicts().exists(), "nothing to store");
    let alone: Ran = program().output().expect("it starts").into();
    alone.failed(1, "two ranks of one machine, not 1: `mpirun -n 2 onebuf doctor --mpi`");
}
