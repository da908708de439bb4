//! A duplicate of a descriptor that was passed to a driver, which did not take it over.
//!
//! By the specification it stays the caller's if an import fails. llvmpipe's driver and NVIDIA's have closed it by
//! then, and its number may already be reused, also by the driver itself. So it is only closed if it is still the same
//! file.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What `kcmp` is asked to compare.
const KCMP_FILE: libc::c_int = 0;

/// Closes the number if it still is a duplicate of ours.
pub(super) fn close_if_same(number: RawFd, ours: &OwnedFd) {
    if is_same(number, ours) {
        // SAFETY: still the duplicate that we made, and that nobody else owns.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

/// Whether the two are one open file. False if that cannot be determined: leaving one descriptor open is better than closing
/// an unrelated one.
fn is_same(number: RawFd, ours: &OwnedFd) -> bool {
    // SAFETY: five numbers; nothing is changed.
    let compared = unsafe {
        let (process, ours) = (libc::getpid(), ours.as_raw_fd());
        libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, number, ours)
    };
    match compared {
        -1 => is_same_file(number, ours),
        order => order == 0,
    }
}

/// The same where the kernel does not compare: a file is told by its number, but of a device every descriptor has the same one.
fn is_same_file(number: RawFd, ours: &OwnedFd) -> bool {
    // SAFETY: borrowed for one question; a number that is not open is an answer.
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

    /// Not the question that the last resort asks, which is the same for both.
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
