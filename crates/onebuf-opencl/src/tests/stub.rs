//! The stub driver: it has features that no driver of this machine has, and its state can be inspected.

use super::*;
use onebuf_hal::RawHandle;
use onebuf_sys::{
    ClStatus,
    opencl::{ClContext, ClMem, OpenCl, consts as cl},
};
use std::{path::PathBuf, process::Command, ptr, sync::OnceLock};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/stub/opencl_stub.c");

/// The loaded stub library and its path for loading it again; `None`, after a printed skip, without a C compiler.
pub(super) fn library() -> Option<(OpenCl, String)> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    let path = BUILT.get_or_init(build).clone()?;
    Some((OpenCl::load(Some(&path), None).unwrap(), path))
}

fn build() -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let library: PathBuf = program.with_file_name(format!("libstub-{}.so", std::process::id()));
    let flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-pthread", "-o"];
    match Command::new("cc").args(flags).arg(&library).arg(SOURCE).status() {
        Ok(status) => assert!(status.success(), "the stub driver does not build"),
        Err(why) => {
            println!("skip: no stub driver without a C compiler: {why}");
            return None;
        }
    }
    let path = library.to_string_lossy().into_owned();
    // Loaded now, so that the file can be removed; loading it again finds it by its name.
    OpenCl::load(Some(&path), None).unwrap();
    std::fs::remove_file(&library).unwrap();
    Some(path)
}

/// The two platforms of the stub that `alone` configures: an ordinary one, and one of Texas Instruments that imports
/// descriptors.
pub(super) fn platforms(path: &str) -> [Rig; 2] {
    let (probe, mut next) = (Probe::new(), 0);
    let mut next_domain = || {
        next += 1;
        Domain(next)
    };
    let found = discover(Some(path), Some(probe.clone()), &mut next_domain).unwrap();
    let rigs = found.devices.into_iter().map(|device| Rig { probe: probe.clone(), device });
    let rigs: Vec<_> = rigs.collect();
    rigs.try_into().unwrap()
}

/// Queries the driver for a property of a memory object.
fn asked<T: bytemuck::Pod>(table: &OpenCl, memory: &dyn hal::Memory, what: u32) -> T {
    let RawHandle::Object(mem) = memory.raw() else { panic!("{memory:?}") };
    super::super::query::value(|n, at, len| {
        // SAFETY: a live object; `query` passes a buffer of the stated length.
        unsafe { table.get_mem_object_info(ClMem(mem as *mut _), what, n, at, len) }
    })
    .unwrap()
}

#[test]
fn memory_on_the_chip_is_for_texas_instruments() {
    let _alone = alone();
    let Some((table, path)) = library() else { return };
    let [ordinary, ti] = platforms(&path);
    let refused = ordinary.memory(MemoryKind::OnChip, 4096).unwrap_err();
    assert!(refused.to_string().contains("Texas Instruments"), "{refused}");
    assert!(!ordinary.memory_kinds().contains(&MemoryKind::OnChip));
    assert!(ti.memory_kinds().contains(&MemoryKind::OnChip));

    let queue = ti.queue();
    let memory = ti.memory(MemoryKind::OnChip, 4096).unwrap();
    let flags: u64 = asked(&table, &*memory, cl::CL_MEM_FLAGS);
    assert_eq!(flags, cl::CL_MEM_USE_MSMC_TI | cl::CL_MEM_READ_WRITE);
    let remark = memory.remark().unwrap();
    assert!(remark.contains("CL_MEM_USE_MSMC_TI"), "{remark}");
    assert!(!memory.needs_access_state() && memory.host_pointer().is_none());
    assert!(matches!(memory.export(&*queue), Err(Error::Unsupported { .. })));
    put(&*queue, &*memory, 0, &numbers(4096));
    assert_eq!(get(&*queue, &*memory, 0, 4096), numbers(4096));
    let device = ti.memory(MemoryKind::Device, 4096).unwrap();
    let flags: u64 = asked(&table, &*device, cl::CL_MEM_FLAGS);
    assert_eq!(flags, cl::CL_MEM_READ_WRITE, "only what was asked for");
    // The control: the stub's other platform reports this flag as invalid.
    let context: usize =
        asked(&table, &*ordinary.memory(MemoryKind::Device, 64).unwrap(), cl::CL_MEM_CONTEXT);
    // SAFETY: the call is refused; a device keeps its context.
    let made = unsafe {
        let context = ClContext(context as *mut _);
        table.create_buffer(context, cl::CL_MEM_USE_MSMC_TI, 64, ptr::null_mut())
    };
    assert_eq!(made, Err(ClStatus::INVALID_VALUE));

    regions_arrive_as_asked(&table, &ordinary);
    host_access_arrives_as_asked(&table, &ordinary);
    drop((memory, device, queue));
    let probe = ti.probe.clone();
    drop((ordinary, ti));
    settled(&probe);
}

fn regions_arrive_as_asked(table: &OpenCl, rig: &Rig) {
    let whole = rig.memory(MemoryKind::MappedDevice, 4096).unwrap();
    let RawHandle::Object(parent) = whole.raw() else { panic!() };
    for (access, flag) in [
        (Access::Read, cl::CL_MEM_READ_ONLY),
        (Access::Write, cl::CL_MEM_WRITE_ONLY),
        (Access::ReadWrite, cl::CL_MEM_READ_WRITE),
    ] {
        let part = whole.region(1024, 512, access).unwrap();
        assert_eq!(asked::<usize>(table, &*part, cl::CL_MEM_OFFSET), 1024);
        assert_eq!(asked::<usize>(table, &*part, cl::CL_MEM_SIZE), 512);
        assert_eq!(asked::<usize>(table, &*part, cl::CL_MEM_ASSOCIATED_MEMOBJECT), parent);
        let flags: u64 = asked(table, &*part, cl::CL_MEM_FLAGS);
        assert_eq!(flags, flag | cl::CL_MEM_ALLOC_HOST_PTR);
    }
}

fn host_access_arrives_as_asked(table: &OpenCl, rig: &Rig) {
    for (host, flag) in [
        (HostAccess::ReadWrite, 0),
        (HostAccess::Read, cl::CL_MEM_HOST_READ_ONLY),
        (HostAccess::Write, cl::CL_MEM_HOST_WRITE_ONLY),
        (HostAccess::None, cl::CL_MEM_HOST_NO_ACCESS),
    ] {
        let spec = AllocSpec { host, access: Access::Read, ..spec(MemoryKind::Device, 64) };
        let memory = rig.device.allocate(&spec, Some(&[7; 64])).unwrap();
        let flags: u64 = asked(table, &*memory, cl::CL_MEM_FLAGS);
        assert_eq!(flags, flag | cl::CL_MEM_READ_ONLY | cl::CL_MEM_COPY_HOST_PTR);
    }
}

/// A compiler that fails because of the option that onebuf adds gets the text without it.
#[test]
fn a_program_is_built_without_the_added_option_if_need_be() {
    let _alone = alone();
    let Some((_, path)) = library() else { return };
    let [ordinary, _] = platforms(&path);
    let text = "/* ptxas_no_arg_info */ kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {}";
    let program = ordinary.program(text).unwrap();
    assert!(program.kernel("onebuf_step", 5).unwrap().parameter(0).is_none());
    let reported = ordinary.program(text.trim_start_matches("/* ptxas_no_arg_info */")).unwrap();
    assert!(reported.kernel("onebuf_step", 5).unwrap().parameter(0).is_some(), "the control");
    let wrong = ordinary.program("#error").unwrap_err();
    assert!(matches!(wrong, Error::Build { .. }), "{wrong}");
}
