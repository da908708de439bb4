//! A simulation in OpenCL, drawn by a wgpu shader from the same bytes: Conway's Game of Life on a torus.
//!
//! To a file: `cargo run -p onebuf-examples --example wgpu-simulation -- --generations 64 life.png`
//! To a window: `cargo run -p onebuf-examples --features window --example wgpu-simulation -- --window`

#[cfg(feature = "window")]
#[path = "wgpu-simulation/window.rs"]
mod window;

use onebuf::{
    Buffer, Each, Hub, MemoryKind, Out, Source, TypedKernel, hal::DeviceKind, prelude::*,
};
use onebuf_wgpu::{Gpu, GpuBuffer, WgpuHubExt};
use std::{
    error::Error,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

/// Cells, and pixels, in each direction.
const SIDE: usize = 128;
const CELLS: usize = SIDE * SIDE;
const LIFE: &str = "kernel void life(global const uint *from, global uint *to, uint side) {
    uint i = get_global_id(0), x = i % side, y = i / side, n = 0;
    for (uint dy = side - 1; dy <= side + 1; dy++)
        for (uint dx = side - 1; dx <= side + 1; dx++)
            n += from[(y + dy) % side * side + (x + dx) % side];
    to[i] = n == 3 || (n == 4 && from[i]);
}";
const DRAW: &str = "
@group(0) @binding(0) var<storage, read> cells: array<u32>;
@vertex fn corner(@builtin(vertex_index) i: u32) -> @builtin(position) vec4f {
    return vec4f(f32(i % 2u) * 4.0 - 1.0, 1.0 - f32(i / 2u) * 4.0, 0.0, 1.0);
}
@fragment fn pixel(@builtin(position) at: vec4f) -> @location(0) vec4f {
    let cell = cells[u32(at.y) * 128u + u32(at.x)];
    return select(vec4f(0.0, 0.0, 0.2, 1.0), vec4f(1.0, 0.6, 0.0, 1.0), cell == 1u);
}";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut generations, mut path) = (64, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            #[cfg(feature = "window")]
            "--window" => return window::run(),
            "--generations" => generations = arguments.next().unwrap_or_default().parse()?,
            _ => path = Some(argument),
        }
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let backends =
        wgpu::Backends::from_env().unwrap_or(wgpu::Backends::VULKAN | wgpu::Backends::GL);
    let Some(adapter) = ready(instance.enumerate_adapters(backends))?.into_iter().next() else {
        println!("no Vulkan or OpenGL here: nothing for wgpu to draw");
        return Ok(());
    };
    let mut life = Life::new(&adapter, wgpu::TextureFormat::Rgba8Unorm)?;
    for _ in 0..generations {
        life.step()?;
    }
    let (target, pixels) = life.picture();
    life.draw(&target.create_view(&Default::default()), |encoder| copy(encoder, &target, &pixels))?;
    println!("{}", life.explain());
    if let Some(path) = path {
        save(&path, &life.read(&pixels)?)?;
        println!("generation {generations} is in {path}");
    }
    Ok(())
}

/// The kernel's parameters: this generation, the next one, the side.
type Parameters = (Each<&'static u32>, Each<Out<u32>>, u32);

/// The simulation, the cells of this and the next generation, and what draws them.
struct Life {
    hub: Hub,
    device: wgpu::Device,
    queue: wgpu::Queue,
    gpu: Gpu,
    kernel: TypedKernel<Parameters>,
    cells: [(Buffer<u32>, GpuBuffer); 2],
    now: usize,
    pipeline: wgpu::RenderPipeline,
}

impl Life {
    fn new(adapter: &wgpu::Adapter, format: wgpu::TextureFormat) -> Result<Self, Box<dyn Error>> {
        // As `adapter.request_device`, with the extensions that sharing needs.
        let (device, queue) = ready(onebuf_wgpu::request_device(adapter, &Default::default()))??;
        let hub = onebuf::discover()?;
        let gpu = hub.wgpu(&device, &queue)?;
        let compute = hub.device("opencl").unwrap_or_else(|_| hub.host());
        let make = |start: &[u32]| -> Result<_, Box<dyn Error>> {
            let mut cells = hub.buffer_from(start).shared_with([&compute, &gpu.device()]);
            if compute.info().kind == DeviceKind::Cpu {
                // Pages of the host, which drivers on the CPU use in place. On a GPU the planner knows, after `onebuf doctor`.
                cells = cells.memory_kind(MemoryKind::HostPages).trust_declared(true);
            }
            let cells = cells.build()?;
            // SAFETY: `draw` uses it under a turn alone.
            let drawn = unsafe { gpu.buffer(&cells, wgpu::BufferUsages::STORAGE) }?;
            Ok((cells, drawn))
        };
        let cells = [make(&gliders())?, make(&[0; CELLS])?];
        let source = Source::opencl_c(LIFE).with_native("life", |args| {
            let next: Vec<_> = (0..CELLS).map(|i| lives(args.slice(0).unwrap_or(&[]), i)).collect();
            args.slice_mut::<u32>(1)?.copy_from_slice(&next);
            Ok(())
        });
        // SAFETY: work-item i reads cells of the whole torus, which is as large as the grid, and writes its own.
        let kernel = unsafe { compute.kernel(source, "life")? };
        let pipeline = pipeline(&device, format);
        Ok(Self { hub, device, queue, gpu, kernel, cells, now: 0, pipeline })
    }

    /// Computes the next generation, after wgpu has drawn the one that it overwrites.
    fn step(&mut self) -> onebuf::Result<()> {
        let (from, to) = (&self.cells[self.now].0, &self.cells[1 - self.now].0);
        self.now = 1 - self.now;
        self.kernel.launch([CELLS], (from, to, SIDE as u32))
    }

    /// Draws this generation. Nothing is copied, and wgpu's queue waits for the kernel by itself where semaphores are proven.
    fn draw(
        &self,
        target: &wgpu::TextureView,
        more: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> onebuf::Result<()> {
        let (cells, drawn) = &self.cells[self.now];
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: drawn.binding() }],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
                color_attachments: &[Some(wgpu::RenderPassColorAttachment {
                    view: target,
                    depth_slice: None,
                    resolve_target: None,
                    ops: wgpu::Operations::default(),
                })],
                ..Default::default()
            });
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.draw(0..3, 0..1);
        }
        more(&mut encoder);
        let turn = self.gpu.read(cells)?; // what is submitted now comes after the kernel …
        self.queue.submit([encoder.finish()]);
        drop(turn); // … and before the next one that writes these cells
        Ok(())
    }

    /// A texture to draw to, and a buffer for its pixels.
    fn picture(&self) -> (wgpu::Texture, wgpu::Buffer) {
        let target = self.device.create_texture(&wgpu::TextureDescriptor {
            label: None,
            size: size(),
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: wgpu::TextureFormat::Rgba8Unorm,
            usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
            view_formats: &[],
        });
        let pixels = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: CELLS as u64 * 4,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        (target, pixels)
    }

    fn read(&self, pixels: &wgpu::Buffer) -> Result<Vec<u8>, Box<dyn Error>> {
        pixels.slice(..).map_async(wgpu::MapMode::Read, |_| ());
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        Ok(pixels.slice(..).get_mapped_range()?.to_vec())
    }

    fn explain(&self) -> String {
        let ledger = self.hub.ledger();
        format!("{}\nwgpu draws on {:?}\n{ledger}", self.cells[0].0.explain(), self.gpu)
    }
}

fn size() -> wgpu::Extent3d {
    wgpu::Extent3d { width: SIDE as u32, height: SIDE as u32, depth_or_array_layers: 1 }
}

fn pipeline(device: &wgpu::Device, format: wgpu::TextureFormat) -> wgpu::RenderPipeline {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(DRAW.into()),
    });
    device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
        label: None,
        layout: None,
        vertex: wgpu::VertexState {
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            buffers: &[],
        },
        primitive: Default::default(),
        depth_stencil: None,
        multisample: Default::default(),
        fragment: Some(wgpu::FragmentState {
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            targets: &[Some(format.into())],
        }),
        multiview_mask: None,
        cache: None,
    })
}

/// Copies the picture into the buffer; its rows are a multiple of 256 bytes.
fn copy(encoder: &mut wgpu::CommandEncoder, picture: &wgpu::Texture, pixels: &wgpu::Buffer) {
    let layout = wgpu::TexelCopyBufferLayout {
        offset: 0,
        bytes_per_row: Some(SIDE as u32 * 4),
        rows_per_image: None,
    };
    let into = wgpu::TexelCopyBufferInfo { buffer: pixels, layout };
    encoder.copy_texture_to_buffer(picture.as_image_copy(), into, size());
}

fn save(path: &str, pixels: &[u8]) -> Result<(), Box<dyn Error>> {
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut picture = png::Encoder::new(file, SIDE as u32, SIDE as u32);
    picture.set_color(png::ColorType::Rgba);
    Ok(picture.write_header()?.write_image_data(pixels)?)
}

/// Sixteen gliders, which move by one cell down and right in four generations.
fn gliders() -> Vec<u32> {
    let mut cells = vec![0; CELLS];
    for at in 0..16 {
        let (x, y) = (at % 4 * 32, at / 4 * 32);
        for (dx, dy) in [(1, 0), (2, 1), (0, 2), (1, 2), (2, 2)] {
            cells[(y + dy) * SIDE + x + dx] = 1;
        }
    }
    cells
}

/// The rule, for the host.
fn lives(cells: &[u32], i: usize) -> u32 {
    let (x, y) = (i % SIDE, i / SIDE);
    let around = (SIDE - 1..=SIDE + 1).flat_map(|dy| (SIDE - 1..=SIDE + 1).map(move |dx| (dx, dy)));
    let n: u32 = around.map(|(dx, dy)| cells[(y + dy) % SIDE * SIDE + (x + dx) % SIDE]).sum();
    u32::from(n == 3 || (n == 4 && cells[i] == 1))
}

/// wgpu's native futures are ready at once.
fn ready<F: Future>(future: F) -> Result<F::Output, &'static str> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err("wgpu is not ready"),
    }
}
