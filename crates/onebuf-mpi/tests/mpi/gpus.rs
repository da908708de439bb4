//! Device memory that MPI is given itself, after an experiment: a library that takes it, above the stub driver of CUDA.

use crate::{
    launch::{self, Mpi},
    ranks::{SOON, join, value},
};
use onebuf::{Access, Buffer, Device, Hub, MemoryKind, doctor::Verdicts, topology::VerdictState};
use onebuf_mpi::World;
use std::{path::Path, process::Command};

#[test]
fn device_memory_is_given_to_mpi_after_an_experiment() {
    let Some(cuda) = onebuf_conformance::cuda_stub() else { return };
    let (cuda, folder) = (cuda.to_str().unwrap(), tempfile::tempdir().unwrap());
    // The shim has Open MPI's types.
    let open_mpi = |mpi: &Mpi| mpi.name.starts_with("Open MPI");
    for mpi in launch::all().into_iter().chain(launch::with_ulfm()).filter(open_mpi) {
        let shim = shim(&mpi, folder.path());
        let mut environment =
            vec![("ONEBUF_MPI_LIB", &*shim), ("SHIM", "good"), ("ONEBUF_CUDA_LIB", cuda)];
        environment.push(("ONEBUF_NVRTC_LIB", cuda));
        for api in ["ONEBUF_OPENCL_LIB", "ONEBUF_HIP_LIB", "ONEBUF_VULKAN_LIB"] {
            environment.push((api, "none"));
        }
        mpi.run(2, "gpus::rank_direct", &environment);
    }
}

fn shim(mpi: &Mpi, folder: &Path) -> String {
    let name = mpi.name.replace(' ', "-");
    let [source, library] = ["c", "so"].map(|kind| folder.join(format!("{name}.{kind}")));
    std::fs::write(&source, include_str!("gpus.c")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(&library).arg(&source);
    let built = cc.args(mpi.to_link()).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library.into_os_string().into_string().unwrap()
}

fn hub(verdicts: Verdicts) -> Hub {
    onebuf::builder().verdicts(verdicts).build().unwrap()
}

const LEN: usize = 50_000;

fn on_device(device: &Device, len: usize) -> Buffer<u32> {
    let builder = device.hub().buffer(len).shared_with([device]).allocate_on(device);
    builder.memory_kind(MemoryKind::Device).build().unwrap()
}

/// The bytes that MPI was given in device memory, and those that were copied for it, meanwhile.
fn meanwhile(world: &World, hub: &Hub, run: impl FnOnce()) -> (u64, u64) {
    let before = (world.device_bytes(), hub.ledger().implied_bytes());
    run();
    (world.device_bytes() - before.0, hub.ledger().implied_bytes() - before.1)
}

/// A ring of two ranks, of a range, and of a region.
fn ring(world: &World, device: &Device) {
    let (from, into) = (on_device(device, LEN), on_device(device, LEN));
    let (own, other) = (world.rank(), 1 - world.rank());
    let words = |rank, round| (0..LEN).map(|at| value(rank, round, at)).collect::<Vec<_>>();
    for round in 0..3 {
        from.write(&words(own, round)).unwrap();
        into.fill(7).unwrap();
        let (range, region) =
            (1024..LEN - 1, into.sub_buffer(1024..2048, Access::ReadWrite).unwrap());
        let mut came = match round {
            0 => world.receive(&into, other, 3).unwrap(),
            1 => world.receive((&into, range.clone()), other, 3).unwrap(),
            _ => world.receive(&region, other, 3).unwrap(),
        };
        assert!(into.to_vec().is_err(), "the buffer is busy until the message has come");
        let queue = device.default_queue().unwrap();
        assert!(into.read_on(&queue).is_err(), "also for its own queue");
        let sent = match round {
            0 => world.send(&from, other, 3),
            1 => world.send((&from, range.clone()), other, 3),
            _ => world.send((&from, 1024..2048), other, 3),
        };
        let mut sent = sent.unwrap();
        assert!(from.write_on(&queue).is_err(), "MPI may still read it");
        came.wait(SOON).unwrap();
        sent.wait(SOON).unwrap();
        assert!(into.read_on(&queue).is_ok() && from.write_on(&queue).is_ok());
        drop(came);
        let part = [0..LEN, range, 1024..2048][round].clone();
        let wanted = words(other, round);
        let seen = into.to_vec().unwrap();
        for (at, word) in seen.into_iter().enumerate() {
            let expected = if part.contains(&at) { wanted[at] } else { 7 };
            assert_eq!(word, expected, "round {round}, element {at}");
        }
    }
}

fn calls_of_all(world: &World, device: &Device) {
    let (from, into) = (on_device(device, LEN), on_device(device, LEN));
    let all: Vec<u32> = (0..LEN).map(|at| value(world.rank(), 9, at)).collect();
    from.write(&all).unwrap();
    world.all_to_all(&from, &into).unwrap().wait(SOON).unwrap();
    let (half, own) = (LEN / 2, world.rank());
    let wanted = |at: usize| value(at / half, 9, own * half + at % half);
    assert!(into.to_vec().unwrap().into_iter().enumerate().all(|(at, word)| word == wanted(at)));
}

#[test]
#[ignore = "a rank"]
fn rank_direct() {
    let world = join();
    let unproven = hub(Verdicts::default());
    let device = unproven.device("cuda:0").unwrap();
    assert!(world.claims(&device));
    let bytes = |elements: usize| 4 * elements as u64;
    let all = bytes(LEN + (LEN - 1025) + 1024);
    let (given, copied) = meanwhile(&world, &unproven, || ring(&world, &device));
    assert_eq!(given, 0, "a claim is no proof");
    assert!(copied >= 2 * all, "{copied} bytes copied");

    let found = world.try_device_memory(&device, 1 << 18, || ()).unwrap();
    assert_eq!(found.verdict.state, VerdictState::Proven, "{found:?}");
    let mut verdicts = Verdicts::default();
    found.store_in(&mut verdicts, &world, &device);
    let proven = hub(verdicts);
    let device = proven.device("cuda:0").unwrap();
    let (given, _) = meanwhile(&world, &proven, || ring(&world, &device));
    assert_eq!(given, 0, "the ranks have not agreed");
    // One rank has the proof, and the other has not.
    let theirs = if world.rank() == 0 { &proven } else { &unproven };
    assert!(!world.use_device_memory(&theirs.device("cuda:0").unwrap()).unwrap());
    let (given, _) = meanwhile(&world, &proven, || ring(&world, &device));
    assert_eq!(given, 0, "one rank has no proof");
    assert!(world.use_device_memory(&device).unwrap());
    let (given, copied) = meanwhile(&world, &proven, || ring(&world, &device));
    assert_eq!((given, copied), (2 * all, 0));

    // What no experiment has shown: calls of all ranks, messages to oneself and from the middle of a page, MPI's own broadcast, and longer
    // messages.
    let (given, _) = meanwhile(&world, &proven, || calls_of_all(&world, &device));
    assert_eq!(given, 0);
    let (given, _) = meanwhile(&world, &proven, || {
        let (from, into) = (on_device(&device, 4096), on_device(&device, 4096));
        from.fill(3).unwrap();
        for (peer, range) in [(world.rank(), 0..4096), (1 - world.rank(), 1..4096)] {
            into.fill(7).unwrap();
            let mut came = world.receive((&into, range.clone()), peer, 5).unwrap();
            world.send((&from, range.clone()), peer, 5).unwrap().wait(SOON).unwrap();
            came.wait(SOON).unwrap();
            drop(came);
            assert_eq!(into.to_vec().unwrap()[range.start..], [3].repeat(4096)[range.start..]);
        }
    });
    assert_eq!(given, 0);
    let (given, _) = meanwhile(&world, &proven, || {
        let buffer = on_device(&device, 100);
        buffer.fill(world.rank() as u32 + 1).unwrap();
        world.broadcast(&buffer, 0).unwrap().wait(SOON).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|word| *word == 1));
    });
    assert_eq!(given, 0);
    let (given, _) = meanwhile(&world, &proven, || {
        let (from, into) = (on_device(&device, LEN * 2), on_device(&device, LEN * 2));
        from.fill(5).unwrap();
        let mut came = world.receive(&into, 1 - world.rank(), 4).unwrap();
        world.send(&from, 1 - world.rank(), 4).unwrap().wait(SOON).unwrap();
        came.wait(SOON).unwrap();
        drop(came);
        assert!(into.to_vec().unwrap().iter().all(|word| *word == 5));
    });
    assert_eq!(given, 0, "400,000 bytes are beyond the experiment");
}
