//! What a kernel takes, and what must hold of a launch.

use super::{Arg, Grid, arg::Kind};
use bytemuck::Pod;
use onebuf_hal::{Access, Result, locks::Arc};
use std::{any::TypeId, fmt};

#[derive(Clone, Copy)]
pub(super) enum Param {
    Buffer { element: Element, access: Access },
    Value(Element),
    Local(Element),
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Buffer { element, access } => write!(f, "a {access} view of {element:?}"),
            Param::Value(element) => {
                write!(f, "a value of type {element:?} ({} bytes)", element.bytes())
            }
            Param::Local(element) => write!(f, "local memory of {element:?}"),
        }
    }
}

/// An element type, remembered at run time. Small, since every argument of every launch carries one.
#[derive(Clone, Copy)]
pub(crate) struct Element {
    id: TypeId,
    /// Its name and its size, which only few ask for.
    facts: fn() -> (&'static str, usize),
    /// Its size where it has no type of its own.
    unsized_bytes: usize,
}

impl Element {
    #[inline]
    pub(crate) fn of<T: Pod>() -> Self {
        let facts = || (std::any::type_name::<T>(), size_of::<T>());
        Self { id: TypeId::of::<T>(), facts, unsized_bytes: 0 }
    }

    /// So many bytes of a type that is known elsewhere.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self { id: TypeId::of::<[u8]>(), facts: || ("[u8]", 0), unsized_bytes: bytes }
    }

    pub fn bytes(&self) -> usize {
        self.unsized_bytes + (self.facts)().1
    }
}

/// The id is enough where it is that of a type with a size, and is asked for each argument of each launch.
impl PartialEq for Element {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.unsized_bytes == other.unsized_bytes
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((self.facts)().0)
    }
}

/// Checks a launch beyond its types; an error's text goes to the caller.
type Requirement = Arc<dyn Fn(&Call<'_>) -> Result<(), String> + Send + Sync>;

/// What a kernel takes, parameter by parameter, in order.
///
/// ```
/// use onebuf::{Access, Signature};
/// // kernel void scale(global float *x, uint n, float by)
/// let scale = Signature::new()
///     .buffer::<f32>(Access::ReadWrite)
///     .value::<u32>()
///     .value::<f32>()
///     .require(|call| match call.value::<u32>(1) {
///         Some(n) if n as usize <= call.len(0) => Ok(()),
///         _ => Err("n is larger than the buffer".into()),
///     });
/// # let _ = scale;
/// ```
#[derive(Clone, Default)]
pub struct Signature {
    pub(super) params: Vec<Param>,
    pub(super) offsets: bool,
    pub(super) require: Option<Requirement>,
}

impl Signature {
    /// No parameters yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer of `T`, and what the kernel does with it.
    pub fn buffer<T: Pod>(mut self, access: Access) -> Self {
        self.params.push(Param::Buffer { element: Element::of::<T>(), access });
        self
    }

    /// A value: a scalar, a vector as an array, or a plain struct.
    pub fn value<T: Pod>(mut self) -> Self {
        self.params.push(Param::Value(Element::of::<T>()));
        self
    }

    /// A value of so many bytes, passed by [`Arg::bytes`]: for callers in other languages, whose types are
    /// not known here.
    ///
    /// ```
    /// # use onebuf::{Access, Arg, IntoArg, Signature, Source};
    /// # let hub = onebuf::discover()?;
    /// # let (host, buffer) = (hub.host(), hub.buffer::<u8>(1).build()?);
    /// let store = Source::default().with_native("store", |args| {
    ///     args.slice_mut::<u8>(0)?[0] = args.bytes(1).map_or(0, |bytes| bytes[2]);
    ///     Ok(())
    /// });
    /// let takes = Signature::new().buffer::<u8>(Access::Write).bytes(3);
    /// // SAFETY: it writes the first of at least one byte.
    /// let store = unsafe { host.program(&store)?.kernel("store", takes)? };
    /// let queue = host.queue()?;
    /// let launch = |bytes: &[u8]| {
    ///     queue.launch(&store, [1], [buffer.write_on(&queue)?.into_arg(), Arg::bytes(bytes)])
    /// };
    /// launch(&[1, 2, 3])?;
    /// assert_eq!(buffer.to_vec()?, [3]);
    /// assert!(launch(&[1, 2]).is_err());
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn bytes(mut self, count: usize) -> Self {
        self.params.push(Param::Value(Element::of_bytes(count)));
        self
    }

    /// Group-local memory of `T`; its length is given at each launch.
    pub fn local<T: Pod>(mut self) -> Self {
        self.params.push(Param::Local(Element::of::<T>()));
        self
    }

    /// Launches may begin at another index than zero: see [`Grid::offset`]. The promise of
    /// [`crate::Program::kernel`] then has to hold for those too; without this they are refused.
    pub fn offsets(mut self) -> Self {
        self.offsets = true;
        self
    }

    /// What must hold of each launch for the kernel to stay in bounds. Launches that do not pass are
    /// refused, so the promise of [`crate::Program::kernel`] needs to hold only for those that do.
    pub fn require(
        mut self,
        check: impl Fn(&Call<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.require = Some(Arc::new(check));
        self
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.params.iter().map(|p| p.to_string())).finish()
    }
}

/// A launch about to happen, as [`Signature::require`] sees it.
pub struct Call<'c> {
    pub(super) grid: &'c Grid,
    pub(super) args: &'c [Arg<'c>],
}

impl Call<'_> {
    /// Work-items per dimension; unused dimensions are 1.
    pub fn global(&self) -> [usize; 3] {
        self.grid.0.global
    }

    /// The first work-item's index per dimension.
    pub fn offset(&self) -> [usize; 3] {
        self.grid.0.offset
    }

    /// Elements of a buffer or of local memory; zero for a value.
    pub fn len(&self, index: usize) -> usize {
        match self.args.get(index).map(|arg| &arg.0) {
            Some(Kind::Buffer { element, hold }) => hold.bytes() / element.bytes().max(1),
            Some(Kind::Local { count, .. }) => *count,
            _ => 0,
        }
    }

    /// A value argument, if it is one of this size.
    pub fn value<T: Pod>(&self, index: usize) -> Option<T> {
        match self.args.get(index).map(|arg| &arg.0) {
            Some(Kind::Value { element, bytes }) if *element == Element::of::<T>() => {
                Some(bytemuck::pod_read_unaligned(bytes.get()))
            }
            _ => None,
        }
    }
}
