//! From an OpenCL program to a launch on HIP, with stubs of both: exactly what HIP receives.

use super::{image, whole};
use onebuf::{
    Access, Arg, Device, Error, Grid, Hub, Origin, Program, ProgramCache, Signature, Source, args,
    prelude::*,
};
use onebuf_conformance::{class_a::ClassA, play};
use std::{env, fs};

/// Runs a test in a separate process, because the stubs read their mode when they are loaded.
fn played(test: &str, version: u8, more: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let [binary, loaded] = ["binary", "loaded"].map(|name| folder.path().join(name));
    fs::write(&binary, whole(version)).unwrap();
    let paths = [
        ("ONEBUF_STUB_BINARY", binary.to_str().unwrap()),
        ("ONEBUF_CUDA_STUB_IMAGE", loaded.to_str().unwrap()),
    ];
    play(&format!("amd::path::{test}"), "HIP", "amd", &[&paths, more].concat());
}

#[test]
fn launches_are_what_opencl_would_have_told() {
    played("version_5", 5, &[]);
}

#[test]
fn older_objects_are_launched_over_three_dimensions() {
    played("version_4", 4, &[]);
}

#[test]
fn objects_of_another_chip_are_refused() {
    played("another_chip", 5, &[("ONEBUF_CUDA_STUB_ARCH", "gfx90a:sramecc+:xnack+")]);
}

fn hub() -> Hub {
    let builder = onebuf::builder().without(["vulkan", "gl"]).program_cache(ProgramCache::Memory);
    builder.verdicts(Default::default()).build().unwrap()
}

/// The native program, and the device to graft it to.
fn native(hub: &Hub) -> (Program, Device) {
    let text = "kernel void parts(global float *x) { }";
    let program = hub.device("opencl:0").unwrap().program(&Source::opencl_c(text)).unwrap();
    (program, hub.device("hip:0").unwrap())
}

/// What the stub's kernel stored: the size of its local memory and the bytes of its arguments.
struct Seen {
    local_bytes: u32,
    arguments: Vec<u8>,
}

impl Seen {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.arguments[at..at + bytes]);
        u64::from_le_bytes(number)
    }

    fn numbers<const N: usize>(&self, at: usize, bytes: usize) -> [u64; N] {
        std::array::from_fn(|i| self.number(at + i * bytes, bytes))
    }
}

fn parts(program: &Program, grid: Grid, local: [usize; 2]) -> onebuf::Result<Seen> {
    let signature =
        Signature::new().offsets().buffer::<u32>(Access::ReadWrite).bytes(12).local::<u8>();
    let signature = signature.buffer::<u32>(Access::Read).local::<u8>();
    // SAFETY: the stub stores 304 bytes in the first buffer.
    let kernel = unsafe { program.kernel("parts", signature) }?;
    let (hub, device) = (program.device().hub(), program.device());
    let [x, t] = [256, 16].map(|n| hub.buffer::<u32>(n).shared_with([device]).build().unwrap());
    x.write(&[0xAAAA_AAAA; 256])?;
    let queue = device.queue()?;
    let by = Arg::bytes(b"twelve bytes");
    let [part, q] = local.map(Arg::local::<u8>);
    queue.launch(&kernel, grid, args![x.write_on(&queue)?, by, part, t.read_on(&queue)?, q])?;
    Ok(seen(&x.to_vec()?))
}

fn told(program: &Program, grid: Grid) -> onebuf::Result<Seen> {
    // SAFETY: the stub stores 272 bytes in the buffer.
    let kernel = unsafe {
        program.kernel("told", Signature::new().offsets().buffer::<u32>(Access::ReadWrite))
    }?;
    let device = program.device();
    let (x, queue) =
        (device.hub().buffer::<u32>(256).shared_with([device]).build()?, device.queue()?);
    queue.launch(&kernel, grid, args![x.write_on(&queue)?])?;
    Ok(seen(&x.to_vec()?))
}

fn seen(words: &[u32]) -> Seen {
    let bytes: Vec<u8> = words[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
    Seen { local_bytes: words[1], arguments: bytes[..words[0] as usize].to_vec() }
}

fn plane() -> Grid {
    Grid::from([64, 4]).local([32, 2]).offset([7, 9])
}

#[test]
#[ignore = "played with the stubs"]
fn version_5() {
    let hub = hub();
    let (program, hip) = native(&hub);
    let grafted = program.graft(&hip).unwrap();
    assert_eq!(grafted.device().id(), hip.id());
    let loaded = fs::read(env::var("ONEBUF_CUDA_STUB_IMAGE").unwrap()).unwrap();
    assert_eq!(loaded, image(&whole(5)).1, "the object alone, without what stands before it");

    let seen = parts(&grafted, plane(), [100, 20]).unwrap();
    assert_eq!(seen.arguments.len(), 296);
    assert_eq!(seen.arguments[8..20], *b"twelve bytes");
    assert!(
        seen.number(0, 8) != 0
            && seen.number(24, 8) != 0
            && seen.number(0, 8) != seen.number(24, 8)
    );
    // After 40 bytes of static local memory: 100 bytes aligned to 16, 20 aligned to 64.
    assert_eq!([seen.number(20, 4), seen.number(32, 4)], [48, 192]);
    assert_eq!(seen.local_bytes, 192 + 32);
    assert_eq!(seen.numbers(40, 4), [2, 2, 1], "groups");
    assert_eq!(seen.numbers(52, 2), [32, 2, 1], "their size");
    assert_eq!(seen.numbers(58, 2), [0; 3], "what is left over");
    assert_eq!(seen.numbers(80, 8), [7, 9, 0], "offsets");
    assert_eq!(seen.number(104, 2), 2, "dimensions");

    let seen = told(&grafted, plane()).unwrap();
    assert_eq!((seen.numbers(48, 8), seen.number(72, 2), seen.local_bytes), ([7, 9, 0], 2, 0));
    let twice = program.graft(&hip).unwrap();
    assert_eq!(twice.origin(), Origin::Memory);
    let app = ClassA::all().into_iter().next().expect("a program of somebody else's");
    // SAFETY: the program is the application's, and alive.
    let foreign = unsafe { hub.graft_foreign(app.program.raw(), &hip) }.unwrap();
    assert_eq!(told(&foreign, plane()).unwrap().numbers(48, 8), [7, 9, 0]);
    let kept = hip.program(&Source::binary(grafted.binary().unwrap())).unwrap();
    assert_eq!(told(&kept, plane()).unwrap().number(72, 2), 2, "image and packing do not part");

    // The control: without the rewriting, the runtime fills in other values.
    let plain = hip.program(&Source::binary(whole(5))).unwrap();
    let seen = told(&plain, Grid::from([64, 4]).local([32, 2])).unwrap();
    assert_eq!((seen.numbers(48, 8), seen.number(72, 2)), ([0, 0, 0], 3));
    assert!(told(&plain, plane()).is_err(), "nobody would tell it of an offset");
    refusals(&grafted, &hub);
}

/// Launches that do not match the object's metadata.
fn refusals(grafted: &Program, hub: &Hub) {
    let large = parts(grafted, plane(), [96 << 10, 20]).err().map(|error| error.to_string());
    assert!(large.as_ref().is_some_and(|why| why.contains("beside 40 of its own")), "{large:?}");
    // SAFETY: the kernel is refused, so never launched.
    let wrong =
        unsafe { grafted.kernel("parts", Signature::new().buffer::<u32>(Access::ReadWrite)) };
    assert!(wrong.unwrap_err().to_string().contains("takes 5 arguments, 1 given"));
    // SAFETY: the kernel is refused, so never launched.
    let none = unsafe { grafted.kernel("none", Signature::new()) };
    assert!(none.unwrap_err().to_string().contains("no kernel `none`"));
    let (cl, hip) = (hub.device("opencl:0").unwrap(), hub.device("hip:0").unwrap());
    let verdict = hub.graft_verdict(&cl, &hip);
    assert!(verdict.why.contains("experimental: never run on hardware"), "{}", verdict.why);
}

#[test]
#[ignore = "played with the stubs"]
fn version_4() {
    let hub = hub();
    let (program, hip) = native(&hub);
    let grafted = program.graft(&hip).unwrap();
    match told(&grafted, plane()).err() {
        Some(Error::Unsupported { what, needs }) => {
            assert!(
                what.contains("sees 3 dimensions, on a grid of 2") && needs.contains("[n, 1, 1]"),
                "{what}: {needs}"
            );
        }
        other => panic!("{other:?}"),
    }
    let solid = Grid::from([64, 4, 1]).local([32, 2, 1]).offset([7, 9, 11]);
    let seen = told(&grafted, solid).unwrap();
    assert_eq!(seen.numbers(8, 8), [7, 9, 11]);
    let seen = parts(&grafted, solid, [4, 4]).unwrap();
    assert_eq!([seen.number(20, 4), seen.number(32, 4)], [48, 64]);
    assert_eq!((seen.numbers(40, 8), seen.local_bytes), ([7, 9, 11], 80));
}

#[test]
#[ignore = "played with the stubs"]
fn another_chip() {
    let (program, hip) = native(&hub());
    match program.graft(&hip) {
        Err(Error::Unsupported { what, .. }) => {
            let both = ["gfx90a:sramecc+:xnack-", "gfx90a:sramecc+:xnack+"];
            assert!(both.iter().all(|name| what.contains(name)), "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(program.graft_if_proven(&hip).device().id(), program.device().id());
}
