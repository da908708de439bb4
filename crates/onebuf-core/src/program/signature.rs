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

/// The declared parameters of a kernel, in order, and what its launches must fulfil for it to stay in bounds.
///
/// ```
/// use onebuf::{Access, Signature};
/// // kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }
/// let gain = Signature::new().each::<f32>(Access::ReadWrite).value::<f32>();
/// # let _ = gain;
/// // kernel void scale(global float *x, uint n, float by), for launches of any size
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
    /// The parameters that need an element for each work-item.
    each: Vec<usize>,
    require: Option<Requirement>,
}

impl Signature {
    /// A signature without parameters.
    // Not inlined: an optimising rustc 1.95 takes two empty signatures of one function for the same value, also after the first was
    // moved and changed, and both are freed (rust-lang/rust#155241, #158830; optimised tests ended with a double free).
    #[inline(never)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer of `T`, with the kernel's use of it.
    pub fn buffer<T: Pod>(mut self, access: Access) -> Self {
        self.params.push(Param::Buffer { element: Element::of::<T>(), access });
        self
    }

    /// Adds a buffer of `T` that has an element for each work-item, with the kernel's use of it. Launches with more work-items, in
    /// all dimensions together and with their offset, than the buffer has elements are refused.
    ///
    /// ```
    /// # use onebuf::{Access, Error, Signature, Source, args};
    /// # let hub = onebuf::discover()?;
    /// # let add = Source::default().with_native("add", |args| {
    /// #     args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += 1);
    /// #     Ok(())
    /// # });
    /// let fits = Signature::new().each::<u32>(Access::ReadWrite);
    /// // SAFETY: work-item i touches x[i] only.
    /// let add = unsafe { hub.host().program(&add)?.kernel("add", fits)? };
    /// let x = hub.buffer_from(&[1_u32; 8]).build()?;
    /// add.launch([8], args![&x])?;
    /// assert!(matches!(add.launch([3, 3], args![&x]), Err(Error::InvalidArgument(_))));
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn each<T: Pod>(mut self, access: Access) -> Self {
        self.each.push(self.params.len());
        self.buffer::<T>(access)
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

    /// Adds group-local memory of `T` that has an element for each work-item of a group. Launches that give it fewer, or that do
    /// not give the group's size by [`Grid::local`], are refused.
    pub fn each_local<T: Pod>(mut self) -> Self {
        self.each.push(self.params.len());
        self.local::<T>()
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

    /// Whether a parameter has an element for each work-item.
    pub(super) fn is_each(&self, index: usize) -> bool {
        self.each.contains(&index)
    }

    /// Whether a launch has anything to pass beyond its types.
    #[inline]
    pub(super) fn has_requirements(&self) -> bool {
        self.require.is_some() || !self.each.is_empty()
    }

    /// Checks a launch whose arguments have the right types.
    pub(super) fn check(&self, call: &Call<'_>) -> Result<(), String> {
        self.each.iter().try_for_each(|&index| call.check_each(index))?;
        self.require.as_ref().map_or(Ok(()), |require| require(call))
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
            Some(Kind::Part { element, part }) => part.span.len() / element.bytes().max(1),
            Some(Kind::Local { count, .. }) => *count,
            _ => 0,
        }
    }

    /// Checks that a parameter has an element for each work-item, or local memory one for each work-item of a group.
    fn check_each(&self, index: usize) -> Result<(), String> {
        let is_local = matches!(self.args.get(index).map(|arg| &arg.0), Some(Kind::Local { .. }));
        let (sizes, items) = match (is_local, self.grid.0.local) {
            (false, _) => (self.global(), "work-items"),
            (true, Some(group)) => (group, "work-items in a group"),
            (true, None) => {
                return Err(format!(
                    "argument {index} has an element for each work-item of a group: give the group's size"
                ));
            }
        };
        let first = if is_local { [0; 3] } else { self.offset() };
        let ends = sizes.into_iter().zip(first).map(|(size, first)| size.saturating_add(first));
        let (want, have) = (ends.fold(1, usize::saturating_mul), self.len(index));
        if want <= have {
            return Ok(());
        }
        Err(format!("argument {index} has {have} elements, and there are {want} {items}"))
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
