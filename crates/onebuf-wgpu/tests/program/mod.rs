//! A small program that uses wgpu: a compute shader over a buffer.

use onebuf_conformance::{Step, absent};
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

/// Every word becomes `x * mul + add + i`.
const SHADER: &str = "
struct Step { mul: u32, add: u32, n: u32, first: u32 }
@group(0) @binding(0) var<storage, read_write> data: array<u32>;
@group(0) @binding(1) var<uniform> step: Step;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < step.n) { data[id.x] = data[id.x] * step.mul + step.add + id.x; }
}";

pub struct Program {
    pub adapter: wgpu::Adapter,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
}

/// wgpu's native futures are ready.
pub fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("wgpu's future is not ready"),
    }
}

pub fn adapter(backends: wgpu::Backends) -> Option<wgpu::Adapter> {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = backends;
    let found = ready(wgpu::Instance::new(desc).enumerate_adapters(backends)).into_iter().next();
    if found.is_none() {
        absent("wgpu", &format!("no adapter of {backends:?}"));
    }
    found
}

impl Program {
    /// `None`, after a printed skip, without such a backend.
    pub fn new(backends: wgpu::Backends) -> Option<Program> {
        let adapter = adapter(backends)?;
        let desc = wgpu::DeviceDescriptor::default();
        match ready(onebuf_wgpu::request_device(&adapter, &desc)) {
            Ok((device, queue)) => Some(Program::over(adapter, device, queue)),
            // Of NVIDIA's OpenGL without a display (580.159): wgpu 30 calls the new device lost.
            Err(error) if backends == wgpu::Backends::GL => {
                absent("wgpu", &format!("{:?}: {error:?}", adapter.get_info().name));
                None
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    pub fn over(adapter: wgpu::Adapter, device: wgpu::Device, queue: wgpu::Queue) -> Program {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        Program { adapter, device, queue, pipeline }
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub fn make(&self, bytes: usize, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes as u64,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Submits a step over the first `n` words of a binding, and does not wait.
    pub fn step(&self, data: wgpu::BindingResource<'_>, n: usize, step: Step) {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let values = self.make(16, usage);
        self.queue.write_buffer(&values, 0, &Self::bytes(&[step.mul, step.add, n as u32, 0]));
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: data },
                wgpu::BindGroupEntry { binding: 1, resource: values.as_entire_binding() },
            ],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(n.div_ceil(64) as u32, 1, 1);
        }
        self.queue.submit([encoder.finish()]);
    }

    /// Writes words by `queue.write_buffer`, and submits it.
    pub fn write(&self, buffer: &wgpu::Buffer, offset: u64, words: &[u32]) {
        self.queue.write_buffer(buffer, offset, &Self::bytes(words));
        self.queue.submit([]);
    }

    /// Reads words by a copy and a map of wgpu's.
    pub fn read(&self, buffer: &wgpu::Buffer, offset: u64, n: usize) -> Vec<u32> {
        let bytes = n as u64 * 4;
        let landing =
            self.make(bytes as usize, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &landing, 0, Some(bytes));
        self.queue.submit([encoder.finish()]);
        landing.slice(..).map_async(wgpu::MapMode::Read, |mapped| mapped.unwrap());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let view = landing.slice(..).get_mapped_range().unwrap();
        view.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    pub fn finish(&self) {
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    }
}
