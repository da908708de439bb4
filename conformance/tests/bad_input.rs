//! Caller errors: each has its own error variant and a message that says what to do.

use onebuf::{
    Access, Arg, Buffer, CopyPolicy, Error, Grid, HubBuilder, MemoryKind, RouteKind, Signature,
    Source, args,
};
use onebuf_conformance::{Machine, Side, fakes, kernels, machine, stub};
use std::{fs, ops::Bound, os::unix::fs::PermissionsExt};

const N: usize = 1000;

/// Asserts the variant of an error and that its text contains each of some words.
macro_rules! refused {
    ($outcome:expr, $kind:pat, $($word:expr),* $(,)?) => {{
        let error = match $outcome {
            Ok(_) => panic!("{}: accepted", stringify!($outcome)),
            Err(error) => error,
        };
        assert!(matches!(error, $kind), "{error:?}");
        let text = error.to_string();
        $(assert!(text.contains($word), "`{}` is not in: {text}", $word);)*
    }};
}

fn fake_hub() -> HubBuilder {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Default::default());
    fakes().into_iter().fold(builder, HubBuilder::fake)
}

fn each(test: impl Fn(&Machine, &Side, &Buffer<u32>)) {
    let machine = machine();
    for side in &machine.sides {
        let buffer = machine.hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        test(&machine, side, &buffer);
    }
}

#[test]
fn sizes() {
    let hub = fake_hub().build().unwrap();
    refused!(hub.buffer::<u32>(0).build(), Error::InvalidArgument(_), "zero", "at least one");
    refused!(hub.buffer::<[u8; 0]>(5).build(), Error::InvalidArgument(_), "zero");
    refused!(hub.buffer::<u64>(usize::MAX / 4).build(), Error::InvalidArgument(_), "overflow");
    refused!(hub.buffer::<u8>(usize::MAX).build(), Error::InvalidArgument(_), "overflow");
    let short = hub.buffer::<u8>(5).init(&[1, 2, 3][..]).build();
    refused!(short, Error::InvalidArgument(_), "3 elements", "buffer of 5");
    for align in [0, 3, 48, 1 << 40] {
        let built = hub.buffer::<u8>(5).align(align).build();
        refused!(built, Error::InvalidArgument(_), "power of two", align.to_string().as_str());
    }
}

/// A device that does not exist: what there is, then one line for each reason, the requested API first, and what to set.
#[test]
fn a_device_that_does_not_exist() {
    let builder = ["opencl", "cuda", "hip", "vulkan", "gl"]
        .into_iter()
        .fold(onebuf::builder(), |builder, api| builder.library(api, "/nonsuch.so"));
    let hub = builder.verdicts(Default::default()).build().unwrap();
    for api in ["opencl", "cuda", "hip", "vulkan", "gl"] {
        let Err(error @ Error::Unavailable { .. }) = hub.device(&format!("{api}:0")) else {
            panic!("{api} from a library that does not exist")
        };
        let text = error.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("these were found: host ("), "{text}");
        assert!(lines[1].starts_with(&format!("  {api}: ")), "{text}");
        assert!(lines.len() > 5 && lines.iter().all(|line| line.contains(": ")), "{text}");
    }
    let Some(stub) = stub() else { return };
    let builder = onebuf::builder().only(["opencl"]).library("opencl", stub.to_string_lossy());
    let hub = builder.verdicts(Default::default()).build().unwrap();
    refused!(hub.device("opencl:99"), Error::Unavailable { .. }, "opencl: ", "RUSTICL_ENABLE=");
}

#[test]
fn more_memory_than_there_is() {
    each(|machine, side, _| {
        let limit = side.device.info().caps.max_alloc_bytes;
        let over = usize::try_from(limit).unwrap() + 1;
        let built = machine.hub.buffer::<u8>(over).shared_with([&side.device]).build();
        let asked = over.to_string();
        refused!(built, Error::OutOfMemory { .. }, "out of memory", asked.as_str(), "limit");
        let huge = machine.hub.buffer::<u8>(isize::MAX as usize).shared_with([&side.device]);
        refused!(huge.build(), Error::OutOfMemory { .. }, side.device.id());
    });
}

#[test]
fn ranges() {
    each(|machine, side, buffer| {
        let wrong: [(Bound<usize>, Bound<usize>); 8] = [
            (Bound::Included(3), Bound::Excluded(3)),
            (Bound::Included(5), Bound::Excluded(3)),
            (Bound::Included(0), Bound::Excluded(N + 1)),
            (Bound::Included(N), Bound::Unbounded),
            (Bound::Included(usize::MAX), Bound::Unbounded),
            (Bound::Included(0), Bound::Included(usize::MAX)),
            (Bound::Excluded(usize::MAX), Bound::Unbounded),
            (Bound::Included(1), Bound::Included(N)),
        ];
        for range in wrong {
            refused!(buffer.write_range(range, &[1]), Error::InvalidArgument(_), "range");
            refused!(buffer.read_range(range, &mut [1]), Error::InvalidArgument(_), "range");
            refused!(buffer.fill_range(range, 1), Error::InvalidArgument(_), "range");
            refused!(buffer.copy_from(0, buffer, range), Error::InvalidArgument(_), "range");
            refused!(buffer.read_async(range, vec![1]), Error::InvalidArgument(_), "range");
            refused!(buffer.write_async(range, vec![1]), Error::InvalidArgument(_), "range");
        }
        refused!(buffer.write(&[1; 3]), Error::InvalidArgument(_), "3 elements", "range has 1000");
        refused!(buffer.read(&mut [0; N + 1]), Error::InvalidArgument(_), "1001 elements");
        refused!(buffer.copy_from(N, buffer, ..1), Error::InvalidArgument(_), "inside");
        refused!(buffer.copy_from(usize::MAX, buffer, ..2), Error::InvalidArgument(_), "range");
        let mut batch = buffer.batch();
        refused!(batch.write(N, &[1]), Error::InvalidArgument(_), "inside");
        refused!(batch.write(usize::MAX, &[1]), Error::InvalidArgument(_), "range");
        refused!(batch.write(0, &[]), Error::InvalidArgument(_), "non-empty");
        let small = machine.hub.buffer::<u32>(1).shared_with([&side.device]).build().unwrap();
        refused!(small.copy_from(0, buffer, ..2), Error::InvalidArgument(_), "buffer of 1");
        // None of the refused calls left a guard.
        buffer.write(&[3; N]).unwrap();
    });
}

#[test]
fn devices_and_queues_that_are_not_the_buffers() {
    let other = Machine::open(fake_hub());
    each(|machine, side, buffer| {
        let seen = |device: &onebuf::Device| {
            buffer.plan().routes.iter().any(|hop| hop.to == device.index())
                || (device.id() == "host" && buffer.plan().memory_kind != MemoryKind::Device)
                || buffer.plan().allocate_on == device.index()
        };
        for stranger in machine.sides.iter().filter(|s| !seen(&s.device)) {
            let id = stranger.device.id();
            let view = buffer.read_on(&stranger.queue);
            refused!(view, Error::NotShared { .. }, id, side.device.id());
            refused!(buffer.write_on(&stranger.queue), Error::NotShared { .. }, id);
        }
        let foreign = other.side("fake:0");
        refused!(buffer.read_on(&foreign.queue), Error::ForeignContext { .. }, "another hub");
        let built = machine.hub.buffer::<u32>(N).shared_with([&foreign.device]).build();
        refused!(built, Error::InvalidArgument(_), "fake:0", "another hub");
    });
}

#[test]
fn guards_that_conflict() {
    each(|_, side, buffer| {
        let view = buffer.write_on(&side.queue).unwrap();
        refused!(
            buffer.write_on(&side.queue),
            Error::Busy { .. },
            "write view",
            "is in use",
            "end that first"
        );
        refused!(
            buffer.read_on(&side.queue),
            Error::Busy { .. },
            "write view",
            "is in use",
            "end that first"
        );
        refused!(buffer.map(), Error::Busy { .. }, "is in use", "end that first");
        drop(view);
        let view = buffer.read_on(&side.queue).unwrap();
        refused!(buffer.map_mut(), Error::Busy { .. }, "read view", "is in use", "end that first");
        drop(view);
        buffer.fill(1).unwrap();
    });
}

const TEXT: &str = "kernel void two(global uint *to, uint n, float by) { to[0] = n * by; }";

fn two_source() -> Source {
    kernels(TEXT).with_native("two", |args| {
        let product = args.value::<u32>(1)? as f32 * args.value::<f32>(2)?;
        args.slice_mut::<u32>(0)?[0] = product as u32;
        Ok(())
    })
}

fn two() -> Signature {
    Signature::new().buffer::<u32>(Access::Write).value::<u32>().value::<f32>()
}

#[test]
fn arguments() {
    each(|machine, side, buffer| {
        let queue = &side.queue;
        let program = side.device.program(&two_source()).unwrap();
        // SAFETY: the kernel writes the first element of a buffer that has at least one.
        let kernel = unsafe { program.kernel("two", two()).unwrap() };
        let launch = |grid: Grid, args: &[Arg<'_>]| queue.launch(&kernel, grid, args);
        let (write, read) = (|| buffer.write_on(queue).unwrap(), || buffer.read_on(queue).unwrap());
        let one = Grid::from([1]);

        let few = launch(one, &args![write(), 1u32]);
        refused!(few, Error::InvalidArgument(_), "`two`", "3 arguments", "2 were given");
        let wrong = launch(one, &args![write(), 1i32, 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 1", "`two`", "i32", "u32");
        let wrong = launch(one, &args![write(), 1u32, 1f64]);
        refused!(wrong, Error::InvalidArgument(_), "argument 2", "f64", "f32");
        let wrong = launch(one, &args![1u32, 1u32, 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 0", "u32", "view");
        let wrong = launch(one, &args![write(), Arg::local::<u32>(4), 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 1", "local memory");
        let wrong = launch(one, &args![read(), 1u32, 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 0", "read", "write");
        let bytes = machine.hub.buffer::<u8>(8).shared_with([&side.device]).build().unwrap();
        let wrong = launch(one, &args![bytes.write_on(queue).unwrap(), 1u32, 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 0", "u8", "u32");
        let second = side.device.queue().unwrap();
        let wrong = launch(one, &args![buffer.write_on(&second).unwrap(), 1u32, 1f32]);
        refused!(wrong, Error::InvalidArgument(_), "argument 0", "another queue");

        for grid in [Grid::from([0]), Grid::from([4, 0]), Grid::from([1, 2, 0])] {
            let wrong = launch(grid, &args![write(), 1u32, 1f32]);
            refused!(wrong, Error::InvalidArgument(_), "`two`", "global size of zero");
        }
        for grid in [Grid::from([4]).local([0]), Grid::from([4]).local([2, 2])] {
            let wrong = launch(grid, &args![write(), 1u32, 1f32]);
            refused!(wrong, Error::InvalidArgument(_), "`two`", "work-group size");
        }
        if side.device.info().api.0 == "opencl" {
            let huge = side.device.info().caps.max_group_size * 2;
            let wrong = launch(Grid::from([huge]).local([huge]), &args![write(), 1u32, 1f32]);
            refused!(wrong, Error::InvalidArgument(_), "`two`", "group");
        }
        // Nothing was started, and no guard is held.
        launch(one, &args![write(), 3u32, 2f32]).unwrap();
        assert_eq!(buffer.to_vec().unwrap()[0], 6, "{}", side.device);
    });
}

#[test]
fn kernels_and_programs() {
    each(|machine, side, _| {
        let program = side.device.program(&two_source()).unwrap();
        // SAFETY: none of these kernels is launched.
        let kernel = |name, signature| unsafe { program.kernel(name, signature) };
        refused!(kernel("three", two()), Error::InvalidArgument(_), "no ", "kernel `three`");
        if side.device.info().api.0 == "opencl" {
            let short = kernel("two", Signature::new().buffer::<u32>(Access::Write));
            refused!(short, Error::InvalidArgument(_), "`two`", "3", "1");
            let bad = "kernel void ok(global uint *x) {}\nkernel void bad() { oops = 1; }\n";
            let built = side.device.program(&Source::opencl_c(bad));
            refused!(built, Error::Build { .. }, "oops", "kernel void bad() { oops = 1; }");
            let native = Source::default().with_native("two", |_| Ok(()));
            refused!(side.device.program(&native), Error::Unsupported { .. }, "OpenCL C");
        } else {
            let text = side.device.program(&Source::opencl_c(TEXT));
            let wants = match side.device.info().api.0 {
                "cuda" => "CUDA C",
                "hip" => "HIP C",
                _ => "native kernel",
            };
            refused!(text, Error::Unsupported { .. }, wants);
        }
        for other in machine.sides.iter().filter(|o| o.device.index() != side.device.index()) {
            let kernel = kernel("two", two()).unwrap();
            let buffer = machine.hub.buffer::<u32>(N).shared_with([&other.device]).build().unwrap();
            let arguments = args![buffer.write_on(&other.queue).unwrap(), 1u32, 1f32];
            let wrong = other.queue.launch(&kernel, [1], arguments);
            let (its, mine) = (other.device.id(), side.device.id());
            refused!(wrong, Error::InvalidArgument(_), mine, its, "build the program");
        }
    });
}

#[test]
fn a_launch_that_the_signature_refuses() {
    each(|_, side, buffer| {
        let view = side.step_range(buffer, N - 1, 2, onebuf_conformance::Step::nth(1));
        refused!(view, Error::InvalidArgument(_), "`onebuf_step`", "outside of the buffer");
    });
}

#[test]
fn libraries_and_devices_that_are_not_there() {
    let gone = "/nowhere/libOpenCL.so.1";
    let hub = onebuf::builder()
        .without(["vulkan", "gl"])
        .library("opencl", gone)
        .verdicts(Default::default())
        .build()
        .unwrap();
    let missing = &hub.unavailable()[0];
    assert!(!missing.loaded && missing.tried.iter().any(|t| t == gone), "{missing:?}");
    assert!(!missing.reason.is_empty() && missing.hint.is_some(), "{missing:?}");
    refused!(hub.device("opencl"), Error::Unavailable { .. }, "`opencl`", "host", "opencl");
    let off = onebuf::builder()
        .without(["vulkan", "gl"])
        .library("opencl", "none")
        .without(["cuda"])
        .library("hip", "none");
    let off = off.verdicts(Default::default()).build().unwrap();
    assert_eq!(off.devices().len(), 1);
    let apis: Vec<_> = off.unavailable().iter().map(|api| api.api).collect();
    assert_eq!(apis, ["opencl", "cuda", "hip", "vulkan", "gl"]);
    assert!(!off.unavailable()[0].loaded, "{:?}", off.unavailable());
    refused!(off.device("gpu"), Error::Unavailable { .. }, "`gpu`", "host");
    refused!(off.device(""), Error::Unavailable { .. }, "``");
}

#[test]
fn a_cache_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let private = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
    private(0o700).unwrap();
    for text in ["{", "[]", "{\"schema\": 99, \"verdicts\": {}}", "\u{0}"] {
        fs::write(folder.path().join("verdicts.json"), text).unwrap();
        let hub = onebuf::builder()
            .without(["opencl", "vulkan", "gl"])
            .cache(folder.path())
            .build()
            .unwrap();
        let [note] = hub.notes() else { panic!("{:?}", hub.notes()) };
        assert!(matches!(note, Error::Cache { .. }), "{note:?}");
        assert!(note.to_string().contains("onebuf cache clear"), "{note}");
        assert_eq!(hub.buffer::<u8>(3).build().unwrap().to_vec().unwrap(), [0; 3]);
    }
    private(0o777).unwrap();
    let hub =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).cache(folder.path()).build().unwrap();
    assert!(hub.notes()[0].to_string().contains("chmod 700"), "{:?}", hub.notes());
}

#[test]
fn copies_that_are_forbidden() {
    let machine = machine();
    for (a, b) in onebuf_conformance::pairs(&machine.sides) {
        let builder = machine.hub.buffer::<u32>(N).shared_with([&a.device, &b.device]);
        let builder = builder.allocate_on(&a.device).copies(CopyPolicy::Forbid);
        match builder.clone().build() {
            // Fine-grained SVM and imported descriptors are free of copies by contract.
            Ok(buffer) => {
                let kind = buffer.plan().memory_kind;
                assert!([MemoryKind::FineSvm, MemoryKind::Exportable].contains(&kind), "{kind}");
            }
            Err(error) => {
                let (id, to) = (a.device.id(), b.device.id());
                let route = format!("{id} -> {to}");
                refused!(Err::<(), _>(error), Error::CopyForbidden { .. }, route.as_str());
            }
        }
        let staged = builder.route(RouteKind::Staged).build();
        refused!(staged, Error::CopyForbidden { .. }, "staged", "copies");
    }
    let pair = [&machine.side("host").device, &machine.side("sharing pages").device];
    let unproven = machine.hub.buffer::<u32>(N).shared_with(pair).copies(CopyPolicy::Forbid);
    refused!(unproven.build(), Error::CopyForbidden { .. }, "run `onebuf doctor --devices ");

    let hub = fake_hub().copies(CopyPolicy::Forbid).build().unwrap();
    let apart = hub.device("apart").unwrap();
    let buffer = hub.buffer::<u32>(N).shared_with([&apart]).build().unwrap();
    refused!(
        buffer.map(),
        Error::CopyForbidden { .. },
        "-> host",
        "share the buffer with the host"
    );
    refused!(buffer.map_mut(), Error::CopyForbidden { .. }, "-> host");
    buffer.write(&[1; N]).unwrap(); // requested, so allowed
}

#[test]
fn routes_and_forms_that_are_not_there() {
    let machine = machine();
    let host = &machine.side("host").device;
    let fine = machine.hub.buffer::<u32>(N).shared_with([host]).memory_kind(MemoryKind::FineSvm);
    refused!(fine.build(), Error::Unsupported { .. }, "fine_svm");
    let apart = &machine.side("apart").device;
    let builder = machine.hub.buffer::<u32>(N).shared_with([host, apart]).trust_declared(true);
    let peer = builder.route(RouteKind::Peer).build();
    refused!(peer, Error::Unsupported { .. }, "peer", "host");
}
