//! Frames in dma-bufs, as cameras and codecs pass them on: a kernel reads what the camera wrote, and the display sees what the
//! kernel wrote, on every page. The kernel makes real dma-bufs of a memfd's pages (`/dev/udmabuf`); the stub driver, which imports
//! by the Khronos extension and by Arm's, also takes the memfd itself.

use onebuf::{Buffer, CopyPolicy, Device, Error, FdKind, Hub, Result, hal::DeviceKind};
use onebuf_conformance::{
    Side, Step, Watchdog, assert_same, everything, forged_zero_copy, lacking, machine, pages_apart,
    play, random_words, step_model,
};
use std::{
    ffi::c_void,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    ptr::{NonNull, null_mut},
    sync::Arc,
    thread,
    time::Duration,
};

/// Five pages.
const N: usize = 5 * 1024;
const BYTES: usize = 4 * N;
const PAGES: usize = BYTES / 4096;
const DRIVER: &str = "/dev/udmabuf";

#[test]
fn the_khronos_extension_imports_frames() {
    play("frames_take_turns", "CUDA", "dma_buf,cached", &[]);
}

#[test]
fn arms_extension_imports_frames() {
    play("frames_take_turns", "CUDA", "arm", &[("ONEBUF_STUB_ARM", "1.1")]);
}

/// The control: the test above looks at the frame's own pages, so a driver that works on a copy is found.
#[test]
fn a_driver_that_copies_is_found() {
    play("a_copy_stays_behind", "CUDA", "dma_buf,separate", &[]);
}

#[test]
fn without_an_extension_the_import_is_refused() {
    play("refused", "CUDA", "imports", &[]);
    play("refused", "CUDA", "arm", &[("ONEBUF_STUB_ARM", "1.0")]);
}

/// A frame: one program owns its memory, and passes a descriptor on.
struct Frame {
    /// The memory, as the camera writes it and the display reads it.
    memory: File,
    /// What other programs get: a dma-buf, or the memory itself.
    fd: OwnedFd,
    is_dma_buf: bool,
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const CREATE: u32 = 0x4018_7542;
/// `DMA_BUF_IOCTL_SYNC` of `linux/dma-buf.h`: `_IOW('b', 0, struct dma_buf_sync)`, which is 64 bits of flags.
const SYNC: u32 = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// A new descriptor, or the system's error.
fn made(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the system call has just returned this descriptor, which has no other owner.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

impl Frame {
    /// Memory whose size is sealed, as udmabuf needs it.
    fn memory() -> File {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with zero.
        let fd = made(unsafe { libc::memfd_create(c"onebuf-frame".as_ptr(), flags) }).unwrap();
        let memory = File::from(fd);
        memory.set_len(BYTES as u64).unwrap();
        // SAFETY: a descriptor that is open.
        let sealed =
            unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0, "{}", io::Error::last_os_error());
        memory
    }

    /// A memfd, which the stub driver takes for a dma-buf.
    fn stand_in() -> Frame {
        let memory = Frame::memory();
        let fd = memory.try_clone().unwrap().into();
        Frame { memory, fd, is_dma_buf: false }
    }

    /// A dma-buf that the kernel made. `None`, after a printed skip, if it makes none for this user.
    fn of_the_kernel() -> Option<Frame> {
        let driver = match File::options().read(true).write(true).open(DRIVER) {
            Ok(driver) => driver,
            Err(why) => {
                lacking(&[], &format!("no dma-buf of the kernel: {DRIVER}: {why}"));
                return None;
            }
        };
        let memory = Frame::memory();
        let mut create = Create {
            memfd: memory.as_raw_fd() as u32,
            flags: 1, // UDMABUF_FLAGS_CLOEXEC
            offset: 0,
            size: BYTES as u64,
        };
        // SAFETY: an open descriptor of the driver, which reads this structure and returns a descriptor.
        let fd = unsafe { libc::ioctl(driver.as_raw_fd(), CREATE as _, &raw mut create) };
        Some(Frame { memory, fd: made(fd).expect(DRIVER), is_dma_buf: true })
    }

    /// Those that the stub driver can import.
    fn for_the_stub() -> Vec<Frame> {
        [Some(Frame::stand_in()), Frame::of_the_kernel()].into_iter().flatten().collect()
    }

    /// Begins or ends the processor's use of a dma-buf.
    fn sync(&self, flags: u64) {
        let mut flags = flags;
        if self.is_dma_buf {
            // SAFETY: an open dma-buf; the kernel reads 64 bits.
            let synced = unsafe { libc::ioctl(self.fd.as_raw_fd(), SYNC as _, &raw mut flags) };
            assert_eq!(synced, 0, "DMA_BUF_IOCTL_SYNC: {}", io::Error::last_os_error());
        }
    }

    /// As the camera.
    fn write(&self, words: &[u32]) {
        self.sync(SYNC_WRITE);
        self.memory.write_all_at(onebuf::bytemuck::cast_slice(words), 0).unwrap();
        self.sync(SYNC_WRITE | SYNC_END);
    }

    /// As the display.
    fn read(&self) -> Vec<u32> {
        let mut words = vec![0; N];
        self.sync(SYNC_READ);
        self.memory.read_exact_at(onebuf::bytemuck::cast_slice_mut(&mut words), 0).unwrap();
        self.sync(SYNC_READ | SYNC_END);
        words
    }
}

fn import(side: &Side, frame: &Frame) -> Result<Buffer<u32>> {
    // SAFETY: a dma-buf of this process, or a memfd on the stub driver, which maps files. Only this test has it.
    let import = unsafe { side.device.hub().import::<u32>(&frame.fd, FdKind::DmaBuf, BYTES) };
    import.copies(CopyPolicy::Forbid).build(&side.device)
}

/// The camera, a kernel and the display take turns on each of two frames. Returns the driver's refusal of the first import.
fn take_turns(side: &Side, frames: &[Frame; 2]) -> Result<()> {
    let hub = side.device.hub();
    let before = hub.ledger().implied_bytes();
    for round in 0..6 {
        let (frame, other) = (&frames[round % 2], &frames[(round + 1) % 2]);
        let untouched = other.read();
        let mut model = random_words(round as u64, N);
        frame.write(&model);
        let buffer = match import(side, frame) {
            Err(refused @ Error::Driver { .. }) if round == 0 => return Err(refused),
            imported => imported.unwrap(),
        };
        assert_same(&side.look(&buffer).unwrap(), &model, "the camera, then the device");
        let step = Step::nth(round as u32);
        side.step(&buffer, step).unwrap();
        // The camera gets the frame back when the device has let go of it.
        drop(buffer);
        side.queue.finish().unwrap();
        let captured = model.clone();
        step_model(&mut model, step);
        let shown = frame.read();
        assert_same(&shown, &model, "the device, then the display");
        assert_eq!(pages_apart(&shown, &captured).len(), PAGES, "the kernel changes every page");
        assert_same(&other.read(), &untouched, "the frame that was not imported");
    }
    assert_eq!(hub.ledger().implied_bytes(), before, "{}", hub.ledger());
    Ok(())
}

fn stubbed() -> (Hub, Side) {
    let builder = onebuf::builder().only(["opencl"]).verdicts(Default::default());
    let hub = builder.timeout(Duration::from_secs(30)).build().unwrap();
    let side = Side::open(&hub.device("opencl:0").unwrap()).unwrap();
    (hub, side)
}

#[test]
#[ignore = "started by a test above, with the stub driver"]
fn frames_take_turns() {
    let (_hub, side) = stubbed();
    take_turns(&side, &[Frame::stand_in(), Frame::stand_in()]).unwrap();
    let (Some(one), Some(other)) = (Frame::of_the_kernel(), Frame::of_the_kernel()) else { return };
    take_turns(&side, &[one, other]).unwrap();
}

#[test]
#[ignore = "started by a test above, with the stub driver"]
fn a_copy_stays_behind() {
    let (_hub, side) = stubbed();
    for frame in Frame::for_the_stub() {
        let captured = random_words(7, N);
        frame.write(&captured);
        let buffer = import(&side, &frame).unwrap();
        side.step(&buffer, Step::nth(7)).unwrap();
        drop(buffer);
        side.queue.finish().unwrap();
        let mut model = captured.clone();
        step_model(&mut model, Step::nth(7));
        let shown = frame.read();
        assert_eq!(pages_apart(&shown, &model).len(), PAGES, "every page lacks the kernel's work");
        assert_same(&shown, &captured, "the display");
    }
}

#[test]
#[ignore = "started by a test above, with the stub driver"]
fn refused() {
    let (_hub, side) = stubbed();
    for frame in Frame::for_the_stub() {
        let refused = import(&side, &frame).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    }
}

/// Real drivers import real dma-bufs. Those of GPUs may take only memory of their own kind.
#[test]
fn drivers_import_frames_of_the_kernel() {
    let (Some(one), Some(other)) = (Frame::of_the_kernel(), Frame::of_the_kernel()) else { return };
    let frames = [one, other];
    let hub = onebuf::builder().verdicts(Default::default()).build().unwrap();
    let imports = |device: &Device| device.info().caps.imports.contains(&FdKind::DmaBuf);
    let devices: Vec<_> = hub.devices().into_iter().filter(imports).collect();
    if devices.is_empty() {
        lacking(&[], "no driver here imports dma-bufs");
    }
    for device in devices {
        let side = Side::open(&device).unwrap();
        if let Err(why) = take_turns(&side, &frames) {
            lacking(&[], &format!("{device} imports no dma-buf of ordinary pages: {why}"));
        }
    }
}

/// A frame's pages in this process, unmapped with their last user.
struct Pages(NonNull<u32>);

// SAFETY: the address of plain words.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(frame: &Frame) -> Arc<Pages> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = frame.fd.as_raw_fd();
        // SAFETY: a new mapping of an open descriptor.
        let at = unsafe { libc::mmap(null_mut(), BYTES, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Arc::new(Pages(NonNull::new(at.cast()).unwrap()))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, whose users are gone.
        unsafe { libc::munmap(self.0.as_ptr().cast::<c_void>(), BYTES) };
    }
}

/// Drivers on the CPU import no descriptors, and need none: a frame that is mapped is host memory, which they use in place.
#[test]
fn devices_on_the_cpu_work_in_a_frames_pages() {
    // One test at a time uses the drivers, as in the suite.
    let machine = machine();
    // An unproven route counts as one that copies. The frame's own pages, which are looked at below, tell whether it does.
    let hub = everything().verdicts(forged_zero_copy(&machine.hub)).build().unwrap();
    let on_cpu =
        |device: &Device| device.info().api.0 == "opencl" && device.info().kind == DeviceKind::Cpu;
    let Some(device) = hub.devices().into_iter().find(on_cpu) else {
        // The machine's own check has required the drivers that `./dev` installs.
        return lacking(&[], "no OpenCL device on the CPU");
    };
    let side = Side::open(&device).unwrap();
    for frame in Frame::for_the_stub() {
        let pages = Pages::map(&frame);
        for round in 0..4 {
            let captured = random_words(u64::from(round) + 40, N);
            frame.write(&captured);
            let builder = hub.buffer::<u32>(N).shared_with([&device]).trust_declared(true);
            // SAFETY: the owner keeps the mapping. The camera and the display do not use it before onebuf has let go of that.
            let builder = unsafe { builder.host_memory(pages.0, pages.clone()) };
            let buffer = builder.build().unwrap();
            let before = hub.ledger().implied_bytes();
            side.step(&buffer, Step::nth(round)).unwrap();
            drop(buffer.map().unwrap());
            assert_eq!(hub.ledger().implied_bytes(), before, "{}", buffer.explain());
            drop(buffer);
            let _end = Watchdog::new("the end of a buffer over a frame", Duration::from_secs(30));
            while Arc::strong_count(&pages) > 1 {
                thread::sleep(Duration::from_millis(1));
            }
            let mut model = captured.clone();
            step_model(&mut model, Step::nth(round));
            let shown = frame.read();
            assert_same(&shown, &model, "the device, then the display");
            assert_eq!(pages_apart(&shown, &captured).len(), PAGES, "every page changes");
        }
    }
}
