//! A program that gets its frames as dma-bufs, as V4L2 (`VIDIOC_EXPBUF`) and GStreamer (`GstDmaBufMemory`) pass them on: a kernel
//! works in each frame's own pages, and the frame goes on to the display.
//!
//! There is no camera here. `/dev/udmabuf` makes the dma-bufs; without it, memory that can be mapped stands in for them.
//!
//! `cargo run -p onebuf-examples --example dma-buf-frames`

use onebuf::{
    Access, Buffer, CopyPolicy, Device, Error, FdKind, Hub, Kernel, Queue, Signature, Source, args,
    hal::DeviceKind,
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
    sync::{Arc, mpsc},
    time::Duration,
};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// An NV12 frame: the luma plane, and a chroma plane of half its size.
const LUMA: usize = 640 * 480;
const BYTES: usize = LUMA * 3 / 2;
/// As many as a camera has: `VIDIOC_REQBUFS`.
const RING: usize = 4;
const FRAMES: usize = 12;

const TEXT: &str =
    "kernel void levels(global uchar *luma, uint first, uint n, uint gain, uint offset) {
    uint i = (uint)get_global_id(0);
    if (i < n) luma[first + i] = (uchar)(luma[first + i] * gain + offset);
}";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let levels = Levels::new(&compute(&hub))?;
    let ring: Vec<Frame> = match (0..RING).map(|_| Frame::new()).collect() {
        Ok(ring) => ring,
        Err(why) => {
            let why: io::Error = why;
            println!("no frames here: {why}");
            return Ok(());
        }
    };
    let mut way = "";
    for number in 0..FRAMES {
        let frame = &ring[number % RING];
        frame.capture(number)?; // VIDIOC_DQBUF
        way = levels.negative(frame)?;
        frame.show(number)?; // after this, VIDIOC_QBUF
    }
    let source = if ring[0].is_dma_buf { "dma-bufs" } else { "memory that stands in for dma-bufs" };
    let device = &levels.device;
    println!(
        "{device} made {FRAMES} negatives in {source}, {way}; {} bytes copied",
        hub.ledger().implied_bytes()
    );
    Ok(())
}

/// A device that imports dma-bufs, or one on the CPU, which works in mapped pages.
fn compute(hub: &Hub) -> Device {
    let all = hub.select("opencl");
    let imports = |one: &&Device| one.info().caps.imports.contains(&FdKind::DmaBuf);
    let on_cpu = |one: &&Device| one.info().kind == DeviceKind::Cpu;
    let found = all.iter().find(imports).or_else(|| all.iter().find(on_cpu));
    found.cloned().unwrap_or_else(|| hub.host())
}

/// The kernel, and a queue for it.
struct Levels {
    device: Device,
    queue: Queue,
    kernel: Kernel,
}

impl Levels {
    fn new(device: &Device) -> Result<Levels> {
        let source = Source::opencl_c(TEXT).with_native("levels", |args| {
            let [first, n] = [args.value::<u32>(1)? as usize, args.value::<u32>(2)? as usize];
            let [gain, offset] = [args.value::<u32>(3)? as u8, args.value::<u32>(4)? as u8];
            let luma = &mut args.slice_mut::<u8>(0)?[first..first + n];
            luma.iter_mut().for_each(|y| *y = y.wrapping_mul(gain).wrapping_add(offset));
            Ok(())
        });
        let values = Signature::new().buffer::<u8>(Access::ReadWrite);
        let signature = values.value::<u32>().value::<u32>().value::<u32>().value::<u32>();
        // SAFETY: the kernel touches `n` bytes from `first` on, and both launches below pass a plane of the frame.
        let kernel = unsafe { device.program(&source)?.kernel("levels", signature)? };
        Ok(Levels { device: device.clone(), queue: device.queue()?, kernel })
    }

    /// Inverts the frame's luma, and gives the frame back. Returns how the device reached its pages.
    fn negative(&self, frame: &Frame) -> Result<&'static str> {
        let hub = self.device.hub();
        // SAFETY: the program's own frame, which nothing else uses until it is given back.
        let import = unsafe { hub.import::<u8>(&frame.fd, FdKind::DmaBuf, BYTES) };
        match import.copies(CopyPolicy::Forbid).build(&self.device) {
            Ok(buffer) => {
                self.launch(buffer)?;
                Ok("imported by their descriptors")
            }
            // The device imports none, or none of this kind.
            Err(Error::Unsupported { .. } | Error::Driver { .. }) => {
                self.negative_of_pages(frame)?;
                Ok("mapped")
            }
            Err(why) => Err(why.into()),
        }
    }

    fn negative_of_pages(&self, frame: &Frame) -> Result<()> {
        let (pages, returned) = Pages::map(frame)?;
        frame.sync(SYNC_READ | SYNC_WRITE)?; // the processor works on it
        let builder = self.device.hub().buffer::<u8>(BYTES).shared_with([&self.device]);
        let builder = builder.trust_declared(true).copies(CopyPolicy::Forbid);
        let (at, owner) = (pages.0.cast(), Arc::new(pages));
        // SAFETY: the pages stay mapped as long as their owner lives, and nothing else uses the frame until they are returned.
        self.launch(unsafe { builder.host_memory(at, owner) }.build()?)?;
        returned.recv_timeout(Duration::from_secs(30))?;
        Ok(frame.sync(SYNC_READ | SYNC_WRITE | SYNC_END)?)
    }

    /// Runs the kernel, and waits until the device has let go of the memory.
    fn launch(&self, frame: Buffer<u8>) -> onebuf::Result<()> {
        let view = frame.write_on(&self.queue)?;
        let minus = 255u32; // modulo 256: 255 - y
        self.queue.launch(&self.kernel, [LUMA], args![view, 0u32, LUMA as u32, minus, 255u32])?;
        drop(frame);
        self.queue.finish()
    }
}

/// A frame: what V4L2 and GStreamer pass on is `fd`.
struct Frame {
    fd: OwnedFd,
    is_dma_buf: bool,
    /// The memory itself, for the parts of the camera and the display.
    memory: File,
}

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`, and its flag for descriptors that are closed by `exec`.
const CREATE: u32 = 0x4018_7542;
const CLOEXEC: u32 = 1;
/// `DMA_BUF_IOCTL_SYNC` of `linux/dma-buf.h`, which takes 64 bits of flags.
const SYNC: u32 = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

impl Frame {
    fn new() -> io::Result<Frame> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with zero.
        let memory: File = owned(unsafe { libc::memfd_create(c"frame".as_ptr(), flags) })?.into();
        memory.set_len(BYTES.next_multiple_of(4096) as u64)?;
        // SAFETY: an open descriptor. A dma-buf's memory must not shrink.
        checked(unsafe {
            libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK)
        })?;
        Ok(match File::options().read(true).write(true).open("/dev/udmabuf") {
            Ok(driver) => Frame { fd: dma_buf(&driver, &memory)?, is_dma_buf: true, memory },
            Err(_) => Frame { fd: memory.try_clone()?.into(), is_dma_buf: false, memory },
        })
    }

    /// Begins or ends the processor's access: `DMA_BUF_IOCTL_SYNC`.
    fn sync(&self, mut flags: u64) -> io::Result<()> {
        if !self.is_dma_buf {
            return Ok(());
        }
        // SAFETY: an open dma-buf; the kernel reads 64 bits.
        checked(unsafe { libc::ioctl(self.fd.as_raw_fd(), SYNC as _, &raw mut flags) }).map(drop)
    }

    /// The camera's part.
    fn capture(&self, number: usize) -> io::Result<()> {
        self.sync(SYNC_WRITE)?;
        self.memory.write_all_at(&picture(number), 0)?;
        self.sync(SYNC_WRITE | SYNC_END)
    }

    /// The display's part.
    fn show(&self, number: usize) -> Result<()> {
        let mut shown = vec![0; BYTES];
        self.sync(SYNC_READ)?;
        self.memory.read_exact_at(&mut shown, 0)?;
        self.sync(SYNC_READ | SYNC_END)?;
        let mut expected = picture(number);
        expected[..LUMA].iter_mut().for_each(|y| *y = 255 - *y);
        match shown == expected {
            true => Ok(()),
            false => Err(format!("frame {number} is not the negative of what was captured").into()),
        }
    }
}

/// What the camera sees: a pattern that moves.
fn picture(number: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 7 + at / 640 + 5 * number) as u8).collect()
}

/// A dma-buf of a memfd's pages.
fn dma_buf(driver: &File, memory: &File) -> io::Result<OwnedFd> {
    let size = BYTES.next_multiple_of(4096) as u64;
    let mut create = Create { memfd: memory.as_raw_fd() as u32, flags: CLOEXEC, offset: 0, size };
    // SAFETY: an open descriptor of the driver, which reads this structure and returns a descriptor.
    owned(unsafe { libc::ioctl(driver.as_raw_fd(), CREATE as _, &raw mut create) })
}

fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the system returned it just now.
    Ok(unsafe { OwnedFd::from_raw_fd(checked(fd)?) })
}

/// A frame's pages in this process. Says when neither onebuf nor a driver uses them.
struct Pages(NonNull<c_void>, mpsc::Sender<()>);

// SAFETY: the address of plain bytes.
unsafe impl Send for Pages {}
// SAFETY: as above; the sender is only used when the pages are dropped.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(frame: &Frame) -> Result<(Pages, mpsc::Receiver<()>)> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open descriptor.
        let at = unsafe {
            libc::mmap(null_mut(), BYTES, access, libc::MAP_SHARED, frame.fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let (returns, returned) = mpsc::channel();
        Ok((Pages(NonNull::new(at).ok_or("mapped at null")?, returns), returned))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, whose users are gone.
        unsafe { libc::munmap(self.0.as_ptr(), BYTES) };
        let _ = self.1.send(());
    }
}
