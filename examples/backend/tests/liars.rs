//! Tests the suite itself: it must detect a device with one defect, and name it.
//!
//! # Safety
//! Each device is the toy with one call changed. No defect makes a command access bytes outside its ranges.

use onebuf::HubBuilder;
use onebuf_conformance::{Options, note, run};
use onebuf_hal::{
    Access, AccessState, AddressRange, AllocSpec, Api, Arg, Backend, BaseDevice, ContextHandles,
    Device, DeviceInfo, Discovered, Domain, Event, Export, FdRange, Grid, HostRange, HostSignal,
    Kernel, LayeredHandles, Memory, NativeContext, PageFile, PeerStretch, PhysicalId, Program,
    Queue, QueueSpec, Result, Search, Semaphore, SharedSemaphore, Source, Unavailable,
    watchdog::Post,
};
use onebuf_toy::{API, ToyBackend};
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

const PAGE: usize = 4096;

/// The device's defect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// A write of several pages omits the last one.
    LastPage,
    /// Every tenth kernel does not run.
    LostLaunch,
    /// A copy starts one word too late.
    ShiftedCopy,
    /// A fill writes a different first byte.
    OtherPattern,
    /// A queue does not wait for another queue's event.
    NoWait,
    /// No defect: the suite must pass.
    None,
}

#[derive(Debug)]
struct Liar(Lie);

#[derive(Debug)]
struct LyingDevice(Arc<dyn Device>, Lie);

#[derive(Debug)]
struct LyingQueue(Arc<dyn Queue>, Lie, AtomicU32);

// SAFETY: the toy meets the contract, and the defects only omit work.
unsafe impl Backend for Liar {
    fn api(&self) -> Api {
        API
    }

    fn discover(&self, search: &Search<'_>) -> Result<Discovered, Unavailable> {
        let toys = ToyBackend.discover(search)?.devices.into_iter();
        let liars = toys.map(|toy| Arc::new(LyingDevice(toy, self.0)));
        Ok(Discovered::new(liars, "a liar", Vec::new()))
    }
}

/// Defines methods that forward the call to the toy.
macro_rules! passed_on {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $type)*) $(-> $out)? {
            self.0.$name($($arg),*)
        })*
    };
}

// SAFETY: as for the toy, which does all the work.
unsafe impl Device for LyingDevice {
    passed_on! {
        fn info(&self) -> &DeviceInfo;
        fn allocate(&self, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<Arc<dyn Memory>>;
        fn import(&self, export: &Export, access: Access) -> Result<Arc<dyn Memory>>;
        fn descriptor(&self, of: &AddressRange) -> Result<FdRange>;
        fn semaphore(&self) -> Result<SharedSemaphore>;
        fn import_semaphore(&self, fd: BorrowedFd<'_>) -> Result<Arc<dyn Semaphore>>;
        fn native_handles(&self) -> Result<Vec<(&'static str, usize)>>;
        fn native_context(&self) -> Result<NativeContext>;
        fn will_share_with(&self, other: &Arc<dyn Device>);
        fn page_file(&self, pages: &HostRange) -> Result<PageFile>;
        fn map_file(&self, file: OwnedFd, bytes: usize) -> Result<HostRange>;
        fn forgets_variables(&self) -> bool;
        fn post(&self) -> Option<&Arc<Post>>;
        fn build(&self, source: &Source) -> Result<Arc<dyn Program>>;
        fn compiles(&self) -> bool;
    }

    unsafe fn base_device(
        self: Arc<Self>,
        _layered: &LayeredHandles,
    ) -> Option<Result<Arc<dyn BaseDevice>>> {
        None
    }

    unsafe fn chip_of(&self, _context: ContextHandles) -> Option<PhysicalId> {
        None
    }

    fn queue(&self, spec: QueueSpec) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(LyingQueue(self.0.queue(spec)?, self.1, AtomicU32::new(0))))
    }
}

// SAFETY: the toy meets the contract, and the defects only omit work.
unsafe impl Queue for LyingQueue {
    passed_on! {
        fn domain(&self) -> Domain;
        fn runs_at_once(&self) -> bool;
        fn mark(&self) -> Result<Arc<dyn Event>>;
        fn mark_and_flush(&self) -> Result<Arc<dyn Event>>;
        fn watch(&self) -> Result<Arc<dyn Event>>;
        fn takes(&self, event: &dyn Event) -> bool;
        fn host_signal(&self) -> Result<Box<dyn HostSignal>>;
        fn has_host_signals(&self) -> bool;
        fn events_take_calls(&self) -> bool;
        fn drains_soon(&self) -> bool;
        fn note_use(&self, memory: &dyn Memory) -> Result<()>;
        fn wait_value(&self, memory: &dyn Memory, offset: usize, value: u32) -> Result<()>;
        fn signal(&self, semaphore: &dyn Semaphore) -> Result<()>;
        fn wait_signal(&self, semaphore: &dyn Semaphore) -> Result<()>;
        fn flush(&self) -> Result<()>;
        fn reside(&self, memory: &dyn Memory, to: AccessState) -> Result<bool>;
        fn move_pages(&self, memory: &dyn Memory, at: usize, bytes: usize, to: AccessState) -> Result<()>;
        fn copy_from_peer(&self, from: PeerStretch<'_>, to: &dyn Memory, at: usize, bytes: usize) -> Result<Option<Arc<dyn Event>>>;
        fn call_native(&self, uses: &[&dyn Memory], call: &mut dyn FnMut(usize) -> Result<()>) -> Result<()>;
        fn raw(&self) -> usize;
    }

    fn wait_for(&self, events: &[Arc<dyn Event>]) -> Result<()> {
        if self.1 == Lie::NoWait { Ok(()) } else { self.0.wait_for(events) }
    }

    unsafe fn read(
        &self,
        from: &dyn Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>> {
        // SAFETY: the caller's guarantee.
        unsafe { self.0.read(from, offset, into, bytes) }
    }

    unsafe fn write(
        &self,
        to: &dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>> {
        let lost = if self.1 == Lie::LastPage && bytes > PAGE { PAGE } else { 0 };
        // SAFETY: the caller's guarantee, for fewer bytes.
        unsafe { self.0.write(to, offset, from, bytes - lost) }
    }

    fn fill(&self, memory: &dyn Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let mut pattern = pattern.to_vec();
        pattern[0] ^= u8::from(self.1 == Lie::OtherPattern);
        self.0.fill(memory, offset, bytes, &pattern)
    }

    fn copy(
        &self,
        from: &dyn Memory,
        from_offset: usize,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let late = if self.1 == Lie::ShiftedCopy && bytes > 4 { 4 } else { 0 };
        self.0.copy(from, from_offset + late, to, to_offset, bytes - late)
    }

    unsafe fn launch(
        &self,
        kernel: &dyn Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let number = self.2.fetch_add(1, Ordering::Relaxed);
        if self.1 == Lie::LostLaunch && number % 10 == 9 {
            return if wants_event { self.mark().map(Some) } else { Ok(None) };
        }
        // SAFETY: the caller's guarantee.
        unsafe { self.0.launch(kernel, grid, args, after, wants_event) }
    }
}

fn hub(lie: Lie) -> HubBuilder {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    // SAFETY: see the `impl` above.
    unsafe { builder.backend(Box::new(Liar(lie))) }
}

/// The failures of the cases that detect this defect. Without waits, cases in which devices take turns would race.
fn failures(lie: Lie) -> Vec<String> {
    let filter = match lie {
        Lie::NoWait => vec!["a_queue_waits_for_a_fence_of_its_own_context".into()],
        _ => vec!["alone::".into(), "pairs::".into()],
    };
    let devices = vec!["toy".into()];
    let options = Options { filter, devices, strict: true, ..Options::default() };
    let report = run(&|| hub(lie), &options);
    report.failures().map(ToString::to_string).collect()
}

#[test]
fn every_lie_is_found_out() {
    assert_eq!(failures(Lie::None), [""; 0]);
    let found = [
        (Lie::LastPage, "alone::ranges_are_written_read_and_filled", "differ"),
        (Lie::LostLaunch, "alone::two_queues_of_one_device_are_ordered", "differ"),
        (Lie::ShiftedCopy, "alone::copies_between_buffers_and_within_one", "differ"),
        (Lie::OtherPattern, "alone::ranges_are_written_read_and_filled", "differ"),
        (Lie::NoWait, "queues::a_queue_waits_for_a_fence_of_its_own_context", "did not wait"),
    ];
    for (lie, case, why) in found {
        // A missing wait is visible only if the other queue starts immediately, which may fail on a busy machine.
        let failures = (0..20).map(|_| failures(lie)).find(|failures| !failures.is_empty());
        let failures = failures.unwrap_or_default();
        note(&format!("{lie:?}: {} checks failed", failures.len()));
        let head = format!("fail: {case} on toy:0");
        let named = failures.iter().any(|text| text.starts_with(&head) && text.contains(why));
        assert!(named, "{lie:?} is not found out by {case}: {failures:#?}");
        assert!(failures.iter().all(|text| text.contains("toy:0")), "{failures:#?}");
    }
}
