//! A `wgpu::Buffer` as a buffer of onebuf, and buffers of onebuf as `wgpu::Buffer`s, each used by one copy that wgpu submits in a turn.
//!
//! # Safety
//! One thread uses the device, and waits for each submission. Handles are read from live objects.

#![allow(unsafe_code)]

use crate::{BYTES, LEN, Neighbour, Opened, Result, Stop};
use onebuf::{Buffer, Hub, NativeMemory};
use onebuf_wgpu::{Gpu, WgpuHubExt};
use std::{
    future::Future,
    num::NonZeroU32,
    pin::pin,
    task::{Context, Poll, Waker},
};
use wgpu::{
    Backends, BufferUsages,
    hal::{
        api::{Gles, Vulkan},
        vulkan,
    },
};

/// What the copy writes.
const WORD: u32 = 7;
const USED: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// The program.
struct Program {
    device: wgpu::Device,
    queue: wgpu::Queue,
    source: wgpu::Buffer,
}

/// The result of a future that is ready, as all of wgpu's native ones are.
fn ready<F: Future>(future: F) -> Result<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err("wgpu's future is not ready".into()),
    }
}

impl Program {
    fn new(backends: Backends) -> Result<Program, Stop> {
        let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
        desc.backends = backends;
        let all = ready(wgpu::Instance::new(desc).enumerate_adapters(backends))?;
        let Some(adapter) = all.into_iter().next() else {
            return Err(Stop::Absent(format!("wgpu: no adapter of {backends:?}")));
        };
        let desc = wgpu::DeviceDescriptor::default();
        let (device, queue) = ready(onebuf_wgpu::request_device(&adapter, &desc))??;
        let source = make(&device, USED);
        let words: Vec<u8> = std::iter::repeat_n(WORD.to_ne_bytes(), LEN).flatten().collect();
        queue.write_buffer(&source, 0, &words);
        queue.submit([]);
        Ok(Program { device, queue, source })
    }

    /// The program's own command.
    fn copy(&self, to: &wgpu::Buffer, at: u64) {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.source, 0, to, at, Some(BYTES as u64));
        self.queue.submit([encoder.finish()]);
    }

    fn wait(&self) -> Result<()> {
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        Ok(())
    }
}

fn make(device: &wgpu::Device, usage: BufferUsages) -> wgpu::Buffer {
    let (label, size) = (None, BYTES as u64);
    device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
}

/// The first word of a buffer, which is cleared.
fn take(buffer: &Buffer<u32>) -> Result<[u32; 2]> {
    let mut first = [0];
    buffer.read_range(0..1, &mut first)?;
    buffer.fill(0)?;
    if let Some(filled) = buffer.uses() {
        filled.wait_default()?;
    }
    Ok([first[0], WORD])
}

/// A buffer that wgpu made.
struct Wrapped {
    /// First: onebuf's objects end before the program's.
    gpu: Gpu,
    buffer: wgpu::Buffer,
    program: Program,
}

pub fn open_wrapped(hub: &Hub) -> Opened {
    let program = Program::new(Backends::VULKAN)?;
    let gpu = hub.wgpu(&program.device, &program.queue)?;
    let buffer = make(&program.device, USED);
    Ok(Box::new(Wrapped { gpu, buffer, program }))
}

impl Wrapped {
    fn wrapped(&self) -> onebuf::Result<Buffer<u32>> {
        // SAFETY: work that uses it is submitted in turns, or while it is not wrapped.
        unsafe { self.gpu.wrap::<u32>(&self.buffer) }?.build()
    }

    /// A wrap reads the buffer once, so that wgpu clears it before and not after, and asks for the size of its memory.
    fn query(&self) -> Result<()> {
        let Program { device, queue, .. } = &self.program;
        let scratch = make(device, BufferUsages::COPY_DST);
        let mut encoder = device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.buffer, 0, &scratch, 0, Some(BYTES as u64));
        queue.submit([encoder.finish()]);
        // SAFETY: live objects of one device.
        unsafe {
            let hal = self.buffer.as_hal::<Vulkan>().ok_or("no buffer of Vulkan")?;
            let device = device.as_hal::<Vulkan>().ok_or("no device of Vulkan")?;
            let needs = device.raw_device().get_buffer_memory_requirements(hal.raw_handle());
            std::hint::black_box(needs.size);
        }
        Ok(())
    }
}

impl Neighbour for Wrapped {
    fn wrap(&self) -> Result<()> {
        let wrapped = self.wrapped()?;
        let turn = self.gpu.write(&wrapped)?;
        self.program.copy(&self.buffer, 0);
        drop(turn);
        drop(wrapped);
        self.program.wait()
    }

    fn wrap_unused(&self) -> Result<()> {
        self.wrapped().map(drop)?;
        self.program.wait()
    }

    fn raw(&self) -> Result<()> {
        self.query()?;
        self.program.copy(&self.buffer, 0);
        self.program.wait()
    }

    fn raw_unused(&self) -> Result<()> {
        self.query()?;
        self.program.wait()
    }

    fn words(&self) -> Result<[u32; 2]> {
        take(&self.wrapped()?)
    }
}

/// A buffer that onebuf made.
struct Made {
    /// First: onebuf's objects end before the program's.
    memory: NativeMemory,
    field: Buffer<u32>,
    gpu: Gpu,
    program: Program,
}

pub fn open_made(hub: &Hub, backends: Backends) -> Opened {
    let program = Program::new(backends)?;
    let gpu = hub.wgpu(&program.device, &program.queue)?;
    let field = hub.buffer::<u32>(LEN).shared_with([&gpu.device()]).build()?;
    let memory = field.native_memory(&gpu.device())?;
    Ok(Box::new(Made { memory, field, gpu, program }))
}

impl Made {
    /// What wgpu's users write for memory of their own.
    fn by_hand(&self) -> Result<wgpu::Buffer> {
        let desc = wgpu::BufferDescriptor {
            label: None,
            size: self.memory.offset() + BYTES as u64,
            usage: USED,
            mapped_at_creation: false,
        };
        match self.memory.api() {
            "vulkan" => self.by_hand_on_vulkan(&desc),
            _ => self.by_hand_on_gl(&desc),
        }
    }

    fn by_hand_on_vulkan(&self, desc: &wgpu::BufferDescriptor<'_>) -> Result<wgpu::Buffer> {
        use ash::vk::{self, Handle};
        let raw = vk::Buffer::from_raw(self.memory.object("vulkan")?);
        // SAFETY: a live buffer of this device, which outlives the result.
        unsafe {
            let hal = vulkan::Buffer::from_raw_externally_owned(raw, Box::new(|| ()));
            Ok(self.program.device.create_buffer_from_hal::<Vulkan>(hal, desc))
        }
    }

    fn by_hand_on_gl(&self, desc: &wgpu::BufferDescriptor<'_>) -> Result<wgpu::Buffer> {
        let name = NonZeroU32::new(self.memory.object("gl")? as u32).ok_or("buffer zero")?;
        let told = wgpu::hal::BufferDescriptor {
            label: None,
            size: desc.size,
            usage: wgpu::wgt::BufferUses::STORAGE_READ_WRITE,
            memory_flags: wgpu::hal::MemoryFlags::empty(),
        };
        // SAFETY: a live buffer of a context that shares with the device's, which outlives the result.
        unsafe {
            let device = self.program.device.as_hal::<Gles>().ok_or("no device of OpenGL")?;
            let hal = device.buffer_from_raw(name, &told, Some(Box::new(|| ())));
            drop(device);
            Ok(self.program.device.create_buffer_from_hal::<Gles>(hal, desc))
        }
    }
}

impl Neighbour for Made {
    fn wrap(&self) -> Result<()> {
        // SAFETY: work that uses it is submitted in a turn.
        let made = unsafe { self.gpu.buffer(&self.field, USED) }?;
        let turn = self.gpu.write(&self.field)?;
        self.program.copy(&made, made.offset());
        drop(turn);
        drop(made);
        self.program.wait()
    }

    fn wrap_unused(&self) -> Result<()> {
        // SAFETY: no work uses it.
        unsafe { self.gpu.buffer(&self.field, USED) }?;
        self.program.wait()
    }

    fn raw(&self) -> Result<()> {
        let made = self.by_hand()?;
        self.program.copy(&made, self.memory.offset());
        drop(made);
        self.program.wait()
    }

    fn raw_unused(&self) -> Result<()> {
        self.by_hand()?;
        self.program.wait()
    }

    fn words(&self) -> Result<[u32; 2]> {
        // The raw calls take no turns: what they wrote is newer than all that onebuf knows.
        drop(self.gpu.write(&self.field)?);
        take(&self.field)
    }
}
