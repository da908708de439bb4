//! A program that uses glow and glutin, without a display: its context and buffers in onebuf, and back.

use glow::HasContext;
use glutin::{
    api::egl::{context::PossiblyCurrentContext, device::Device, display::Display},
    config::{ConfigSurfaceTypes, ConfigTemplateBuilder},
    context::{ContextApi, ContextAttributesBuilder, Version},
    display::GlDisplay,
};
use onebuf::{
    CopyPolicy, Error, Hub, MemoryKind, Probe, RouteKind, doctor::Verdicts, hal::DeviceKind,
};
use onebuf_conformance::{
    Side, Step, Watchdog, absent, assert_same, assert_settled, forged_zero_copy, lacking,
    pages_apart, random_words, step_model,
};
use onebuf_glow::{Glow, GlowHubExt, GlowViewExt};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const N: usize = 5 * 1024 + 77;

/// One test at a time: a context is current on one thread, and Mesa's drivers are not all thread-safe at start-up.
fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, Watchdog::new("glow", Duration::from_secs(120)))
}

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = || onebuf::builder().only(["gl", "opencl"]).timeout(Duration::from_secs(30));
    let base = builder().verdicts(Verdicts::default()).build().unwrap();
    builder().verdicts(forged_zero_copy(&base)).probe(probe.clone()).build().unwrap()
}

/// A program with a context of its own, current on this thread, without a window.
struct Program {
    gl: glow::Context,
    /// Keeps the context.
    _context: PossiblyCurrentContext,
}

impl Program {
    /// `None`, after a printed skip, without OpenGL.
    fn new(version: (u8, u8)) -> Option<Program> {
        let Some(device) = Device::query_devices().ok().and_then(|mut all| all.next()) else {
            absent("OpenGL", "EGL has no device");
            return None;
        };
        // SAFETY: no display handle is passed; the context is made current, and its functions loaded, on this thread.
        unsafe {
            let display = Display::with_device(&device, None).unwrap();
            let template =
                ConfigTemplateBuilder::new().with_surface_type(ConfigSurfaceTypes::empty()).build();
            let config = display.find_configs(template).unwrap().next().unwrap();
            let api = ContextApi::OpenGl(Some(Version::new(version.0, version.1)));
            let attributes = ContextAttributesBuilder::new().with_context_api(api).build(None);
            let context = display.create_context(&config, &attributes).unwrap();
            let context = context.make_current_surfaceless().unwrap();
            let load = |name: &std::ffi::CStr| display.get_proc_address(name);
            Some(Program { gl: glow::Context::from_loader_function_cstr(load), _context: context })
        }
    }

    fn buffer(&self, words: &[u32]) -> glow::Buffer {
        // SAFETY: the context is current here.
        unsafe {
            let buffer = self.gl.create_buffer().unwrap();
            self.gl.bind_buffer(glow::COPY_WRITE_BUFFER, Some(buffer));
            let bytes = bytes(words);
            self.gl.buffer_data_u8_slice(glow::COPY_WRITE_BUFFER, &bytes, glow::DYNAMIC_DRAW);
            buffer
        }
    }

    /// Writes every word by the program's own call.
    fn write(&self, buffer: glow::Buffer, words: &[u32]) {
        // SAFETY: the context is current here, and the buffer has as many words.
        unsafe {
            self.gl.bind_buffer(glow::COPY_WRITE_BUFFER, Some(buffer));
            self.gl.buffer_sub_data_u8_slice(glow::COPY_WRITE_BUFFER, 0, &bytes(words));
        }
    }

    fn read(&self, buffer: glow::Buffer) -> Vec<u32> {
        let mut bytes = vec![0; N * 4];
        // SAFETY: as above.
        unsafe {
            self.gl.bind_buffer(glow::COPY_READ_BUFFER, Some(buffer));
            self.gl.get_buffer_sub_data(glow::COPY_READ_BUFFER, 0, &mut bytes);
        }
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    fn register(&self, hub: &Hub) -> Glow {
        // SAFETY: current here, and alive until the end of the test.
        unsafe { hub.glow(&self.gl) }.unwrap()
    }

    fn delete(&self, buffer: glow::Buffer) {
        // SAFETY: the context is current here, and nothing uses the buffer.
        unsafe { self.gl.delete_buffer(buffer) }
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The program's calls and onebuf's shaders, in a context that shares with it, take turns on the program's buffer.
#[test]
fn buffers_are_used_in_place() {
    let _alone = alone();
    let Some(program) = Program::new((4, 5)) else { return };
    let probe = Probe::new();
    let hub = hub(&probe);
    let glow = program.register(&hub);
    assert_eq!(glow.device().id(), "gl:0@1");
    let (side, here) = (Side::open(&glow.device()).unwrap(), glow.queue().unwrap());
    let theirs = program.buffer(&[0; N]);
    // SAFETY: not deleted before the wrap is dropped; the program uses it under views.
    let buffer = unsafe { glow.wrap::<u32>(theirs) }.after(&here.fence()).build().unwrap();
    for round in 0..4 {
        let before = random_words(u64::from(round), N);
        let view = here.write(&buffer).unwrap();
        assert_eq!(view.glow_buffer().unwrap(), theirs);
        program.write(theirs, &before);
        drop(view);
        let mut model = before.clone();
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        assert_same(&side.look(&buffer).unwrap(), &model, "by onebuf's context");
        let view = here.read(&buffer).unwrap();
        let seen = program.read(view.glow_buffer().unwrap());
        assert_same(&seen, &model, "by the program");
        // The control: the step changes every page.
        assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
    }
    drop((buffer, side, here, glow, hub));
    assert_settled(&probe, "onebuf");
    program.delete(theirs);
}

/// Where the program's context is current, a wrap asks that: it sees storage that was given just now, binds again what was bound,
/// and reports an error of the program's own calls instead of taking it for its own.
#[test]
fn a_wrap_leaves_the_context_as_it_was() {
    let _alone = alone();
    let Some(program) = Program::new((4, 5)) else { return };
    let probe = Probe::new();
    let hub = hub(&probe);
    let glow = program.register(&hub);
    let [buffer, other] = [program.buffer(&[1, 2]), program.buffer(&[3])];
    let target = glow::COPY_WRITE_BUFFER;
    // SAFETY: the context is current here; a live buffer, which nothing else uses.
    let wrap = || unsafe { glow.wrap::<u32>(buffer) }.build();
    // SAFETY: the context is current here.
    let bound = || unsafe { program.gl.get_parameter_i32(target) } as u32;
    // SAFETY: as above; new storage, which is not flushed.
    unsafe {
        program.gl.bind_buffer(target, Some(buffer));
        program.gl.buffer_data_size(target, 400, glow::DYNAMIC_DRAW);
        program.gl.bind_buffer(target, Some(other));
    }
    assert_eq!(wrap().unwrap().len(), 100);
    assert_eq!(bound(), other.0.get(), "what the program had bound");
    // SAFETY: the context is current here. The call is wrong on purpose.
    unsafe { program.gl.bind_buffer(0x1234, None) };
    let refused = wrap().unwrap_err().to_string();
    assert!(refused.contains("an earlier call of the application"), "{refused}");
    assert_eq!(bound(), other.0.get(), "what the program had bound");
    // The error was told once. On a thread where no context is current, onebuf's own is asked.
    assert_eq!(wrap().unwrap().len(), 100);
    let elsewhere = || glow.buffer_info(buffer.0.get()).unwrap().bytes;
    assert_eq!(std::thread::scope(|scope| scope.spawn(elsewhere).join().unwrap()), 400);
    drop((glow, hub));
    assert_settled(&probe, "onebuf");
    program.delete(buffer);
    program.delete(other);
}

/// A buffer of onebuf for the program's context and an OpenCL platform, without a copy; a staged one is counted.
#[test]
fn another_api_works_in_place() {
    let _alone = alone();
    let Some(program) = Program::new((4, 5)) else { return };
    let probe = Probe::new();
    let hub = hub(&probe);
    let cl = hub.device("Portable Computing Language").map(|device| Side::open(&device).unwrap());
    let Ok(cl) = cl else { return absent("PoCL", "not found") };
    let glow = program.register(&hub);
    let here = glow.queue().unwrap();
    let on_a_gpu = glow.device().info().kind != DeviceKind::Cpu;
    if on_a_gpu {
        lacking(&[], "a GPU uses no memory of PoCL in place: only the staged route is tested");
    }
    for staged in [false, true] {
        if on_a_gpu && !staged {
            continue;
        }
        let before = hub.ledger().implied_bytes();
        let builder = hub.buffer::<u32>(N).shared_with([&cl.device, &glow.device()]);
        let buffer = match staged {
            true => builder.route(RouteKind::Staged).build().unwrap(),
            false => builder
                .memory_kind(MemoryKind::HostPages)
                .copies(CopyPolicy::Forbid)
                .build()
                .unwrap(),
        };
        let named = glow.buffer(&buffer).unwrap();
        let mut model = random_words(9, N);
        buffer.write(&model).unwrap();
        for round in 0..3 {
            cl.step(&buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let view = here.write(&buffer).unwrap();
            assert_eq!(view.glow_buffer().unwrap(), named.get());
            assert_same(&program.read(named.get()), &model, "OpenCL, then the program");
            model = random_words(u64::from(round), N);
            program.write(named.get(), &model);
            drop(view);
            assert_same(&cl.look(&buffer).unwrap(), &model, "the program, then OpenCL");
        }
        let implied = hub.ledger().implied_bytes() - before;
        let expected = if staged { implied >= (N * 4) as u64 } else { implied == 0 };
        assert!(expected, "{implied} bytes: {}", buffer.explain());
        // The name outlives the buffer.
        drop(buffer);
        // SAFETY: the context is current here.
        assert!(unsafe { program.gl.is_buffer(named.get()) });
    }
    drop((cl, here, glow, hub));
    assert_settled(&probe, "onebuf");
}

#[test]
fn wrong_contexts_and_buffers_are_told() {
    let _alone = alone();
    let Some(program) = Program::new((4, 5)) else { return };
    let probe = Probe::new();
    let hub = hub(&probe);
    // SAFETY: the context is current here. The call is wrong on purpose.
    unsafe { program.gl.bind_buffer(0x1234, None) };
    // SAFETY: as in `register`.
    let pending = unsafe { hub.glow(&program.gl) }.unwrap_err();
    assert!(pending.to_string().contains("0x0500"), "{pending}");
    let glow = program.register(&hub);
    let none = glow::NativeBuffer(std::num::NonZeroU32::new(777).unwrap());
    // SAFETY: there is no such buffer, which is refused.
    let refused = unsafe { glow.wrap::<u32>(none) }.build().unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
    let odd = program.buffer(&[1, 2, 3]);
    // SAFETY: a live buffer; its size does not suit the type, which is refused.
    let refused = unsafe { glow.wrap::<u64>(odd) }.build().unwrap_err();
    assert!(refused.to_string().contains("whole number of u64"), "{refused}");
    let host = hub.buffer::<u32>(4).build().unwrap();
    assert!(matches!(glow.buffer(&host), Err(Error::NotShared { .. })));
    let queue = hub.host().queue().unwrap();
    assert!(host.read_on(&queue).unwrap().glow_buffer().is_err());
    // On another thread no context is current.
    std::thread::scope(|scope| {
        let elsewhere = || glow.queue().map(drop).unwrap_err();
        let refused = scope.spawn(elsewhere).join().unwrap();
        assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
    });
    drop((host, queue, glow, hub));
    assert_settled(&probe, "onebuf");
    program.delete(odd);
}
