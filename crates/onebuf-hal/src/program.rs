//! Programs, kernels and kernel arguments.
//!
//! # Safety
//! Slices for native kernels are made from pointers into buffers of which the launcher holds views during the call.

#![allow(unsafe_code)]

use super::{Access, Domain, Memory, ReflectedParameter};
use crate::{Error, Result, locks::Arc};
use bytemuck::Pod;
use std::{any::Any, borrow::Cow, fmt};

/// A kernel that is a function of this process, called once per launch.
#[derive(Clone)]
pub struct NativeKernel {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The function.
    pub run: Arc<NativeFn>,
}

/// The function of a native kernel.
pub type NativeFn = dyn Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync;

impl fmt::Debug for NativeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeKernel({})", self.name)
    }
}

/// A built program.
pub trait Program: Send + Sync + fmt::Debug {
    /// Returns one of its kernels. The number of parameters is checked if the driver reports it.
    fn kernel(&self, name: &str, parameters: usize) -> Result<Arc<dyn Kernel>>;

    /// The compiler's log of a successful build.
    fn log(&self) -> &str {
        ""
    }

    /// The device-specific binary.
    fn binary(&self) -> Result<Vec<u8>> {
        Err(Error::unsupported("a program's binary", "a device whose driver compiles programs"))
    }

    /// The image that the driver loaded, if its kernels' parameters can be read there.
    fn image(&self) -> Option<&[u8]> {
        None
    }

    /// Whether it was built from a binary, without compiling.
    fn is_of_binary(&self) -> bool {
        false
    }

    /// Creates its kernels in advance. Returns how many, or zero if the driver cannot list them.
    fn warm_up(&self) -> Result<usize> {
        Ok(0)
    }

    /// The names of its kernels, and the number of parameters of each; none if the driver cannot list them.
    fn kernels(&self) -> Result<Vec<(String, usize)>> {
        Ok(Vec::new())
    }
}

/// A kernel ready for launch, also from several threads at once.
pub trait Kernel: Any + Send + Sync + fmt::Debug {
    /// The domain that it belongs to.
    fn domain(&self) -> Domain;

    /// Its name.
    fn name(&self) -> &str;

    /// The number of arguments.
    fn parameters(&self) -> usize;

    /// A parameter, as the program declares it; `None` if the driver does not report it.
    fn parameter(&self, index: usize) -> Option<ReflectedParameter> {
        let _ = index;
        None
    }

    /// Bytes of each parameter, if the driver reports these, and group-local memory is no parameter.
    fn parameter_bytes(&self) -> Option<&[usize]> {
        None
    }
}

impl dyn Kernel {
    /// Lets a backend downcast to its own type.
    #[inline]
    pub fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The number of work-items, and the size of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Dimensions in use, 1 to 3.
    pub dims: usize,
    /// Work-items per dimension.
    pub global: [usize; 3],
    /// Group size per dimension; the driver's choice when `None`.
    pub local: Option<[usize; 3]>,
    /// The global offset per dimension.
    pub offset: [usize; 3],
}

impl Grid {
    /// Whether it has 1 to 3 dimensions, none of them empty, and no offset, so that no further checks are needed.
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self.dims, 1..=3) && self.offset == [0; 3] && !self.global.contains(&0)
    }
}

/// One kernel argument.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Memory of the launching queue's device, how the kernel accesses it, and how many of its bytes belong to the
    /// argument: the allocation may be larger.
    Memory(&'a dyn Memory, Access, usize),
    /// A value's bytes.
    Bytes(&'a [u8]),
    /// Group-local memory of this many bytes.
    Local(usize),
}

/// One argument of a native kernel.
#[derive(Clone, Copy)]
pub enum NativeArg<'a> {
    /// Bytes of a buffer, and whether they may be written.
    Buffer {
        /// Address of the first byte.
        pointer: *mut u8,
        /// Number of bytes.
        bytes: usize,
        /// Whether the kernel may write them.
        writes: bool,
    },
    /// A value's bytes.
    Value(&'a [u8]),
}

/// The arguments of a native kernel, with typed access.
pub struct NativeArgs<'a> {
    pub(crate) grid: Grid,
    pub(crate) args: &'a [NativeArg<'a>],
}

impl NativeArgs<'_> {
    /// Work-items per dimension; unused dimensions are 1.
    pub fn global(&self) -> [usize; 3] {
        self.grid.global
    }

    /// The first work-item's index per dimension.
    pub fn offset(&self) -> [usize; 3] {
        self.grid.offset
    }

    /// The number of arguments.
    pub fn count(&self) -> usize {
        self.args.len()
    }

    /// Whether it is a buffer that the kernel may write, by [`slice_mut`](NativeArgs::slice_mut).
    pub fn is_writable(&self, index: usize) -> bool {
        matches!(self.args.get(index), Some(NativeArg::Buffer { writes: true, .. }))
    }

    fn buffer<T: Pod>(&self, index: usize) -> Result<(*mut T, usize, bool)> {
        match self.args.get(index) {
            Some(NativeArg::Buffer { pointer, .. }) if !pointer.cast::<T>().is_aligned() => {
                let element = std::any::type_name::<T>();
                Err(Error::invalid(format!(
                    "argument {index} of a native kernel is not aligned for {element}"
                )))
            }
            Some(NativeArg::Buffer { pointer, bytes, writes }) => {
                Ok((pointer.cast(), bytes / size_of::<T>().max(1), *writes))
            }
            _ => {
                Err(Error::invalid(format!("argument {index} of a native kernel is not a buffer")))
            }
        }
    }

    /// A buffer's elements.
    pub fn slice<T: Pod>(&self, index: usize) -> Result<&[T]> {
        let (pointer, len, _) = self.buffer::<T>(index)?;
        // SAFETY: the launcher holds a view of this buffer, which is aligned and alive during the call; `&self` excludes
        // `slice_mut` meanwhile.
        Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
    }

    /// A buffer's elements, mutably.
    pub fn slice_mut<T: Pod>(&mut self, index: usize) -> Result<&mut [T]> {
        let (pointer, len, writes) = self.buffer::<T>(index)?;
        if !writes {
            return Err(Error::invalid(format!(
                "argument {index} of a native kernel is read-only"
            )));
        }
        // SAFETY: the launcher holds a write view of this buffer, which excludes every other view;
        // `&mut self` excludes other slices.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }

    /// One buffer's elements, and another's mutably.
    pub fn pair<A: Pod, B: Pod>(&mut self, read: usize, write: usize) -> Result<(&[A], &mut [B])> {
        if read == write {
            return Err(Error::invalid("the two buffers of a pair must differ"));
        }
        let (from, from_len, _) = self.buffer::<A>(read)?;
        let (to, to_len, writes) = self.buffer::<B>(write)?;
        if !writes {
            return Err(Error::invalid(format!(
                "argument {write} of a native kernel is read-only"
            )));
        }
        // SAFETY: a write view excludes every other view of its buffer, so the two do not overlap.
        Ok(unsafe {
            (std::slice::from_raw_parts(from, from_len), std::slice::from_raw_parts_mut(to, to_len))
        })
    }

    /// A value's bytes, at any alignment; `None` for a buffer.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        match self.args.get(index) {
            Some(NativeArg::Value(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// A value, by type.
    pub fn value<T: Pod>(&self, index: usize) -> Result<T> {
        match self.args.get(index) {
            Some(NativeArg::Value(bytes)) if bytes.len() == size_of::<T>() => {
                Ok(bytemuck::pod_read_unaligned(bytes))
            }
            _ => Err(Error::invalid(format!(
                "argument {index} of a native kernel is not a value of {} bytes",
                size_of::<T>()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_grid_needs_no_further_checks() {
        let plain = Grid { dims: 2, global: [4, 3, 1], local: None, offset: [0; 3] };
        assert!(plain.is_plain());
        for other in [
            Grid { dims: 0, ..plain },
            Grid { dims: 4, ..plain },
            Grid { global: [4, 0, 1], ..plain },
            Grid { offset: [0, 1, 0], ..plain },
        ] {
            assert!(!other.is_plain(), "{other:?}");
        }
    }

    /// What a native kernel is given: a buffer to write, one to read, a value.
    #[test]
    fn native_arguments_have_types_and_limits() {
        let (mut out, mut from) = ([1u32, 2, 3, 4], [5u32, 6]);
        let buffer = |pointer: *mut u32, bytes, writes| NativeArg::Buffer {
            pointer: pointer.cast(),
            bytes,
            writes,
        };
        let number = 7u16.to_ne_bytes();
        let inside = out.as_mut_ptr().cast::<u8>().wrapping_add(1).cast();
        let list = [
            buffer(out.as_mut_ptr(), 16, true),
            buffer(from.as_mut_ptr(), 8, false),
            NativeArg::Value(&number),
            buffer(inside, 4, true),
        ];
        let grid = Grid { dims: 1, global: [4, 1, 1], local: None, offset: [2, 0, 0] };
        let mut args = NativeArgs { grid, args: &list };
        assert_eq!((args.count(), args.global(), args.offset()), (4, [4, 1, 1], [2, 0, 0]));
        assert_eq!([0, 1, 2, 9].map(|index| args.is_writable(index)), [true, false, false, false]);
        assert_eq!(args.slice::<u32>(0).unwrap(), [1, 2, 3, 4]);
        let (read, written) = args.pair::<u32, u32>(1, 0).unwrap();
        written[..2].copy_from_slice(read);
        assert_eq!(args.slice_mut::<u32>(0).unwrap(), [5, 6, 3, 4]);
        assert_eq!((args.bytes(2), args.bytes(0)), (Some(&number[..]), None));
        assert_eq!(args.value::<u16>(2), Ok(7));
        for wrong in [
            args.slice_mut::<u32>(1).err(),
            args.slice::<u32>(2).err(),
            args.slice::<u32>(9).err(),
            args.slice::<u32>(3).err(),
            args.pair::<u32, u32>(0, 0).err(),
            args.pair::<u32, u32>(0, 1).err(),
            args.value::<u32>(2).err(),
            args.value::<u16>(0).err(),
        ] {
            assert!(matches!(wrong, Some(Error::InvalidArgument(_))), "{wrong:?}");
        }
    }
}
