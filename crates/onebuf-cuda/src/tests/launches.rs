//! Programs in every form, and launches with every kind of argument.

use super::*;
use onebuf_hal::{Kernel, Program};

fn memory_arg(memory: &Arc<dyn hal::Memory>) -> Arg<'_> {
    Arg::Memory(&**memory, Access::ReadWrite, usize::MAX)
}

#[test]
fn a_kernel_works_on_every_kind_of_memory() {
    each(|rig| {
        let (queue, add) = (rig.queue(), rig.kernel("add", 2).unwrap());
        let registered = rig.device.import(&Export::Host(pages(4096)), Access::ReadWrite).unwrap();
        let [device, pinned] = [MemoryKind::Device, MemoryKind::MappedDevice]
            .map(|memory_kind| rig.memory(memory_kind, 4096).unwrap());
        for memory in [registered, device, pinned] {
            queue.fill(&*memory, 0, 4096, &[0]).unwrap();
            for _ in 0..3 {
                let args = [memory_arg(&memory), Arg::Bytes(&[5, 0, 0, 0])];
                // SAFETY: 1024 words.
                unsafe { queue.launch(&*add, &line(1024), &args, &[], false) }.unwrap();
            }
            assert_eq!(words(&get(&*queue, &*memory, 0, 4096)), [15; 1024]);
            let part = memory.region(1024, 1024, Access::ReadWrite).unwrap();
            let args = [memory_arg(&part), Arg::Bytes(&[1, 0, 0, 0])];
            // SAFETY: 256 words.
            unsafe { queue.launch(&*add, &line(256), &args, &[], false) }.unwrap();
            let seen = words(&get(&*queue, &*memory, 0, 4096));
            assert_eq!((seen[255], seen[256], seen[511], seen[512]), (15, 16, 16, 15));
        }
    });
}

/// The launch as the driver receives it: groups, group sizes, shared bytes.
fn shape(rig: &Rig, grid: &Grid, local: &[usize]) -> Result<[u32; 7]> {
    let queue = rig.queue();
    let kernel = rig.kernel("shape", 1 + local.len())?;
    let memory = rig.memory(MemoryKind::Device, 28)?;
    let mut args = vec![memory_arg(&memory)];
    args.extend(local.iter().map(|bytes| Arg::Local(*bytes)));
    // SAFETY: seven words.
    unsafe { queue.launch(&*kernel, grid, &args, &[], false) }?;
    Ok(words(&get(&*queue, &*memory, 0, 28)).try_into().unwrap())
}

/// chipStar returns this status.
#[test]
fn a_runtime_that_cannot_say_what_a_function_needs_launches_it() {
    each(|rig| {
        let call = rig.flavor.pick(["cuFuncGetAttribute", "hipFuncGetAttribute"]);
        rig.probe.fail_always(call, 801);
        assert_eq!(shape(rig, &line(1 << 20), &[]).unwrap(), [4096, 1, 1, 256, 1, 1, 0]);
        assert_eq!(rig.probe.failed(), Some(call));
        let too_large = Grid { local: Some([2048, 1, 1]), ..line(1 << 20) };
        let error = shape(rig, &too_large, &[]).unwrap_err().to_string();
        assert!(error.contains("1024"), "the device's limit is left: {error}");
        rig.probe.fail_always(call, 1);
        assert!(
            matches!(rig.kernel("shape", 1), Err(Error::Driver { .. })),
            "no other status is so"
        );
        rig.probe.reset();
    });
}

#[test]
fn grids_arrive_as_groups() {
    each(|rig| {
        let grid = |dims, global, local| Grid { dims, global, local, offset: [0; 3] };
        let told = |grid: &Grid, local: &[usize]| shape(rig, grid, local).unwrap();
        assert_eq!(told(&line(1 << 20), &[]), [4096, 1, 1, 256, 1, 1, 0]);
        assert_eq!(told(&line(100), &[]), [1, 1, 1, 100, 1, 1, 0]);
        let two = grid(2, [64, 30, 9], Some([16, 2, 9]));
        assert_eq!(told(&two, &[]), [4, 15, 1, 16, 2, 1, 0], "the third is not in use");
        assert_eq!(told(&grid(3, [8, 4, 2], None), &[]), [1, 1, 1, 8, 4, 2, 0]);
        let many = grid(2, [1, 65536 * 512, 1], None);
        assert_eq!(told(&many, &[]), [1, 32768, 1, 1, 1024, 1, 0], "at most 65535 groups there");
        // Each part is aligned; more than 48 KiB needs an opt-in, which the stub requires of CUDA.
        assert_eq!(told(&line(64), &[100, 16])[6], 112 + 16);
        assert_eq!(told(&line(64), &[90 << 10])[6], 90 << 10);
    });
}

#[test]
fn wrong_launches_say_what_is_wrong() {
    each(|rig| {
        let says = |grid: &Grid, local: &[usize], text: &str| {
            let error = shape(rig, grid, local).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let grid = |global, local| Grid { dims: 1, global, local, offset: [0; 3] };
        says(&grid([100, 1, 1], Some([64, 1, 1])), &[], "round them up");
        says(&grid([4096, 1, 1], Some([2048, 1, 1])), &[], "1 to 1024 work-items");
        says(&grid([64, 1, 1], Some([0, 1, 1])), &[], "1 to 1024 work-items");
        says(&grid([0, 1, 1], None), &[], "no empty ones");
        says(&Grid { dims: 4, ..line(1) }, &[], "1 to 3 dimensions");
        says(&Grid { offset: [8, 0, 0], ..line(64) }, &[], "an API with offsets");
        says(&line(64), &[97 << 10], "where the device has 98304");
        says(&line(64), &[usize::MAX, 16, usize::MAX], "where the device has 98304");
        let tall = Grid { dims: 3, global: [1, 1, 65536 * 2], local: Some([1; 3]), offset: [0; 3] };
        says(&tall, &[], "more groups than");
    });
}

#[test]
fn arguments_must_fit() {
    each(|rig| {
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 4096).unwrap());
        let add = rig.kernel("add", 2).unwrap();
        let launch = |args: &[Arg<'_>]| {
            // SAFETY: all are refused.
            unsafe { queue.launch(&*add, &line(64), args, &[], false) }.unwrap_err().to_string()
        };
        let few = launch(&[memory_arg(&memory)]);
        assert!(few.contains("takes 2 arguments, 1 given"), "{few}");
        if rig.flavor == Flavor::Cuda {
            // Only CUDA's driver reports the parameters' sizes.
            let wide = launch(&[memory_arg(&memory), Arg::Bytes(&[0; 8])]);
            assert!(wide.contains("parameter 1 of kernel `add` has 4 bytes"), "{wide}");
            let local = launch(&[memory_arg(&memory), Arg::Local(4)]);
            assert!(local.contains("takes 2 arguments, 1 given"), "{local}");
            let error = rig.kernel("add", 1).unwrap_err().to_string();
            assert!(error.contains("takes 2 arguments, 1 given"), "{error}");
        }
        let reads = AllocSpec { access: Access::Read, ..spec(MemoryKind::Device, 4096) };
        let reads = rig.device.allocate(&reads, None).unwrap();
        let error = launch(&[memory_arg(&reads), Arg::Bytes(&[0; 4])]);
        assert!(error.contains("made for read given to a kernel for read_write"), "{error}");
        let strange = rig.other.allocate(&spec(MemoryKind::Device, 4096), None).unwrap();
        let error = launch(&[memory_arg(&strange), Arg::Bytes(&[0; 4])]);
        assert!(error.contains("foreign context"), "{error}");
    });
}

#[test]
fn many_arguments_are_as_good_as_few() {
    each(|rig| {
        // Group-local arguments are not parameters, so any number of them fits the stub's kernel.
        let seen = shape(rig, &line(64), &[16; 40]).unwrap();
        assert_eq!(seen[6], 640);
    });
}

#[test]
fn launches_wait_for_events_and_have_their_own() {
    each(|rig| {
        let (first, second) = (rig.queue(), rig.queue());
        let (add, memory) =
            (rig.kernel("add", 2).unwrap(), rig.memory(MemoryKind::Device, 256).unwrap());
        nap(rig, &*first, 20);
        first.fill(&*memory, 0, 256, &[0]).unwrap();
        let args = [memory_arg(&memory), Arg::Bytes(&[3, 0, 0, 0])];
        let after = [first.mark().unwrap()];
        // SAFETY: 64 words.
        let event = unsafe { second.launch(&*add, &line(64), &args, &after, true) }.unwrap();
        event.unwrap().wait(SECONDS).unwrap();
        assert_eq!(words(&get(&*second, &*memory, 0, 256)), [3; 64]);
    });
}

fn build(rig: &Rig, source: &Source) -> Result<Arc<dyn Program>> {
    rig.device.build(source)
}

fn runs(rig: &Rig, kernel: Arc<dyn Kernel>) {
    let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 256).unwrap());
    queue.fill(&*memory, 0, 256, &[0]).unwrap();
    let args = [memory_arg(&memory), Arg::Bytes(&[3, 0, 0, 0])];
    // SAFETY: 64 words.
    unsafe { queue.launch(&*kernel, &line(64), &args, &[], false) }.unwrap();
    assert_eq!(words(&get(&*queue, &*memory, 0, 256)), [3; 64]);
}

#[test]
fn programs_of_every_form() {
    each(|rig| {
        let text = build(rig, &rig.source("add")).unwrap();
        assert!(!text.is_of_binary());
        runs(rig, text.kernel("add", 2).unwrap());
        let binary = text.binary().unwrap();
        let again = build(rig, &Source::default().with_binary(binary)).unwrap();
        assert!(again.is_of_binary());
        runs(rig, again.kernel("add", 2).unwrap());
        let other = rig.source("add").with_binary(b"for another GPU".to_vec());
        let fallen_back = build(rig, &other).unwrap();
        assert!(!fallen_back.is_of_binary());
        runs(rig, fallen_back.kernel("add", 2).unwrap());
        match (rig.flavor, build(rig, &written(PTX, "add"))) {
            (Flavor::Cuda, ptx) => runs(rig, ptx.unwrap().kernel("add", 2).unwrap()),
            (Flavor::Hip, ptx) => {
                assert!(
                    ptx.unwrap_err().to_string().contains("needs its text in HIP C or a binary")
                );
            }
        }
    });
}

#[test]
fn programs_that_are_not_any() {
    each(|rig| {
        let says = |source: &Source, text: &str| {
            let error = build(rig, source).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
            error
        };
        let error = says(&rig.source("add #error no such luck"), "error: #error no such luck");
        assert!(matches!(error, Error::Build { .. }), "{error}");
        says(&rig.source("add").with_options("--bad"), "unknown option --bad");
        says(&rig.source("a\0b"), "a zero byte");
        says(&Source::default().with_binary(b"garbage".to_vec()), "STUB_INVALID_IMAGE");
        if rig.flavor == Flavor::Cuda {
            says(&written(PTX, "garbage"), "Parsing error near 'garbage'");
        }
        says(&Source::default().with_binary(b"another GPU".to_vec()), "another kind of device");
        says(&Source::default().with_binary(Vec::new()), "no bytes");
        says(&written(Language("OpenCL C"), "kernel"), "from a source that has OpenCL C");
        let error = build(rig, &rig.source("add")).unwrap().kernel("sub", 2).unwrap_err();
        assert!(
            error.to_string().contains("no kernel `sub`") && error.to_string().contains("extern")
        );
    });
}

#[test]
fn an_old_compiler_makes_what_the_driver_can_finish() {
    let _alone = alone();
    let probe = Probe::new();
    let Some(rig) = found(Flavor::Cuda, &probe) else { return };
    let queue = rig.queue();
    // The compiler refuses the device's own architecture (5), and compiles again without it.
    for n in 1.. {
        probe.fail_nth(n, 5);
        let built = build(&rig, &rig.source("add"));
        if probe.failed() == Some("nvrtcCompileProgram") {
            built.unwrap();
            break;
        }
    }
    drop(queue);
}

#[test]
fn no_compiler_is_told_when_it_is_needed() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        let Some(library) = stub() else { return };
        let libraries = Libraries {
            driver: Some(library),
            compiler: Some("/nowhere.so"),
            hsa: Some("none"),
            managed: false,
        };
        let found = discover(flavor, libraries, None, &mut || Domain(1), &|_| None).unwrap();
        let device = &found.devices[0];
        let text =
            if flavor == Flavor::Cuda { written(CUDA_C, "add") } else { written(HIP_C, "add") };
        let error = device.build(&text).unwrap_err();
        let Error::Unavailable { what, tried, reason } = &error else { panic!("{error}") };
        assert!(what.contains("rtc") && tried == &["/nowhere.so"], "{error}");
        assert!(reason.contains("needs no compiler"), "{error}");
        device.build(&Source::default().with_binary(b"add".to_vec())).unwrap();
    }
}
