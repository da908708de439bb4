//! The graft experiment: do OpenCL kernels compute the same in CUDA's or HIP's streams as natively?
//!
//! # Safety
//! The kernels are those of `graft.cl`, launched on buffers of the sizes they need.

#![allow(unsafe_code)]

use super::experiment::TIMED_OUT;
use onebuf_core::{
    Arg, Device, Grid, Hub, IntoArg, Program, Signature, Source,
    internals::is_built_on,
    topology::{DeviceIx, Verdict, VerdictState},
};
use onebuf_graft::NEVER_RUN;
use onebuf_hal::{Access, Error, Result};

const TEXT: &str = include_str!("graft.cl");
/// The same kernels for runtimes that take SPIR-V. Built by clang 15 (`-target spir64 -cl-std=CL2.0 -DSPIRV -O2 -emit-llvm`,
/// with the default header) and llvm-spirv 15 (`--spirv-max-version=1.0`).
const MODULE: &[u8] = include_bytes!("graft.spv");
/// Work-items of a one-dimensional launch.
const ITEMS: usize = 4096;
const GROUP: usize = 64;

/// Whether programs of one device can be grafted onto another.
#[derive(Clone, Debug, PartialEq)]
pub struct GraftVerdict {
    /// The device whose compiler built the programs.
    pub from: DeviceIx,
    /// The device whose queues run them.
    pub to: DeviceIx,
    /// The verdict.
    pub verdict: Verdict,
}

/// Pairs of devices for which grafting could work: one chip seen by OpenCL and by CUDA or HIP, or HIP that is built on
/// OpenCL.
pub(super) fn pairs(hub: &Hub) -> Vec<[Device; 2]> {
    let (from, to) = (hub.select("opencl"), [hub.select("cuda"), hub.select("hip")].concat());
    let both = from.iter().flat_map(|a| to.iter().map(move |b| [a.clone(), b.clone()]));
    both.filter(|[a, b]| hub.could_graft(a, b)).collect()
}

/// Runs the experiment. Any failure refutes it, with the reason.
pub(super) fn run(hub: &Hub, ids: [&str; 2], tell: &mut dyn FnMut(&str)) -> Verdict {
    let (state, mut why) = match compare(hub, ids, tell) {
        Ok(launches) => (
            VerdictState::Proven,
            format!("{launches} launches, every byte equals the native result"),
        ),
        Err(error) => {
            if matches!(error, Error::Timeout { .. }) {
                tell(TIMED_OUT);
            }
            (VerdictState::Refuted, error.to_string())
        }
    };
    let [from, to] = ids.map(|id| hub.device(id));
    let is_known = from.is_ok_and(|from| to.is_ok_and(|to| is_built_on(&from, &to)));
    if ids[1].starts_with("hip") && !is_known {
        why.push_str(&format!("; {NEVER_RUN}"));
    }
    Verdict { state, why, ..Verdict::default() }
}

fn compare(hub: &Hub, [from, to]: [&str; 2], tell: &mut dyn FnMut(&str)) -> Result<usize> {
    tell("building the kernels");
    let (from, to) = (hub.device(from)?, hub.device(to)?);
    let (source, launches) = match is_built_on(&from, &to) {
        true => (Source::spirv(MODULE), launches_of_module()),
        false => (Source::opencl_c(TEXT), launches()),
    };
    let native = from.program(&source)?;
    tell("grafting them");
    let grafted = native.graft(&to)?;
    for launch in &launches {
        tell(&format!("running {} natively and grafted", launch.kernel));
        let (wanted, seen) = (launch.run(&from, &native)?, launch.run(&to, &grafted)?);
        if wanted != seen {
            return Err(differs(launch.kernel, &wanted, &seen));
        }
        // The control: a kernel that does nothing would give the same result everywhere.
        if !launch.changes(&wanted) {
            return Err(Error::invalid(format!("`{}` did not change its buffers", launch.kernel)));
        }
    }
    Ok(launches.len())
}

fn differs(kernel: &str, wanted: &[Vec<u8>], seen: &[Vec<u8>]) -> Error {
    let pairs = wanted.iter().flatten().zip(seen.iter().flatten());
    let apart = pairs.filter(|(a, b)| a != b).count();
    let needs = format!("the same result, but {apart} bytes differ");
    Error::unsupported(format!("kernel `{kernel}`, grafted,"), needs)
}

/// An argument for both devices.
enum Given {
    Buffer(Vec<u8>),
    Value(Vec<u8>),
    Local(usize),
}

struct Launch {
    kernel: &'static str,
    grid: Grid,
    args: Vec<Given>,
}

impl Launch {
    fn signature(&self) -> Signature {
        let start = Signature::new().offsets();
        self.args.iter().fold(start, |signature, arg| match arg {
            Given::Buffer(_) => signature.buffer::<u8>(Access::ReadWrite),
            Given::Value(bytes) => signature.bytes(bytes.len()),
            Given::Local(_) => signature.local::<u8>(),
        })
    }

    fn contents(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.args.iter().filter_map(|arg| match arg {
            Given::Buffer(contents) => Some(contents),
            _ => None,
        })
    }

    fn changes(&self, after: &[Vec<u8>]) -> bool {
        self.contents().zip(after).any(|(before, after)| before != after)
    }

    /// Runs the launch and returns the contents of its buffers.
    fn run(&self, device: &Device, program: &Program) -> Result<Vec<Vec<u8>>> {
        // SAFETY: the buffers below have the sizes that the kernels need.
        let kernel = unsafe { program.kernel(self.kernel, self.signature()) }?;
        let queue = device.queue()?;
        let mut buffers = Vec::new();
        for contents in self.contents() {
            let buffer = device.hub().buffer::<u8>(contents.len()).shared_with([device]).build()?;
            buffer.write(contents)?;
            buffers.push(buffer);
        }
        let (mut next, mut args) = (buffers.iter(), Vec::new());
        for arg in &self.args {
            args.push(match arg {
                Given::Value(bytes) => Arg::bytes(bytes),
                Given::Local(bytes) => Arg::local::<u8>(*bytes),
                Given::Buffer(_) => match next.next() {
                    Some(buffer) => buffer.write_on(&queue)?.into_arg(),
                    None => return Err(Error::invalid("fewer buffers than arguments")),
                },
            });
        }
        queue.launch(&kernel, self.grid, args)?;
        buffers.iter().map(|buffer| buffer.to_vec()).collect()
    }
}

/// Numbers of which no two neighbours are equal.
fn words(n: usize) -> impl Iterator<Item = u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).rotate_right(9) & 0xffff)
}

fn word_bytes(n: usize) -> Given {
    Given::Buffer(words(n).flat_map(u32::to_le_bytes).collect())
}

fn places(grid: Grid, [x, y, z]: [usize; 3]) -> Launch {
    let number = |n: usize| Given::Value((n as u32).to_le_bytes().to_vec());
    Launch { kernel: "places", grid, args: vec![word_bytes(x * y * z * 16), number(x), number(y)] }
}

fn launches() -> Vec<Launch> {
    let all = [
        places(Grid::from([96]).local([32]), [96, 1, 1]),
        places(Grid::from([48, 6]).local([16, 3]).offset([7, 123_456]), [48, 6, 1]),
        places(Grid::from([8, 6, 10]).local([4, 2, 5]).offset([3, 0, 70_000]), [8, 6, 10]),
    ];
    all.into_iter().chain(lines()).collect()
}

/// Without offsets; kernels that query all three dimensions get three.
fn launches_of_module() -> Vec<Launch> {
    let all = [
        places(Grid::from([96, 1, 1]).local([32, 1, 1]), [96, 1, 1]),
        places(Grid::from([48, 6, 1]).local([16, 3, 1]), [48, 6, 1]),
        places(Grid::from([8, 6, 10]).local([4, 2, 5]), [8, 6, 10]),
    ];
    all.into_iter().chain(lines()).collect()
}

/// The one-dimensional launches.
fn lines() -> [Launch; 2] {
    let floats = words(ITEMS).flat_map(|n| (n as f32 * 0.01 - 300.0).to_le_bytes());
    let doubles = words(ITEMS).flat_map(|n| (f64::from(n) * 0.003 - 90.0).to_le_bytes());
    let line = Grid::from([ITEMS]).local([GROUP]);
    let shared = vec![
        word_bytes(ITEMS),
        Given::Buffer(vec![0; (ITEMS + 1) * 4]),
        Given::Local(GROUP),
        Given::Value(setting()),
        Given::Local(GROUP * 8),
        word_bytes(16),
        Given::Local(GROUP * 4),
    ];
    let numbers = vec![Given::Buffer(floats.collect()), Given::Buffer(doubles.collect())];
    [
        Launch { kernel: "shared", grid: line, args: shared },
        Launch { kernel: "numbers", grid: line, args: numbers },
    ]
}

/// The struct as the C compiler lays it out.
fn setting() -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[0] = 201;
    bytes[8..16].copy_from_slice(&1.75f64.to_le_bytes());
    for (at, few) in [11u16, 222, 3333].into_iter().enumerate() {
        bytes[16 + 2 * at..18 + 2 * at].copy_from_slice(&few.to_le_bytes());
    }
    bytes
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    /// The kernels are OpenCL C that any driver accepts, and the control detects that they do something.
    #[test]
    fn the_kernels_run_natively() {
        let hub = onebuf::builder()
            .without(["vulkan", "gl"])
            .verdicts(Default::default())
            .build()
            .unwrap();
        let Some(device) = hub.select("opencl").into_iter().next() else {
            println!("skip: the kernels that the doctor grafts: no OpenCL");
            return;
        };
        let program = device.program(&Source::opencl_c(TEXT)).unwrap();
        for launch in launches() {
            let after = launch.run(&device, &program).unwrap();
            assert!(launch.changes(&after), "{}", launch.kernel);
            let before: Vec<Vec<u8>> = launch.contents().cloned().collect();
            assert!(!launch.changes(&before), "{}", launch.kernel);
            assert_eq!(launch.run(&device, &program).unwrap(), after, "{}", launch.kernel);
        }
    }

    /// Checks that the module can be grafted. Whether it matches the text is only checked where a device runs it.
    #[test]
    fn the_module_is_of_the_same_kernels() {
        let image = onebuf_graft::rewrite_spirv(MODULE).unwrap();
        let kernels = onebuf_hal::packing::read(&image).unwrap().unwrap();
        for launch in launches_of_module() {
            let kernel = kernels.iter().find(|kernel| kernel.name == launch.kernel).unwrap();
            assert_eq!(kernel.slots.len(), launch.args.len(), "{}", launch.kernel);
            assert_eq!(kernel.three_dims, launch.kernel == "places");
        }
    }

    #[test]
    fn what_cannot_be_grafted_is_refuted_with_the_reason() {
        let hub = onebuf::builder()
            .without(["vulkan", "gl"])
            .verdicts(Default::default())
            .build()
            .unwrap();
        let verdict = run(&hub, ["host", "host"], &mut |_| ());
        assert_eq!(verdict.state, VerdictState::Refuted);
        assert!(!verdict.why.is_empty() && !verdict.why.contains("HIP"));
        let verdict = run(&hub, ["host", "hip:0"], &mut |_| ());
        assert!(verdict.why.ends_with("; experimental: never run on hardware"), "{}", verdict.why);
    }
}
