//! Pages for other devices: page-aligned, never moved, initially zero, and backed by a sealed file if the kernel
//! supports it.
//!
//! # Safety
//!
//! A mapping belongs to one [`HostPages`], which unmaps it when dropped and hands out its address only as a raw
//! pointer. New mappings are never placed over existing ones: `MAP_FIXED` is not used, only `MAP_FIXED_NOREPLACE`. The
//! file can neither shrink nor be unsealed, so a page once mapped stays readable; for another process's file that is
//! checked before it is mapped.

#![allow(unsafe_code)]

use super::API;
use onebuf_hal::{Error, Result};
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
};

#[cfg(not(miri))]
use mapped::Map;
#[cfg(miri)]
use on_heap::Map;

/// Zeroed pages at a stable address, unmapped when dropped.
#[derive(Debug)]
pub struct HostPages {
    map: Map,
    bytes: usize,
}

// SAFETY: the mapping is owned, and this type never reads or writes its bytes.
unsafe impl Send for HostPages {}
// SAFETY: as above.
unsafe impl Sync for HostPages {}

impl HostPages {
    /// Maps `bytes`, rounded up to whole pages, aligned to a page, or to `align` if that is more.
    pub fn new(bytes: usize, align: usize) -> Result<Self> {
        if bytes == 0 || !align.is_power_of_two() {
            return Err(Error::invalid(format!(
                "{bytes} bytes aligned to {align}: there must be some, and the alignment a power of two"
            )));
        }
        if bytes.checked_add(align).is_none_or(|room| room > isize::MAX as usize) {
            return Err(out_of_memory(bytes));
        }
        Ok(HostPages { map: Map::new(bytes, align)?, bytes })
    }

    /// Maps the whole file of another process, which must be a sealed memfd of exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] with what the file is instead.
    pub fn of_file(file: OwnedFd, bytes: usize) -> Result<Self> {
        Ok(HostPages { map: Map::of_file(file, bytes)?, bytes })
    }

    /// The first byte.
    pub fn pointer(&self) -> NonNull<u8> {
        self.map.pointer()
    }

    /// The requested number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The sealed file behind the pages; `None` if it could not be created or sealed, or is another process's.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.map.file()
    }

    /// The size of the file, in whole pages.
    pub fn file_bytes(&self) -> usize {
        self.map.len()
    }

    /// Describes how the pages are backed. Reads the current mapping, so it is not for hot paths.
    pub fn remark(&self) -> String {
        self.map.remark()
    }
}

fn out_of_memory(bytes: usize) -> Error {
    Error::OutOfMemory { device: API.to_string(), asked: bytes as u64, limit: None }
}

#[cfg(not(miri))]
mod mapped {
    use super::{API, out_of_memory};
    use onebuf_hal::{Error, Result};
    use rustix::{
        fs::{
            MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
            memfd_create,
        },
        io::Errno,
        mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
    };
    use std::{
        ffi::c_void,
        io,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        ptr::{NonNull, null_mut},
    };

    /// The size of a huge page; larger mappings request them.
    const HUGE_BYTES: usize = 2 << 20;

    /// Another thread may map the range that was just found free; losing that race this many times is not a
    /// coincidence.
    const PLACE_TRIES: usize = 8;

    /// One mapping.
    #[derive(Debug)]
    pub(super) struct Map {
        base: NonNull<u8>,
        len: usize,
        file: File,
        /// The kernel's answer to the request for huge pages; `None` if they were not requested.
        huge: Option<Result<(), Errno>>,
    }

    /// The file that backs the pages.
    #[derive(Debug)]
    enum File {
        Sealed(OwnedFd),
        /// Never passed to another process, so it need not be sealed.
        Unsealed(Errno),
        None(Errno),
        /// Another process's sealed file. The mapping keeps it alive.
        Theirs,
    }

    impl Map {
        pub(super) fn new(bytes: usize, align: usize) -> Result<Self> {
            let len = bytes.next_multiple_of(page_bytes());
            let file = new_file(len);
            let base = place(len, align, file.as_ref().ok().map(AsFd::as_fd))
                .map_err(|errno| map_error(errno, bytes))?;
            let file = match file {
                Err(errno) => File::None(errno),
                Ok(file) => match seal(&file) {
                    Ok(()) => File::Sealed(file),
                    Err(errno) => File::Unsealed(errno),
                },
            };
            Ok(Map { base, len, file, huge: None }.with_huge())
        }

        pub(super) fn of_file(file: OwnedFd, bytes: usize) -> Result<Self> {
            check_foreign(&file, bytes)?;
            let base = place(bytes, 1, Some(file.as_fd())).map_err(|errno| match errno {
                Errno::ACCESS | Errno::PERM => Error::refused("its memory cannot be written"),
                errno => map_error(errno, bytes),
            })?;
            Ok(Map { base, len: bytes, file: File::Theirs, huge: None }.with_huge())
        }

        fn with_huge(mut self) -> Self {
            self.huge = (self.len >= HUGE_BYTES).then(|| self.ask_huge());
            self
        }

        pub(super) fn pointer(&self) -> NonNull<u8> {
            self.base
        }

        pub(super) fn len(&self) -> usize {
            self.len
        }

        pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
            match &self.file {
                File::Sealed(file) => Some(file.as_fd()),
                File::Unsealed(_) | File::None(_) | File::Theirs => None,
            }
        }

        pub(super) fn remark(&self) -> String {
            format!("{}{}", self.file_remark(), self.huge_remark())
        }

        fn file_remark(&self) -> String {
            match &self.file {
                File::Sealed(_) => "memfd, sealed".to_owned(),
                File::Unsealed(errno) => format!("memfd, not sealed ({})", text(*errno)),
                File::None(errno) => format!("anonymous pages, no memfd ({})", text(*errno)),
                File::Theirs => "another process's memfd, sealed".to_owned(),
            }
        }

        fn huge_remark(&self) -> String {
            match self.huge {
                None => String::new(),
                Some(Err(errno)) => format!("; huge pages refused by the kernel ({})", text(errno)),
                Some(Ok(())) => match self.huge_kib() {
                    Ok(kib) => {
                        format!("; huge pages requested, {kib} of {} KiB are huge", self.len >> 10)
                    }
                    Err(error) => format!("; huge pages requested, outcome unknown ({error})"),
                },
            }
        }

        fn ask_huge(&self) -> Result<(), Errno> {
            // SAFETY: the range is this mapping; the advice changes how it is backed, not its contents.
            unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) }
        }

        fn huge_kib(&self) -> io::Result<u64> {
            let start = self.base.addr().get() as u64;
            let smaps = std::fs::read_to_string("/proc/self/smaps")?;
            Ok(super::huge_kib(&smaps, start, start + self.len as u64))
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            unmap(self.base.as_ptr().cast(), self.len);
        }
    }

    fn text(errno: Errno) -> String {
        io::Error::from(errno).to_string()
    }

    fn page_bytes() -> usize {
        // SAFETY: `sysconf` has no preconditions.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
    }

    fn map_error(errno: Errno, bytes: usize) -> Error {
        match errno {
            Errno::NOMEM | Errno::FBIG | Errno::OVERFLOW | Errno::AGAIN => out_of_memory(bytes),
            _ => Error::Driver {
                api: API.0,
                call: "mmap",
                code: errno.raw_os_error(),
                name: text(errno),
            },
        }
    }

    fn new_file(len: usize) -> Result<OwnedFd, Errno> {
        let file = memfd_create("onebuf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        Ok(file)
    }

    /// Seals the file, so that no process that receives it can truncate it.
    fn seal(file: &OwnedFd) -> Result<(), Errno> {
        fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    /// Checks that a file of another process can be mapped without trusting it: if it could be truncated, or had
    /// missing huge pages, an access would kill this process.
    fn check_foreign(file: &OwnedFd, bytes: usize) -> Result<()> {
        const TMPFS: i64 = 0x0102_1994;
        let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let seals = fcntl_get_seals(file).map_err(|_| Error::refused("its fd is not a memfd"))?;
        let failed = |errno: Errno| Error::refused(format!("its memfd: {}", text(errno)));
        if fstatfs(file).map_err(failed)?.f_type as i64 != TMPFS {
            return Err(Error::refused("its memfd is not of ordinary pages"));
        }
        if !seals.contains(wanted) {
            return Err(Error::refused(format!(
                "its memfd can still change its size: it has the seals {seals:?}, not {wanted:?}"
            )));
        }
        let size = fstat(file).map_err(failed)?.st_size;
        if u64::try_from(size) != Ok(bytes as u64) || bytes == 0 {
            return Err(Error::refused(format!("its memfd has {size} bytes, it said {bytes}")));
        }
        Ok(())
    }

    /// Maps at an aligned address. The caller's alignment is required, that of huge pages is attempted.
    fn place(len: usize, align: usize, file: Option<BorrowedFd<'_>>) -> Result<NonNull<u8>, Errno> {
        let wish = if len >= HUGE_BYTES { align.max(HUGE_BYTES) } else { align };
        let placed = place_aligned(len, wish, file);
        if placed.is_err() && wish > align { place_aligned(len, align, file) } else { placed }
    }

    fn place_aligned(
        len: usize,
        align: usize,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<NonNull<u8>, Errno> {
        if align <= page_bytes() {
            return map_at(null_mut(), len, file, MapFlags::empty());
        }
        for _ in 0..PLACE_TRIES {
            let target = free_address(len, align)?;
            match map_at(target, len, file, MapFlags::FIXED_NOREPLACE) {
                Ok(base) if base.as_ptr().cast() == target => return Ok(base),
                // Kernels before 4.17 treat the address as a hint.
                Ok(base) => unmap(base.as_ptr().cast(), len),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOMEM)
    }

    /// Returns an aligned address that was followed by `len` free bytes a moment ago.
    fn free_address(len: usize, align: usize) -> Result<*mut c_void, Errno> {
        let room = len.checked_add(align).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let found = unsafe { mmap_anonymous(null_mut(), room, ProtFlags::empty(), flags) }?;
        unmap(found, room);
        Ok(found.map_addr(|addr| addr.next_multiple_of(align)))
    }

    /// Maps the file or anonymous pages. `flags` never contains `FIXED`.
    fn map_at(
        at: *mut c_void,
        len: usize,
        file: Option<BorrowedFd<'_>>,
        flags: MapFlags,
    ) -> Result<NonNull<u8>, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // Shared, so that after a fork pinned pages stay where the device expects them.
        let flags = flags | MapFlags::SHARED;
        // SAFETY: without `MAP_FIXED` a new mapping replaces no existing one.
        let base = unsafe {
            match file {
                Some(file) => mmap(at, len, rights, flags, file, 0),
                None => mmap_anonymous(at, len, rights, flags),
            }
        }?;
        NonNull::new(base.cast()).ok_or(Errno::NOMEM)
    }

    /// Unmaps a range that this file has mapped and still owns.
    fn unmap(base: *mut c_void, len: usize) {
        // SAFETY: the callers own the range, and no reference into it exists: the pages' owner is being dropped, or the
        // address has not been returned yet.
        if let Err(errno) = unsafe { munmap(base, len) } {
            tracing::error!("munmap of {len} bytes: {}", text(errno));
        }
    }
}

/// Miri does not support `mmap`: the same guarantees from the heap.
#[cfg(miri)]
mod on_heap {
    use super::out_of_memory;
    use onebuf_hal::{Error, Result};
    use std::{
        alloc::{Layout, alloc_zeroed, dealloc},
        os::fd::{BorrowedFd, OwnedFd},
        ptr::NonNull,
    };

    #[derive(Debug)]
    pub(super) struct Map {
        base: NonNull<u8>,
        layout: Layout,
    }

    impl Map {
        pub(super) fn new(bytes: usize, align: usize) -> Result<Self> {
            let layout = Layout::from_size_align(bytes, align.max(4096))
                .map_err(|_| out_of_memory(bytes))?;
            // SAFETY: the layout is not empty; `HostPages::new` has checked that.
            let base = NonNull::new(unsafe { alloc_zeroed(layout) });
            Ok(Map { base: base.ok_or_else(|| out_of_memory(bytes))?, layout })
        }

        pub(super) fn of_file(_: OwnedFd, _: usize) -> Result<Self> {
            Err(Error::unsupported("mapping another process's pages", "a run without miri"))
        }

        pub(super) fn pointer(&self) -> NonNull<u8> {
            self.base
        }

        pub(super) fn len(&self) -> usize {
            self.layout.size()
        }

        pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub(super) fn remark(&self) -> String {
            "heap, under miri".to_owned()
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: it came from `alloc_zeroed` with this layout.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}

/// Returns how much of the address range is mapped with huge pages, from the text of `smaps`.
#[cfg_attr(miri, allow(dead_code))]
fn huge_kib(smaps: &str, start: u64, end: u64) -> u64 {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = map_range(line) {
            inside = from >= start && to <= end;
        } else if inside && let Some(value) = line.strip_prefix("ShmemPmdMapped:") {
            kib += value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        }
    }
    kib
}

/// The addresses in the first line of a mapping's entry; `None` for its other lines.
#[cfg_attr(miri, allow(dead_code))]
fn map_range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f00-7f40 rw-s 00000000 00:01 5 /memfd:onebuf (deleted)
Size:               4096 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd wr sh
7f40-7f80 rw-s 00000000 00:01 6 /memfd:onebuf (deleted)
ShmemPmdMapped:     4096 kB
";

    #[test]
    fn only_the_mapping_asked_for_is_counted() {
        assert_eq!(huge_kib(SMAPS, 0x7f00, 0x7f40), 2048);
        assert_eq!(huge_kib(SMAPS, 0x7f00, 0x7f80), 6144);
        assert_eq!(huge_kib(SMAPS, 0x1000, 0x2000), 0);
    }

    #[test]
    fn pages_are_zero_and_aligned() {
        for (bytes, align) in [(1, 1), (4097, 64), (5000, 1 << 16), (3 << 20, 64), (1, 4 << 20)] {
            let pages = HostPages::new(bytes, align).unwrap();
            let address = pages.pointer().addr().get();
            assert_eq!(address % align.max(4096), 0, "{bytes} bytes aligned to {align}");
            assert_eq!(pages.bytes(), bytes);
            // SAFETY: the pages are mapped, zeroed, and used by no other code.
            let slice = unsafe { std::slice::from_raw_parts(pages.pointer().as_ptr(), bytes) };
            assert!(slice.iter().step_by(512).chain(slice.last()).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(HostPages::new(0, 64), Err(Error::InvalidArgument(_))));
        assert!(matches!(HostPages::new(64, 3), Err(Error::InvalidArgument(_))));
        assert!(matches!(HostPages::new(usize::MAX, 64), Err(Error::OutOfMemory { .. })));
        assert!(matches!(HostPages::new(1 << 62, 64), Err(Error::OutOfMemory { .. })));
        assert!(HostPages::new(64, 1 << 63).is_err());
    }

    #[cfg(not(miri))]
    #[test]
    fn the_file_can_neither_shrink_nor_grow() {
        let pages = HostPages::new(4096, 64).unwrap();
        let file = pages.file().expect("a memfd");
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        assert!(rustix::fs::ftruncate(file, 1 << 20).is_err());
        assert_eq!(pages.remark(), "memfd, sealed");
    }

    #[cfg(not(miri))]
    mod of_others {
        use super::*;
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};

        const ALL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

        fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("test", flags).unwrap();
            ftruncate(&file, bytes).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            file
        }

        #[track_caller]
        fn refused(file: OwnedFd, bytes: usize, why: &str) {
            let error = HostPages::of_file(file, bytes).unwrap_err();
            assert!(matches!(error, Error::PeerRefused { .. }), "{error}");
            assert!(error.to_string().contains(why), "no `{why}` in: {error}");
        }

        #[test]
        fn the_same_pages_are_seen_twice() {
            let mine = HostPages::new(3 * 4096, 64).unwrap();
            let file = mine.file().unwrap().try_clone_to_owned().unwrap();
            let theirs = HostPages::of_file(file, mine.file_bytes()).unwrap();
            assert_ne!(mine.pointer(), theirs.pointer());
            // SAFETY: both are mapped, and only this thread accesses them.
            unsafe {
                mine.pointer().add(8192).write(7);
                assert_eq!(theirs.pointer().add(8192).read(), 7);
            }
            assert!(theirs.file().is_none(), "it is not ours to give on");
            assert_eq!(theirs.remark(), "another process's memfd, sealed");
        }

        #[test]
        fn whatever_could_change_under_our_feet_is_refused() {
            for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
                refused(memfd(4096, ALL - missing), 4096, "can still change its size");
            }
            refused(memfd(8192, ALL), 4096, "has 8192 bytes, it said 4096");
            refused(memfd(4096, ALL), 8192, "has 4096 bytes, it said 8192");
            refused(memfd(0, ALL), 0, "has 0 bytes");
            refused(memfd(4096, ALL | SealFlags::WRITE), 4096, "cannot be written");
            let flags = rustix::fs::OFlags::RDWR;
            let device = open("/dev/zero", flags, rustix::fs::Mode::empty()).unwrap();
            refused(device, 4096, "not a memfd");
            let plain = tempfile::tempfile().unwrap();
            plain.set_len(4096).unwrap();
            // On a tmpfs it has only one seal, `F_SEAL_SEAL`.
            let error = HostPages::of_file(plain.into(), 4096).unwrap_err();
            assert!(matches!(error, Error::PeerRefused { .. }), "{error}");
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn the_remark_tells_of_huge_pages() {
        let pages = HostPages::new(4 << 20, 64).unwrap();
        assert_eq!(pages.pointer().addr().get() % (2 << 20), 0);
        assert!(pages.remark().contains("huge pages"), "{}", pages.remark());
    }
}
