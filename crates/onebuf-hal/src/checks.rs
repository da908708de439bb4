//! Checks that backends make before anything is enqueued or allocated, with the same messages for every API: some drivers do
//! not check, and others return a status without a reason.

use crate::{Access, AllocSpec, DeviceInfo, Domain, Error, MemoryKind, Result};
use std::{
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
};

/// Checks that a device may allocate this many bytes. A limit of zero means that the driver does not report one.
pub fn bytes(info: &DeviceInfo, bytes: usize) -> Result<()> {
    bytes_within(info, bytes, info.caps.max_alloc_bytes)
}

/// Checks a size against the given limit instead of the device's.
pub fn bytes_within(info: &DeviceInfo, bytes: usize, limit: u64) -> Result<()> {
    match bytes {
        0 => Err(Error::invalid("memory of zero bytes")),
        _ if limit != 0 && bytes as u64 > limit => Err(out_of_memory(bytes, info)),
        _ => Ok(()),
    }
}

/// [`Caps::max_loop_iterations`](crate::Caps) of a driver, by the name and the version that it reports for its device. Mesa's
/// software rasteriser counts the iterations of all loops of a function down from 65,535 and then leaves every loop
/// (`loop_limiter` in gallivm), for every API. Mesa 22.3 and 24.0 do so; in 25.0 loops end where they should, in OpenCL and OpenGL
/// alike.
pub fn max_loop_iterations(device: &str, driver: &str) -> Option<u32> {
    const FIRST_WITHOUT: u32 = 25;
    let limited = mesa_major(driver).is_none_or(|major| major < FIRST_WITHOUT);
    (device.starts_with("llvmpipe") && limited).then_some(0xffff)
}

/// The major version in `Mesa 25.0.7`, or in the bare `25.0.7`.
fn mesa_major(driver: &str) -> Option<u32> {
    let number = driver.split_once("Mesa ").map_or(driver, |(_, number)| number);
    number.split('.').next()?.parse().ok()
}

/// Checks that a device can allocate memory of this specification.
pub fn allocation(info: &DeviceInfo, spec: &AllocSpec, contents: Option<&[u8]>) -> Result<()> {
    bytes(info, spec.bytes)?;
    memory_kind(info, spec.memory_kind)?;
    if !spec.align.is_power_of_two() {
        return Err(Error::invalid(format!("alignment {} is not a power of two", spec.align)));
    }
    contents.map_or(Ok(()), |contents| self::contents(spec.bytes, contents))
}

fn memory_kind(info: &DeviceInfo, memory_kind: MemoryKind) -> Result<()> {
    let have = &info.caps.memory_kinds;
    if have.contains(&memory_kind) {
        return Ok(());
    }
    let have: Vec<_> = have.iter().map(MemoryKind::to_string).collect();
    let or = match memory_kind {
        MemoryKind::OnChip => "the MSMC memory of a Texas Instruments platform, or ",
        _ => "",
    };
    let what = format!("{memory_kind} memory on {}", info.name);
    Err(Error::unsupported(what, format!("{or}one of {}", have.join(", "))))
}

/// Checks that the initial contents have the size of the memory.
pub fn contents(bytes: usize, contents: &[u8]) -> Result<()> {
    match contents.len() {
        len if len == bytes => Ok(()),
        len => Err(Error::invalid(format!("{len} bytes of contents for a memory of {bytes}"))),
    }
}

/// The error for a failed allocation, or for one above the device's limit.
#[cold]
pub fn out_of_memory(asked: usize, info: &DeviceInfo) -> Error {
    let limit = Some(info.caps.max_alloc_bytes);
    Error::OutOfMemory { device: info.name.clone(), asked: asked as u64, limit }
}

/// The error for an object of another context; of another backend if `domain` is `None`.
#[cold]
pub fn foreign(what: &str, domain: Option<Domain>, own: Domain, info: &DeviceInfo) -> Error {
    let from = domain.map_or("another backend".to_owned(), |d| format!("domain {}", d.0));
    let want = format!("{} device {} (domain {})", info.api.0, info.name, own.0);
    Error::ForeignContext { have: format!("{what} of {from}"), want }
}

/// The range `offset..offset + bytes`, if it lies within `len` bytes.
#[inline]
pub fn range(len: usize, offset: usize, bytes: usize) -> Result<Range<usize>> {
    match offset.checked_add(bytes) {
        Some(end) if end <= len => Ok(offset..end),
        _ => Err(Error::invalid(format!(
            "{bytes} bytes at offset {offset} do not lie in a memory of {len} bytes"
        ))),
    }
}

/// Checks a fill and returns its range.
pub fn fill(len: usize, offset: usize, bytes: usize, pattern: &[u8]) -> Result<Range<usize>> {
    let whole = |number: usize| number.is_multiple_of(pattern.len());
    if pattern.is_empty() || !whole(offset) || !whole(bytes) {
        return Err(Error::invalid(format!(
            "a fill of {bytes} bytes at offset {offset} with a pattern of {} bytes: both must be \
             multiples of a pattern that is not empty",
            pattern.len()
        )));
    }
    range(len, offset, bytes)
}

/// The shortest pattern that gives the same result when repeated: zeroes of any length become one zero.
pub fn shortest(pattern: &[u8]) -> &[u8] {
    let len = pattern.len();
    let repeats = |n: usize| len.is_multiple_of(n) && pattern[n..] == pattern[..len - n];
    &pattern[..(1..len).find(|n| repeats(*n)).unwrap_or(len)]
}

/// Checks that the two ranges of a copy inside one memory do not overlap.
pub fn apart(from: usize, to: usize, bytes: usize) -> Result<()> {
    match bytes.saturating_sub(from.abs_diff(to)) {
        0 => Ok(()),
        common => Err(Error::invalid(format!(
            "a copy of {bytes} bytes inside of one memory: from and to overlap in {common} bytes"
        ))),
    }
}

/// Checks that the host pointer of a non-empty transfer is not null.
pub fn host_pointer(pointer: *const u8, bytes: usize) -> Result<()> {
    if pointer.is_null() && bytes > 0 {
        return Err(Error::invalid("the host pointer of a transfer is null"));
    }
    Ok(())
}

/// Duplicates a descriptor, for a driver that takes ownership.
pub fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = fd.try_clone_to_owned();
    copy.map_err(|why| Error::invalid(format!("a descriptor that cannot be duplicated: {why}")))
}

/// Counts the open descriptors of this process whose target contains `name`. The total would not do: other tests open and close
/// descriptors meanwhile.
#[cfg(any(test, feature = "testing"))]
pub fn descriptors(name: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(name)).count()
}

/// Checks that memory was created for this access by kernels.
#[inline]
pub fn access(made_for: Access, access: Access) -> Result<()> {
    if made_for.allows(access) {
        return Ok(());
    }
    Err(Error::invalid(format!("memory made for {made_for} given to a kernel for {access}")))
}

/// The memory that a region is part of.
pub struct Whole {
    /// Size in bytes.
    pub bytes: usize,
    /// The access that it was created for.
    pub access: Access,
    /// Required alignment of region offsets.
    pub align: usize,
    /// Whether it is itself a region.
    pub is_part: bool,
}

impl Whole {
    /// Checks a region.
    pub fn check_region(&self, offset: usize, bytes: usize, access: Access) -> Result<()> {
        let Whole { bytes: len, access: has, align, is_part } = *self;
        range(len, offset, bytes)?;
        let why = match () {
            () if is_part => "a region has no regions; take it of the whole memory".to_owned(),
            () if bytes == 0 => "it is empty".to_owned(),
            () if !offset.is_multiple_of(align) => {
                format!("the device wants offsets that are multiples of {align}")
            }
            () if !has.allows(access) => {
                format!("for {access}, where the whole memory is for {has}")
            }
            () => return Ok(()),
        };
        Err(Error::invalid(format!("a region of {bytes} bytes at offset {offset}: {why}")))
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_neither_overflow_nor_leave() {
        assert_eq!(range(8, 2, 6), Ok(2..8));
        assert!(range(8, 3, 6).is_err());
        assert!(range(8, usize::MAX, 2).is_err());
        assert_eq!(range(8, 8, 0), Ok(8..8));
    }

    fn info(max_alloc_bytes: u64) -> DeviceInfo {
        let caps = crate::Caps {
            max_alloc_bytes,
            memory_kinds: vec![MemoryKind::Device],
            ..Default::default()
        };
        let (name, platform, version, driver, library, extensions) = Default::default();
        let (kind, physical) = (crate::DeviceKind::Gpu, Default::default());
        DeviceInfo {
            api: crate::Api("x"),
            name,
            platform,
            version,
            driver,
            library,
            kind,
            physical,
            memory_bytes: 0,
            extensions,
            caps,
        }
    }

    #[test]
    fn sizes_are_positive_and_within_the_limit() {
        assert_eq!([1, 99, 100].map(|size| bytes(&info(100), size)), [Ok(()), Ok(()), Ok(())]);
        assert!(matches!(
            bytes(&info(100), 101),
            Err(Error::OutOfMemory { asked: 101, limit: Some(100), .. })
        ));
        assert_eq!(bytes(&info(0), usize::MAX), Ok(()), "no limit is known");
        assert_eq!(bytes(&info(0), 0), Err(Error::invalid("memory of zero bytes")));
    }

    #[test]
    fn an_allocation_is_of_a_kind_that_the_device_has() {
        let missing = memory_kind(&info(0), MemoryKind::HostPages).unwrap_err().to_string();
        assert!(missing.contains("one of device") && !missing.contains("Texas"), "{missing}");
        let missing = memory_kind(&info(0), MemoryKind::OnChip).unwrap_err().to_string();
        assert!(missing.contains("Texas Instruments"), "{missing}");
        assert_eq!(memory_kind(&info(0), MemoryKind::Device), Ok(()));
        assert_eq!(contents(3, &[1, 2, 3]), Ok(()));
        assert!(contents(3, &[1, 2]).is_err() && contents(3, &[1; 4]).is_err());
    }

    #[test]
    fn a_transfer_has_a_pointer_unless_it_is_empty() {
        assert_eq!(host_pointer(std::ptr::null(), 0), Ok(()));
        assert!(host_pointer(std::ptr::null(), 1).is_err());
        assert_eq!(host_pointer(&7, 1), Ok(()));
    }

    #[test]
    fn mesas_rasteriser_leaves_loops() {
        let llvmpipe = "llvmpipe (LLVM 15.0.6, 256 bits)";
        let of = |driver| max_loop_iterations(llvmpipe, driver);
        for limited in ["22.3.6", "4.5 (Core Profile) Mesa 22.3.6", "Mesa 24.0.5 (LLVM 17.0.6)", ""]
        {
            assert_eq!(of(limited), Some(65_535), "{limited}");
        }
        for free in ["25.0.7-2+deb13u1", "4.5 (Core Profile) Mesa 25.0.7-2+deb13u1", "Mesa 26.1.0"]
        {
            assert_eq!(of(free), None, "{free}");
        }
        assert_eq!(max_loop_iterations("NVIDIA H200", "580.159.04"), None);
    }

    #[test]
    fn a_fill_is_in_whole_patterns() {
        assert_eq!(fill(8, 2, 4, &[1, 2]), Ok(2..6));
        assert!(fill(8, 1, 4, &[1, 2]).is_err());
        assert!(fill(8, 2, 3, &[1, 2]).is_err());
        assert!(fill(8, 0, 8, &[]).is_err());
    }

    #[test]
    fn a_pattern_is_as_short_as_it_can_be() {
        assert_eq!(shortest(&[0; 24]), [0]);
        assert_eq!(shortest(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(shortest(&[1, 2, 1, 2, 1, 2]), [1, 2]);
        assert_eq!(shortest(&[1, 2, 1]), [1, 2, 1]);
        assert_eq!(shortest(&[7]), [7]);
    }

    #[test]
    fn copies_may_touch_and_not_overlap() {
        assert_eq!(apart(0, 4, 4), Ok(()));
        assert_eq!(apart(4, 0, 4), Ok(()));
        assert_eq!(apart(3, 3, 0), Ok(()));
        for (from, to) in [(0, 3), (3, 0), (5, 5)] {
            let text = apart(from, to, 4).unwrap_err().to_string();
            assert!(text.contains("overlap"), "{text}");
        }
    }

    #[test]
    fn a_region_is_whole_aligned_and_no_wider() {
        let whole = Whole { bytes: 256, access: Access::Read, align: 64, is_part: false };
        assert_eq!(whole.check_region(64, 192, Access::Read), Ok(()));
        let wrong = [(64, 193, Access::Read), (0, 0, Access::Read), (32, 64, Access::Read)];
        for (offset, bytes, access) in wrong.into_iter().chain([(0, 64, Access::ReadWrite)]) {
            assert!(whole.check_region(offset, bytes, access).is_err(), "{bytes} at {offset}");
        }
        assert!(Whole { is_part: true, ..whole }.check_region(0, 64, Access::Read).is_err());
    }
}
