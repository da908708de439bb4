//! A program that uses wgpu, on lavapipe and llvmpipe: buffers that wgpu, OpenCL and the host share, in both directions.

mod layers;
mod program;

use ash::{vk, vk::Handle};
use onebuf::{
    Buffer, CopyPolicy, Device, Error, Hub, MemoryKind, Probe, RouteKind, SyncMethod,
    doctor::Verdicts, hal::DeviceKind, prelude::*,
};
use onebuf_conformance::{
    Hardware, Side, Step, Watchdog, absent, assert_same, assert_settled, forged_zero_copy, lacking,
    pages_apart, random_words, step_model,
};
use onebuf_wgpu::{Gpu, GpuBuffer, WgpuHubExt};
use program::{Program, adapter, ready};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use wgpu::{Backends, BufferUsages, hal::api::Vulkan};

const N: usize = 5 * 1024 + 77;
const LOADER: &str = "libvulkan.so.1";
const MOMENT: Duration = Duration::from_millis(60);
/// What the tests do with a shared buffer.
const USED: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// One test at a time, because Mesa's drivers are not all thread-safe at start-up. At its end the layers have told nothing.
struct Alone {
    _guard: MutexGuard<'static, ()>,
    _watchdog: Watchdog,
}

fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    layers::listen();
    Alone { _guard: guard, _watchdog: Watchdog::new("wgpu", Duration::from_secs(240)) }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let told = layers::told();
        if !std::thread::panicking() {
            assert!(told.is_empty(), "the validation layers: {told:#?}");
        }
    }
}

/// A hub that believes in every route.
fn hub(probe: &Arc<Probe>, timeout: Duration) -> Hub {
    let builder =
        || onebuf::builder().library("vulkan", LOADER).only(["vulkan", "opencl", "cuda", "gl"]);
    let base = builder().verdicts(Verdicts::default()).build().unwrap();
    let builder = builder().verdicts(forged_zero_copy(&base)).probe(probe.clone());
    builder.timeout(timeout).build().unwrap()
}

const LONG: Duration = Duration::from_secs(30);

fn pocl(hub: &Hub) -> Option<Side> {
    let side = hub.device("Portable Computing Language").map(|device| Side::open(&device).unwrap());
    side.inspect_err(|_| absent("PoCL", "not found")).ok()
}

/// A buffer of wgpu over a shared one.
fn made(gpu: &Gpu, buffer: &Buffer<u32>) -> GpuBuffer {
    // SAFETY: the tests submit work that uses it under turns alone.
    unsafe { gpu.buffer(buffer, USED) }.unwrap()
}

/// Host pages that PoCL and wgpu's device use in place. `None`, after a printed skip, if that is a GPU, which shares memory with its other APIs:
/// `cuda_and_opencl_take_turns_on_a_gpu`.
fn in_place(hub: &Hub, cl: &Device, gpu: &Device) -> Option<Buffer<u32>> {
    if gpu.info().kind != DeviceKind::Cpu {
        lacking(&[], &format!("{gpu} is a GPU, which uses no memory of PoCL in place"));
        return None;
    }
    let builder = hub.buffer::<u32>(N).shared_with([cl, gpu]);
    Some(builder.memory_kind(MemoryKind::HostPages).copies(CopyPolicy::Forbid).build().unwrap())
}

/// wgpu's shader and copies, kernels of OpenCL and the host take turns on every page, and nothing is copied.
#[test]
fn wgpu_and_opencl_take_turns_in_place() {
    let _alone = alone();
    for backends in [Backends::VULKAN, Backends::GL] {
        let Some(program) = Program::new(backends) else { continue };
        let probe = Probe::new();
        let hub = hub(&probe, LONG);
        let Some(cl) = pocl(&hub) else { return };
        let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
        assert!(gpu.device().id().ends_with("@1"), "{gpu:?}");
        let Some(field) = in_place(&hub, &cl.device, &gpu.device()) else { continue };
        let drawn = made(&gpu, &field);
        let mut model = random_words(1, N);
        field.write(&model).unwrap();
        for round in 0..5 {
            let before = model.clone();
            cl.step(&field, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let turn = gpu.read(&field).unwrap();
            let seen = program.read(&drawn, drawn.offset(), N);
            drop(turn);
            assert_same(&seen, &model, "OpenCL, then wgpu");
            // The control: each step changes every page.
            assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
            let turn = gpu.write(&field).unwrap();
            program.step(drawn.binding(), N, Step::nth(round + 10));
            drop(turn);
            step_model(&mut model, Step::nth(round + 10));
            assert_same(&cl.look(&field).unwrap(), &model, "wgpu, then OpenCL");
            let turn = gpu.write(&field).unwrap();
            model = random_words(u64::from(round) + 20, N);
            program.write(&drawn, drawn.offset(), &model);
            drop(turn);
            assert_same(&field.map().unwrap(), &model, "wgpu's queue, then the host");
        }
        assert_eq!(hub.ledger().implied_bytes(), 0, "{}", field.explain());
        drop((field, drawn, cl, gpu, hub));
        program.finish();
        assert_settled(&probe, &format!("{backends:?}"));
    }
}

/// The control of the ledger: a staged route is right, and counted.
#[test]
fn a_staged_buffer_is_right_and_counted() {
    let _alone = alone();
    for backends in [Backends::VULKAN, Backends::GL] {
        let Some(program) = Program::new(backends) else { continue };
        let probe = Probe::new();
        let hub = hub(&probe, LONG);
        let Some(cl) = pocl(&hub) else { return };
        let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
        let field = hub.buffer::<u32>(N).shared_with([&cl.device, &gpu.device()]);
        let field = field.route(RouteKind::Staged).build().unwrap();
        let drawn = made(&gpu, &field);
        let mut model = random_words(2, N);
        field.write(&model).unwrap();
        for round in 0..3 {
            cl.step(&field, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let turn = gpu.write(&field).unwrap();
            program.step(drawn.binding(), N, Step::nth(round + 10));
            drop(turn);
            step_model(&mut model, Step::nth(round + 10));
        }
        assert_same(&field.to_vec().unwrap(), &model, "staged");
        assert!(hub.ledger().implied_bytes() >= 5 * 4 * N as u64, "{}", hub.ledger());
        drop((field, drawn, cl, gpu, hub));
        program.finish();
        assert_settled(&probe, &format!("{backends:?}"));
    }
}

/// Memory of wgpu's device by a descriptor, in a device that wgpu itself requested: each hand-over changes its owner.
#[test]
fn descriptors_are_shared_with_a_plain_wgpu_device() {
    let _alone = alone();
    let Some(adapter) = adapter(Backends::VULKAN) else { return };
    let (device, queue) = ready(adapter.request_device(&Default::default())).unwrap();
    let program = Program::over(adapter, device, queue);
    let probe = Probe::new();
    let hub = hub(&probe, LONG);
    let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
    let ours = Side::open(&hub.device("vulkan:0").unwrap()).unwrap();
    let theirs = Side::open(&gpu.device()).unwrap();
    for home in [&gpu.device(), &ours.device] {
        let field = hub.buffer::<u32>(N).shared_with([&ours.device, &gpu.device()]);
        let field = field.allocate_on(home).route(RouteKind::OpaqueFd).copies(CopyPolicy::Forbid);
        let field = field.build().unwrap();
        let drawn = made(&gpu, &field);
        let mut model = random_words(3, N);
        field.write(&model).unwrap();
        let before = hub.ledger().implied_bytes();
        for round in 0..4 {
            ours.step(&field, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let turn = gpu.write(&field).unwrap();
            program.step(drawn.binding(), N, Step::nth(round + 10));
            drop(turn);
            step_model(&mut model, Step::nth(round + 10));
            // onebuf's own commands in wgpu's device go through wgpu's queue.
            theirs.step(&field, Step::nth(round + 20)).unwrap();
            step_model(&mut model, Step::nth(round + 20));
            assert_same(&ours.look(&field).unwrap(), &model, "by a descriptor");
            let turn = gpu.read(&field).unwrap();
            assert_same(&program.read(&drawn, 0, N), &model, "by wgpu");
            drop(turn);
        }
        assert_eq!(hub.ledger().implied_bytes(), before, "{}", field.explain());
    }
    drop((ours, theirs, gpu, hub));
    program.finish();
    assert_settled(&probe, "onebuf");
}

/// On a GPU: wgpu's shader and copies take turns with kernels of CUDA and of OpenCL, on memory of the chip that either side allocated. Nothing
/// is copied.
#[test]
fn cuda_and_opencl_take_turns_on_a_gpu() {
    let _alone = alone();
    if !Path::new("/dev/nvidiactl").exists() {
        return lacking(&[Hardware::Nvidia], "no NVIDIA GPU: wgpu shares no memory with CUDA");
    }
    let Some(program) = Program::new(Backends::VULKAN) else { return };
    let probe = Probe::new();
    let hub = hub(&probe, LONG);
    let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
    for name in ["cuda:0", "NVIDIA CUDA"] {
        let other = Side::open(&hub.device(name).unwrap()).unwrap();
        // NVIDIA's OpenCL imports memory and exports none.
        let homes = [gpu.device(), other.device.clone()];
        let homes = &homes[..if other.device.info().api.0 == "cuda" { 2 } else { 1 }];
        for home in homes {
            let field = hub.buffer::<u32>(N).shared_with([&other.device, &gpu.device()]);
            let field = field.allocate_on(home).route(RouteKind::OpaqueFd);
            let field = field.copies(CopyPolicy::Forbid).build().unwrap();
            let drawn = made(&gpu, &field);
            let mut model = random_words(6, N);
            field.write(&model).unwrap();
            let before = hub.ledger().implied_bytes();
            for round in 0..50 {
                let start = model.clone();
                other.step(&field, Step::nth(round)).unwrap();
                step_model(&mut model, Step::nth(round));
                let turn = gpu.read(&field).unwrap();
                let seen = program.read(&drawn, drawn.offset(), N);
                drop(turn);
                assert_same(&seen, &model, &format!("{name}, then wgpu"));
                // The control: each step changes every page.
                assert_eq!(pages_apart(&seen, &start).len(), (N * 4).div_ceil(4096));
                let turn = gpu.write(&field).unwrap();
                program.step(drawn.binding(), N, Step::nth(round + 60));
                drop(turn);
                step_model(&mut model, Step::nth(round + 60));
                assert_same(&other.look(&field).unwrap(), &model, &format!("wgpu, then {name}"));
            }
            assert_eq!(hub.ledger().implied_bytes(), before, "{}", field.explain());
        }
    }
    drop((gpu, hub));
    program.finish();
    assert_settled(&probe, "onebuf");
}

/// A buffer that wgpu allocated, also one that wgpu has not initialised: what onebuf writes first stays.
#[test]
fn buffers_of_wgpu_are_wrapped() {
    let _alone = alone();
    let Some(program) = Program::new(Backends::VULKAN) else { return };
    let probe = Probe::new();
    let hub = hub(&probe, LONG);
    let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
    let side = Side::open(&gpu.device()).unwrap();
    for written in [false, true] {
        let theirs = program.make(N * 4, USED);
        let mut model = vec![0; N];
        if written {
            // Not submitted yet: the wrap comes after it.
            model = random_words(4, N);
            program.queue.write_buffer(&theirs, 0, onebuf::bytemuck::cast_slice(&model));
        }
        // SAFETY: used under turns alone, and not destroyed.
        let wrap = unsafe { gpu.wrap::<u32>(&theirs) }.unwrap();
        let buffer = wrap.after(&gpu.queue().unwrap().fence()).build().unwrap();
        assert_same(&buffer.to_vec().unwrap(), &model, "what wgpu has");
        model = random_words(5, N);
        buffer.write(&model).unwrap();
        for round in 0..3 {
            side.step(&buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let turn = gpu.write(&buffer).unwrap();
            assert!(turn.sync_method() <= SyncMethod::Event, "on the device: {turn:?}");
            assert_same(&program.read(&theirs, 0, N), &model, "onebuf, then wgpu");
            program.step(theirs.as_entire_binding(), N, Step::nth(round + 10));
            drop(turn);
            step_model(&mut model, Step::nth(round + 10));
            assert_same(&side.look(&buffer).unwrap(), &model, "wgpu, then onebuf");
        }
        drop(buffer);
        assert_same(&program.read(&theirs, 0, N), &model, "wgpu's again");
    }
    drop((side, gpu, hub));
    program.finish();
    assert_settled(&probe, "onebuf");
}

/// Work of wgpu is held up by a semaphore: everything that comes after it waits. Work of OpenCL is held up by a user event: wgpu's
/// turn waits.
#[test]
fn both_directions_are_ordered() {
    let _alone = alone();
    let Some(program) = Program::new(Backends::VULKAN) else { return };
    let probe = Probe::new();
    let hub = hub(&probe, Duration::from_secs(2));
    let Some(cl) = pocl(&hub) else { return };
    let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
    let Some(field) = in_place(&hub, &cl.device, &gpu.device()) else { return };
    let drawn = made(&gpu, &field);
    field.fill(1).unwrap();
    let gate = Gate::new(&program.device);
    let mut model = vec![1; N];
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let turn = gpu.write(&field).unwrap();
        gate.hold(&program.queue);
        program.step(drawn.binding(), N, Step { mul: 1, add: 6 });
        drop(turn);
        step_model(&mut model, Step { mul: 1, add: 6 });
        // By another thread: lavapipe's next submission waits on the host for the one that is held up.
        scope.spawn(|| {
            std::thread::sleep(MOMENT);
            opened.store(true, Ordering::SeqCst);
            gate.open();
        });
        let seen = cl.look(&field).unwrap();
        assert!(opened.load(Ordering::SeqCst), "OpenCL did not wait for wgpu");
        assert_same(&seen, &model, "wgpu, then OpenCL");
    });
    // The other direction.
    let handles = cl.device.native_handles().unwrap();
    let context = handles.iter().find(|(name, _)| *name == "cl_context").unwrap().1;
    // SAFETY: a live context, which the device keeps.
    let context = unsafe { hub.foreign_context(context as *mut std::ffi::c_void) }.unwrap();
    let user = context.user_event().unwrap();
    cl.queue.wait_for(&user.fence()).unwrap();
    cl.step(&field, Step::nth(3)).unwrap();
    let early = gpu.read(&field).map(drop);
    assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
    user.complete();
    step_model(&mut model, Step::nth(3));
    let turn = gpu.read(&field).unwrap();
    assert_same(&program.read(&drawn, drawn.offset(), N), &model, "OpenCL, then wgpu");
    drop(turn);
    drop((user, context, field, drawn, cl, gpu, hub));
    program.finish();
    gate.end();
    assert_settled(&probe, "onebuf");
}

/// A timeline semaphore of wgpu's device that the host signals.
struct Gate {
    device: wgpu::Device,
    semaphore: vk::Semaphore,
}

impl Gate {
    fn new(device: &wgpu::Device) -> Gate {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: a live device with timeline semaphores.
        let semaphore = unsafe {
            device.as_hal::<Vulkan>().unwrap().raw_device().create_semaphore(&info, None).unwrap()
        };
        Gate { device: device.clone(), semaphore }
    }

    /// The queue's next submission waits.
    fn hold(&self, queue: &wgpu::Queue) {
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        // SAFETY: the semaphore outlives the submission.
        let hal = unsafe { queue.as_hal::<Vulkan>() }.unwrap();
        hal.add_wait_semaphore(self.semaphore, Some(1), all);
    }

    fn open(&self) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore).value(1);
        // SAFETY: a live semaphore, signalled once.
        unsafe { self.device.as_hal::<Vulkan>().unwrap().raw_device().signal_semaphore(&info) }
            .unwrap();
    }

    fn end(self) {
        assert_ne!(self.semaphore.as_raw(), 0);
        // SAFETY: no work uses it.
        unsafe {
            let hal = self.device.as_hal::<Vulkan>().unwrap();
            hal.raw_device().destroy_semaphore(self.semaphore, None);
        }
    }
}

/// Another thread submits to wgpu's queue all the time: onebuf's waits and signals may travel with its submissions. Turns are taken on
/// several threads.
#[test]
fn other_threads_submit_meanwhile() {
    let _alone = alone();
    for backends in [Backends::VULKAN, Backends::GL] {
        let Some(program) = Program::new(backends) else { continue };
        let probe = Probe::new();
        let hub = hub(&probe, LONG);
        let Some(cl) = pocl(&hub) else { return };
        let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
        let Some(field) = in_place(&hub, &cl.device, &gpu.device()) else { continue };
        let (drawn, side) = (made(&gpu, &field), Side::open(&gpu.device()).unwrap());
        let mut model = random_words(8, N);
        field.write(&model).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let noise = program.make(4096, USED);
                while !over.load(Ordering::Relaxed) {
                    program.write(&noise, 0, &[1; 1024]);
                    std::thread::yield_now();
                }
            });
            for round in 0..40 {
                cl.step(&field, Step::nth(round)).unwrap();
                step_model(&mut model, Step::nth(round));
                let (gpu, field, drawn, program) = (&gpu, &field, &drawn, &program);
                let turn = move || {
                    let turn = gpu.write(field).unwrap();
                    program.step(drawn.binding(), N, Step::nth(round + 50));
                    drop(turn);
                };
                match round % 2 {
                    0 => turn(),
                    _ => scope.spawn(turn).join().unwrap(),
                }
                step_model(&mut model, Step::nth(round + 50));
                side.step(field, Step::nth(round + 90)).unwrap();
                step_model(&mut model, Step::nth(round + 90));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_same(&field.to_vec().unwrap(), &model, "beside another thread");
        drop((field, drawn, side, cl, gpu, hub));
        program.finish();
        assert_settled(&probe, &format!("{backends:?}"));
    }
}

/// wgpu's buffer outlives everything of onebuf, and frees the memory; work in flight does, too.
#[test]
fn wgpus_buffer_keeps_the_memory() {
    let _alone = alone();
    for backends in [Backends::VULKAN, Backends::GL] {
        for in_flight in [false, true] {
            let Some(program) = Program::new(backends) else { continue };
            let probe = Probe::new();
            let hub = hub(&probe, LONG);
            let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
            let field = hub.buffer_from(&[7; N]).shared_with([&gpu.device()]).build().unwrap();
            let drawn = made(&gpu, &field);
            let turn = gpu.write(&field).unwrap();
            program.step(drawn.binding(), N, Step { mul: 1, add: 1 });
            drop(turn);
            match in_flight {
                true => drop((drawn, field, gpu, hub)),
                false => {
                    drop((field, gpu, hub));
                    let mut model = vec![7; N];
                    step_model(&mut model, Step { mul: 1, add: 1 });
                    let seen = program.read(&drawn, drawn.offset(), N);
                    assert_same(&seen, &model, "after everything of onebuf's");
                    drop(drawn);
                }
            }
            drop(program);
            assert_settled(&probe, &format!("{backends:?}"));
        }
    }
}

#[test]
fn wrong_objects_are_told() {
    let _alone = alone();
    let Some(program) = Program::new(Backends::VULKAN) else { return };
    let Some(other) = Program::new(Backends::VULKAN) else { return };
    let probe = Probe::new();
    let hub = hub(&probe, LONG);
    let mixed = hub.wgpu(&program.device, &other.queue).unwrap_err();
    assert!(mixed.to_string().contains("another wgpu::Device"), "{mixed}");
    let without = onebuf::builder().only(["host"]).build().unwrap();
    let missing = without.wgpu(&program.device, &program.queue).unwrap_err();
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
    let gpu = hub.wgpu(&program.device, &program.queue).unwrap();
    let field = hub.buffer::<u32>(N).shared_with([&gpu.device()]).build().unwrap();
    for usage in [BufferUsages::MAP_READ, BufferUsages::STORAGE | BufferUsages::MAP_WRITE] {
        // SAFETY: refused.
        let refused = unsafe { gpu.buffer(&field, usage) }.unwrap_err();
        assert!(refused.to_string().contains("possible are"), "{refused}");
    }
    let host = hub.buffer::<u32>(N).build().unwrap();
    // SAFETY: refused.
    assert!(matches!(unsafe { gpu.buffer(&host, USED) }, Err(Error::NotShared { .. })));
    assert!(matches!(gpu.read(&host), Err(Error::NotShared { .. })));
    let wrap = |buffer: &wgpu::Buffer| {
        // SAFETY: refused, or dropped at once.
        unsafe { gpu.wrap::<u32>(buffer) }.and_then(|wrap| wrap.build()).map(drop)
    };
    let lacks = wrap(&program.make(64, BufferUsages::STORAGE)).unwrap_err();
    assert!(lacks.to_string().contains("COPY_SRC"), "{lacks}");
    let second = ready(program.adapter.request_device(&Default::default())).unwrap();
    let second = Program::over(program.adapter.clone(), second.0, second.1);
    let foreign = wrap(&second.make(64, USED)).unwrap_err();
    assert!(matches!(foreign, Error::Driver { api: "wgpu", .. }), "{foreign}");
    let foreign = wrap(&other.make(64, USED)).unwrap_err();
    assert!(foreign.to_string().contains("another wgpu::Instance"), "{foreign}");
    let gone = program.make(64, USED);
    gone.destroy();
    assert!(wrap(&gone).is_err());
    assert!(wrap(&program.make(66 * 4 + 2, USED)).is_err(), "no whole words");
    wrap(&program.make(64, USED)).unwrap();
    // A lost device is an error, not a hang.
    let lost = hub.wgpu(&other.device, &other.queue).unwrap();
    let there = hub.buffer_from(&[1u32; N]).shared_with([&lost.device()]).build().unwrap();
    other.device.destroy();
    let taken = lost.write(&there).map(drop);
    let ended = taken.and_then(|()| there.fence().map_or(Ok(()), |fence| fence.wait(MOMENT)));
    assert!(matches!(ended, Err(Error::DeviceLost { .. } | Error::Timeout { .. })), "{ended:?}");
    drop((there, lost, field, host, gpu, hub));
    program.finish();
    drop(other);
    assert_settled(&probe, "onebuf");
}

/// The control of the layers: a deliberate mistake is told.
#[test]
fn the_validation_layers_listen() {
    let _alone = alone();
    let Some(program) = Program::new(Backends::VULKAN) else { return };
    let info = vk::BufferCreateInfo::default().usage(vk::BufferUsageFlags::TRANSFER_SRC);
    // SAFETY: a live device. A buffer of no bytes is forbidden, and refused or useless.
    unsafe {
        let hal = program.device.as_hal::<Vulkan>().unwrap();
        if let Ok(buffer) = hal.raw_device().create_buffer(&info, None) {
            hal.raw_device().destroy_buffer(buffer, None);
        }
    }
    if layers::told().is_empty() {
        absent("Vulkan's validation layers", "a wrong call went by unseen");
    }
}
