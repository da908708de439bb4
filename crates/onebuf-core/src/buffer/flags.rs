//! Translation of OpenCL's creation flags to buffer properties.

use onebuf_hal::{Access, Error, HostAccess, MemoryKind, Result};
use onebuf_sys::opencl::consts as cl;

/// The properties that a set of flags requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flags {
    pub access: Access,
    pub host: HostAccess,
    pub memory_kind: Option<MemoryKind>,
    pub uses_memory: bool,
    pub copies_contents: bool,
}

/// Flags of shared virtual memory, which is a memory kind in onebuf and not a buffer flag.
const NOT_OF_BUFFERS: u64 = cl::CL_MEM_SVM_FINE_GRAIN_BUFFER | cl::CL_MEM_SVM_ATOMICS;

fn known() -> impl Iterator<Item = (u64, &'static str)> {
    cl::MEM_FLAG_NAMES.into_iter().filter(|(bit, _)| bit & NOT_OF_BUFFERS == 0)
}

/// Sets of flags of which at most one may be given. TI's on-chip memory is neither the caller's memory nor
/// host memory that the driver allocates.
const EXCLUSIVE: [&[u64]; 4] = [
    &[cl::CL_MEM_READ_WRITE, cl::CL_MEM_WRITE_ONLY, cl::CL_MEM_READ_ONLY],
    &[cl::CL_MEM_USE_HOST_PTR, cl::CL_MEM_ALLOC_HOST_PTR, cl::CL_MEM_USE_MSMC_TI],
    &[cl::CL_MEM_USE_HOST_PTR, cl::CL_MEM_COPY_HOST_PTR],
    &[cl::CL_MEM_HOST_WRITE_ONLY, cl::CL_MEM_HOST_READ_ONLY, cl::CL_MEM_HOST_NO_ACCESS],
];

impl Flags {
    pub fn parse(bits: u64) -> Result<Self> {
        let unknown = bits & !known().fold(0, |all, (bit, _)| all | bit);
        if unknown != 0 {
            return Err(Error::invalid(format!(
                "flags {unknown:#x} are not buffer creation flags that onebuf supports"
            )));
        }
        for set in EXCLUSIVE {
            let given: Vec<u64> = set.iter().copied().filter(|bit| bits & bit != 0).collect();
            if let [first, second, ..] = given[..] {
                let (first, second) = (name(first), name(second));
                return Err(Error::invalid(format!("{first} and {second} exclude each other")));
            }
        }
        let has = |bit| bits & bit != 0;
        Ok(Self {
            access: access(bits),
            host: host_access(bits),
            memory_kind: match () {
                () if has(cl::CL_MEM_USE_MSMC_TI) => Some(MemoryKind::OnChip),
                () if has(cl::CL_MEM_ALLOC_HOST_PTR) => Some(MemoryKind::MappedDevice),
                () => None,
            },
            uses_memory: has(cl::CL_MEM_USE_HOST_PTR),
            copies_contents: has(cl::CL_MEM_COPY_HOST_PTR),
        })
    }
}

/// Returns the kernels' access that the flags request.
pub fn access(bits: u64) -> Access {
    match bits {
        _ if bits & cl::CL_MEM_READ_ONLY != 0 => Access::Read,
        _ if bits & cl::CL_MEM_WRITE_ONLY != 0 => Access::Write,
        _ => Access::ReadWrite,
    }
}

/// Returns the host's access that the flags request.
pub fn host_access(bits: u64) -> HostAccess {
    match bits {
        _ if bits & cl::CL_MEM_HOST_READ_ONLY != 0 => HostAccess::Read,
        _ if bits & cl::CL_MEM_HOST_WRITE_ONLY != 0 => HostAccess::Write,
        _ if bits & cl::CL_MEM_HOST_NO_ACCESS != 0 => HostAccess::None,
        _ => HostAccess::ReadWrite,
    }
}

fn name(bit: u64) -> &'static str {
    known().find(|(known, _)| *known == bit).map_or("?", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_alone_says_what_it_means() {
        for (bit, name) in known() {
            assert!(Flags::parse(bit).is_ok(), "{name}");
        }
        assert_eq!(Flags::parse(0).unwrap(), Flags::parse(cl::CL_MEM_READ_WRITE).unwrap());
        assert_eq!(Flags::parse(cl::CL_MEM_READ_ONLY).unwrap().access, Access::Read);
        assert_eq!(Flags::parse(cl::CL_MEM_HOST_NO_ACCESS).unwrap().host, HostAccess::None);
        let mapped = Flags::parse(cl::CL_MEM_ALLOC_HOST_PTR | cl::CL_MEM_COPY_HOST_PTR).unwrap();
        assert_eq!(
            (mapped.memory_kind, mapped.copies_contents),
            (Some(MemoryKind::MappedDevice), true)
        );
    }

    /// Checks every pair of known flags against the rules of the specification.
    #[test]
    fn exclusions_are_named_in_both_orders() {
        let excluded = |a: u64, b: u64| EXCLUSIVE.iter().any(|s| s.contains(&a) && s.contains(&b));
        for (a, a_name) in known() {
            for (b, b_name) in known().filter(|(b, _)| *b != a) {
                match Flags::parse(a | b) {
                    Err(error) => {
                        assert!(excluded(a, b), "{a_name} | {b_name}");
                        let text = error.to_string();
                        assert!(text.contains(a_name) && text.contains(b_name), "{text}");
                    }
                    Ok(_) => assert!(!excluded(a, b), "{a_name} | {b_name}"),
                }
            }
        }
    }

    #[test]
    fn unknown_bits_are_shown() {
        assert!(Flags::parse(1 << 21).unwrap_err().to_string().contains("0x200000"));
    }
}
