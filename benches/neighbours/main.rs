//! Objects of other crates wrapped by onebuf's adapters, compared with the driver's calls that this needs, in the same run.
//!
//! `cargo bench -p onebuf-benches --bench neighbours -- [FILTER…] [--quick] [--json]`. Here and not in `onebuf bench`, which would
//! otherwise be built with all these crates. The rows are described in `docs/benchmarks.md`.

mod with_ash;
mod with_cudarc;
mod with_glow;
mod with_opencl3;
mod with_wgpu;

use onebuf::{Hub, doctor::Verdicts};
use onebuf_bench::{Bar, Effort, Row, Skipped, Unit, abba::compare, solo::try_timed};
use onebuf_benches::skip;
use std::{env, error::Error};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Elements of an object, four bytes each.
const LEN: usize = 1024;
const BYTES: usize = 4 * LEN;

/// Wraps in one measurement.
const BATCH: u64 = 32;

/// One kind of object, and both ways to use it. Nothing is at work when a call returns.
trait Neighbour {
    /// Wraps the object by the adapter, uses it by one command, and lets go of it.
    fn wrap(&self) -> Result<()>;

    /// Wraps the object, and lets go of it.
    fn wrap_unused(&self) -> Result<()>;

    /// The calls that `wrap` needs.
    fn raw(&self) -> Result<()>;

    /// The calls that `wrap_unused` needs.
    fn raw_unused(&self) -> Result<()>;

    /// The object's first word, and what it is after the commands so far. Clears the word if all commands set the same.
    fn words(&self) -> Result<[u32; 2]>;
}

/// Why there are no rows.
enum Stop {
    /// A requirement is missing on this machine.
    Absent(String),
    Failed(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for Stop {
    fn from(why: E) -> Self {
        Stop::Failed(why.into())
    }
}

type Opened = std::result::Result<Box<dyn Neighbour>, Stop>;

type Open = fn(&Hub) -> Opened;

/// The name of the rows, without `_ratio`, and what opens the neighbour.
const NEIGHBOURS: [(&str, Open); 7] = [
    ("wrap_opencl3", with_opencl3::open),
    ("wrap_ash", with_ash::open),
    ("wrap_glow", with_glow::open),
    ("wrap_wgpu", with_wgpu::open_wrapped),
    ("make_wgpu_vulkan", |hub| with_wgpu::open_made(hub, wgpu::Backends::VULKAN)),
    ("make_wgpu_gl", |hub| with_wgpu::open_made(hub, wgpu::Backends::GL)),
    ("wrap_cudarc", with_cudarc::open),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let parts: Vec<&String> = arguments.iter().filter(|text| !text.starts_with("--")).collect();
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(*part));
    let effort = if has("--quick") { Effort::QUICK } else { Effort::FULL };
    let hub = onebuf::builder().verdicts(Verdicts::default()).build()?;
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for (name, open) in NEIGHBOURS.into_iter().filter(|(name, _)| wanted(name)) {
        match open(&hub).and_then(|one| Ok(measure(name, &*one, effort)?)) {
            Ok(found) => rows.extend(found),
            Err(Stop::Absent(why)) => {
                skip(name, &why);
                skipped.push(Skipped { name: name.to_owned(), why, failed: false });
            }
            Err(Stop::Failed(why)) => return Err(format!("{name}: {why}").into()),
        }
    }
    if has("--json") {
        println!("{}", serde_json::json!({ "schema": 2, "results": rows, "skipped": skipped }));
    } else {
        rows.iter().for_each(|row| println!("{row}"));
    }
    Ok(())
}

/// The rows with a command and without one.
fn measure(name: &str, one: &dyn Neighbour, effort: Effort) -> Result<[Row; 2]> {
    check(one)?;
    let used = compare(effort, || batch(|| one.wrap()), || batch(|| one.raw()))?;
    let alone = compare(effort, || batch(|| one.wrap_unused()), || batch(|| one.raw_unused()))?;
    check(one)?;
    let used = used.row(format!("{name}_ratio"), Unit::Us).bar(Bar::RatioAtMost(1.1));
    let met = used.met().map_or_else(String::new, |met| format!("≤ 1.1: {met}"));
    Ok([used.remark(met), alone.row(format!("{name}_alone_ratio"), Unit::Us)])
}

/// Checks what each side does, because a wrong result makes the measurement void.
fn check(one: &dyn Neighbour) -> Result<()> {
    one.words()?;
    for (side, run) in [("onebuf", true), ("the raw calls", false)] {
        if run {
            one.wrap()?
        } else {
            one.raw()?
        }
        let [found, expected] = one.words()?;
        if found != expected {
            return Err(format!("{side}: the first word is {found} instead of {expected}").into());
        }
    }
    Ok(())
}

/// Nanoseconds for one of `BATCH` wraps.
fn batch(one: impl FnMut() -> Result<()>) -> Result<f64> {
    Ok(try_timed(BATCH, one)?.as_nanos() as f64 / BATCH as f64)
}
