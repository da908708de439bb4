//! A foreign OpenGL context: the test plays the owner with raw calls, on its own thread.

use super::{N, alone, builder, gl_of};
use onebuf::{
    Access, Buffer, Error, ForeignGl, Hub, MemoryKind, Probe, Queue, Result, Signature, Source,
    args, prelude::*,
};
use onebuf_conformance::{Side, Step, absent, assert_same, random_words, step_model};
use onebuf_sys::gl::{EglContext, EglDevice, EglDisplay, Gl, GlRefused, consts};
use std::{
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

const ATTRIBUTES: [i32; 7] = [
    consts::EGL_CONTEXT_MAJOR_VERSION,
    4,
    consts::EGL_CONTEXT_MINOR_VERSION,
    3,
    consts::EGL_CONTEXT_OPENGL_PROFILE_MASK,
    consts::EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
    consts::EGL_NONE,
];
const TARGET: u32 = consts::COPY_WRITE_BUFFER;

/// The owner's context, current on the thread that created it.
pub(super) struct Owner {
    probe: Arc<Probe>,
    gl: Gl,
    display: EglDisplay,
    context: EglContext,
}

impl Owner {
    /// `None`, after a printed skip, if there is no such display.
    pub fn new() -> Option<Owner> {
        let probe = Probe::new();
        let gl = Gl::load(None, Some(probe.clone()))
            .inspect_err(|why| absent("OpenGL", &why.to_string()))
            .ok()?;
        let none = ptr::null_mut();
        // SAFETY: as specified: a display, a context, and the context current on this thread.
        let made = unsafe {
            display(&gl).and_then(|display| {
                gl.egl_bind_api(consts::EGL_OPENGL_API)?;
                let share = EglContext::NULL;
                let context = gl.egl_create_context(display, none, share, ATTRIBUTES.as_ptr())?;
                gl.egl_make_current(display, none, none, context)?;
                Ok((display, context))
            })
        };
        let (display, context) =
            made.inspect_err(|why| absent("EGL without a window", &why.to_string())).ok()?;
        Some(Owner { probe, gl, display, context })
    }

    /// Creates a buffer with these words, by `glBufferStorage` with those flags, or by `glBufferData`.
    pub fn make(&self, words: &[u32], storage: Option<u32>) -> u32 {
        let (bytes, at) = (size_of_val(words) as isize, words.as_ptr().cast());
        // SAFETY: the context is current; the call copies the words.
        unsafe {
            let name = self.gl.create_buffer().unwrap();
            self.gl.bind_buffer(TARGET, name).unwrap();
            match storage {
                Some(flags) => self.gl.buffer_storage(TARGET, bytes, at, flags).unwrap(),
                None => self.gl.buffer_data(TARGET, bytes, at, consts::DYNAMIC_COPY).unwrap(),
            }
            name
        }
    }

    /// Reads the words in the owner's context.
    pub fn words(&self, name: u32, words: usize) -> Vec<u32> {
        let mut read = vec![0; words];
        // SAFETY: the context is current, and `read` has room for the bytes.
        unsafe {
            self.gl.bind_buffer(TARGET, name).unwrap();
            let at = read.as_mut_ptr().cast();
            self.gl.read_buffer(TARGET, 0, words as isize * 4, at).unwrap();
        }
        read
    }

    pub fn delete(&self, name: u32) {
        // SAFETY: nothing uses the buffer any more, and the context is current.
        unsafe { self.gl.delete_buffer(name).unwrap() };
    }

    pub fn end(self, names: &[u32]) {
        names.iter().for_each(|name| self.delete(*name));
        // SAFETY: everything that used the context is gone; it is current, and destroyed once.
        unsafe {
            let none = ptr::null_mut();
            self.gl.egl_make_current(self.display, none, none, EglContext::NULL).unwrap();
            self.gl.egl_destroy_context(self.display, self.context).unwrap();
        }
        assert!(self.probe.live().is_empty(), "{:?}", self.probe.live());
    }
}

/// Mesa's surfaceless display, or that of the first device.
fn display(gl: &Gl) -> std::result::Result<EglDisplay, GlRefused> {
    let (none, mut device, mut count) = (ptr::null_mut(), EglDevice::NULL, 0);
    // SAFETY: a device from EGL or none; no attributes; room for the results.
    unsafe {
        let opened = |platform, native| {
            let display = gl.egl_platform_display(platform, native, ptr::null())?;
            gl.egl_initialize(display, &mut 0, &mut 0).map(|()| display)
        };
        opened(consts::EGL_PLATFORM_SURFACELESS_MESA, none).or_else(|_| {
            gl.egl_devices(1, &raw mut device, &raw mut count)?;
            opened(consts::EGL_PLATFORM_DEVICE_EXT, device.0)
        })
    }
}

fn registered(probe: Option<&Arc<Probe>>) -> Option<(Owner, Hub, ForeignGl)> {
    let builder = builder().without(["opencl"]).verdicts(Default::default());
    let builder = probe.into_iter().fold(builder, |builder, probe| builder.probe(probe.clone()));
    let hub = builder.build().unwrap();
    gl_of(&hub)?;
    let owner = Owner::new()?;
    // SAFETY: the owner's context lives until the end of the test.
    let context = unsafe { hub.foreign_gl() }.unwrap();
    Some((owner, hub, context))
}

fn wrap(hub: &Hub, context: &ForeignGl, name: u32) -> Result<Buffer<u32>> {
    // SAFETY: the owner keeps the buffer until the end of the test, and does not use it while it is wrapped.
    let theirs = unsafe { hub.wrap_gl_buffer::<u32>(context, name) };
    // The owner has just written it.
    theirs.after(&context.queue()?.fence()).build()
}

const STEP: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint p[]; };
layout(std140, binding = 1) uniform Values { uint n; uint mul; uint add; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) p[i] = p[i] * mul + add + i;
}
";

/// Runs a step in the owner's context.
fn step_here(queue: &Queue, buffer: &Buffer<u32>, step: Step) -> Result<()> {
    let program = queue.device().program(&Source::glsl("step", STEP))?;
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    let signature = signature.value::<u32>().value::<u32>().value::<u32>();
    // SAFETY: the kernel touches `p[i]` for `i < n`, which is the buffer's length.
    let kernel = unsafe { program.kernel("step", signature)? };
    let (n, view) = (buffer.len() as u32, buffer.write_on(queue)?);
    queue.launch(&kernel, [buffer.len().next_multiple_of(64)], args![view, n, step.mul, step.add])
}

/// The owner's own calls, its context as a queue, our sharing context and another thread take turns on one buffer.
#[test]
fn foreign_buffers_are_used_in_place() {
    let _alone = alone();
    let probe = Probe::new();
    let Some((owner, hub, context)) = registered(Some(&probe)) else { return };
    assert_eq!(context.device().id(), "gl:0@1");
    let side = Side::open(&context.device()).unwrap();
    let here = context.queue().unwrap();
    let dynamic = consts::DYNAMIC_STORAGE_BIT;
    let mut names = Vec::new();
    for (round, storage) in (0..).zip([None, Some(dynamic), Some(0)]) {
        let mut model = random_words(u64::from(round), N);
        let name = owner.make(&model, storage);
        names.push(name);
        let info = context.buffer_info(name).unwrap();
        assert_eq!((info.bytes, info.is_immutable), (4 * N, storage.is_some()));
        // SAFETY: as for `wrap`.
        let theirs = unsafe { hub.wrap_gl_buffer::<u32>(&context, name) };
        let buffer = theirs.after(&here.fence()).len(N).build().unwrap();
        assert_eq!(buffer.plan().memory_kind, MemoryKind::Device);
        assert_same(&buffer.to_vec().unwrap(), &model, "what the owner wrote");
        for turn in 0..4 {
            let step = Step::nth(10 * round + turn);
            match turn % 2 {
                0 => step_here(&here, &buffer, step).unwrap(),
                _ => side.step(&buffer, step).unwrap(),
            }
            step_model(&mut model, step);
        }
        let step = Step::nth(77);
        thread::scope(|scope| scope.spawn(|| side.step(&buffer, step).unwrap()).join().unwrap());
        step_model(&mut model, step);
        step_here(&here, &buffer, Step::nth(78)).unwrap();
        step_model(&mut model, Step::nth(78));
        // Another thread reads what this thread's context wrote.
        let seen = thread::scope(|scope| scope.spawn(|| side.look(&buffer)).join().unwrap());
        assert_same(&seen.unwrap(), &model, "from another thread");
        buffer.write(&random_words(5, N)).unwrap();
        buffer.write(&model).unwrap();
        buffer.hand_to(&here).unwrap();
        assert_same(&owner.words(name, N), &model, "what the owner finds, in its own order");
        drop(buffer);
    }
    drop((here, side, context, hub));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
    owner.end(&names);
}

/// The queue is bound to one thread, the device to none; a context that is not current is refused.
#[test]
fn a_context_stays_on_its_thread() {
    let _alone = alone();
    let Some((owner, hub, context)) = registered(None) else { return };
    // SAFETY: as above.
    assert_eq!(unsafe { hub.foreign_gl() }.unwrap().device().id(), context.device().id());
    let name = owner.make(&random_words(1, N), None);
    let here = context.queue().unwrap();
    let buffer = wrap(&hub, &context, name).unwrap();
    let smuggled = onebuf::Queue::clone(&here);
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            // SAFETY: no context is current on this thread.
            let none = unsafe { hub.foreign_gl() }.unwrap_err();
            assert!(none.to_string().contains("make yours current"), "{none}");
            let refused = context.queue().unwrap_err();
            assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
            let refused = smuggled.flush().unwrap_err();
            assert!(refused.to_string().contains("another thread"), "{refused}");
            buffer.to_vec().unwrap()
        });
        assert_eq!(elsewhere.join().unwrap(), random_words(1, N));
    });
    // SAFETY: the owner's display; afterwards none of its contexts is current here.
    let current = |context| unsafe {
        owner
            .gl
            .egl_make_current(owner.display, ptr::null_mut(), ptr::null_mut(), context)
            .unwrap();
    };
    current(EglContext::NULL);
    let refused = here.flush().unwrap_err();
    assert!(refused.to_string().contains("another OpenGL context"), "{refused}");
    current(owner.context);
    here.flush().unwrap();
    drop((buffer, here, smuggled, context, hub));
    owner.end(&[name]);
}

/// A context that the threads of a program make current in turn, under a lock: a queue of it works on each of them, and its fences
/// are made by the thread that waits for them.
#[test]
fn a_context_is_entered_on_any_thread() {
    let _alone = alone();
    let Some((owner, hub, context)) = registered(None) else { return };
    let mut model = random_words(3, N);
    let name = owner.make(&model, None);
    let (calls, program, gl) = (Arc::new(AtomicUsize::new(0)), Mutex::new(()), table());
    let (display, theirs, count) = (owner.display, owner.context, calls.clone());
    let queue = context.queue_within(move |work| {
        let _entered = program.lock().unwrap();
        make_current(&gl, display, theirs);
        work();
        make_current(&gl, display, EglContext::NULL);
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let (queue, buffer) = (queue.unwrap(), wrap(&hub, &context, name).unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), 0, "it is current here");
    make_current(&owner.gl, display, EglContext::NULL);
    let side = Side::open(&context.device()).unwrap();
    for round in 0..6 {
        let (ours, theirs) = (Step::nth(round), Step::nth(round + 10));
        let turn = || {
            step_here(&queue, &buffer, theirs).unwrap();
            side.step(&buffer, ours).unwrap(); // waits for a fence that it makes in the owner's context
        };
        thread::scope(|scope| scope.spawn(turn).join().unwrap());
        step_model(&mut model, theirs);
        step_model(&mut model, ours);
        assert_same(&buffer.to_vec().unwrap(), &model, "both, on another thread");
    }
    step_here(&queue, &buffer, Step::nth(50)).unwrap();
    step_model(&mut model, Step::nth(50));
    assert_same(&buffer.to_vec().unwrap(), &model, "the owner's context last");
    assert!(calls.load(Ordering::Relaxed) >= 12, "{calls:?}");
    // The controls: an owner that does not make it current, does not call, or fails.
    type Enter = fn(&mut dyn FnMut()) -> Result<()>;
    let refused = |enter: Enter| context.queue_within(enter).unwrap_err();
    let not_current: Enter = |work| {
        work();
        Ok(())
    };
    for enter in [not_current, |_| Ok(())] {
        let error = refused(enter);
        assert!(error.to_string().contains("its owner makes current"), "{error}");
    }
    let busy = refused(|_| Err(Error::Busy { what: "the program".to_owned() }));
    assert!(busy.to_string().contains("the program"), "{busy}");
    make_current(&owner.gl, display, theirs);
    assert_same(&owner.words(name, N), &model, "what the owner finds");
    drop((buffer, side, queue, context, hub));
    owner.end(&[name]);
}

/// The functions of the same library, for other threads.
fn table() -> Gl {
    Gl::load(None, None).unwrap()
}

fn make_current(gl: &Gl, display: EglDisplay, context: EglContext) {
    let none = ptr::null_mut();
    // SAFETY: a live context of this display, which is current on no other thread, or none.
    unsafe { gl.egl_make_current(display, none, none, context).unwrap() };
}

#[test]
fn wrong_buffers_are_told_and_owned_ones_go_once() {
    let _alone = alone();
    let Some((owner, hub, context)) = registered(None) else { return };
    let name = owner.make(&random_words(1, N), None);
    let odd = owner.make(&[1], None);
    for (name, words) in [(0, "no buffer"), (name + 1000, "no buffer")] {
        let error = wrap(&hub, &context, name).unwrap_err().to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    // SAFETY: as for `wrap`.
    let wide = unsafe { hub.wrap_gl_buffer::<[u32; 4]>(&context, odd) }.build().unwrap_err();
    assert!(wide.to_string().contains("4 bytes are not a whole number"), "{wide}");
    // SAFETY: as for `wrap`.
    let short = unsafe { hub.wrap_gl_buffer::<u32>(&context, name) }.len(7).build().unwrap_err();
    assert!(short.to_string().contains("elements, not 7"), "{short}");
    // SAFETY: the context is current, and the map ends below.
    unsafe {
        owner.gl.bind_buffer(TARGET, name).unwrap();
        owner.gl.map_buffer(TARGET, 0, 64, consts::MAP_READ_BIT).unwrap();
    }
    let mapped = wrap(&hub, &context, name).unwrap_err();
    assert!(matches!(mapped, Error::Busy { .. }), "{mapped}");
    assert!(context.buffer_info(name).unwrap().is_mapped);
    let other = owner.make(&random_words(2, N), None);
    let released = Arc::new(AtomicUsize::new(0));
    for round in 1..=3 {
        let count = released.clone();
        // SAFETY: as for `wrap`.
        let first = unsafe { hub.wrap_gl_buffer::<u32>(&context, other) }.owned(move |handle| {
            assert_eq!(handle.addr(), other as usize);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let (first, second) = (first.build().unwrap(), wrap(&hub, &context, other).unwrap());
        let queue = context.device().queue().unwrap();
        let guard = first.write_on(&queue).unwrap();
        assert!(matches!(second.read_on(&queue), Err(Error::Busy { .. })), "two states");
        drop(guard);
        drop(first);
        assert_eq!(released.load(Ordering::Relaxed), round - 1);
        drop(second);
        assert_eq!(released.load(Ordering::Relaxed), round);
    }
    drop((context, hub));
    owner.end(&[name, odd, other]);
}
