//! A buffer of glow in the program's own context, used by one compute shader of the program's under a view.
//!
//! # Safety
//! The context is current on this thread, which alone uses it. The buffers live as long as the context.

#![allow(unsafe_code)]

use crate::{BYTES, Neighbour, Opened, Result, Stop};
use glow::HasContext;
use glutin::{
    api::egl::{context::PossiblyCurrentContext, device::Device, display::Display},
    config::{ConfigSurfaceTypes, ConfigTemplateBuilder},
    context::{ContextApi, ContextAttributesBuilder, Version},
    display::GlDisplay,
};
use onebuf::{Buffer, GlQueue, Hub};
use onebuf_glow::{Glow, GlowHubExt, GlowViewExt};
use std::ffi::CStr;

/// What the shader writes.
const WORD: u32 = 7;
const SHADER: &str = "#version 430 core
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint x[]; };
void main() { if (gl_GlobalInvocationID.x == 0u) x[0] = 7u; }";
/// Nanoseconds that the shader may take.
const PATIENCE_NS: i32 = 2_000_000_000;
/// What a library that is given a buffer asks for.
const QUESTIONS: [u32; 6] = [
    glow::BUFFER_SIZE,
    glow::BUFFER_USAGE,
    glow::BUFFER_IMMUTABLE_STORAGE,
    glow::BUFFER_STORAGE_FLAGS,
    glow::BUFFER_MAPPED,
    glow::BUFFER_ACCESS_FLAGS,
];

struct WithGlow {
    /// First: onebuf's objects end before the program's.
    here: GlQueue,
    glow: Glow,
    shader: glow::Program,
    buffer: glow::Buffer,
    gl: glow::Context,
    /// Keeps the context.
    _context: PossiblyCurrentContext,
}

pub fn open(hub: &Hub) -> Opened {
    let Some((gl, _context)) = context()? else {
        return Err(Stop::Absent("OpenGL: EGL has no device".to_owned()));
    };
    let shader = compile(&gl)?;
    // SAFETY: the context is current here.
    let buffer = unsafe {
        let buffer = gl.create_buffer()?;
        gl.bind_buffer(glow::COPY_WRITE_BUFFER, Some(buffer));
        gl.buffer_data_size(glow::COPY_WRITE_BUFFER, BYTES as i32, glow::DYNAMIC_DRAW);
        buffer
    };
    // SAFETY: the context is current here, and ends after the result.
    let glow = unsafe { hub.glow(&gl) }?;
    let here = glow.queue()?;
    Ok(Box::new(WithGlow { here, glow, shader, buffer, gl, _context }))
}

/// A context of the program, without a window. `None` without OpenGL.
fn context() -> Result<Option<(glow::Context, PossiblyCurrentContext)>> {
    let Some(device) = Device::query_devices().ok().and_then(|mut all| all.next()) else {
        return Ok(None);
    };
    // SAFETY: no display handle is passed; the functions are those of the context that is made current.
    unsafe {
        let display = Display::with_device(&device, None)?;
        let template = ConfigTemplateBuilder::new();
        let template = template.with_surface_type(ConfigSurfaceTypes::empty()).build();
        let config = display.find_configs(template)?.next().ok_or("no configuration")?;
        let api = ContextApi::OpenGl(Some(Version::new(4, 5)));
        let attributes = ContextAttributesBuilder::new().with_context_api(api).build(None);
        let context = display.create_context(&config, &attributes)?.make_current_surfaceless()?;
        let load = |name: &CStr| display.get_proc_address(name);
        Ok(Some((glow::Context::from_loader_function_cstr(load), context)))
    }
}

fn compile(gl: &glow::Context) -> Result<glow::Program> {
    // SAFETY: the context is current here.
    unsafe {
        let (program, shader) = (gl.create_program()?, gl.create_shader(glow::COMPUTE_SHADER)?);
        gl.shader_source(shader, SHADER);
        gl.compile_shader(shader);
        gl.attach_shader(program, shader);
        gl.link_program(program);
        match gl.get_program_link_status(program) {
            true => Ok(program),
            false => Err(gl.get_program_info_log(program).into()),
        }
    }
}

impl WithGlow {
    fn wrapped(&self) -> onebuf::Result<Buffer<u32>> {
        // SAFETY: a live buffer, which nothing else uses meanwhile.
        unsafe { self.glow.wrap::<u32>(self.buffer) }.build()
    }

    /// The program's own command.
    fn dispatch(&self, to: glow::Buffer) {
        // SAFETY: the context is current here, and the shader writes the buffer's first word.
        unsafe {
            self.gl.use_program(Some(self.shader));
            self.gl.bind_buffer_base(glow::SHADER_STORAGE_BUFFER, 0, Some(to));
            self.gl.dispatch_compute(1, 1, 1);
            self.gl.memory_barrier(glow::BUFFER_UPDATE_BARRIER_BIT);
        }
    }

    fn query(&self) {
        // SAFETY: the context is current here.
        unsafe {
            std::hint::black_box(self.gl.is_buffer(self.buffer));
            self.gl.bind_buffer(glow::COPY_WRITE_BUFFER, Some(self.buffer));
            for question in QUESTIONS {
                let answer = self.gl.get_buffer_parameter_i32(glow::COPY_WRITE_BUFFER, question);
                std::hint::black_box(answer);
            }
        }
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the context is current here; the fence is deleted once.
        let waited = unsafe {
            let fence = self.gl.fence_sync(glow::SYNC_GPU_COMMANDS_COMPLETE, 0)?;
            let waited =
                self.gl.client_wait_sync(fence, glow::SYNC_FLUSH_COMMANDS_BIT, PATIENCE_NS);
            self.gl.delete_sync(fence);
            waited
        };
        match waited {
            glow::ALREADY_SIGNALED | glow::CONDITION_SATISFIED => Ok(()),
            other => Err(format!("glClientWaitSync returned {other:#06x}").into()),
        }
    }
}

impl Neighbour for WithGlow {
    fn wrap(&self) -> Result<()> {
        let wrapped = self.wrapped()?;
        let view = self.here.write(&wrapped)?;
        self.dispatch(view.glow_buffer()?);
        drop(view);
        // The fence behind the program's calls, which the end of the view has made: nothing else waits for those.
        wrapped.uses().ok_or("the view left no fence")?.wait_default()?;
        Ok(())
    }

    fn wrap_unused(&self) -> Result<()> {
        Ok(self.wrapped().map(drop)?)
    }

    fn raw(&self) -> Result<()> {
        self.query();
        self.dispatch(self.buffer);
        self.wait()
    }

    fn raw_unused(&self) -> Result<()> {
        self.query();
        Ok(())
    }

    fn words(&self) -> Result<[u32; 2]> {
        let (target, mut first) = (glow::COPY_WRITE_BUFFER, [0; 4]);
        // SAFETY: the context is current here, and the buffer has more bytes.
        unsafe {
            self.gl.bind_buffer(target, Some(self.buffer));
            self.gl.get_buffer_sub_data(target, 0, &mut first);
            self.gl.buffer_sub_data_u8_slice(target, 0, &[0; 4]);
        }
        self.wait()?;
        Ok([u32::from_ne_bytes(first), WORD])
    }
}
