//! Tests of the host through the `hal` traits.
//!
//! # Safety
//!
//! Transfers run inline, so a local array outlives them; kernels access memory only as declared.

#![allow(unsafe_code)]

use super::HostDevice;
use onebuf_hal::{
    Access, AccessState, AllocSpec, Arg, Device, Domain, Error, Grid, HostAccess, Memory,
    MemoryKind, NativeArgs, NativeKernel, QueueOrder, QueueSpec, Result, Source, locks::Arc,
};
use std::time::Duration;

const GRID: Grid = Grid { dims: 1, global: [4, 9, 9], local: None, offset: [0; 3] };

fn device() -> HostDevice {
    HostDevice::new(Domain(7))
}

fn allocate(device: &HostDevice, bytes: usize) -> Arc<dyn Memory> {
    let spec = AllocSpec {
        bytes,
        align: 64,
        memory_kind: MemoryKind::HostPages,
        access: Access::ReadWrite,
        host: HostAccess::ReadWrite,
        hint: None,
    };
    device.allocate(&spec, None).unwrap()
}

fn program(
    name: &'static str,
    run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
) -> Source {
    Source {
        native: vec![NativeKernel { name: name.into(), run: Arc::new(run) }],
        ..Source::default()
    }
}

fn read<const N: usize>(
    device: &HostDevice,
    memory: &dyn Memory,
    offset: usize,
) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let queue = device.queue(QueueSpec::default())?;
    // SAFETY: the host reads inline, into a local array.
    unsafe { queue.read(memory, offset, bytes.as_mut_ptr(), N) }?.wait(Duration::ZERO)?;
    Ok(bytes)
}

#[test]
fn it_tells_what_it_is() {
    let device = device();
    let info = device.info();
    assert!(!info.name.is_empty() && info.memory_bytes > 0);
    let wrong = AllocSpec {
        bytes: 1,
        align: 1,
        memory_kind: MemoryKind::Device,
        access: Access::Read,
        host: HostAccess::ReadWrite,
        hint: None,
    };
    assert!(matches!(device.allocate(&wrong, None), Err(Error::Unsupported { .. })));
    let large = AllocSpec { bytes: 1 << 60, memory_kind: MemoryKind::HostPages, ..wrong };
    assert!(matches!(
        device.allocate(&large, None),
        Err(Error::OutOfMemory { limit: Some(_), .. })
    ));
    assert!(matches!(
        device.queue(QueueSpec { order: QueueOrder::OutOfOrder, profiling: false }),
        Err(Error::Unsupported { .. })
    ));
}

#[test]
fn transfers_stay_in_bounds() {
    let device = device();
    let queue = device.queue(QueueSpec::default()).unwrap();
    let (a, b) = (allocate(&device, 8), allocate(&device, 8));
    // SAFETY: the host writes inline, from a local array.
    unsafe { queue.write(&*a, 2, [1, 2, 3].as_ptr(), 3) }.unwrap();
    queue.copy(&*a, 2, &*b, 5, 3).unwrap();
    queue.fill(&*b, 0, 4, &[8, 9]).unwrap();
    assert_eq!(read(&device, &*b, 0), Ok([8, 9, 8, 9, 0, 1, 2, 3]));

    assert!(matches!(read::<4>(&device, &*a, 5), Err(Error::InvalidArgument(_))));
    assert!(matches!(read::<4>(&device, &*a, usize::MAX), Err(Error::InvalidArgument(_))));
    assert!(queue.copy(&*a, 0, &*a, 4, 5).is_err());
    assert!(queue.copy(&*a, 0, &*a, 3, 4).is_err(), "overlap");
    assert!(queue.fill(&*a, 0, 8, &[1, 2, 3]).is_err());
    // SAFETY: it is refused before the pointer is used.
    assert!(unsafe { queue.read(&*a, 0, std::ptr::null_mut(), 1) }.is_err());
}

#[test]
fn an_import_is_the_same_pages() {
    let device = device();
    let queue = device.queue(QueueSpec::default()).unwrap();
    let memory = allocate(&device, 16);
    let view = device.import(&memory.export(&*queue).unwrap(), Access::Read).unwrap();
    assert_eq!(view.host_pointer(), memory.host_pointer());
    assert_eq!(queue.reside(&*view, AccessState::Released), Ok(false));
    queue.fill(&*memory, 0, 16, &[6]).unwrap();
    drop(memory);
    assert_eq!(read(&device, &*view, 15), Ok([6]), "the view keeps the pages");
}

#[test]
fn pages_may_be_more_than_there_is_memory_and_regions_begin_anywhere() {
    use onebuf_hal::{Export, HostRange};
    let device = device();
    let queue = device.queue(QueueSpec::default()).unwrap();
    let memory = allocate(&device, 16);
    let Export::Host(pages) = memory.export(&*queue).unwrap() else { panic!("host pages") };
    let import =
        |bytes| device.import(&Export::Host(HostRange { bytes, ..pages.clone() }), Access::Read);
    assert!(import(1 << 60).is_ok(), "nobody touches them");
    assert_eq!(import(0).unwrap_err(), Error::invalid("memory of zero bytes"));
    let part = memory.region(3, 5, Access::ReadWrite).unwrap();
    queue.fill(&*part, 0, 5, &[6]).unwrap();
    assert_eq!(read(&device, &*memory, 3), Ok([6; 5]));
}

#[test]
fn memory_of_another_domain_is_refused() {
    let (ours, theirs) = (device(), HostDevice::new(Domain(8)));
    let memory = allocate(&theirs, 4);
    assert!(matches!(read::<1>(&ours, &*memory, 0), Err(Error::ForeignContext { .. })));
}

#[test]
fn a_native_kernel_gets_its_arguments() {
    let device = device();
    let queue = device.queue(QueueSpec::default()).unwrap();
    let source = program("scale", |args| {
        assert_eq!(args.global(), [4, 1, 1]);
        let factor = args.value::<u8>(1)?;
        args.slice_mut::<u8>(0)?.iter_mut().for_each(|byte| *byte *= factor);
        Ok(())
    });
    let kernel = device.build(&source).unwrap().kernel("scale", 2).unwrap();
    let memory = allocate(&device, 4);
    queue.fill(&*memory, 0, 4, &[5]).unwrap();
    let launch = |args: &[Arg<'_>]| {
        // SAFETY: the kernel changes only argument 0, within its bounds.
        unsafe { queue.launch(&*kernel, &GRID, args, &[], false) }
    };
    launch(&[Arg::Memory(&*memory, Access::ReadWrite, usize::MAX), Arg::Bytes(&[3])]).unwrap();
    assert_eq!(read(&device, &*memory, 0), Ok([15; 4]));
    let read_only = launch(&[Arg::Memory(&*memory, Access::Read, usize::MAX), Arg::Bytes(&[3])]);
    assert!(matches!(read_only, Err(Error::InvalidArgument(_))));
    assert!(
        launch(&[Arg::Memory(&*memory, Access::Write, usize::MAX)]).is_err(),
        "too few arguments"
    );
    let local = launch(&[Arg::Memory(&*memory, Access::Write, usize::MAX), Arg::Local(4)]);
    assert!(matches!(local, Err(Error::Unsupported { .. })));
}

#[test]
fn a_panic_of_a_native_kernel_is_an_error() {
    let device = device();
    let queue = device.queue(QueueSpec::default()).unwrap();
    let source = program("bang", |_| panic!("no {}", "luck"));
    let kernel = device.build(&source).unwrap().kernel("bang", 0).unwrap();
    // SAFETY: the kernel accesses no memory.
    let error = unsafe { queue.launch(&*kernel, &GRID, &[], &[], false) }.unwrap_err();
    assert_eq!(error, Error::invalid("native kernel `bang` panicked: no luck"));
}

#[test]
fn programs_say_what_they_lack() {
    let device = device();
    assert_eq!(
        device.build(&Source::default()).unwrap_err(),
        Error::unsupported("program on host", "a native kernel")
    );
    let error = device.build(&program("a", |_| Ok(()))).unwrap().kernel("b", 0).unwrap_err();
    assert_eq!(error, Error::invalid("no native kernel `b`; the program has a"));
}

#[test]
fn events_are_over_and_host_signals_are_not_there() {
    let queue = device().queue(QueueSpec::default()).unwrap();
    let event = queue.mark().unwrap();
    assert_eq!(event.poll(), Ok(true));
    let (sender, receiver) = std::sync::mpsc::channel();
    assert!(event.on_complete(Box::new(move |outcome| sender.send(outcome).unwrap())).is_ok());
    assert_eq!(receiver.try_recv(), Ok(Ok(())));
    queue.wait_for(&[event]).unwrap();
    assert!(matches!(queue.host_signal().err(), Some(Error::Unsupported { .. })));
}

#[cfg(not(miri))]
#[test]
fn wrong_arguments_are_refused_alike_by_every_backend() {
    use onebuf_hal::{
        fake::{FakeConfig, FakeDevice},
        testing::misuse::Mixed,
    };

    let source = program("touch", |_| Ok(()));
    let hosts = [7, 8].map(|domain| HostDevice::new(Domain(domain)));
    let fakes = [9, 10].map(|domain| {
        FakeDevice::new(FakeConfig { domain: Domain(domain), ..FakeConfig::default() })
    });
    let mixed = |device, twin, stranger| Mixed {
        device,
        twin: Some(twin),
        stranger,
        source: &source,
        kernel: "touch",
    };
    mixed(&hosts[0], &hosts[1], &fakes[0]).check();
    mixed(&fakes[0], &fakes[1], &hosts[0]).check();
}
