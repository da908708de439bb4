//! onebuf compared with other Rust libraries for OpenCL, on the same device in the same run.
//!
//! `cargo bench -p onebuf-benches --bench peers -- [FILTER…] [--quick] [--json]`. Links with `libOpenCL.so`
//! (Debian: `ocl-icd-opencl-dev`), because one of the other libraries does.

mod with_ocl;
mod with_onebuf;
mod with_opencl3;

use onebuf::Device;
use onebuf_bench::{Effort, Row, Unit, abba::compare, solo::try_timed};
use onebuf_benches::{hub, platforms};
use std::{env, error::Error};
use with_ocl::WithOcl;
use with_onebuf::WithOnebuf;
use with_opencl3::WithOpencl3;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Elements of a buffer, four bytes each.
const LEN: usize = 16 << 10;

/// The operations that are measured, each written as the library's documentation shows.
trait Library {
    fn name(&self) -> &'static str;

    /// Sets both arguments and enqueues; the value differs from that of the previous launch.
    fn launch(&self) -> Result<()>;

    /// Waits for the launches.
    fn finish(&self) -> Result<()>;

    /// Creates a buffer of zeroes that is ready for use, and frees it.
    fn create_buffer(&self) -> Result<()>;

    /// Creates a launchable kernel from a text that was built before.
    fn reuse_program(&self) -> Result<()>;

    /// The sum that the launches produced, and the expected sum.
    fn sums(&self) -> Result<[u32; 2]>;
}

/// A name, operations per batch, and the operation.
type Task = (&'static str, u64, fn(&dyn Library) -> Result<()>);

const TASKS: [Task; 3] = [
    ("launch", 64, |library| library.launch()),
    ("buffer_create", 16, |library| library.create_buffer()),
    ("program_reuse", 1, |library| library.reuse_program()),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let parts: Vec<&String> = arguments.iter().filter(|text| !text.starts_with("--")).collect();
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(*part));
    let effort = if has("--quick") { Effort::QUICK } else { Effort::FULL };
    let hub = hub(0)?;
    let Some(device) = platforms(&hub, 1, "other libraries").into_iter().next() else {
        return Ok(());
    };
    let rows = rows(&device, effort, wanted)?;
    if has("--json") {
        println!("{}", serde_json::json!({ "schema": 2, "results": rows, "skipped": [] }));
    } else {
        rows.iter().for_each(|row| println!("{row}"));
    }
    Ok(())
}

fn rows(device: &Device, effort: Effort, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
    let ours = WithOnebuf::new(device)?;
    let id = ours.device_id()?;
    let others: [&dyn Library; 2] = [&WithOpencl3::new(id)?, &WithOcl::new(id)?];
    let mut rows = Vec::new();
    for (task, other) in TASKS.iter().flat_map(|task| others.map(|other| (task, other))) {
        let name = format!("{}_{}_ratio", task.0, other.name());
        if wanted(&name) {
            let found = compare(effort, || batch(&ours, task), || batch(other, task))?;
            check(&ours)?;
            check(other)?;
            rows.push(found.row(name, Unit::Us).remark(device.info().platform.trim()));
        }
    }
    Ok(rows)
}

/// Returns an error if the launches computed a wrong result.
fn check(library: &dyn Library) -> Result<()> {
    match library.sums()? {
        [found, expected] if found == expected => Ok(()),
        [found, expected] => {
            let name = library.name();
            Err(format!("{name}: launches added up to {found} instead of {expected}").into())
        }
    }
}

/// Returns nanoseconds per operation; waiting for enqueued work is not included.
fn batch(library: &dyn Library, (_, many, operation): &Task) -> Result<f64> {
    let spent = try_timed(*many, || operation(library))?;
    library.finish()?;
    Ok(spent.as_nanos() as f64 / *many as f64)
}
