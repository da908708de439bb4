//! Compiling, arguments, launches.

use super::*;
use onebuf_hal::AccessState;

const N: usize = 1 << 12;

#[test]
fn kernels_run_on_every_memory_kind() {
    each(|rig| {
        let queue = rig.queue();
        let program = rig.program(PROGRAM).unwrap();
        let (add, copy) = (program.kernel("add", 2).unwrap(), program.kernel("copy", 2).unwrap());
        let data: Vec<u32> = (0..N as u32).collect();
        for memory_kind in rig.memory_kinds() {
            let (a, b) =
                (rig.memory(memory_kind, N * 4).unwrap(), rig.memory(memory_kind, N * 4).unwrap());
            put(&*queue, &*a, 0, &bytes_of(&data));
            // SAFETY: one work-item per element.
            unsafe {
                let args = [
                    Arg::Memory(&*a, Access::ReadWrite, usize::MAX),
                    Arg::Bytes(&5u32.to_ne_bytes()),
                ];
                launch(&*queue, &*add, &line(N, None), &args).unwrap();
                launch(&*queue, &*add, &line(N, Some(16)), &args).unwrap();
                let args = [
                    Arg::Memory(&*a, Access::Read, usize::MAX),
                    Arg::Memory(&*b, Access::Write, usize::MAX),
                ];
                launch(&*queue, &*copy, &line(N, None), &args).unwrap();
            }
            let back = words(&get(&*queue, &*b, 0, N * 4));
            assert!(back.iter().zip(&data).all(|(b, d)| *b == d + 10), "{memory_kind}");
        }
    });
}

#[test]
fn local_memory_is_passed_and_limited() {
    each(|rig| {
        let queue = rig.queue();
        let turn = rig.program(PROGRAM).unwrap().kernel("turn", 2).unwrap();
        let memory = rig.memory(MemoryKind::Device, 64 * 4).unwrap();
        put(&*queue, &*memory, 0, &bytes_of(&(0..64).collect::<Vec<_>>()));
        let data = Arg::Memory(&*memory, Access::ReadWrite, usize::MAX);
        let args = [data, Arg::Local(64)];
        // SAFETY: groups of 16 with 16 words each.
        unsafe { launch(&*queue, &*turn, &line(64, Some(16)), &args) }.unwrap();
        let back = words(&get(&*queue, &*memory, 0, 64 * 4));
        assert_eq!(back[..17], [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 31]);
        let much = rig.device.info().caps.local_memory_bytes as usize + 1;
        // SAFETY: refused.
        let why = invalid(unsafe {
            launch(&*queue, &*turn, &line(64, Some(16)), &[data, Arg::Local(much)])
        });
        assert!(why.contains("bytes of local memory"), "{why}");
    });
}

#[test]
fn wrong_launches_are_named() {
    each(|rig| {
        let queue = rig.queue();
        let add = rig.program(PROGRAM).unwrap().kernel("add", 2).unwrap();
        let memory = rig.memory(MemoryKind::MappedDevice, N * 4).unwrap();
        let data = Arg::Memory(&*memory, Access::ReadWrite, usize::MAX);
        let five = 5u32.to_ne_bytes();
        // SAFETY: each is refused.
        let launch = |grid: &Grid, args: &[Arg<'_>]| unsafe { launch(&*queue, &*add, grid, args) };
        let good = [data, Arg::Bytes(&five)];
        let max = rig.device.info().caps.max_group_size;
        assert!(invalid(launch(&line(0, None), &good)).contains("no work-items"));
        assert!(invalid(launch(&line(max * 4, Some(max * 2)), &good)).contains("group may have"));
        assert!(invalid(launch(&Grid { dims: 4, ..line(1, None) }, &good)).contains("1 to 3"));
        assert!(invalid(launch(&line(N, None), &[data])).contains("takes 2 arguments, 1 given"));
        let why = invalid(launch(&line(N, None), &[data, Arg::Bytes(&[1, 2])]));
        assert!(why.contains("argument 1 of kernel `add` (a value of 2 bytes)"), "{why}");
        let uneven = launch(&line(100, Some(64)), &good);
        println!("  uneven groups: {uneven:?}");

        queue.reside(&*memory, AccessState::Released).unwrap();
        assert!(invalid(launch(&line(N, None), &good)).contains("is released"));
        let spec = AllocSpec { access: Access::Read, ..spec(MemoryKind::Device, 64) };
        let read_only = rig.device.allocate(&spec, None).unwrap();
        let args = [Arg::Memory(&*read_only, Access::ReadWrite, usize::MAX), Arg::Bytes(&five)];
        assert!(invalid(launch(&line(16, None), &args)).contains("made for read"));
    });
}

#[test]
fn shared_read_memory_may_be_read_by_kernels() {
    each(|rig| {
        let queue = rig.queue();
        let copy = rig.program(PROGRAM).unwrap().kernel("copy", 2).unwrap();
        let (a, b) = (MemoryKind::MappedDevice, MemoryKind::Device);
        let (a, b) = (rig.memory(a, 64).unwrap(), rig.memory(b, 64).unwrap());
        put(&*queue, &*a, 0, &numbers(64));
        queue.reside(&*a, AccessState::SharedRead).unwrap();
        let args = [
            Arg::Memory(&*a, Access::Read, usize::MAX),
            Arg::Memory(&*b, Access::Write, usize::MAX),
        ];
        // SAFETY: 16 words each.
        unsafe { launch(&*queue, &*copy, &line(16, None), &args) }.unwrap();
        assert_eq!(get(&*queue, &*b, 0, 64), numbers(64));
    });
}

#[test]
fn kernels_are_looked_up_by_name_and_number_of_parameters() {
    each(|rig| {
        let program = rig.program(PROGRAM).unwrap();
        println!("  log: {:?}", program.log());
        let why = program.kernel("add", 3).map(drop);
        assert_eq!(invalid(why), "kernel `add` takes 2 arguments, the signature declares 3");
        let why = invalid(program.kernel("subtract", 2).map(drop));
        assert!(why.contains("no kernel `subtract`"), "{why}");
        if !rig.device.info().version.starts_with("OpenCL 1.1") {
            assert!(why.contains("add") && why.contains("turn"), "{why}");
        }
        assert!(program.kernel("a\0b", 2).is_err());
    });
}

#[test]
fn a_build_error_shows_the_source() {
    each(|rig| {
        let error = rig.program("kernel void f(global int *a) {\n    a[0] = nowhere;\n}\n");
        let Err(Error::Build { device, log }) = error else { panic!("{error:?}") };
        println!("{log}");
        assert_eq!(device, rig.device.info().name);
        assert!(log.contains("nowhere"), "{log}");
        assert!(log.contains("    2 |     a[0] = nowhere;\n      |            ^"), "{log}");
    });
}

#[test]
fn programs_in_other_words_are_refused() {
    each(|rig| {
        let none = rig.device.build(&Source::default());
        assert!(matches!(none, Err(Error::Unsupported { .. })), "{none:?}");
        let texts = vec![(OPENCL_C, PROGRAM.into())];
        let options = "-no-such-option-here".to_owned();
        let source = Source { texts, options, ..Source::default() };
        let built = rig.device.build(&source).map(drop);
        println!("  unknown option: {built:?}");
        assert!(!matches!(built, Err(Error::Driver { .. })), "{built:?}");
    });
}
