//! Kernels, which are compute pipelines, and launching them.

use super::{
    batch::{ARENA_BYTES, Batch, Keep, MOST_SETS, MOST_STORAGES},
    block::HostAddress,
    device::Context,
    event::Event,
    memory::Memory,
    queue::{Queue, RawQueue, State},
    spirv::{Module, Takes},
};
use onebuf_hal::{
    self as hal, Arg, Domain, Error, Grid, Result,
    locks::Arc,
    shaders::{self, Values},
    typed::{Args, Events, TypedArg, TypedQueue},
};
use onebuf_sys::vulkan::vk;
use std::{collections::BTreeMap, ffi::CString};

/// A pipeline, destroyed once. Batches that run it keep it.
#[derive(Debug)]
pub(super) struct RawKernel {
    context: Arc<Context>,
    name: String,
    parameters: usize,
    group: [usize; 3],
    bindings: BTreeMap<u32, Takes>,
    set: vk::DescriptorSetLayout,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
}

impl RawKernel {
    pub fn new(
        context: Arc<Context>,
        module: &Module,
        entry: &str,
        name: &str,
        parameters: usize,
    ) -> Result<RawKernel> {
        let group = module.entries.iter().find(|known| known.name == entry);
        let group = group.map_or([1; 3], |entry| entry.group.map(|n| n as usize));
        // Handles not created yet are null, and `Drop` skips them.
        let mut kernel = RawKernel {
            context,
            name: name.to_owned(),
            parameters,
            group,
            bindings: module.bindings.clone(),
            set: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            pipeline: vk::Pipeline::null(),
        };
        kernel.check(module)?;
        kernel.make_layouts()?;
        kernel.make_pipeline(module, entry)?;
        Ok(kernel)
    }

    fn wrong(&self, why: String) -> Error {
        Error::invalid(format!("kernel `{}`: {why}", self.name))
    }

    /// Checks that its arguments can be bound.
    fn check(&self, module: &Module) -> Result<()> {
        let caps = &self.context.driver.info.caps;
        let limits = &self.context.driver.limits;
        if module.other_sets {
            return Err(self.wrong("it has bindings of sets other than 0".to_owned()));
        }
        if let Some((place, _)) = self.bindings.iter().find(|(_, takes)| **takes == Takes::Other) {
            return Err(self.wrong(format!("binding {place} is no buffer and no block of values")));
        }
        if let Some(place) = self.bindings.keys().find(|place| **place as usize >= self.parameters)
        {
            let takes = self.parameters;
            return Err(self.wrong(format!(
                "binding {place} has no argument: the signature declares {takes} arguments"
            )));
        }
        let storages = self.bindings.values().filter(|takes| **takes == Takes::Storage).count();
        let most = limits.storages.min(MOST_STORAGES as usize);
        if storages > most {
            return Err(self.wrong(format!("{storages} buffers, and at most {most} are possible")));
        }
        let items = self.group.iter().product::<usize>();
        let fits = self.group.iter().zip(caps.max_group_sizes).all(|(n, most)| *n <= most);
        if items > caps.max_group_size || !fits {
            let (group, most) = (self.group, caps.max_group_size);
            return Err(
                self.wrong(format!("groups of {group:?}, but the device allows {most} work-items"))
            );
        }
        Ok(())
    }

    fn make_layouts(&mut self) -> Result<()> {
        let Context { driver, table, .. } = &*self.context;
        let bindings = self.bindings.iter().map(|(place, takes)| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(*place)
                .descriptor_type(descriptor(*takes))
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        });
        let bindings = bindings.collect::<Vec<_>>();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: a live device, complete descriptions; here and below.
        self.set = driver.check(unsafe { table.create_descriptor_set_layout(&info) })?;
        let sets = [self.set];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        // SAFETY: as above.
        self.layout = driver.check(unsafe { table.create_pipeline_layout(&info) })?;
        Ok(())
    }

    fn make_pipeline(&mut self, module: &Module, entry: &str) -> Result<()> {
        let Context { driver, table, .. } = &*self.context;
        let entry = CString::new(entry).map_err(|_| self.wrong("a zero in its name".to_owned()))?;
        let info = vk::ShaderModuleCreateInfo::default().code(&module.words);
        // SAFETY: a live device; a module whose every instruction was checked to be inside it.
        let shader = driver.check(unsafe { table.create_shader_module(&info) })?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(shader)
            .name(&entry);
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout);
        // SAFETY: a live module that has this entry point, and a layout of its bindings.
        let make = || unsafe { table.create_compute_pipeline(&info) };
        let made = driver.post.watch("vkCreateComputePipelines", make);
        // SAFETY: created above; the pipeline no longer needs it.
        unsafe { table.destroy_shader_module(shader) };
        self.pipeline = driver.check(made)?;
        Ok(())
    }

    /// Checks the buffers of a launch, and returns them by binding.
    fn buffers<'a>(
        &self,
        args: Args<'a, Queue>,
    ) -> Result<Vec<(u32, &'a Memory, vk::DescriptorBufferInfo)>> {
        let most = self.context.driver.limits.storage_bytes;
        let mut buffers = Vec::with_capacity(args.len());
        for (place, arg) in (0..).zip(args.iter()) {
            let TypedArg::Memory(memory, _, bytes) = arg? else { continue };
            let binding = memory.binding(bytes);
            match self.bindings.get(&place) {
                // The shader does not use this argument.
                None => continue,
                Some(Takes::Storage) => {}
                Some(_) => {
                    let why = format!("argument {place} is a buffer, and binding {place} is none");
                    return Err(self.wrong(why));
                }
            }
            if binding.range > most {
                let what = format!("a buffer of {bytes} bytes as argument {place} of a shader");
                return Err(Error::unsupported(what, format!("a region of at most {most} bytes")));
            }
            buffers.push((place, memory, binding));
        }
        Ok(buffers)
    }

    /// Checks that a block of values is at the first value's binding, that no buffer's binding gets a value, and that they fit.
    fn check_values(&self, args: &[Arg<'_>], values: Option<&Values>) -> Result<()> {
        let place = values.map(|values| values.binding);
        for (binding, takes) in &self.bindings {
            let is_value = matches!(args.get(*binding as usize), Some(Arg::Bytes(_)));
            if *takes == Takes::Values && Some(*binding) != place {
                return Err(self.wrong(format!(
                    "binding {binding} is a block of values, but the first value is another argument"
                )));
            }
            if *takes == Takes::Storage && is_value {
                let why = format!("argument {binding} is a value, and binding {binding} a buffer");
                return Err(self.wrong(why));
            }
        }
        let (bytes, most) = (
            values.map_or(0, |values| values.bytes.len()),
            self.context.driver.limits.uniform_bytes.min(ARENA_BYTES as u64),
        );
        match bytes as u64 > most {
            true => Err(self.wrong(format!("{bytes} bytes of values, and {most} are possible"))),
            false => Ok(()),
        }
    }
}

fn descriptor(takes: Takes) -> vk::DescriptorType {
    match takes {
        Takes::Storage => vk::DescriptorType::STORAGE_BUFFER,
        Takes::Values | Takes::Other => vk::DescriptorType::UNIFORM_BUFFER,
    }
}

impl Drop for RawKernel {
    fn drop(&mut self) {
        let table = &self.context.table;
        // SAFETY: created by `new`, destroyed once; handles that were not created are null, and no batch runs it.
        unsafe {
            if self.pipeline != vk::Pipeline::null() {
                table.destroy_pipeline(self.pipeline);
            }
            if self.layout != vk::PipelineLayout::null() {
                table.destroy_pipeline_layout(self.layout);
            }
            if self.set != vk::DescriptorSetLayout::null() {
                table.destroy_descriptor_set_layout(self.set);
            }
        }
    }
}

/// A compute kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(super) raw: Arc<RawKernel>,
}

impl hal::Kernel for Kernel {
    #[inline]
    fn domain(&self) -> Domain {
        self.raw.context.driver.domain
    }

    fn name(&self) -> &str {
        &self.raw.name
    }

    #[inline]
    fn parameters(&self) -> usize {
        self.raw.parameters
    }
}

/// Enqueues a kernel.
///
/// # Safety
/// The kernel stays inside the given memories and accesses each only as its access permits.
pub(super) unsafe fn launch(
    queue: &Queue,
    kernel: &Kernel,
    grid: &Grid,
    args: Args<'_, Queue>,
    after: Events<'_, Queue>,
    wants_event: bool,
) -> Result<Option<Event>> {
    let (raw, kernel) = (&queue.raw, &kernel.raw);
    let groups = shaders::groups(grid, kernel.group, raw.driver().limits.groups)?;
    let values = Values::of(args.untyped())?;
    kernel.check_values(args.untyped(), values.as_ref())?;
    let buffers = kernel.buffers(args)?;
    queue.wait_for(after)?;
    let launch = Launch { kernel, groups, buffers, values };
    let mut state = raw.lock();
    let ticks = launch.record(raw, &mut state, wants_event)?;
    if !wants_event {
        return raw.flush_if_full(&mut state).map(|()| None);
    }
    raw.flush(&mut state)?;
    let value = state.newest();
    drop(state);
    Ok(Some(Event::new(raw.clone(), value, ticks)))
}

/// A checked launch.
struct Launch<'a> {
    kernel: &'a Arc<RawKernel>,
    groups: [u32; 3],
    buffers: Vec<(u32, &'a Memory, vk::DescriptorBufferInfo)>,
    values: Option<Values>,
}

impl Launch<'_> {
    fn record(
        &self,
        queue: &RawQueue,
        state: &mut State,
        timed: bool,
    ) -> Result<Option<super::batch::Ticks>> {
        let context = queue.context();
        let full = state.open.as_ref().is_some_and(|batch| !self.fits(context, batch, timed));
        if full {
            queue.flush(state)?;
        }
        let batch = queue.open(state)?;
        let set = self.bind(context, batch)?;
        let uses: Vec<_> = self.buffers.iter().map(|(_, memory, _)| *memory).collect();
        let commands = batch.use_in_order(context, &uses);
        let timed = timed && queue.profiling;
        if timed {
            batch.tick(context, false);
        }
        let ([x, y, z], RawKernel { pipeline, layout, .. }) = (self.groups, &**self.kernel);
        let (raw, point) = (context.table.raw(), vk::PipelineBindPoint::COMPUTE);
        // SAFETY: being recorded; a live pipeline, and a set of its layout that has every binding.
        unsafe {
            raw.cmd_bind_pipeline(commands, point, *pipeline);
            raw.cmd_bind_descriptor_sets(commands, point, *layout, 0, &[set], &[]);
            raw.cmd_dispatch(commands, x, y, z);
        }
        let ticks = if timed { batch.tick(context, true) } else { None };
        batch.keep(Keep::Kernel(self.kernel.clone()));
        batch.commands += 1;
        Ok(ticks)
    }

    /// Whether the batch has room for the launch.
    fn fits(&self, context: &Context, batch: &Batch, timed: bool) -> bool {
        let bytes = self.values.as_ref().map_or(0, |values| values.bytes.len());
        batch.sets < MOST_SETS
            && batch.storages + self.buffers.len() as u32 <= MOST_STORAGES
            && self.place(context, batch) + bytes <= ARENA_BYTES
            && !(timed && batch.is_timed())
    }

    /// The offset of its values in the batch's arena.
    fn place(&self, context: &Context, batch: &Batch) -> usize {
        batch.arena_used.next_multiple_of(context.driver.limits.uniform_align)
    }

    /// Creates a descriptor set with all buffers and the values.
    fn bind(&self, context: &Context, batch: &mut Batch) -> Result<vk::DescriptorSet> {
        let place = self.place(context, batch);
        let Context { driver, table, .. } = context;
        let Some(slot) = &batch.slot else {
            return Err(Error::invalid("a launch into a batch without commands"));
        };
        let layouts = [self.kernel.set];
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(slot.descriptors)
            .set_layouts(&layouts);
        // SAFETY: a live pool with room: `fits` has checked it.
        let sets = driver.check(unsafe { table.allocate_descriptor_sets(&info) })?;
        let set = sets.first().copied().unwrap_or_default();
        let values = self
            .values
            .as_ref()
            .filter(|values| self.kernel.bindings.contains_key(&values.binding));
        let block = values.map(|values| {
            if let Some(HostAddress(at)) = slot.arena.host {
                // SAFETY: inside the arena, where no other launch of this batch has its values.
                unsafe {
                    let at = at.as_ptr().add(place);
                    at.copy_from_nonoverlapping(values.bytes.as_ptr(), values.bytes.len());
                }
            }
            let info = vk::DescriptorBufferInfo::default()
                .buffer(slot.arena.buffer)
                .offset(place as u64)
                .range(values.bytes.len() as u64);
            (values.binding, info, Takes::Values)
        });
        let buffers = self.buffers.iter().map(|(at, _, info)| (*at, *info, Takes::Storage));
        let all: Vec<_> = buffers.chain(block).map(|(at, info, t)| (at, [info], t)).collect();
        let writes = all.iter().map(|(at, info, takes)| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(*at)
                .descriptor_type(descriptor(*takes))
                .buffer_info(info)
        });
        let writes = writes.collect::<Vec<_>>();
        // SAFETY: a new set, which no command uses yet; bindings that its layout has, live buffers.
        unsafe { table.raw().update_descriptor_sets(&writes, &[]) };
        batch.sets += 1;
        batch.storages += self.buffers.len() as u32;
        batch.arena_used = place + values.map_or(0, |values| values.bytes.len());
        Ok(set)
    }
}
