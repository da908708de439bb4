//! Two semaphores that Vulkan creates, and that OpenCL and CUDA signal and wait on: the baseline of hand-overs without
//! a host wait.
//!
//! # Safety
//! The semaphores are imported by descriptors that the drivers take over. Each is signalled and waited for in turn. The
//! owner drains both queues before dropping this.

use super::{RawCuda, RawLaunch, cuda, driver};
use onebuf::{Error, Result, hal::PhysicalId};
use onebuf_sys::{
    VkRefused,
    cuda_like::{AlignedFd, ExternalSemaphore, ExternalSemaphoreDesc, SemaphoreParams, consts},
    opencl::{ClSemaphore, ExternalCalls, OpenClExt, consts as cl},
    vulkan::{Device, Instance, Vulkan, vk},
};
use std::{
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    ptr::{null, null_mut},
};

const FD: vk::ExternalSemaphoreHandleTypeFlags = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;

/// Two queues and the semaphores that join them in both directions, as handles of each API.
pub struct RawSemaphores<'r> {
    cl: &'r RawLaunch,
    cuda: &'r RawCuda,
    external: ExternalCalls,
    calls: OpenClExt,
    to_cuda: Joint,
    to_cl: Joint,
    _maker: Maker,
}

/// One semaphore, as handles of both APIs.
type Joint = (ClSemaphore, ExternalSemaphore);

impl<'r> RawSemaphores<'r> {
    /// Creates the semaphores on that chip.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a driver has no such semaphores; the drivers' errors.
    pub fn new(cl: &'r RawLaunch, cuda: &'r RawCuda, chip: PhysicalId) -> Result<Self> {
        let (maker, external) = (Maker::on(chip)?, cl.external()?);
        // SAFETY: the platform exists; a plan with semaphores means that it declares the extension.
        let calls = unsafe { cl.on.cl.extensions(cl.platform()?, &["cl_khr_semaphore"]) };
        if !calls.has_semaphores() {
            return Err(Error::unsupported("raw semaphores", "a platform with cl_khr_semaphore"));
        }
        let import = || -> Result<Joint> {
            let fd = maker.semaphore()?;
            let again = fd.try_clone().map_err(|why| Error::invalid(why.to_string()))?;
            Ok((import_cl(cl, &calls, fd)?, import_cuda(cuda, again)?))
        };
        let (to_cuda, to_cl) = (import()?, import()?);
        Ok(Self { cl, cuda, external, calls, to_cuda, to_cl, _maker: maker })
    }

    /// Launches a kernel of each API, ordered on the device, without waiting.
    ///
    /// # Errors
    /// The drivers' errors.
    pub fn round(&self) -> Result<()> {
        let (queue, no) = (self.cl.on.queue, null_mut());
        self.cl.borrowed(&self.external)?;
        let semaphore = &raw const self.to_cuda.0;
        // SAFETY: the queue is live, and the semaphore belongs to its context; the flush below submits the signal.
        unsafe { self.calls.enqueue_signal_semaphores(queue, 1, semaphore, null(), 0, null(), no) }
            .map_err(driver("clEnqueueSignalSemaphoresKHR"))?;
        // SAFETY: the queue is live.
        unsafe { self.cl.on.cl.flush(queue) }.map_err(driver("clFlush"))?;
        self.cuda.between(self.to_cuda.1, self.to_cl.1)?;
        let semaphore = &raw const self.to_cl.0;
        // SAFETY: as above; the semaphore's signal was enqueued.
        unsafe { self.calls.enqueue_wait_semaphores(queue, 1, semaphore, null(), 0, null(), no) }
            .map_err(driver("clEnqueueWaitSemaphoresKHR"))
    }

    /// Waits until everything has run.
    ///
    /// # Errors
    /// The drivers' errors.
    pub fn drain(&self) -> Result<()> {
        // SAFETY: the queue is live.
        unsafe { self.cl.on.cl.finish(self.cl.on.queue) }.map_err(driver("clFinish"))?;
        self.cuda.drain()
    }
}

impl Drop for RawSemaphores<'_> {
    fn drop(&mut self) {
        for (cl, cuda) in [self.to_cuda, self.to_cl] {
            // SAFETY: each was imported here and is released once; CUDA's context is current, and both queues were drained. A
            // benchmark ignores errors here.
            unsafe {
                let _ = self.calls.release_semaphore(cl);
                let _ = self.cuda.cu.destroy_semaphore(cuda);
            }
        }
    }
}

fn import_cl(raw: &RawLaunch, calls: &OpenClExt, fd: OwnedFd) -> Result<ClSemaphore> {
    let list = [
        u64::from(cl::CL_SEMAPHORE_TYPE_KHR),
        u64::from(cl::CL_SEMAPHORE_TYPE_BINARY_KHR),
        u64::from(cl::CL_SEMAPHORE_HANDLE_OPAQUE_FD_KHR),
        fd.as_raw_fd() as u64,
        0,
    ];
    // SAFETY: the context is live and has one device; the list ends with 0.
    let made = unsafe { calls.create_semaphore(raw.on.context, list.as_ptr()) };
    let made = made.map_err(driver("clCreateSemaphoreWithPropertiesKHR"))?;
    let _ = fd.into_raw_fd();
    Ok(made)
}

fn import_cuda(raw: &RawCuda, fd: OwnedFd) -> Result<ExternalSemaphore> {
    let desc = ExternalSemaphoreDesc {
        kind: consts::SEMAPHORE_OPAQUE_FD,
        fd: AlignedFd(fd.as_raw_fd()),
        ..ExternalSemaphoreDesc::default()
    };
    // SAFETY: the descriptor is open, and the context is current.
    let made = unsafe { raw.cu.import_semaphore(&raw const desc) };
    let made = made.map_err(|refused| cuda::driver(&raw.cu, refused))?;
    let _ = fd.into_raw_fd();
    Ok(made)
}

impl RawCuda {
    /// Launches the kernel between a wait and a signal.
    pub(super) fn between(
        &self,
        before: ExternalSemaphore,
        after: ExternalSemaphore,
    ) -> Result<()> {
        let (params, refused) = (SemaphoreParams::default(), |r| cuda::driver(&self.cu, r));
        // SAFETY: the stream is live and belongs to the current context, as the semaphore does, whose signal was enqueued before.
        unsafe { self.cu.wait_semaphores(&raw const before, &raw const params, 1, self.stream) }
            .map_err(refused)?;
        self.touch()?;
        // SAFETY: as above.
        unsafe { self.cu.signal_semaphores(&raw const after, &raw const params, 1, self.stream) }
            .map_err(refused)
    }
}

/// A logical device of Vulkan, for semaphores only.
struct Maker {
    instance: Instance,
    device: Device,
}

impl Maker {
    fn on(chip: PhysicalId) -> Result<Self> {
        let vulkan = Vulkan::load(None, None).map_err(|missing| Error::Unavailable {
            what: "Vulkan".into(),
            tried: missing.tried,
            reason: missing.reason,
        })?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the description is complete.
        let instance = unsafe { vulkan.create_instance(&info) }.map_err(refused)?;
        // SAFETY: the instance is live, and the device is one of its devices; the instance is destroyed if no device can be
        // created.
        unsafe {
            let physical = instance.physical_devices().map_err(refused)?;
            let physical = physical.into_iter().find(|one| uuid(&instance, *one) == chip.uuid);
            let physical = physical.ok_or_else(|| {
                instance.destroy();
                Error::unsupported("raw semaphores", "a Vulkan device of the same chip")
            })?;
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let names = [vk::KHR_EXTERNAL_SEMAPHORE_FD_NAME.as_ptr()];
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_extension_names(&names);
            let device = instance.create_device(physical, &info);
            let device = device.inspect_err(|_| instance.destroy()).map_err(refused)?;
            Ok(Self { instance, device })
        }
    }

    /// The descriptor of a new semaphore, which stays valid after Vulkan's handle is destroyed.
    fn semaphore(&self) -> Result<OwnedFd> {
        let mut export = vk::ExportSemaphoreCreateInfo::default().handle_types(FD);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut export);
        // SAFETY: the device is live and exports such semaphores; the descriptor is new, and owned by this process.
        unsafe {
            let semaphore = self.device.create_semaphore(&info).map_err(refused)?;
            let info = vk::SemaphoreGetFdInfoKHR::default().semaphore(semaphore).handle_type(FD);
            let fd = self.device.semaphore_fd(&info);
            self.device.destroy_semaphore(semaphore);
            fd.map(|fd| OwnedFd::from_raw_fd(fd)).map_err(refused)
        }
    }
}

/// # Safety
/// `physical` is a device of the instance.
unsafe fn uuid(instance: &Instance, physical: vk::PhysicalDevice) -> Option<[u8; 16]> {
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    // SAFETY: guaranteed by the caller; both structures have room for the answers.
    unsafe { instance.raw().get_physical_device_properties2(physical, &mut properties) };
    Some(ids.device_uuid)
}

impl Drop for Maker {
    fn drop(&mut self) {
        // SAFETY: created by `on`, destroyed once; its semaphores are already destroyed.
        unsafe {
            self.device.destroy();
            self.instance.destroy();
        }
    }
}

fn refused(refused: VkRefused) -> Error {
    let VkRefused { call, status } = refused;
    Error::Driver { api: "vulkan", call, code: status.as_raw(), name: format!("{status:?}") }
}
