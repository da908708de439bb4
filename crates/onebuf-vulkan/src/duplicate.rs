//! Closing the duplicate of a descriptor after a driver has refused it.
//!
//! By the specification the caller keeps the descriptor if an import fails. llvmpipe's driver and NVIDIA's have closed it by
//! then, and its number may already be reused, also by the driver itself. So it is closed only if it still refers to the
//! same open file.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The kind of comparison for `kcmp`.
const KCMP_FILE: libc::c_int = 0;

/// Closes `number` if it still is a duplicate of `ours`.
pub(super) fn close_if_same(number: RawFd, ours: &OwnedFd) {
    if is_same(number, ours) {
        // SAFETY: still the duplicate that onebuf created, which has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

/// Whether the two are one open file. False if that cannot be determined: leaving one descriptor open is better than closing
/// an unrelated one.
fn is_same(number: RawFd, ours: &OwnedFd) -> bool {
    // SAFETY: the arguments are five integers; the call changes nothing.
    let compared = unsafe {
        let (process, ours) = (libc::getpid(), ours.as_raw_fd());
        libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, number, ours)
    };
    match compared {
        -1 => is_same_file(number, ours),
        order => order == 0,
    }
}

/// Compares device and inode where the kernel has no `kcmp`. Only for files: all descriptors of a device have the same inode.
fn is_same_file(number: RawFd, ours: &OwnedFd) -> bool {
    // SAFETY: borrowed only for `fstat`; a closed number is an error.
    let now = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) });
    let (Ok(now), Ok(ours)) = (now, rustix::fs::fstat(ours)) else { return false };
    let is_file = rustix::fs::FileType::from_raw_mode(now.st_mode).is_file();
    is_file && (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::IntoRawFd};

    fn open(path: &str) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    /// Two opens of one path differ only by `kcmp`; `fstat` returns the same for both.
    #[test]
    fn a_number_that_is_anothers_by_now_stays_open() {
        for path in ["/dev/null", "/proc/self/exe"] {
            let (ours, other) = (open(path), open(path));
            close_if_same(other.as_raw_fd(), &ours);
            rustix::fs::fstat(&other).unwrap();
            let duplicate = ours.try_clone().unwrap().into_raw_fd();
            assert!(is_same(duplicate, &ours), "{path}");
            close_if_same(duplicate, &ours);
            assert!(!is_same(duplicate, &ours), "{path}: it is closed");
            rustix::fs::fstat(&ours).unwrap();
        }
    }

    #[test]
    fn without_the_kernels_help_devices_are_left_alone() {
        let (file, device) = (open("/proc/self/exe"), open("/dev/null"));
        let duplicates = [&file, &device].map(|one| one.try_clone().unwrap());
        assert!(is_same_file(duplicates[0].as_raw_fd(), &file));
        assert!(!is_same_file(duplicates[1].as_raw_fd(), &device));
        assert!(!is_same_file(duplicates[0].as_raw_fd(), &device));
    }
}
