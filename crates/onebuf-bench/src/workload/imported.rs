//! A kernel's speed on memory that another API allocated and its own imported, compared with its own memory.
//!
//! # Safety
//! One kernel is declared here; its text is below.

#![allow(unsafe_code)]

use crate::{Bar, Bench, Case, Row, Stop, Unit, Workload, abba::compare};
use onebuf::{
    Access, Buffer, Call, Device, Error, Grid, Hub, Kernel, MemoryKind, Queue, Result, RouteKind,
    Signature, Source, args, hal::DeviceKind,
};
use std::{cell::Cell, time::Instant};

const NAME: &str = "imported_bandwidth_ratio";

/// Elements per work-item, and size of a group.
type Four = [u32; 4];
const GROUP: usize = 64;

/// Launches in one measurement: enough that waiting for them is negligible.
const BATCH: u32 = 16;
/// Kernels on a CPU take so long that few launches on few bytes are enough.
const CPU_BATCH: u32 = 2;
const CPU_BYTES: usize = 8 << 20;

/// Increments every element, four words at a time.
const TEXT: &str = "kernel void step(global uint4 *x, uint n) {
    if (get_global_id(0) < n) x[get_global_id(0)] += 1;
}";
/// The maximum number of groups that all shader drivers accept; each work-item processes several elements.
const SHADER_GROUPS: usize = 65535;
const SHADER: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uvec4 x[]; };
layout(std140, binding = 1) uniform Values { uint n; };
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * 64u) x[i] += uvec4(1u);
}
";
/// The kernel in PTX.
const PTX: &str = ".version 6.0
.target sm_50
.address_size 64
.visible .entry step(.param .u64 x, .param .u32 n) {
    .reg .pred %q;
    .reg .u32 %r<5>;
    .reg .u32 %w<4>;
    .reg .u64 %a<3>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %q, %r1, %r4;
    @%q ret;
    ld.param.u64 %a1, [x];
    cvta.to.global.u64 %a1, %a1;
    mul.wide.u32 %a2, %r1, 16;
    add.u64 %a1, %a1, %a2;
    ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%a1];
    add.u32 %w0, %w0, 1;
    add.u32 %w1, %w1, 1;
    add.u32 %w2, %w2, 1;
    add.u32 %w3, %w3, 1;
    st.global.v4.u32 [%a1], {%w0, %w1, %w2, %w3};
    ret;
}
";

pub const WORKLOAD: Workload = Workload {
    name: NAME,
    about: "a kernel's bandwidth on memory imported by a file descriptor, over OpenCL's own",
    cases,
};

pub const BETWEEN: Workload = Workload {
    name: "imported_bandwidth_<a>_<b>_ratio",
    about: "bandwidth of b's kernel on a's memory, if one is OpenGL or Vulkan, over b's own memory",
    cases: between,
};

/// The exporting and the importing device of each pair, and the two APIs.
fn pairs(hub: &Hub) -> Vec<([Device; 2], [&'static str; 2])> {
    let topology = hub.topology();
    let by_fd = topology
        .routes()
        .iter()
        .filter(|route| route.kind == RouteKind::OpaqueFd && route.from != route.to);
    let node = |device| topology.node(device);
    let pair = |ends: [_; 2]| {
        let [from, to] = ends.map(|end| hub.device(&node(end).id).ok());
        Some(([from?, to?], ends.map(|end| node(end).info.api.0)))
    };
    by_fd.filter_map(|route| pair([route.from, route.to])).collect()
}

fn cases(bench: &Bench) -> Vec<Case> {
    let Some((pair, _)) = pairs(&bench.hub).into_iter().find(|(_, [_, to])| *to == "opencl") else {
        let why = "OpenCL devices that import another API's memory by a file descriptor: found 0";
        return vec![Case::absent(NAME, why)];
    };
    vec![Case::new(NAME, move |bench| {
        run(bench, &pair).map(|row| Row { name: NAME.into(), ..row })
    })]
}

fn between(bench: &Bench) -> Vec<Case> {
    let graphics = |apis: &[&str; 2]| apis.iter().any(|api| ["gl", "vulkan"].contains(api));
    let pairs: Vec<_> = pairs(&bench.hub).into_iter().filter(|(_, apis)| graphics(apis)).collect();
    if pairs.is_empty() {
        let why = "memory by a file descriptor from or to OpenGL or Vulkan: found 0 pairs";
        return vec![Case::absent(BETWEEN.name, why)];
    }
    let case = |pair: [Device; 2]| {
        let name = format!("imported_bandwidth_{}_{}_ratio", pair[0], pair[1]);
        Case::new(name.clone(), move |bench| {
            run(bench, &pair).map(|row| Row { name: name.clone(), ..row })
        })
    };
    pairs.into_iter().map(|(pair, _)| case(pair)).collect()
}

fn run(bench: &Bench, [from, to]: &[Device; 2]) -> Result<Row, Stop> {
    let on_cpu = to.info().kind == DeviceKind::Cpu;
    let (launches, most) = if on_cpu { (CPU_BATCH, CPU_BYTES) } else { (BATCH, usize::MAX) };
    let count = (bench.bytes.min(most) / size_of::<Four>()).next_multiple_of(GROUP).max(GROUP);
    let imported = bench.hub.buffer::<Four>(count).shared_with([from, to]).trust_declared(true);
    let imported = imported.allocate_on(from).route(RouteKind::OpaqueFd);
    imported.plan().map_err(|error| Stop::Absent(error.to_string()))?;
    let native = bench.hub.buffer::<Four>(count).shared_with([to]).allocate_on(to);
    let sides = [imported.build()?, native.memory_kind(MemoryKind::Device).build()?];
    let sides = sides.map(|buffer| ImportedSide { buffer, launches, steps: Cell::new(0) });
    let (queue, step) = (to.queue()?, kernel(to)?);
    let found =
        compare(bench.effort, || sides[0].batch(&queue, &step), || sides[1].batch(&queue, &step))?;
    sides.iter().try_for_each(ImportedSide::check)?;
    // Every byte is read and written.
    let bytes = 2 * (count * size_of::<Four>()) as u64;
    let row = found.row("", Unit::GbPerS(bytes)).bar(Bar::RatioAtLeast(0.99));
    Ok(row.remark(format!("memory of {from} on {to}")))
}

fn kernel(device: &Device) -> Result<Kernel> {
    let fits = |call: &Call<'_>| match call.value::<u32>(1) {
        Some(n) if n as usize <= call.len(0) => Ok(()),
        _ => Err("more elements than the buffer has".into()),
    };
    let signature = Signature::new().buffer::<Four>(Access::ReadWrite).value::<u32>().require(fits);
    let source = Source::opencl_c(TEXT).with_glsl("step", SHADER).with_ptx(PTX);
    // SAFETY: the kernel accesses elements below n, and `fits` checks that there are as many.
    unsafe { device.program(&source)?.kernel("step", signature) }
}

/// Whether the queue's kernels are shaders.
fn is_shader(queue: &Queue) -> bool {
    ["gl", "vulkan"].contains(&queue.device().info().api.0)
}

struct ImportedSide {
    buffer: Buffer<Four>,
    /// Launches in one measurement.
    launches: u32,
    steps: Cell<u32>,
}

impl ImportedSide {
    /// Nanoseconds per launch.
    fn batch(&self, queue: &Queue, step: &Kernel) -> Result<f64> {
        let (n, shaders) = (self.buffer.len() as u32, is_shader(queue));
        let most = if shaders { SHADER_GROUPS * GROUP } else { usize::MAX };
        let grid = Grid::from([self.buffer.len().min(most)]).local([GROUP]);
        let clock = Instant::now();
        for _ in 0..self.launches {
            queue.launch(step, grid, args![self.buffer.write_on(queue)?, n])?;
        }
        queue.finish()?;
        self.steps.set(self.steps.get().wrapping_add(self.launches));
        Ok(clock.elapsed().as_nanos() as f64 / f64::from(self.launches))
    }

    /// Checks that every launch changed every element: buffers start as zeroes.
    fn check(&self) -> Result<()> {
        match self.buffer.to_vec()?.iter().all(|four| *four == [self.steps.get(); 4]) {
            true => Ok(()),
            false => Err(Error::invalid("the measured kernel did not change every element")),
        }
    }
}
