//! Memory exported to and imported from another program by a descriptor, with the stubs of CUDA and OpenCL: what
//! both see, who owns which descriptor, and what is refused.

use onebuf::{Buffer, CopyPolicy, Error, FdKind, Hub, MemoryKind, Pool, Probe};
use onebuf_conformance::{Side, Step, assert_same, note, play, random_words, step_model};
use std::{fs, fs::File, os::fd::AsFd, thread, time::Duration};

const N: usize = 5000;
const BYTES: usize = 4 * N;

#[test]
fn what_is_exported_can_be_imported() {
    play("with_the_stubs", "CUDA", "imports,cached", &[]);
}

#[test]
#[ignore = "started by the test above, with the stubs in their parts"]
fn with_the_stubs() {
    let probe = Probe::new();
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    let hub = builder.probe(probe.clone()).build().unwrap();
    there_and_back(&hub);
    let before = descriptors();
    refusals(&hub);
    // Memory that was dropped while in use is freed later, by following allocations.
    let cuda = hub.device("cuda:0").unwrap();
    for _ in 0..1000 {
        if descriptors() == before {
            break;
        }
        let pinned =
            hub.buffer::<u32>(1).shared_with([&cuda]).memory_kind(MemoryKind::MappedDevice);
        drop(pinned.build().unwrap());
        thread::sleep(Duration::from_millis(5));
    }
    drop(cuda);
    assert_eq!(descriptors(), before, "what was refused left a descriptor");
    drop(hub);
    for _ in 0..1000 {
        if probe.live().is_empty() && descriptors() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{:?} left, {} descriptors", probe.live(), descriptors());
}

/// Counts this process's descriptors of the stub's memory.
fn descriptors() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("memfd:onebuf-stub")).count()
}

fn exportable(hub: &Hub, side: &Side) -> Buffer<u32> {
    let builder =
        hub.buffer::<u32>(N).shared_with([&side.device]).memory_kind(MemoryKind::Exportable);
    builder.build().unwrap()
}

/// Checks every word in both directions. The control: no copy is made.
fn there_and_back(hub: &Hub) {
    let [cl, cuda] = ["opencl:0", "cuda:0"].map(|id| Side::open(&hub.device(id).unwrap()).unwrap());
    let buffer = exportable(hub, &cuda);
    let mut model = random_words(1, N);
    buffer.write(&model).unwrap();
    let exported = buffer.export(FdKind::OpaqueFd).unwrap();
    assert_eq!((exported.offset, exported.bytes), (0, BYTES));
    assert!(
        exported.allocation_bytes >= BYTES && exported.allocation_bytes.is_multiple_of(2 << 20)
    );

    // Imports as another program would, with only the descriptor and the numbers.
    let whole = exported.allocation_bytes;
    // SAFETY: the stub exported it here, and no other process has it.
    let import = || unsafe { hub.import::<u32>(&exported.fd, exported.kind, whole) };
    let theirs = import().range(0, BYTES).copies(CopyPolicy::Forbid);
    let theirs = theirs.build(&cl.device).unwrap();
    assert_eq!(theirs.len(), N);
    assert_same(&cl.look(&theirs).unwrap(), &model, "imported");
    cl.step(&theirs, Step::nth(1)).unwrap();
    step_model(&mut model, Step::nth(1));
    let map = theirs.map();
    assert!(matches!(map, Err(Error::CopyForbidden { .. })), "memory of others is no slice");
    drop(map);
    drop(theirs);
    // Dropping enqueues the release; the other side is synchronised by other means, here by waiting.
    cl.queue.finish().unwrap();
    assert_same(&buffer.to_vec().unwrap(), &model, "after the importer let go");

    // A part of the memory, on two devices at once, without a copy.
    let part = import().range(1024, 2048).shared_with([&cl.device]).copies(CopyPolicy::Forbid);
    let part = part.build(&cuda.device).unwrap();
    for (turn, side) in (3..).zip([&cuda, &cl, &cl, &cuda]) {
        side.step(&part, Step::nth(turn)).unwrap();
        step_model(&mut model[256..768], Step::nth(turn));
    }
    assert_same(&cl.look(&part).unwrap(), &model[256..768], "a part");
    assert!(part.explain().contains("the same descriptor"), "{}", part.explain());
    drop(part);
    cl.queue.finish().unwrap();
    assert_same(&buffer.to_vec().unwrap(), &model, "after a part of it");

    // The descriptor outlives the buffer.
    drop(buffer);
    let later = import().range(0, BYTES).build(&cuda.device).unwrap();
    assert_same(&cuda.look(&later).unwrap(), &model, "after the buffer is gone");
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", hub.ledger());
    note("exported, imported, and taken back");
}

fn refusals(hub: &Hub) {
    let cuda = Side::open(&hub.device("cuda:0").unwrap()).unwrap();
    let buffer = exportable(hub, &cuda);
    let dma_buf = buffer.export(FdKind::DmaBuf);
    assert!(matches!(dma_buf, Err(Error::Unsupported { .. })), "{dma_buf:?}");
    let view = buffer.read_on(&cuda.queue).unwrap();
    let busy = buffer.export(FdKind::OpaqueFd);
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    drop(view);
    let plain = hub.buffer::<u32>(N).shared_with([&cuda.device]).build().unwrap();
    let plain = plain.export(FdKind::OpaqueFd).unwrap_err().to_string();
    assert!(plain.contains("exportable"), "{plain}");

    let exported = buffer.export(FdKind::OpaqueFd).unwrap();
    let import = |fd: &dyn AsFdObject, offset, bytes, whole| {
        // SAFETY: the stub checks its arguments before it uses them.
        let import = unsafe { hub.import::<u32>(fd.fd(), FdKind::OpaqueFd, whole) };
        import.range(offset, bytes).build(&cuda.device)
    };
    let whole = exported.allocation_bytes;
    for (offset, bytes) in [(0, whole + 4), (usize::MAX, 8), (2, 8), (0, 6), (0, 0)] {
        let refused = import(&exported.fd, offset, bytes, whole);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { .. })),
            "{offset}+{bytes}: {refused:?}"
        );
    }
    let too_large = import(&exported.fd, 0, BYTES, 64 * whole);
    assert!(matches!(too_large, Err(Error::InvalidArgument(_))), "{too_large:?}");
    let pipe = std::io::pipe().unwrap().0;
    let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
    for (no_memory, what) in [(&pipe as &dyn AsFdObject, "a pipe"), (&socket, "a socket")] {
        let refused = import(no_memory, 0, BYTES, whole).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        assert!(refused.to_string().contains(what), "{refused}");
    }
    let null = File::open("/dev/null").unwrap();
    let no_memory = import(&null, 0, BYTES, whole);
    assert!(matches!(no_memory, Err(Error::Driver { .. })), "{no_memory:?}");
    // SAFETY: the stub exported it here, and no other process has it.
    let again = || unsafe { hub.import::<u32>(&exported.fd, exported.kind, whole) };
    let on_host = again().build(&hub.host());
    assert!(matches!(on_host, Err(Error::Unsupported { .. })), "{on_host:?}");
    let copied = again().shared_with([&hub.host()]);
    let copied = copied.copies(CopyPolicy::Forbid).build(&cuda.device);
    assert!(matches!(copied, Err(Error::CopyForbidden { .. })), "{copied:?}");

    // An exported buffer is not pooled again.
    let pool = Pool::new(hub);
    let builder =
        hub.buffer::<u32>(N).shared_with([&cuda.device]).memory_kind(MemoryKind::Exportable);
    drop(pool.get(&builder).unwrap());
    let pooled = pool.get(&builder).unwrap();
    pooled.export(FdKind::OpaqueFd).unwrap();
    drop(pooled);
    drop(pool.get(&builder).unwrap());
    assert_eq!(pool.statistics().made, 2, "{:?}", pool.statistics());
}

/// Any type with a descriptor.
trait AsFdObject {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;
}

impl<F: AsFd> AsFdObject for F {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.as_fd()
    }
}
