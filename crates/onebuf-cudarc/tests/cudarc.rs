//! A program that uses cudarc, on the stub of CUDA and on a GPU if there is one: its slices, streams and modules in onebuf, and back.

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, CudaViewMut, LaunchConfig, PushKernelArg,
};
use onebuf::{
    Access, Buffer, CopyPolicy, Error, Hub, Kernel, Probe, Program, RouteKind, Signature, Source,
    args, doctor::Verdicts,
};
use onebuf_conformance::{
    Hardware, Side, Step, Watchdog, assert_same, assert_settled, cuda_stub, forged_zero_copy,
    kernels, lacking, pages_apart, play, random_words, step_model,
};
use onebuf_cudarc::{CudarcDeviceExt, CudarcHubExt, CudarcStream, ReadBuffer, ptx_source};
use std::{path::Path, sync::Arc, time::Duration};

const N: usize = 5 * 1024 + 77;
/// The one kernel that the stub has, too.
const TEXT: &str = "
kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
";

/// Finds the pages whose words are not those of `seed`. The stub has this kernel, too.
const CHECK: &str = "
extern \"C\" __global__ void check_pages(const unsigned *p, unsigned *wrong, unsigned seed, unsigned n) {
    unsigned page = blockIdx.x * blockDim.x + threadIdx.x, first = page * 1024, bad = 0;
    for (unsigned i = first; i < n && i < first + 1024; i++) {
        unsigned x = (i ^ seed) * 0x2c1b3c6du;
        bad |= p[i] ^ (x << 13 | x >> 19);
    }
    if (first < n) wrong[page] = bad != 0;
}
";
const PAGES: usize = (N * 4).div_ceil(4096);

/// The words of a seed.
fn words_of(seed: u32) -> Vec<u32> {
    (0..N as u32).map(|i| (i ^ seed).wrapping_mul(0x2c1b_3c6d).rotate_left(13)).collect()
}

/// Each test runs in a process of its own, in which `libcuda.so` is the stub, and here, if there is a GPU.
macro_rules! plays {
    ($($inner:ident: $on_the_stub:ident($part:expr $(, $name:expr => $value:expr)*), $on_a_gpu:ident;)*) => {$(
        #[test]
        fn $on_the_stub() {
            with_stub(stringify!($inner), $part, &[$(($name, $value)),*]);
        }

        #[test]
        fn $on_a_gpu() {
            match Path::new("/dev/nvidiactl").exists() {
                true => $inner(),
                false => lacking(&[Hardware::Nvidia], "no NVIDIA GPU: cudarc's own driver is not used"),
            }
        }
    )*};
}

plays! {
    slices_are_wrapped: slices_on_the_stub("imports", "ONEBUF_CUDA_STUB_DELAY_US" => "300"), slices_on_a_gpu;
    slices_are_read: reads_on_the_stub("imports", "ONEBUF_CUDA_STUB_DELAY_US" => "300"), reads_on_a_gpu;
    streams_are_kept: kept_on_the_stub("imports", "ONEBUF_CUDA_STUB_DELAY_US" => "300"), kept_on_a_gpu;
    buffers_are_lent: buffers_on_the_stub("imports", "ONEBUF_CUDA_STUB_DELAY_US" => "300"), buffers_on_a_gpu;
    opencl_works_in_place: opencl_on_the_stub(
        "imports,cached", "ONEBUF_CUDA_STUB_DELAY_US" => "300", "ONEBUF_STUB_DELAY_US" => "300"), opencl_on_a_gpu;
    wrong_objects_are_told: wrong_objects_on_the_stub("imports"), wrong_objects_on_a_gpu;
}

/// Runs a test in a process where cudarc finds the stub under the driver's name.
fn with_stub(test: &str, part: &str, environment: &[(&str, &str)]) {
    let Some(stub) = cuda_stub() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(stub, folder.path().join("libcuda.so")).unwrap();
    let mut all = vec![("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    all.extend(environment);
    play(test, "CUDA", part, &all);
}

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = || onebuf::builder().only(["cuda", "opencl"]).timeout(Duration::from_secs(30));
    let base = builder().verdicts(Verdicts::default()).build().unwrap();
    builder().verdicts(forged_zero_copy(&base)).probe(probe.clone()).build().unwrap()
}

/// The program: a context, two streams, and a kernel that onebuf compiled.
struct Owner {
    context: Arc<CudaContext>,
    streams: [Arc<CudaStream>; 2],
    step: CudaFunction,
}

impl Owner {
    fn new(hub: &Hub) -> Owner {
        let context = CudaContext::new(0).unwrap();
        let device = hub.cudarc_device(&context).unwrap();
        assert_eq!(device.id(), "cuda:0");
        let program: Program = device.program(&kernels(TEXT)).unwrap();
        let step = context.load_program(&program).unwrap().load_function("onebuf_step").unwrap();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        Owner { context, streams, step }
    }

    /// Launches a step by cudarc, and does not wait.
    fn step(&self, stream: &Arc<CudaStream>, mut words: CudaViewMut<'_, u32>, step: Step) {
        let n = words.len() as u32;
        let mut launch = stream.launch_builder(&self.step);
        launch.arg(&mut words).arg(&0u32).arg(&n).arg(&step.mul).arg(&step.add);
        // SAFETY: the kernel touches the first `n` words alone.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.unwrap();
    }
}

/// onebuf and cudarc take turns on a slice of cudarc's. cudarc's other stream waits for onebuf, too.
#[test]
#[ignore = "in a process of its own"]
fn slices_are_wrapped() {
    let _watchdog = Watchdog::new("cudarc's slices", Duration::from_secs(120));
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let stream = hub.cudarc_stream(&owner.streams[0]).unwrap();
    let side = Side::open(&stream.device()).unwrap();
    let mut model = random_words(1, N);
    let mut slice = owner.streams[1].clone_htod(&model).unwrap();
    for round in 0..6 {
        // On the other stream: the wrap waits for it by cudarc's events.
        owner.step(&owner.streams[1], slice.as_view_mut(), Step::nth(round));
        step_model(&mut model, Step::nth(round));
        let before = model.clone();
        step_model(&mut model, Step::nth(round + 10));
        let worked = stream.wrap(&mut slice).unwrap().run(|shared| {
            side.step(shared, Step::nth(round + 10))?;
            if round % 2 == 0 {
                let seen = shared.to_vec()?;
                assert_same(&seen, &model, "cudarc, then onebuf");
                // The control: the step changes every page.
                assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
            }
            Ok(())
        });
        worked.unwrap();
        owner.step(&owner.streams[1], slice.as_view_mut(), Step::nth(round + 20));
        step_model(&mut model, Step::nth(round + 20));
        let seen = owner.streams[1].clone_dtoh(&slice).unwrap();
        owner.streams[1].synchronize().unwrap();
        assert_same(&seen, &model, "onebuf, then cudarc's other stream");
    }
    // A part of a slice.
    let mut part = slice.slice_mut(64..1088);
    let filled = stream.wrap(&mut part).unwrap().run(|shared| {
        assert_eq!(shared.len(), 1024);
        shared.fill(5)
    });
    filled.unwrap();
    // What the function returns comes out, and the memory is handed back all the same.
    let refused = stream.wrap(&mut part).unwrap().run(|_| Err::<(), _>(Error::invalid("no")));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
    model[64..1088].fill(5);
    let seen = owner.streams[0].clone_dtoh(&slice).unwrap();
    owner.streams[0].synchronize().unwrap();
    assert_same(&seen, &model, "a part");
    drop((side, stream, slice, hub));
    assert_settled(&probe, "onebuf");
    owner.context.check_err().unwrap();
}

/// The kernel `check_pages` on a queue of onebuf.
struct Reader {
    side: Side,
    kernel: Kernel,
    wrong: Buffer<u32>,
}

impl Reader {
    fn new(stream: &CudarcStream) -> Reader {
        let side = Side::open(&stream.device()).unwrap();
        let program = side.device.program(&Source::default().with_cuda_c(CHECK)).unwrap();
        let signature = Signature::new().buffer::<u32>(Access::Read);
        let signature = signature.buffer::<u32>(Access::ReadWrite).value::<u32>().value::<u32>();
        // SAFETY: the kernel reads `n` words, and writes one word for each page of those.
        let kernel = unsafe { program.kernel("check_pages", signature) }.unwrap();
        let wrong = side.device.hub().buffer(PAGES).shared_with([&side.device]).build().unwrap();
        Reader { side, kernel, wrong }
    }

    /// Enqueues the kernel.
    fn check(&self, words: &ReadBuffer<u32>, seed: u32) -> onebuf::Result<()> {
        let queue = &self.side.queue;
        let (words, wrong) = (words.read_on(queue)?, self.wrong.write_on(queue)?);
        queue.launch(&self.kernel, [PAGES], args![words, wrong, seed, N as u32])
    }

    /// The number of pages whose words are not those of the seed that was named last.
    fn wrong(&self) -> usize {
        self.wrong.to_vec().unwrap().iter().filter(|&&wrong| wrong == 1).count()
    }
}

/// onebuf's kernels and the host read what a view of cudarc shows, after cudarc's writes and before its later ones. Several may
/// read at once, and nothing can write.
#[test]
#[ignore = "in a process of its own"]
fn slices_are_read() {
    let _watchdog = Watchdog::new("cudarc's views, read", Duration::from_secs(120));
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let streams: [CudarcStream; 2] =
        std::array::from_fn(|n| hub.cudarc_stream(&owner.streams[n]).unwrap());
    let [stream, other] = &streams;
    let readers = [Reader::new(stream), Reader::new(stream)];
    let mut slice = owner.streams[1].clone_htod(&words_of(0)).unwrap();
    for seed in 1..6 {
        // On the other stream: the wrap waits for it by cudarc's event, and its later step for the reads.
        owner.streams[1].memcpy_htod(&words_of(seed), &mut slice).unwrap();
        let view = slice.as_view();
        let read = stream.wrap_read(&view).unwrap().run(|shared| {
            assert_eq!((shared.len(), shared.is_empty()), (N, false));
            readers[0].check(shared, seed)
        });
        read.unwrap();
        owner.step(&owner.streams[1], slice.as_view_mut(), Step::nth(seed));
        assert_eq!(readers[0].wrong(), 0, "seed {seed}");
        // The control: the step changes every page.
        let read = stream.wrap_read(&slice).unwrap().run(|shared| readers[0].check(shared, seed));
        read.unwrap();
        assert_eq!(readers[0].wrong(), PAGES, "seed {seed}");
    }
    // Two wraps at once, one of them while the other's kernel is at work, under a guard; and cudarc reads, too.
    owner.streams[1].memcpy_htod(&words_of(9), &mut slice).unwrap();
    let view = slice.as_view();
    let both = stream.wrap_read(&view).unwrap().run(|one| {
        readers[0].check(one, 9)?;
        let held = one.read_on(&readers[0].side.queue)?;
        other.wrap_read(&slice).unwrap().run(|two| {
            readers[1].check(two, 9)?;
            assert_same(&two.to_vec()?, &words_of(9), "by the host");
            assert_same(&owner.streams[1].clone_dtoh(&view).unwrap(), &words_of(9), "by cudarc");
            Ok(())
        })?;
        assert_same(&one.map()?, &words_of(9), "mapped");
        drop(held);
        // A kernel that declares that it writes is refused.
        let queue = &readers[0].side.queue;
        let (words, seen) = (one.read_on(queue)?, one.read_on(queue)?);
        let refused = queue.launch(&readers[0].kernel, [PAGES], args![words, seen, 9u32, N as u32]);
        assert!(refused.is_err());
        Ok(())
    });
    both.unwrap();
    assert_eq!(readers.each_ref().map(Reader::wrong), [0, 0]);
    // Another part of the memory is another wrap; the same memory with another length is refused meanwhile.
    let (part, first) = (slice.slice(64..1088), slice.slice(..64));
    let parts = stream.wrap_read(&view).unwrap().run(|_| {
        let seen = other.wrap_read(&part).unwrap().run(|part| part.to_vec())?;
        assert_same(&seen, &words_of(9)[64..1088], "a part");
        let refused = other.wrap_read(&first).unwrap().run(|_| Ok(())).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        Ok(())
    });
    parts.unwrap();
    drop((slice, readers, streams, hub));
    assert_settled(&probe, "onebuf");
    owner.context.check_err().unwrap();
}

/// cudarc's kernels and copies work on memory of onebuf, by views that cannot free it.
#[test]
#[ignore = "in a process of its own"]
fn buffers_are_lent() {
    let _watchdog = Watchdog::new("cudarc's views", Duration::from_secs(120));
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let streams: [CudarcStream; 2] =
        std::array::from_fn(|n| hub.cudarc_stream(&owner.streams[n]).unwrap());
    let side = Side::open(&streams[0].device()).unwrap();
    let buffer = hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
    let mut model = random_words(2, N);
    buffer.write(&model).unwrap();
    for round in 0..8 {
        let stream = &streams[round as usize % 2];
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        let mut lent = stream.write(&buffer).unwrap();
        owner.step(stream.cudarc(), lent.as_view_mut(), Step::nth(round + 10));
        drop(lent);
        step_model(&mut model, Step::nth(round + 10));
        let lent = stream.read(&buffer).unwrap();
        assert!(matches!(buffer.map_mut(), Err(Error::Busy { .. })), "a reader holds it");
        let seen = stream.cudarc().clone_dtoh(&lent.as_view()).unwrap();
        drop(lent);
        stream.cudarc().synchronize().unwrap();
        assert_same(&seen, &model, "by cudarc");
    }
    assert_same(&buffer.to_vec().unwrap(), &model, "by onebuf");
    // The queue keeps the stream, so that work on it can end.
    let queue = streams[0].queue().clone();
    drop((streams, side, buffer));
    let context = owner.context.clone();
    drop(owner);
    queue.finish().unwrap();
    drop((queue, hub));
    assert_settled(&probe, "onebuf");
    context.check_err().unwrap();
}

/// A kernel that the hub caches used the program's stream: the hub asks that stream when the kernel ends, however long the program
/// has dropped it.
#[test]
#[ignore = "in a process of its own"]
fn streams_are_kept() {
    let _watchdog = Watchdog::new("cudarc's streams", Duration::from_secs(120));
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let stream = hub.cudarc_stream(&owner.streams[0]).unwrap();
    let program = stream.device().program(&Source::default().with_cuda_c(CHECK)).unwrap();
    let signature = Signature::new().buffer::<u32>(Access::Read);
    let signature = signature.buffer::<u32>(Access::ReadWrite).value::<u32>().value::<u32>();
    // SAFETY: the kernel reads `n` words, and writes one word for each page of those.
    let kernel = unsafe { program.kernel("check_pages", signature) }.unwrap();
    let [words, wrong] =
        [N, PAGES].map(|n| hub.buffer::<u32>(n).shared_with([&stream.device()]).build().unwrap());
    words.write(&words_of(3)).unwrap();
    let (read, written) =
        (words.read_on(stream.queue()).unwrap(), wrong.write_on(stream.queue()).unwrap());
    stream.queue().launch(&kernel, [PAGES], args![read, written, 3u32, N as u32]).unwrap();
    assert_eq!(wrong.to_vec().unwrap(), [0; PAGES]);
    drop((words, wrong));
    let context = owner.context.clone();
    let kept = Arc::downgrade(&owner.streams[0]);
    drop((owner, stream));
    assert!(kept.strong_count() > 0, "the hub's program has used the stream");
    drop((kernel, program, hub));
    assert_eq!(kept.strong_count(), 0, "nothing of onebuf uses the stream");
    assert_settled(&probe, "onebuf");
    context.check_err().unwrap();
}

/// Memory of onebuf that OpenCL imports: cudarc's kernel, OpenCL's kernel, cudarc's again, and nothing is copied. A slice of
/// cudarc's own cannot be imported: it is staged, and counted.
#[test]
#[ignore = "in a process of its own"]
fn opencl_works_in_place() {
    let _watchdog = Watchdog::new("cudarc and OpenCL", Duration::from_secs(120));
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let stream = hub.cudarc_stream(&owner.streams[0]).unwrap();
    let cl = Side::open(&hub.device("opencl:0").unwrap()).unwrap();
    let buffer = hub.buffer::<u32>(N).shared_with([&stream.device(), &cl.device]);
    let buffer = buffer.allocate_on(&stream.device()).route(RouteKind::OpaqueFd);
    let buffer = buffer.copies(CopyPolicy::Forbid).build().unwrap();
    let mut model = random_words(3, N);
    buffer.write(&model).unwrap();
    let before = hub.ledger().implied_bytes();
    for round in 0..6 {
        cl.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        let mut lent = stream.write(&buffer).unwrap();
        owner.step(stream.cudarc(), lent.as_view_mut(), Step::nth(round + 10));
        drop(lent);
        step_model(&mut model, Step::nth(round + 10));
        assert_same(&cl.look(&buffer).unwrap(), &model, "cudarc, then OpenCL");
    }
    assert_eq!(hub.ledger().implied_bytes(), before, "{}", buffer.explain());
    // The control.
    let mut slice: CudaSlice<u32> = stream.cudarc().clone_htod(&model).unwrap();
    let wrap = stream.wrap(&mut slice).unwrap();
    let wrap = wrap.shared_with([&cl.device]);
    wrap.run(|shared| cl.step(shared, Step::nth(1))).unwrap();
    step_model(&mut model, Step::nth(1));
    let seen = stream.cudarc().clone_dtoh(&slice).unwrap();
    stream.cudarc().synchronize().unwrap();
    assert_same(&seen, &model, "OpenCL's copy came back");
    assert!(hub.ledger().implied_bytes() - before >= 2 * 4 * N as u64, "{}", hub.ledger());
    drop((slice, buffer, cl, stream, hub));
    assert_settled(&probe, "onebuf");
    owner.context.check_err().unwrap();
}

#[test]
#[ignore = "in a process of its own"]
fn wrong_objects_are_told() {
    let probe = Probe::new();
    let hub = hub(&probe);
    let owner = Owner::new(&hub);
    let none = onebuf::builder().only(["host"]).build().unwrap();
    let missing = none.cudarc_stream(&owner.streams[0]).unwrap_err();
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
    let stream = hub.cudarc_stream(&owner.streams[0]).unwrap();
    if let Ok(other) = CudaContext::new(1) {
        let mut foreign = other.default_stream().alloc_zeros::<u32>(16).unwrap();
        let refused = stream.wrap(&mut foreign).map(drop).unwrap_err();
        assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
        other.bind_to_thread().unwrap();
        drop(foreign);
        drop(other);
        owner.context.bind_to_thread().unwrap();
    }
    let host = hub.buffer::<u32>(4).build().unwrap();
    assert!(matches!(stream.read(&host), Err(Error::NotShared { .. })));
    let cl = hub.device("opencl:0").unwrap();
    let program = cl.program(&kernels(TEXT)).unwrap();
    let refused = owner.context.load_program(&program).unwrap_err();
    assert!(refused.to_string().contains("a program of opencl:0"), "{refused}");
    let binary = cudarc::nvrtc::Ptx::from_binary(vec![0, 1, 2]);
    assert!(ptx_source(&binary).is_err());
    let text = ptx_source(&cudarc::nvrtc::Ptx::from_src(".version 8.0 // onebuf_step"));
    drop(text.unwrap());
    drop((program, cl, host, stream, hub));
    assert_settled(&probe, "onebuf");
    owner.context.check_err().unwrap();
}
