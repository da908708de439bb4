//! `onebuf attach` to owners that lie: it always exits with status 1 and a reason, never by a signal, and never hangs.

use crate::support::{Cli, Ran, skip};
use onebuf::{
    Error, FdKind, Hub, MemoryKind,
    peer::{Attach, Offer},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send, sendmsg,
        socket_with,
    },
};
use std::{
    fs::File,
    io::IoSlice,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream, process::ExitStatusExt},
    },
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const BYTES: u64 = 1 << 20;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The kinds of memory, as numbers of the protocol.
const PAGES: u8 = 1;
const OPAQUE: u8 = 2;
const DMA_BUF: u8 = 3;

/// One packet of the protocol.
pub fn packet(what: u16, body: &[u8]) -> Vec<u8> {
    let head = [&b"1buf"[..], &1_u16.to_le_bytes(), &what.to_le_bytes()].concat();
    [&head[..], &(body.len() as u32).to_le_bytes(), body].concat()
}

/// A grant with one descriptor.
fn grant(kind: u8, uuid: Option<[u8; 16]>, device: &str) -> Vec<u8> {
    let mut body = vec![kind, 1];
    body.extend(4_u32.to_le_bytes());
    // Allocation, offset, bytes, base, session.
    [BYTES, 0, BYTES / 2, 0, 1].iter().for_each(|number| body.extend(number.to_le_bytes()));
    body.push(uuid.is_some().into());
    body.extend(uuid.unwrap_or_default());
    body.push(device.len() as u8);
    body.extend(device.as_bytes());
    body.push(0);
    packet(2, &body)
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("liar", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// An owner that sends whatever the test says.
struct Liar {
    cli: Cli,
    folder: TempDir,
}

impl Liar {
    fn new() -> Self {
        Self { cli: Cli::new(), folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("liar.sock")
    }

    /// Runs `onebuf attach` against an owner that answers with this grant and descriptor.
    fn attach(&self, args: &str, grant: &[u8], fd: BorrowedFd<'_>) -> Ran {
        let door = self.door();
        let args = format!("attach {} --timeout 5 --rounds 1 {args}", self.path().display());
        let mut command = self.cli.command(&args);
        command.env("ONEBUF_VULKAN_LIB", "libvulkan.so.1").env("ONEBUF_OPENCL_LIB", "none");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _peer = answer(&door, grant, fd);
        ended(child)
    }

    fn door(&self) -> OwnedFd {
        let _ = std::fs::remove_file(self.path());
        let flags = SocketFlags::CLOEXEC;
        let door = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&door, &SocketAddrUnix::new(self.path()).unwrap()).unwrap();
        listen(&door, 1).unwrap();
        door
    }
}

/// Waits until the socket is readable; false on a timeout.
pub fn hears(fd: &OwnedFd) -> bool {
    let soon = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&soon)).is_ok_and(|count| count > 0)
}

/// Answers one peer; if the peer accepts the grant, gives it a turn. The connection stays open while the result lives.
fn answer(door: &OwnedFd, grant: &[u8], fd: BorrowedFd<'_>) -> OwnedFd {
    assert!(hears(door), "nobody came");
    let peer = accept(door).unwrap();
    let mut heard = [0_u8; 600];
    assert!(hears(&peer), "no hello");
    recv(&peer, &mut heard, RecvFlags::empty()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&peer, &[IoSlice::new(grant)], &mut control, SendFlags::NOSIGNAL).unwrap();
    // Receives the peer's `Ready`, unless the peer has disconnected.
    if hears(&peer) && recv(&peer, &mut heard, RecvFlags::empty()).is_ok_and(|(_, got)| got > 0) {
        let _ = send(&peer, &packet(5, &1_u64.to_le_bytes()), SendFlags::NOSIGNAL);
    }
    peer
}

/// Waits for the process and checks that no signal ended it. Kills a process that hangs.
#[track_caller]
pub fn ended(mut child: Child) -> Ran {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the program hangs");
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), None, "{}", String::from_utf8_lossy(&output.stderr));
    output.into()
}

/// A hub with Mesa's software renderers. One test at a time, because initialising them in two threads crashes.
fn mesa() -> Option<(Hub, [u8; 16], MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hub = onebuf::builder().library("vulkan", "libvulkan.so.1").without(["opencl"]);
    let hub = hub.without(["cuda", "hip"]).verdicts(Default::default()).build().unwrap();
    let uuid = hub.device("vulkan").ok().filter(|device| device.info().name.contains("llvmpipe"));
    let uuid = uuid.and_then(|device| device.info().physical.uuid);
    if uuid.is_none() || hub.device("gl").is_err() {
        skip("forged files of a software renderer: no lavapipe, or no llvmpipe");
        return None;
    }
    uuid.map(|uuid| (hub, uuid, alone))
}

/// A file that lavapipe exported, with a forged header.
fn forged(hub: &Hub) -> File {
    let device = hub.device("vulkan").unwrap();
    let buffer = hub.buffer::<u8>(BYTES as usize).shared_with([&device]).allocate_on(&device);
    let buffer = buffer.memory_kind(MemoryKind::Exportable).build().unwrap();
    let file = File::from(buffer.export(FdKind::OpaqueFd).unwrap().fd);
    let mut header = [0; 16];
    file.read_exact_at(&mut header, 0).unwrap();
    let [size, offset] =
        [0, 8].map(|at| u64::from_le_bytes(header[at..at + 8].try_into().unwrap()));
    assert!(size >= BYTES && offset > 0 && offset < size, "another header: {size} {offset}");
    // The offset of the memory from the file's first page, now far outside of the file.
    file.write_all_at(&(1_u64 << 45).to_le_bytes(), 8).unwrap();
    file
}

const BELIEVES: &str = "a driver that does not trust the contents of the owner's file";

#[test]
fn forged_files_of_a_software_renderer_are_refused() {
    let Some((hub, uuid, _alone)) = mesa() else { return };
    let (liar, file, asked) = (Liar::new(), forged(&hub), grant(OPAQUE, Some(uuid), "vulkan:0"));
    // No device is named.
    liar.attach("", &asked, file.as_fd()).failed(1, BELIEVES);
    // The devices are named, in this process: a driver that trusts the file would crash it.
    for named in ["vulkan", "gl"] {
        let (door, device) = (liar.door(), hub.device(named).unwrap());
        let (asked, file) = (asked.clone(), file.try_clone().unwrap());
        let owner = thread::spawn(move || drop(answer(&door, &asked, file.as_fd())));
        let attach = Attach::to(liar.path().to_str().unwrap());
        let error = attach.open::<u32>(&hub, |builder| builder.shared_with([&device])).map(drop);
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(BELIEVES), "{error}");
        owner.join().unwrap();
    }
    // Such memory cannot be offered either, because peers could forge the header of the owner's file.
    let device = hub.device("vulkan").unwrap();
    let buffer = hub.buffer::<u32>(4096).shared_with([&device]).allocate_on(&device);
    let buffer = buffer.memory_kind(MemoryKind::Exportable).build().unwrap();
    let refused = Offer::open(&buffer, liar.folder.path().join("own.sock").to_str().unwrap());
    assert!(matches!(refused.map(drop), Err(Error::Unsupported { .. })));
    // A file shorter than announced: accessing the rest would be a bus error.
    let (short, mut header) = (File::from(memfd(4096, SealFlags::empty())), [0; 32]);
    file.read_exact_at(&mut header, 0).unwrap();
    short.write_all_at(&header, 0).unwrap();
    short.write_all_at(&4096_u64.to_le_bytes(), 8).unwrap();
    liar.attach("", &asked, short.as_fd()).failed(1, "are needed");
}

#[test]
fn what_is_no_memory_is_refused_in_time() {
    let Some((_, uuid, _alone)) = mesa() else { return };
    let liar = Liar::new();
    let (socket, _other) = UnixStream::pair().unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let no_memory: [OwnedFd; 3] = [socket.into(), pipe.into(), File::open("/").unwrap().into()];
    for (fd, what) in no_memory.iter().zip(["a socket", "a pipe", "a directory"]) {
        for (kind, why) in [(PAGES, "not a memfd"), (OPAQUE, what), (DMA_BUF, what)] {
            liar.attach("", &grant(kind, Some(uuid), "vulkan:0"), fd.as_fd()).failed(1, why);
        }
    }
    let pages = grant(PAGES, None, "host");
    liar.attach("", &pages, memfd(BYTES - 4096, SEALS).as_fd()).failed(1, "1044480 bytes");
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let memory = memfd(BYTES, SEALS - missing);
        liar.attach("", &pages, memory.as_fd()).failed(1, "can still change its size");
    }
}

/// The owner chooses the name of a device, and error messages repeat it.
#[test]
fn no_escape_of_an_owner_reaches_the_terminal() {
    let liar = Liar::new();
    let memory = memfd(BYTES, SEALS);
    for device in ["\x1b]0;pwned\x07", "\u{9b}2J", "a\u{202e}b", "x\ny"] {
        let ran = liar.attach("", &grant(OPAQUE, Some([7; 16]), device), memory.as_fd());
        let ran = ran.failed(1, "invalid `device`");
        assert!(!ran.stderr.contains(device), "{:?}", ran.stderr);
    }
    liar.attach("", &grant(OPAQUE, Some([7; 16]), "cuda:0"), memory.as_fd()).failed(1, "of cuda:0");
}
