//! Code without foreign calls, through the public types: run by miri, which detects undefined behaviour,
//! and as a plain test elsewhere. Sizes are tiny, since miri is slow.
#![cfg(not(onebuf_shuttle))]

use onebuf::{
    Access, Arg, Buffer, Cause, CopyPolicy, Error, Grid, Hub, Kernel, MemoryKind, NativeArgs,
    Queue, Result, RouteKind, Signature, Source, args,
    doctor::Verdicts,
    fake::{FakeConfig, Sharing},
    plan::{Request, plan},
    topology::DeviceIx,
};
use std::thread;

fn hub(fakes: &[Sharing]) -> Hub {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    let fake = |&shares_host_pages| FakeConfig { shares_host_pages, ..Default::default() };
    fakes.iter().map(fake).fold(builder, |builder, fake| builder.fake(fake)).build().unwrap()
}

/// A kernel with one buffer of words, and a queue for it.
fn kernel(
    hub: &Hub,
    device: &str,
    run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
    signature: Signature,
) -> (Queue, Kernel) {
    let device = hub.device(device).unwrap();
    let program = device.program(&Source::default().with_native("k", run)).unwrap();
    // SAFETY: `NativeArgs` keeps a native kernel in bounds and to its accesses.
    let kernel = unsafe { program.kernel("k", signature) }.unwrap();
    (device.queue().unwrap(), kernel)
}

fn adds_one(hub: &Hub, device: &str) -> (Queue, Kernel) {
    let run = |args: &mut NativeArgs<'_>| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    };
    kernel(hub, device, run, Signature::new().buffer::<u32>(Access::ReadWrite))
}

#[test]
fn the_ledger_counts_what_was_asked() {
    let hub = hub(&[]);
    let buffer = hub.buffer::<u16>(5).build().unwrap();
    buffer.write(&[1, 2, 3, 4, 5]).unwrap();
    buffer.fill_range(1..3, 9).unwrap();
    let mut tail = [0; 2];
    buffer.read_range(3.., &mut tail).unwrap();
    assert_eq!(tail, [4, 5]);
    let mut batch = buffer.batch();
    batch.write(0, &[7]).unwrap().write(1, &[8]).unwrap().write(4, &[6]).unwrap();
    batch.flush().unwrap();
    drop(batch);
    buffer.copy_from(3, &buffer, 0..1).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [7, 8, 9, 7, 6]);
    let [entry] = &hub.ledger().entries()[..] else { panic!("{}", hub.ledger()) };
    assert_eq!(
        (entry.cause, entry.bytes, entry.operations),
        (Cause::Asked, 10 + 4 + 4 + 6 + 2 + 10, 6)
    );
    assert_eq!(hub.ledger().implied_bytes(), 0);
}

#[test]
fn plans_are_a_pure_function_of_the_topology() {
    let hub = hub(&[Sharing::Alias, Sharing::No]);
    let topology = hub.topology();
    let devices: Vec<DeviceIx> = topology.indices().collect();
    let kinds = |from, to| topology.between(from, to).iter().map(|route| route.kind);
    assert!(kinds(devices[0], devices[1]).eq([RouteKind::HostPointer, RouteKind::Staged]));
    assert!(kinds(devices[0], devices[2]).eq([RouteKind::Staged]));
    assert!(kinds(devices[0], devices[0]).eq([RouteKind::Same]));
    assert!(topology.between(devices[0], DeviceIx(9)).is_empty());

    let request = Request { devices, bytes: 64, ..Request::default() };
    let chosen = plan(topology, &request).unwrap();
    assert_eq!(plan(topology, &request), Ok(chosen.clone()));
    assert!(chosen.explain(topology).contains("staged"));
    let forbidden = plan(topology, &Request { policy: CopyPolicy::Forbid, ..request });
    assert!(matches!(forbidden, Err(Error::CopyForbidden { .. })), "{forbidden:?}");
}

#[test]
fn guards_exclude_each_other() {
    let hub = hub(&[]);
    let buffer = hub.buffer::<u32>(4).init(&[1, 2, 3, 4]).build().unwrap();
    let busy = |outcome: Option<Error>| matches!(outcome, Some(Error::Busy { .. }));
    let (map, other) = (buffer.map().unwrap(), buffer.map().unwrap());
    assert_eq!((map[0], other[3]), (1, 4));
    let mut copy = [0; 4];
    buffer.read(&mut copy).unwrap();
    assert_eq!(*map, copy, "readers share, and their slices stay good");
    assert!(busy(buffer.map_mut().err()) && busy(buffer.write(&copy).err()));
    drop((map, other));

    let mut map = buffer.map_mut().unwrap();
    let (low, high) = map.split_at_mut(2);
    low.copy_from_slice(high);
    assert!(busy(buffer.map().err()) && busy(buffer.read(&mut copy).err()));
    map.unmap().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [3, 4, 3, 4]);
}

#[test]
fn threads_read_at_once_and_write_in_turn() {
    let hub = hub(&[]);
    let buffer = hub.buffer::<u32>(8).build().unwrap();
    let (queue, kernel) = adds_one(&hub, "host");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                patiently(|| queue.launch(&kernel, [8], args![buffer.write_on(&queue)?]));
                let seen = patiently(|| buffer.to_vec());
                let map = patiently(|| buffer.map());
                assert!(map[0] >= seen[0] && map.iter().all(|x| *x == map[0]));
            });
        }
    });
    assert_eq!(buffer.to_vec().unwrap(), [3; 8]);
}

fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match attempt() {
            Err(Error::Busy { .. }) => thread::yield_now(),
            outcome => return outcome.unwrap(),
        }
    }
}

/// Small values are stored inline and large ones on the heap. Neither need be aligned.
#[test]
fn arguments_arrive_as_they_were_given() {
    let hub = hub(&[]);
    let run = |args: &mut NativeArgs<'_>| {
        let (byte, vector, large) =
            (args.value::<u8>(2)?, args.value::<[f32; 4]>(3)?, args.value::<[u64; 8]>(4)?);
        let (from, to) = args.pair::<u8, u64>(0, 1)?;
        to[0] = from.iter().map(|x| u64::from(*x)).sum::<u64>() + u64::from(byte);
        to[1] = vector.iter().sum::<f32>() as u64 + large.iter().sum::<u64>();
        Ok(())
    };
    let signature = Signature::new()
        .buffer::<u8>(Access::Read)
        .buffer::<u64>(Access::Write)
        .value::<u8>()
        .value::<[f32; 4]>()
        .value::<[u64; 8]>()
        .require(|call| match (call.len(1), call.value::<u8>(2)) {
            (2.., Some(1..)) => Ok(()),
            _ => Err("too short, or zero".into()),
        });
    let (queue, kernel) = kernel(&hub, "host", run, signature);
    let from = hub.buffer::<u8>(3).init(&[1, 2, 3]).build().unwrap();
    let to = hub.buffer::<u64>(2).build().unwrap();
    let launch = |byte: u8, grid: Grid| {
        let (from, to) = (from.read_on(&queue)?, to.write_on(&queue)?);
        queue.launch(&kernel, grid, args![from, to, byte, [0.5_f32; 4], Arg::value([2_u64; 8])])
    };
    launch(4, [1].into()).unwrap();
    assert_eq!(to.to_vec().unwrap(), [10, 18]);
    let refused = |outcome: Result<()>| matches!(outcome, Err(Error::InvalidArgument(_)));
    assert!(refused(launch(0, [1].into())), "by the requirement");
    assert!(refused(launch(4, [0].into())), "by the grid");
    assert!(refused(queue.launch(&kernel, [1], args![1_u8])), "by the count");
    let read = from.read_on(&queue).unwrap();
    let swapped = args![read, 4_u32, 1_u8, [0.5_f32; 4], Arg::value([2_u64; 8])];
    assert!(refused(queue.launch(&kernel, [1], swapped)), "by the kind");
}

#[test]
fn hand_overs_carry_the_data_by_every_route() {
    for (sharing, on, route) in [
        (Sharing::Alias, "host", None),
        (Sharing::Shadow, "host", None),
        (Sharing::Shadow, "fake:0", None),
        (Sharing::No, "host", Some(RouteKind::Staged)),
    ] {
        let hub = hub(&[sharing, sharing]);
        let sides = ["fake:0", "fake:1", "host"].map(|id| adds_one(&hub, id));
        let devices = sides.each_ref().map(|(queue, _)| queue.device());
        let builder = hub.buffer::<u32>(3).shared_with(&devices).trust_declared(true);
        let builder = builder.allocate_on(&hub.device(on).unwrap());
        let buffer: Buffer<u32> =
            route.into_iter().fold(builder, |builder, kind| builder.route(kind)).build().unwrap();
        for (queue, kernel) in sides.iter().cycle().take(6) {
            queue.launch(kernel, [3], args![buffer.write_on(queue).unwrap()]).unwrap();
        }
        assert_eq!(*buffer.map().unwrap(), [6; 3], "{sharing:?} on {on}");
    }
}

#[test]
fn transfers_own_their_vectors() {
    let hub = hub(&[Sharing::No]);
    let card = hub.device("fake:0").unwrap();
    let builder = hub.buffer::<u32>(4).shared_with([&card]).memory_kind(MemoryKind::Device);
    let buffer = builder.build().unwrap();
    let mut write = buffer.write_async(.., vec![1, 2, 3, 4]).unwrap();
    let vector = write.wait(hub.timeout()).unwrap();
    assert!(write.wait(hub.timeout()).is_err(), "given back already");
    assert_eq!(buffer.read_async(.., vector).unwrap().wait(hub.timeout()).unwrap(), [1, 2, 3, 4]);
    drop(buffer.read_async(1..3, vec![0; 2]).unwrap());
    buffer.map_mut().unwrap()[3] = 9;
    assert_eq!(*buffer.map().unwrap(), [1, 2, 3, 9], "a copy, written back");
}
