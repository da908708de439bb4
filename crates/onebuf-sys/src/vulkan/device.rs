//! The functions of one device.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety).

use super::{VkRefused, Watch, vk};
use std::ffi::c_void;
use std::fmt;

/// The functions of one device. [`Device::destroy`] destroys it.
pub struct Device {
    watch: Watch,
    raw: ash::Device,
    memory_fd: ash::khr::external_memory_fd::Device,
    memory_host: ash::ext::external_memory_host::Device,
    semaphore_fd: ash::khr::external_semaphore_fd::Device,
    adopted: bool,
}

/// Functions that can fail; those that create an object count it by kind.
macro_rules! calls {
    ($($call:literal $($kind:literal)? $name:ident($($arg:ident: $type:ty),*) -> $out:ty $(, $none:expr)?;)*) => {
        impl Device {
            $(
                #[doc = concat!("`", $call, "`")]
                ///
                /// # Safety
                ///
                /// The contract of the C function.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) -> Result<$out, VkRefused> {
                    // SAFETY: the caller keeps the C function's contract.
                    let made = self.watch.call($call, || unsafe { self.raw.$name($($arg,)* $($none)?) })?;
                    $(self.watch.count($kind, 1);)?
                    Ok(made)
                }
            )*
        }
    };
}

calls! {
    "vkAllocateMemory" "memory" allocate_memory(info: &vk::MemoryAllocateInfo<'_>) -> vk::DeviceMemory, None;
    "vkCreateBuffer" "buffer" create_buffer(info: &vk::BufferCreateInfo<'_>) -> vk::Buffer, None;
    "vkCreateSemaphore" "semaphore" create_semaphore(info: &vk::SemaphoreCreateInfo<'_>) -> vk::Semaphore, None;
    "vkCreateCommandPool" "command_pool" create_command_pool(info: &vk::CommandPoolCreateInfo<'_>) -> vk::CommandPool, None;
    "vkCreateDescriptorPool" "descriptor_pool" create_descriptor_pool(info: &vk::DescriptorPoolCreateInfo<'_>) -> vk::DescriptorPool, None;
    "vkCreateDescriptorSetLayout" "set_layout" create_descriptor_set_layout(info: &vk::DescriptorSetLayoutCreateInfo<'_>) -> vk::DescriptorSetLayout, None;
    "vkCreatePipelineLayout" "pipeline_layout" create_pipeline_layout(info: &vk::PipelineLayoutCreateInfo<'_>) -> vk::PipelineLayout, None;
    "vkCreateShaderModule" "shader" create_shader_module(info: &vk::ShaderModuleCreateInfo<'_>) -> vk::ShaderModule, None;
    "vkCreateQueryPool" "query_pool" create_query_pool(info: &vk::QueryPoolCreateInfo<'_>) -> vk::QueryPool, None;
    "vkBindBufferMemory" bind_buffer_memory(buffer: vk::Buffer, memory: vk::DeviceMemory, offset: u64) -> ();
    "vkMapMemory" map_memory(memory: vk::DeviceMemory, offset: u64, bytes: u64, flags: vk::MemoryMapFlags) -> *mut c_void;
    "vkAllocateCommandBuffers" allocate_command_buffers(info: &vk::CommandBufferAllocateInfo<'_>) -> Vec<vk::CommandBuffer>;
    "vkBeginCommandBuffer" begin_command_buffer(buffer: vk::CommandBuffer, info: &vk::CommandBufferBeginInfo<'_>) -> ();
    "vkEndCommandBuffer" end_command_buffer(buffer: vk::CommandBuffer) -> ();
    "vkAllocateDescriptorSets" allocate_descriptor_sets(info: &vk::DescriptorSetAllocateInfo<'_>) -> Vec<vk::DescriptorSet>;
    "vkResetDescriptorPool" reset_descriptor_pool(pool: vk::DescriptorPool, flags: vk::DescriptorPoolResetFlags) -> ();
    "vkQueueSubmit" queue_submit(queue: vk::Queue, work: &[vk::SubmitInfo<'_>], fence: vk::Fence) -> ();
    "vkQueueWaitIdle" queue_wait_idle(queue: vk::Queue) -> ();
    "vkGetSemaphoreCounterValue" get_semaphore_counter_value(semaphore: vk::Semaphore) -> u64;
    "vkWaitSemaphores" wait_semaphores(info: &vk::SemaphoreWaitInfo<'_>, timeout_ns: u64) -> ();
}

/// Functions that destroy objects: they cannot fail.
macro_rules! destroys {
    ($($call:literal $kind:literal $name:ident($type:ty);)*) => {
        impl Device {
            $(
                #[doc = concat!("`", $call, "`")]
                ///
                /// # Safety
                ///
                /// The contract of the C function.
                pub unsafe fn $name(&self, object: $type) {
                    if crate::fork::is_child() {
                        return;
                    }
                    // SAFETY: the caller keeps the C function's contract.
                    unsafe { self.raw.$name(object, None) };
                    self.watch.count($kind, -1);
                }
            )*
        }
    };
}

destroys! {
    "vkFreeMemory" "memory" free_memory(vk::DeviceMemory);
    "vkDestroyBuffer" "buffer" destroy_buffer(vk::Buffer);
    "vkDestroySemaphore" "semaphore" destroy_semaphore(vk::Semaphore);
    "vkDestroyCommandPool" "command_pool" destroy_command_pool(vk::CommandPool);
    "vkDestroyDescriptorPool" "descriptor_pool" destroy_descriptor_pool(vk::DescriptorPool);
    "vkDestroyDescriptorSetLayout" "set_layout" destroy_descriptor_set_layout(vk::DescriptorSetLayout);
    "vkDestroyPipelineLayout" "pipeline_layout" destroy_pipeline_layout(vk::PipelineLayout);
    "vkDestroyShaderModule" "shader" destroy_shader_module(vk::ShaderModule);
    "vkDestroyPipeline" "pipeline" destroy_pipeline(vk::Pipeline);
    "vkDestroyQueryPool" "query_pool" destroy_query_pool(vk::QueryPool);
}

impl Device {
    pub(super) fn new(
        watch: Watch,
        instance: &ash::Instance,
        raw: ash::Device,
        adopted: bool,
    ) -> Self {
        let memory_fd = ash::khr::external_memory_fd::Device::new(instance, &raw);
        let memory_host = ash::ext::external_memory_host::Device::new(instance, &raw);
        let semaphore_fd = ash::khr::external_semaphore_fd::Device::new(instance, &raw);
        Self { watch, raw, memory_fd, memory_host, semaphore_fd, adopted }
    }

    /// Returns the functions that cannot fail.
    #[inline]
    pub fn raw(&self) -> &ash::Device {
        &self.raw
    }

    /// `vkCreateComputePipelines` for one pipeline.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn create_compute_pipeline(
        &self,
        info: &vk::ComputePipelineCreateInfo<'_>,
    ) -> Result<vk::Pipeline, VkRefused> {
        let pipeline = self.watch.call("vkCreateComputePipelines", || {
            let infos = std::slice::from_ref(info);
            // SAFETY: the caller keeps the C function's contract. A pipeline that was not created is null.
            let made = unsafe {
                self.raw.create_compute_pipelines(vk::PipelineCache::null(), infos, None)
            };
            let made = made.map_err(|(_, status)| status)?;
            made.into_iter().next().ok_or(vk::Result::ERROR_UNKNOWN)
        })?;
        self.watch.count("pipeline", 1);
        Ok(pipeline)
    }

    /// `vkGetQueryPoolResults` for 64-bit numbers.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn query_results(
        &self,
        pool: vk::QueryPool,
        first: u32,
        into: &mut [u64],
    ) -> Result<(), VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        self.watch.call("vkGetQueryPoolResults", || unsafe {
            let flags = vk::QueryResultFlags::TYPE_64;
            self.raw.get_query_pool_results(pool, first, into, flags)
        })
    }

    /// `vkGetMemoryFdKHR`. The caller owns the new descriptor.
    ///
    /// # Safety
    ///
    /// The contract of the C function; the device was created with `VK_KHR_external_memory_fd`.
    pub unsafe fn memory_fd(&self, info: &vk::MemoryGetFdInfoKHR<'_>) -> Result<i32, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        self.watch.call("vkGetMemoryFdKHR", || unsafe { self.memory_fd.get_memory_fd(info) })
    }

    /// `vkGetSemaphoreFdKHR`. The caller owns the new descriptor.
    ///
    /// # Safety
    ///
    /// The contract of the C function; the device was created with `VK_KHR_external_semaphore_fd`.
    pub unsafe fn semaphore_fd(
        &self,
        info: &vk::SemaphoreGetFdInfoKHR<'_>,
    ) -> Result<i32, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        self.watch
            .call("vkGetSemaphoreFdKHR", || unsafe { self.semaphore_fd.get_semaphore_fd(info) })
    }

    /// `vkGetMemoryHostPointerPropertiesEXT`: the memory types that can import the pages.
    ///
    /// # Safety
    ///
    /// The contract of the C function; the device was created with `VK_EXT_external_memory_host`.
    pub unsafe fn host_pointer_types(&self, at: *const c_void) -> Result<u32, VkRefused> {
        self.watch.call("vkGetMemoryHostPointerPropertiesEXT", || {
            let mut found = vk::MemoryHostPointerPropertiesEXT::default();
            let kind = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
            // SAFETY: the caller keeps the C function's contract.
            let answer = unsafe {
                let ask = self.memory_host.fp().get_memory_host_pointer_properties_ext;
                ask(self.raw.handle(), kind, at, &mut found)
            };
            answer.result_with_success(found.memory_type_bits)
        })
    }

    /// `vkDestroyDevice`
    ///
    /// # Safety
    ///
    /// The contract of the C function; no object of this device is used afterwards.
    pub unsafe fn destroy(&self) {
        if self.adopted || crate::fork::is_child() {
            return;
        }
        // SAFETY: the caller keeps the C function's contract.
        unsafe { self.raw.destroy_device(None) };
        self.watch.count("device", -1);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:?})", self.raw.handle())
    }
}
