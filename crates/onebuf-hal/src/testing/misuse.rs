//! Invalid arguments to the object-safe traits, and the errors that every backend must return for them.
//!
//! # Safety
//! Host memory is a local array that outlives the wait for its event, or the call is rejected before it is accessed. Launches
//! are rejected.

#![allow(unsafe_code)]

use crate::{
    Access, AccessState, AllocSpec, Api, Arg, Device, Error, Grid, HostAccess, Kernel, Memory,
    NativeArgs, NativeKernel, Queue, QueueSpec, Result, Source,
    fake::{FakeConfig, FakeDevice},
    locks::Arc,
};
use std::time::Duration;

const GRID: Grid = Grid { dims: 1, global: [1; 3], local: None, offset: [0; 3] };
const LIMIT: Duration = Duration::from_secs(10);

/// The devices whose objects are mixed up.
pub struct Mixed<'d> {
    /// The device under test.
    pub device: &'d dyn Device,
    /// Another device of the same backend, in another domain, if there is one.
    pub twin: Option<&'d dyn Device>,
    /// A device of another backend.
    pub stranger: &'d dyn Device,
    /// A program that both backends build.
    pub source: &'d Source,
    /// The name of a kernel in it with one argument, a buffer.
    pub kernel: &'d str,
}

/// Checks a device together with a fake device, and with a twin if there is one. The kernel has one argument, a buffer.
pub fn beside_a_fake(
    device: &dyn Device,
    twin: Option<&dyn Device>,
    mut source: Source,
    kernel: &'static str,
) {
    let run = Arc::new(|_: &mut NativeArgs<'_>| Ok(()));
    source.native.push(NativeKernel { name: kernel.into(), run });
    let fake = FakeDevice::new(FakeConfig::default());
    Mixed { device, twin, stranger: &fake, source: &source, kernel }.check();
}

/// The objects of one device.
struct Objects {
    queue: Arc<dyn Queue>,
    memory: Arc<dyn Memory>,
    kernel: Arc<dyn Kernel>,
}

impl Mixed<'_> {
    /// Makes every invalid call, and panics if one is not rejected with the expected error.
    pub fn check(&self) {
        let own = self.objects(self.device);
        self.ranges(&own);
        self.empty_transfers(&own);
        self.regions(&own);
        self.allocations();
        let named = |name: String| move |what: &str| format!("{what} of {name}");
        self.foreign(&own, &self.objects(self.stranger), named("another backend".to_owned()));
        if let Some(twin) = self.twin {
            let theirs = self.objects(twin);
            let domain = theirs.queue.domain().0;
            self.foreign(&own, &theirs, named(format!("domain {domain}")));
        }
        self.launches(&own);
    }

    /// The size of each memory, with room for regions.
    fn bytes(&self) -> usize {
        4 * self.device.info().caps.align_bytes.max(16)
    }

    fn spec(&self, device: &dyn Device, access: Access) -> AllocSpec {
        let (bytes, memory_kind) = (self.bytes(), device.info().caps.memory_kinds[0]);
        AllocSpec { bytes, align: 16, memory_kind, access, host: HostAccess::ReadWrite, hint: None }
    }

    fn objects(&self, device: &dyn Device) -> Objects {
        let memory = device.allocate(&self.spec(device, Access::ReadWrite), None).unwrap();
        let kernel = device.build(self.source).unwrap().kernel(self.kernel, 1).unwrap();
        Objects { queue: device.queue(QueueSpec::default()).unwrap(), memory, kernel }
    }

    /// Ranges outside of a memory, including those where offset plus length overflows.
    fn ranges(&self, Objects { queue, memory, .. }: &Objects) {
        let (n, most) = (self.bytes(), usize::MAX);
        for (offset, bytes) in [(0, n + 1), (n, 1), (n + 1, 0), (most, 2), (2, most), (most, most)]
        {
            let text =
                format!("{bytes} bytes at offset {offset} do not lie in a memory of {n} bytes");
            let wrong = Err(Error::invalid(text));
            assert_eq!(read(&**queue, &**memory, offset, bytes), wrong);
            assert_eq!(write(&**queue, &**memory, offset, bytes), wrong);
            assert_eq!(queue.fill(&**memory, offset, bytes, &[1]), wrong);
            assert_eq!(queue.copy(&**memory, offset, &**memory, 0, bytes), wrong);
            if bytes <= n {
                assert_eq!(queue.copy(&**memory, 0, &**memory, offset, bytes), wrong);
            }
        }
        for (offset, bytes, pattern) in [(0, 4, &[][..]), (1, 4, &[1, 2]), (0, 3, &[1, 2])] {
            let refused = queue.fill(&**memory, offset, bytes, pattern);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{offset} {bytes}");
        }
        let overlap = queue.copy(&**memory, 0, &**memory, 8, 16).unwrap_err().to_string();
        assert!(overlap.contains("from and to overlap in 8 bytes"), "{overlap}");
        let null = Err(Error::invalid("the host pointer of a transfer is null"));
        // SAFETY: the call is rejected before the pointer is used.
        assert_eq!(unsafe { queue.read(&**memory, 0, std::ptr::null_mut(), 1) }.map(drop), null);
        // SAFETY: as above.
        assert_eq!(unsafe { queue.write(&**memory, 0, std::ptr::null(), 1) }.map(drop), null);
    }

    fn empty_transfers(&self, Objects { queue, memory, .. }: &Objects) {
        for offset in [0, self.bytes()] {
            assert_eq!(read(&**queue, &**memory, offset, 0), Ok(()));
            assert_eq!(write(&**queue, &**memory, offset, 0), Ok(()));
            assert_eq!(queue.fill(&**memory, 0, 0, &[1, 2, 3]), Ok(()));
            assert_eq!(queue.copy(&**memory, offset, &**memory, offset, 0), Ok(()));
        }
    }

    fn regions(&self, Objects { queue, memory, .. }: &Objects) {
        let (n, align) = (self.bytes(), self.device.info().caps.align_bytes);
        let region = |offset, bytes| memory.region(offset, bytes, Access::ReadWrite);
        for (offset, bytes) in [(0, n + 1), (n, 1), (usize::MAX, 2), (0, 0)] {
            let refused = region(offset, bytes);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{offset} {bytes}");
        }
        // The host device accepts regions at any offset.
        if let Err(why) = region(align / 2, 1) {
            let text = why.to_string();
            assert!(text.contains(&format!("multiples of {align}")), "{text}");
        }
        let part = region(0, align).unwrap();
        let text = part.region(0, 1, Access::Read).unwrap_err().to_string();
        assert!(text.contains("a region has no regions"), "{text}");
        let whole = Error::unsupported("the export of a region", "the whole memory");
        assert_eq!(part.export(&**queue).unwrap_err(), whole);
    }

    fn allocations(&self) {
        let spec = self.spec(self.device, Access::ReadWrite);
        let refused = |spec, contents| self.device.allocate(&spec, contents).unwrap_err();
        let text = refused(spec, Some(&[1, 2])).to_string();
        assert!(text.contains("2 bytes of contents for a memory of"), "{text}");
        let empty = AllocSpec { bytes: 0, ..spec };
        assert_eq!(refused(empty, None), Error::invalid("memory of zero bytes"));
        let odd = AllocSpec { align: 3, ..spec };
        assert_eq!(refused(odd, None), Error::invalid("alignment 3 is not a power of two"));
        if self.device.info().caps.max_alloc_bytes == 0 {
            return;
        }
        let huge = AllocSpec { bytes: usize::MAX / 2, ..spec };
        assert!(matches!(refused(huge, None), Error::OutOfMemory { .. }));
    }

    /// Objects of another device or backend are rejected before anything is enqueued.
    fn foreign(&self, own: &Objects, theirs: &Objects, named: impl Fn(&str) -> String) {
        let wrong = |what: &str| {
            let (info, domain) = (self.device.info(), own.queue.domain().0);
            let want = format!("{} device {} (domain {domain})", info.api, info.name);
            Error::ForeignContext { have: named(what), want }
        };
        let (queue, memory) = (&*own.queue, &*theirs.memory);
        let calls = [
            read(queue, memory, 0, 1),
            write(queue, memory, 0, 1),
            queue.fill(memory, 0, 1, &[1]),
            queue.copy(memory, 0, &*own.memory, 0, 1),
            queue.copy(&*own.memory, 0, memory, 0, 1),
            queue.reside(memory, AccessState::Released).map(drop),
            queue.note_use(memory),
            queue.wait_value(memory, 0, 1),
            launch(own, &*own.kernel, &[Arg::Memory(memory, Access::Read, 1)]),
        ];
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call, Err(wrong("memory")), "call {n}");
        }
        let arg = Arg::Memory(&*own.memory, Access::Read, 1);
        assert_eq!(launch(own, &*theirs.kernel, &[arg]), Err(wrong("a kernel")));
        assert_eq!(own.memory.export(&*theirs.queue).unwrap_err(), wrong("a queue"));
        let event = theirs.queue.mark().unwrap();
        // A queue whose calls run at once waits for any event; some queues accept events of other devices.
        if !queue.runs_at_once() && !queue.takes(&*event) {
            assert_eq!(queue.wait_for(std::slice::from_ref(&event)), Err(wrong("an event")));
        }
        event.wait(LIMIT).unwrap();
    }

    fn launches(&self, own: &Objects) {
        let name = self.kernel;
        let wrong = format!("kernel `{name}` takes 1 arguments, 0 given");
        assert_eq!(launch(own, &*own.kernel, &[]), Err(Error::invalid(wrong)));
        // Host pages allow every access.
        if self.device.info().api == Api::HOST {
            return;
        }
        let read_only = self.device.allocate(&self.spec(self.device, Access::Read), None).unwrap();
        let refused = launch(own, &*own.kernel, &[Arg::Memory(&*read_only, Access::Write, 1)]);
        let text = "memory made for read given to a kernel for write";
        assert_eq!(refused, Err(Error::invalid(text)));
        let text = read_only.region(0, 16, Access::ReadWrite).unwrap_err().to_string();
        assert!(text.contains("the whole memory is for read"), "{text}");
    }
}

fn read(queue: &dyn Queue, memory: &dyn Memory, offset: usize, bytes: usize) -> Result<()> {
    let mut into = [0u8];
    // SAFETY: a call that is not rejected reads at most one byte, and the wait ends after it.
    unsafe { queue.read(memory, offset, into.as_mut_ptr(), bytes) }?.wait(LIMIT)
}

fn write(queue: &dyn Queue, memory: &dyn Memory, offset: usize, bytes: usize) -> Result<()> {
    let from = [0u8];
    // SAFETY: as above.
    unsafe { queue.write(memory, offset, from.as_ptr(), bytes) }?.wait(LIMIT)
}

fn launch(own: &Objects, kernel: &dyn Kernel, args: &[Arg<'_>]) -> Result<()> {
    // SAFETY: every such launch is rejected before it is enqueued.
    unsafe { own.queue.launch(kernel, &GRID, args, &[], false) }.map(drop)
}
