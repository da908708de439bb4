//! Checks a file descriptor by what the kernel reports, before it is passed to a driver.
//!
//! Nothing here blocks. A file system may answer late or never, but cached attributes and a memfd's seals need no request to
//! it.

use super::FdKind;
use rustix::fs::{AtFlags, FileType, SeekFrom, StatxFlags, fcntl_get_seals, seek, statx};
use std::os::fd::AsFd;

/// The kind of a descriptor that can be memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A memfd: pages in the kernel, without a file system.
    Memfd,
    /// A file of a file system.
    File,
    /// An object of a driver: a character device, or an anonymous inode such as a dma-buf.
    Driver,
}

/// Checks that a descriptor can be memory of that kind, and that it is long enough if the kernel reports its length.
pub fn check(fd: impl AsFd, kind: FdKind, bytes: u64) -> Result<Sort, String> {
    let fd = fd.as_fd();
    // Without `STATX_DONT_SYNC` the kernel would query a file system in user space, which may belong to the sender.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::SIZE)
        .map_err(|why| format!("statx failed ({why})"))?;
    let (sort, there) = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile if fcntl_get_seals(fd).is_ok() => (Sort::Memfd, found.stx_size),
        FileType::RegularFile => (Sort::File, found.stx_size),
        FileType::CharacterDevice if kind == FdKind::OpaqueFd => (Sort::Driver, bytes),
        // An anonymous inode has no type.
        FileType::Unknown => match kind {
            FdKind::DmaBuf => (Sort::Driver, seek(fd, SeekFrom::End(0)).unwrap_or(0)),
            FdKind::OpaqueFd => (Sort::Driver, bytes),
        },
        other => return Err(format!("it is {}, not memory", name(other))),
    };
    match there < bytes {
        true => Err(format!("it has {there} bytes, but {bytes} are needed")),
        false => Ok(sort),
    }
}

fn name(file: FileType) -> &'static str {
    match file {
        FileType::Socket => "a socket",
        FileType::Fifo => "a pipe",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::RegularFile | FileType::Unknown => "a file",
    }
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, open};
    use std::{io, os::unix::net::UnixStream};

    #[test]
    fn what_cannot_be_memory_is_told() {
        let refused = |fd: &dyn AsFd, kind, why: &str| {
            let error = check(fd.as_fd(), kind, 4096).unwrap_err();
            assert!(error.contains(why), "no `{why}` in: {error}");
        };
        let both = [FdKind::OpaqueFd, FdKind::DmaBuf];
        let (pipe, socket) = (io::pipe().unwrap().0, UnixStream::pair().unwrap().0);
        let folder = open("/", OFlags::RDONLY, Mode::empty()).unwrap();
        let memfd = memfd_create("onebuf-short", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, 4095).unwrap();
        for kind in both {
            refused(&pipe, kind, "a pipe");
            refused(&socket, kind, "a socket");
            refused(&folder, kind, "a directory");
            refused(&memfd, kind, "4095 bytes");
        }
        let null = open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        refused(&null, FdKind::DmaBuf, "a character device");
        assert_eq!(check(&null, FdKind::OpaqueFd, 4096), Ok(Sort::Driver));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        refused(&event, FdKind::DmaBuf, "0 bytes");
        ftruncate(&memfd, 4096).unwrap();
        assert_eq!(check(&memfd, FdKind::OpaqueFd, 4096), Ok(Sort::Memfd));
    }
}
