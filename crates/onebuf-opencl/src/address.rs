//! Memory by the address that kernels see: another API's memory in OpenCL kernels, and OpenCL memory in another API's.
//!
//! AMD's OpenCL and HIP share one address space. onebuf's assumptions about it are experimental, have never run on
//! hardware, and are in [`onebuf_experimental::placement`].

use super::{
    OPENCL_C, conv,
    conv::Version,
    device::{Context, Driver},
    memory::{Inner, Memory},
    program::Program,
    query,
    queue::Queue,
};
use onebuf_experimental::placement::{self, ROCR};
use onebuf_hal::{
    self as hal, Access, AddressFrom, AddressRange, AddressSpace, AllocSpec, Arg, DeviceInfo,
    DeviceKind, Error, Grid, HostAccess, HostRange, MemoryKind, Program as _, Result, Source,
    locks::Arc, typed::TypedMemory,
};
use onebuf_sys::{ClStatus, opencl::consts as cl};
use std::time::Duration;

const NAME: &str = "onebuf_address";
const TEXT: &str =
    "kernel void onebuf_address(global ulong *at, global uchar *p) { *at = (ulong)p; }\n";

/// The timeout of the kernel that reports an address.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);

/// The remark on memory that another API allocated.
pub(super) const REMARK: &str =
    "another API's memory at its own address: for kernels only, with a barrier between them";

/// The address space of a device's kernels: ROCr's if the driver is built on ROCr, the process's on a CPU.
pub(super) fn space(info: &DeviceInfo) -> Option<AddressSpace> {
    match info.kind {
        // Without SVM, no memory can be exported by its address, and no call accepts an address.
        _ if !info.caps.memory_kinds.contains(&MemoryKind::CoarseSvm) => None,
        _ if placement::is_over_rocr(info) => Some(ROCR),
        // Oclgrind uses virtual addresses that are not the process's.
        DeviceKind::Cpu if info.platform != "Oclgrind" => Some(AddressSpace::Process),
        _ => None,
    }
}

/// Checks that kernels may use another API's address.
pub(super) fn check(driver: &Driver, range: &AddressRange) -> Result<()> {
    let has = driver.info.caps.address_space.is_some()
        && driver.version >= Version::V2_0
        && driver.cl.has_set_kernel_arg_svm_pointer();
    let why = match range.from {
        _ if !has => "it does not accept addresses of other APIs",
        AddressFrom::Kernel => "an address reported by a kernel cannot be validated there",
        AddressFrom::Allocator if range.address == 0 => "null",
        AddressFrom::Allocator => return Ok(()),
    };
    let (address, name) = (range.address, &driver.info.name);
    let what = format!("the address {address:#x} on {name} ({why})");
    Err(Error::unsupported(what, "memory of another API's allocator in one address space"))
}

/// Returns the address at which one work-item sees the memory. The device must have acquired the memory.
pub(super) fn of(memory: &Memory, queue: &Queue) -> Result<u64> {
    let context = memory.context();
    let (bytes, align, access) = (size_of::<u64>(), size_of::<u64>(), Access::ReadWrite);
    let (memory_kind, host) = (MemoryKind::Device, HostAccess::ReadWrite);
    let spec = AllocSpec { bytes, align, memory_kind, access, host, hint: None };
    let told = Memory::allocate(context.clone(), &spec, Some(&[0; size_of::<u64>()]))?;
    let texts = vec![(OPENCL_C, TEXT.into())];
    let program = Program::build(context.clone(), &Source { texts, ..Source::default() })?;
    let kernel = program.kernel(NAME, 2)?;
    let grid = Grid { dims: 1, global: [1; 3], local: None, offset: [0; 3] };
    let all = memory.bytes();
    let args = [Arg::Memory(&told, access, bytes), Arg::Memory(memory, memory.access(), all)];
    // SAFETY: the kernel above writes eight bytes of the first argument and does not access the second.
    unsafe { hal::Queue::launch(queue, &*kernel, &grid, &args, &[], false) }?;
    read(queue, &told)
}

/// Reads the number that the kernel wrote.
fn read(queue: &Queue, from: &Memory) -> Result<u64> {
    let mut place = Box::new(0u64);
    // SAFETY: `place` is used only here, and is leaked if the read does not complete.
    let reading = unsafe {
        let into = (&raw mut *place).cast();
        hal::Queue::read(queue, from, 0, into, size_of::<u64>())
    };
    let done = reading.and_then(|event| event.wait(ADDRESS_WAIT));
    match done {
        Ok(()) => Ok(*place),
        Err(why) => {
            std::mem::forget(place);
            Err(why)
        }
    }
}

/// Refuses coarse-grained SVM that is in host memory because its context has several devices.
pub(super) fn check_placed(memory: &Inner) -> Result<()> {
    let is_amd = memory.context.driver.info.caps.address_space == Some(ROCR);
    match devices(&memory.context) {
        n if is_amd && placement::is_svm_on_the_host(memory.memory_kind, n) => {
            Err(Error::unsupported(
                format!(
                    "coarse SVM of a context of {n} devices, which is host memory, by its address"
                ),
                "a context of one device",
            ))
        }
        _ => Ok(()),
    }
}

/// Describes where the memory is placed, for drivers whose placement is known.
pub(super) fn placement(memory: &Inner) -> Option<String> {
    let is_amd = memory.context.driver.info.caps.address_space == Some(ROCR);
    is_amd.then(|| placement::describe(memory.memory_kind, devices(&memory.context)))
}

/// The number of devices of the context; one if the query fails.
fn devices(context: &Context) -> u32 {
    let driver = &context.driver;
    let count = query::value::<u32>(|n, at, len| {
        // SAFETY: a live context; `query` passes a buffer of the stated length.
        unsafe { driver.cl.get_context_info(context.raw, cl::CL_CONTEXT_NUM_DEVICES, n, at, len) }
    });
    count.unwrap_or(1).max(1)
}

/// Converts the error of `CL_MEM_USE_HOST_PTR`. AMD's driver reports an allocation failure for memory of another allocator
/// (HIP's, pinned or on the device), although no memory has run out.
pub(super) fn not_over(driver: &Arc<Driver>, range: &HostRange, why: ClStatus) -> Error {
    let is_amd = driver.info.caps.address_space == Some(ROCR);
    if !is_amd || why != ClStatus::MEM_OBJECT_ALLOCATION_FAILURE {
        return conv::allocation("clCreateBuffer", why, range.bytes, &driver.info);
    }
    let at = range.pointer;
    Error::unsupported(
        format!("CL_MEM_USE_HOST_PTR of memory at {at:p} from the wrong allocator ({why})"),
        "ordinary host pages, or memory passed to kernels by address",
    )
}
