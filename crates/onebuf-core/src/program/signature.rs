//! Declared parameters of a kernel, and requirements on its launches.

use super::{
    Arg, Grid,
    arg::Kind,
    param::{Element, Param},
};
use bytemuck::Pod;
use onebuf_hal::{Access, Result, locks::Arc};
use std::fmt;

/// Checks a launch beyond its types. The error's text goes to the caller.
type Requirement = Arc<dyn Fn(&Call<'_>) -> Result<(), String> + Send + Sync>;

/// The declared parameters of a kernel, in order.
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
    /// A signature without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer of `T`, with the kernel's use of it.
    pub fn buffer<T: Pod>(mut self, access: Access) -> Self {
        self.params.push(Param::Buffer { element: Element::of::<T>(), access });
        self
    }

    /// Adds a value: a scalar, a vector as an array, or a plain struct.
    pub fn value<T: Pod>(mut self) -> Self {
        self.params.push(Param::Value(Element::of::<T>()));
        self
    }

    /// Adds a value of `count` bytes, passed by [`Arg::bytes`]: for callers in other languages, whose types are unknown here.
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

    /// Adds group-local memory of `T`. Each launch gives its length.
    pub fn local<T: Pod>(mut self) -> Self {
        self.params.push(Param::Local(Element::of::<T>()));
        self
    }

    /// Allows launches that begin at an index other than zero: see [`Grid::offset`]. The contract of
    /// [`crate::Program::kernel`] must then hold for those, too. Without this they are refused.
    pub fn offsets(mut self) -> Self {
        self.offsets = true;
        self
    }

    /// Sets a requirement that each launch must pass for the kernel to stay in bounds. Other launches are refused, so the
    /// contract of [`crate::Program::kernel`] needs to hold only for those that pass.
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

/// A launch before it is started, as passed to [`Signature::require`].
pub struct Call<'c> {
    pub(super) grid: &'c Grid,
    pub(super) args: &'c [Arg<'c>],
}

impl Call<'_> {
    /// The number of work-items per dimension; unused dimensions are 1.
    pub fn global(&self) -> [usize; 3] {
        self.grid.0.global
    }

    /// The first work-item's index per dimension.
    pub fn offset(&self) -> [usize; 3] {
        self.grid.0.offset
    }

    /// The number of elements of a buffer or of local memory; zero for a value.
    pub fn len(&self, index: usize) -> usize {
        match self.args.get(index).map(|arg| &arg.0) {
            Some(Kind::Buffer { element, hold }) => hold.bytes() / element.bytes().max(1),
            Some(Kind::Local { count, .. }) => *count,
            _ => 0,
        }
    }

    /// A value argument, if it has this type.
    pub fn value<T: Pod>(&self, index: usize) -> Option<T> {
        match self.args.get(index).map(|arg| &arg.0) {
            Some(Kind::Value { element, bytes }) if *element == Element::of::<T>() => {
                Some(bytemuck::pod_read_unaligned(bytes.get()))
            }
            _ => None,
        }
    }
}
