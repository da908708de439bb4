//! A program that uses glow and glutin: OpenCL computes the vertices that its own OpenGL context draws, in place.
//!
//! There is no window: the picture goes to a file, `cargo run -p onebuf-examples --example glow-points -- points.png`

use glow::HasContext;
use glutin::{
    api::egl::{context::PossiblyCurrentContext, device::Device, display::Display},
    config::{ConfigSurfaceTypes, ConfigTemplateBuilder},
    context::{ContextApi, ContextAttributesBuilder, Version},
    display::GlDisplay,
};
use onebuf::{Each, MemoryKind, Source, prelude::*};
use onebuf_glow::{GlowHubExt, GlowViewExt};
use std::{error::Error, ffi::CStr};

/// Width and height of the picture.
const SIDE: i32 = 128;
/// One point for each pixel of the right half.
const POINTS: usize = (SIDE * SIDE / 2) as usize;
const TEXT: &str = "kernel void place(global float2 *p, float side) {
    float i = get_global_id(0), half_side = side / 2;
    float x = half_side + fmod(i, half_side), y = floor(i / half_side);
    p[get_global_id(0)] = (float2)((x + 0.5f) / half_side - 1, (y + 0.5f) / half_side - 1);
}";
const VERTEX: &str = "#version 430 core
layout(location = 0) in vec2 at;
void main() { gl_Position = vec4(at, 0.0, 1.0); gl_PointSize = 1.0; }";
const FRAGMENT: &str = "#version 430 core
out vec4 color;
void main() { color = vec4(1.0, 0.5, 0.0, 1.0); }";

fn main() -> Result<(), Box<dyn Error>> {
    let Some((gl, _context)) = context()? else {
        println!("no OpenGL here: nothing for glow to draw");
        return Ok(());
    };
    let hub = onebuf::discover()?;
    // SAFETY: the context is current on this thread, and outlives everything below.
    let glow = unsafe { hub.glow(&gl) }?;
    let here = glow.queue()?; // the program's context, on this thread
    let compute = hub.device("opencl").unwrap_or_else(|_| hub.host());
    let points = hub.buffer::<[f32; 2]>(POINTS).shared_with([&compute, &glow.device()]);
    // Pages of the host, which drivers on the CPU use in place. On a GPU leave the choice to the planner, after `onebuf doctor`.
    let points = points.memory_kind(MemoryKind::HostPages).trust_declared(true).build()?;
    let source = Source::opencl_c(TEXT).with_native("place", |args| {
        let side = args.value::<f32>(1)?;
        for (i, at) in args.slice_mut::<[f32; 2]>(0)?.iter_mut().enumerate() {
            let (i, half) = (i as f32, side / 2.0);
            let (x, y) = (half + i % half, (i / half).floor());
            *at = [(x + 0.5) / half - 1.0, (y + 0.5) / half - 1.0];
        }
        Ok(())
    });
    // SAFETY: work-item i touches p[i] only.
    let place = unsafe { compute.kernel::<(Each<&mut [f32; 2]>, f32)>(source, "place")? };
    place.launch([POINTS], (&points, SIDE as f32))?;
    let view = here.read(&points)?; // this context's next calls come after the kernel
    let pixels = draw(&gl, view.glow_buffer()?)?;
    println!("{}", points.explain());
    println!(
        "glow drew {POINTS} points of {compute}; its context waited by {}",
        view.sync_method()
    );
    if let Some(path) = std::env::args().nth(1) {
        let file = std::io::BufWriter::new(std::fs::File::create(&path)?);
        let mut picture = png::Encoder::new(file, SIDE as u32, SIDE as u32);
        picture.set_color(png::ColorType::Rgba);
        picture.write_header()?.write_image_data(&pixels)?;
        println!("written to {path}");
    }
    Ok(())
}

/// A context of the program's own, without a window. `None` without OpenGL.
fn context() -> Result<Option<(glow::Context, PossiblyCurrentContext)>, Box<dyn Error>> {
    let Some(device) = Device::query_devices().ok().and_then(|mut all| all.next()) else {
        return Ok(None);
    };
    // SAFETY: no display handle is passed; the functions are those of the context that is made current.
    unsafe {
        let display = Display::with_device(&device, None)?;
        let template = ConfigTemplateBuilder::new();
        let template = template.with_surface_type(ConfigSurfaceTypes::empty()).build();
        let config = display.find_configs(template)?.next().ok_or("no configuration")?;
        let api = ContextApi::OpenGl(Some(Version::new(4, 3)));
        let attributes = ContextAttributesBuilder::new().with_context_api(api).build(None);
        let context = display.create_context(&config, &attributes)?.make_current_surfaceless()?;
        let load = |name: &CStr| display.get_proc_address(name);
        Ok(Some((glow::Context::from_loader_function_cstr(load), context)))
    }
}

/// Draws the points into a texture, and reads it.
fn draw(gl: &glow::Context, points: glow::Buffer) -> Result<Vec<u8>, String> {
    // SAFETY: the context is current on this thread, and the buffer has as many points.
    unsafe {
        let target = gl.create_renderbuffer()?;
        gl.bind_renderbuffer(glow::RENDERBUFFER, Some(target));
        gl.renderbuffer_storage(glow::RENDERBUFFER, glow::RGBA8, SIDE, SIDE);
        gl.bind_framebuffer(glow::FRAMEBUFFER, Some(gl.create_framebuffer()?));
        let (frame, color) = (glow::FRAMEBUFFER, glow::COLOR_ATTACHMENT0);
        gl.framebuffer_renderbuffer(frame, color, glow::RENDERBUFFER, Some(target));
        gl.viewport(0, 0, SIDE, SIDE);
        gl.clear_color(0.0, 0.0, 0.0, 1.0);
        gl.clear(glow::COLOR_BUFFER_BIT);
        let program = gl.create_program()?;
        for (kind, text) in [(glow::VERTEX_SHADER, VERTEX), (glow::FRAGMENT_SHADER, FRAGMENT)] {
            let shader = gl.create_shader(kind)?;
            gl.shader_source(shader, text);
            gl.compile_shader(shader);
            gl.attach_shader(program, shader);
        }
        gl.link_program(program);
        if !gl.get_program_link_status(program) {
            return Err(gl.get_program_info_log(program));
        }
        gl.use_program(Some(program));
        gl.bind_vertex_array(Some(gl.create_vertex_array()?));
        gl.bind_buffer(glow::ARRAY_BUFFER, Some(points));
        gl.vertex_attrib_pointer_f32(0, 2, glow::FLOAT, false, 0, 0);
        gl.enable_vertex_attrib_array(0);
        gl.draw_arrays(glow::POINTS, 0, POINTS as i32);
        let mut pixels = vec![0; (SIDE * SIDE * 4) as usize];
        let into = glow::PixelPackData::Slice(Some(&mut pixels));
        gl.read_pixels(0, 0, SIDE, SIDE, glow::RGBA, glow::UNSIGNED_BYTE, into);
        match gl.get_error() {
            glow::NO_ERROR => Ok(pixels),
            error => Err(format!("OpenGL error {error:#06x}")),
        }
    }
}
