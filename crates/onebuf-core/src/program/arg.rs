//! The arguments of a launch.

use super::param::{Element, Param};
use crate::{
    buffer::{Buffer, Hold, Part, SubBuffer},
    queues::Queue,
    view::{ReadView, WriteView},
};
use bytemuck::Pod;
use onebuf_hal::{self as hal, Access, Error, Result, locks::Arc};
use std::{cell::Cell, marker::PhantomData, ops::Deref};

/// One argument of a launch: a buffer, a view, a value or local memory. Created by [`args!`](crate::args).
///
/// Not `Sync`: on a queue that runs its work on the calling thread, two threads would run launches of one view concurrently.
#[derive(Debug)]
pub struct Arg<'b>(pub(super) Kind<'b>, PhantomData<Cell<()>>);

#[derive(Debug)]
pub(super) enum Kind<'b> {
    Buffer {
        element: Element,
        hold: Held<'b>,
    },
    /// A buffer or region of which the launch takes the view that the parameter declares.
    Part {
        element: Element,
        part: Part<'b>,
    },
    Value {
        element: Element,
        bytes: Inline,
    },
    Local {
        element: Element,
        count: usize,
    },
}

/// The view of an argument.
#[derive(Debug)]
pub(super) enum Held<'b> {
    /// Released with the arguments.
    Given(Hold<'b>),
    /// Borrowed from the caller.
    Lent(&'b Hold<'b>),
}

impl<'b> Deref for Held<'b> {
    type Target = Hold<'b>;

    #[inline]
    fn deref(&self) -> &Hold<'b> {
        match self {
            Held::Given(hold) => hold,
            Held::Lent(hold) => hold,
        }
    }
}

/// The bytes of a value. Small values need no allocation.
#[derive(Clone, Debug)]
pub(super) enum Inline {
    Small([u8; 24], u8),
    Large(Box<[u8]>),
}

impl Inline {
    #[inline]
    fn new(bytes: &[u8]) -> Self {
        let mut small = [0; 24];
        match small.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Inline::Small(small, bytes.len() as u8)
            }
            None => Inline::Large(bytes.into()),
        }
    }

    #[inline]
    pub fn get(&self) -> &[u8] {
        match self {
            Inline::Small(bytes, len) => &bytes[..usize::from(*len)],
            Inline::Large(bytes) => bytes,
        }
    }
}

impl<'b> Arg<'b> {
    #[inline]
    pub(crate) fn buffer<T: Pod>(hold: Hold<'b>) -> Self {
        Self::view::<T>(Held::Given(hold))
    }

    #[inline]
    pub(crate) fn lent<T: Pod>(hold: &'b Hold<'b>) -> Self {
        Self::view::<T>(Held::Lent(hold))
    }

    #[inline]
    fn view<T: Pod>(hold: Held<'b>) -> Self {
        Arg(Kind::Buffer { element: Element::of::<T>(), hold }, PhantomData)
    }

    #[inline]
    fn part<T: Pod>(part: Part<'b>) -> Self {
        Arg(Kind::Part { element: Element::of::<T>(), part }, PhantomData)
    }

    /// A value of any plain type. The layout of a struct must match the kernel's.
    #[inline]
    pub fn value<T: Pod>(value: T) -> Self {
        let bytes = Inline::new(bytemuck::bytes_of(&value));
        Arg(Kind::Value { element: Element::of::<T>(), bytes }, PhantomData)
    }

    /// A value as bytes, for a parameter declared by [`Signature::bytes`](crate::Signature::bytes).
    pub fn bytes(bytes: &[u8]) -> Self {
        let element = Element::of_bytes(bytes.len());
        Arg(Kind::Value { element, bytes: Inline::new(bytes) }, PhantomData)
    }

    /// Another argument with the view of this one, for a kernel that gets one buffer by several parameters.
    ///
    /// # Safety
    /// The kernel does what its signature declares also when both parameters are the same memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an argument that is not a view.
    #[allow(unsafe_code)]
    pub unsafe fn again(&self) -> Result<Arg<'_>> {
        match &self.0 {
            Kind::Buffer { element, hold } => {
                Ok(Arg(Kind::Buffer { element: *element, hold: Held::Lent(hold) }, PhantomData))
            }
            _ => Err(Error::invalid("only a view can be passed twice")),
        }
    }

    /// The native handle or address of a view: see [`ReadView::raw`](crate::ReadView::raw).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an argument that is not a view.
    pub fn raw(&self) -> Result<hal::RawHandle> {
        match &self.0 {
            Kind::Buffer { hold, .. } => hold.raw(),
            _ => Err(Error::invalid("only a view has a native handle")),
        }
    }

    /// The native buffer of `api`, and the byte offset at which a view begins in it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an argument that is not a view; [`Error::Unsupported`] for a view on a queue of another API.
    pub fn object(&self, api: &str) -> Result<(u64, u64)> {
        match &self.0 {
            Kind::Buffer { hold, .. } => hold.object(api),
            _ => Err(Error::invalid("only a view has a native buffer")),
        }
    }

    /// Group-local memory for `count` elements of `T`.
    pub fn local<T: Pod>(count: usize) -> Self {
        Arg(Kind::Local { element: Element::of::<T>(), count }, PhantomData)
    }

    /// Converts the argument for the device; `None` if it does not match the parameter. The access is the parameter's, which may
    /// be less than the view allows. Sets `watched` if the view must be notified of the launch.
    #[inline(always)]
    pub(super) fn fit(
        &self,
        queue: &Queue,
        param: &Param,
        watched: &mut bool,
    ) -> Option<hal::Arg<'_>> {
        match (&self.0, param) {
            (Kind::Buffer { element, hold }, Param::Buffer { element: want, access }) => {
                let fits = element == want && hold.allows(*access) && hold.is_on(queue);
                if !fits || hold.bars_native() {
                    return None;
                }
                *watched |= hold.is_watched();
                Some(hal::Arg::Memory(hold.memory(), *access, hold.bytes()))
            }
            (Kind::Value { element, bytes }, Param::Value(want)) if element == want => {
                Some(hal::Arg::Bytes(bytes.get()))
            }
            (Kind::Local { element, count }, Param::Local(want)) if element == want => {
                Some(hal::Arg::Local(count.saturating_mul(element.bytes())))
            }
            _ => None,
        }
    }

    /// Whether a launch with this argument needs its own event.
    pub(super) fn is_watched(&self) -> bool {
        matches!(&self.0, Kind::Buffer { hold, .. } if hold.is_watched())
    }

    /// On an out-of-order queue, adds the events that a launch with this argument must wait for.
    pub(super) fn collect_waits(&self, waits: &mut Vec<Arc<dyn hal::Event>>) -> Result<()> {
        match &self.0 {
            Kind::Buffer { hold, .. } => hold.collect_waits(waits),
            Kind::Part { .. } | Kind::Value { .. } | Kind::Local { .. } => Ok(()),
        }
    }

    /// Whether the argument is a buffer, of which the launch takes the view.
    pub(super) fn is_part(&self) -> bool {
        matches!(&self.0, Kind::Part { .. })
    }

    /// Whether the argument matches the parameter, once the launch has taken a buffer's view.
    pub(super) fn suits(&self, queue: &Queue, param: &Param) -> bool {
        match (&self.0, param) {
            (Kind::Part { element, part }, Param::Buffer { element: want, access }) => {
                element == want && part.access.allows(*access)
            }
            _ => self.fit(queue, param, &mut false).is_some(),
        }
    }

    /// The argument for one launch on `queue`: of a buffer, the view that the parameter declares; of a view, a loan.
    pub(super) fn held<'h>(&'h self, queue: &'h Queue, param: &Param) -> Result<Arg<'h>> {
        let kind = match &self.0 {
            Kind::Part { element, part } => {
                let reads_only = matches!(param, Param::Buffer { access: Access::Read, .. });
                let access = if reads_only { Access::Read } else { Access::ReadWrite };
                let hold = Held::Given(Hold::on(*part, queue, access)?);
                Kind::Buffer { element: *element, hold }
            }
            Kind::Buffer { element, hold } => {
                Kind::Buffer { element: *element, hold: Held::Lent(hold) }
            }
            Kind::Value { element, bytes } => {
                Kind::Value { element: *element, bytes: bytes.clone() }
            }
            Kind::Local { element, count } => Kind::Local { element: *element, count: *count },
        };
        Ok(Arg(kind, PhantomData))
    }

    /// Notifies the view of a launch with this argument, if it requires that.
    pub(super) fn launched(&self, event: Arc<dyn hal::Event>) {
        if let Kind::Buffer { hold, .. } = &self.0 {
            hold.launched(event);
        }
    }

    /// Describes why the argument does not match the parameter.
    #[cold]
    pub(super) fn misfit(&self, param: &Param) -> String {
        match (&self.0, param) {
            (Kind::Buffer { element, hold }, Param::Buffer { element: want, access })
                if element == want =>
            {
                let made_for = hold.buffer_access();
                match () {
                    () if !hold.access().allows(*access) => {
                        format!("a {} view where {param} is declared", hold.access())
                    }
                    () if !made_for.allows(*access) => {
                        format!("a buffer made for {made_for} where {param} is declared")
                    }
                    () if hold.bars_native() => "another process can write this memory, and a native \
                                                 kernel would get it as a slice: `read` it, or use a \
                                                 device with kernels of its own"
                        .into(),
                    () => "the view was taken on another queue: take it on this one".into(),
                }
            }
            (Kind::Part { element, part }, Param::Buffer { element: want, .. })
                if element == want =>
            {
                format!("a buffer made for {} where {param} is declared", part.access)
            }
            (Kind::Part { element, .. }, _) => {
                format!("a buffer of {element:?} where {param} is declared")
            }
            (Kind::Buffer { element, .. }, _) => {
                format!("a view of {element:?} where {param} is declared")
            }
            (Kind::Value { element, .. }, _) => {
                let bytes = element.bytes();
                format!("a value of type {element:?} ({bytes} bytes) where {param} is declared")
            }
            (Kind::Local { element, .. }, _) => {
                format!("local memory of {element:?} where {param} is declared")
            }
        }
    }
}

/// A type that can be passed to a kernel: references to buffers and regions, views, values, [`Arg::local`].
///
/// Of a buffer or region the launch takes the view that the parameter declares, to read or to write, and releases it when the
/// work is enqueued. A view passed by value ends with the arguments. A view passed by reference stays, for several successive launches. A write
/// view can be borrowed by one argument at a time.
///
/// ```
/// # use onebuf::{Access, Signature, Source, args};
/// # let hub = onebuf::discover()?;
/// # let (host, buffer) = (hub.host(), hub.buffer::<u32>(4).build()?);
/// # let add = Source::default().with_native("add", |args| {
/// #     let by = args.value::<u32>(1)?;
/// #     args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += by);
/// #     Ok(())
/// # });
/// # let signature = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
/// # // SAFETY: the kernel stays in its slice.
/// # let add = unsafe { host.program(&add)?.kernel("add", signature)? };
/// let queue = host.queue()?;
/// let mut view = buffer.write_on(&queue)?;
/// for n in 1..=3_u32 {
///     queue.launch(&add, [4], args![&mut view, n])?;
/// }
/// queue.launch(&add, [4], args![view, 4_u32])?; // by value: the buffer is free for others now
/// queue.launch(&add, [4], args![&buffer, 5_u32])?; // a view for this launch alone
/// assert_eq!(buffer.to_vec()?, [15; 4]);
/// # Ok::<(), onebuf::Error>(())
/// ```
///
/// ```compile_fail,E0499
/// # fn twice<'b>(mut view: onebuf::WriteView<'b, u32>) {
/// let aliased = onebuf::args![&mut view, &mut view];
/// # drop(aliased);
/// # }
/// ```
pub trait IntoArg<'b> {
    /// Converts `self` into an argument.
    fn into_arg(self) -> Arg<'b>;
}

impl<'b> IntoArg<'b> for Arg<'b> {
    #[inline]
    fn into_arg(self) -> Arg<'b> {
        self
    }
}

macro_rules! views {
    ($($view:ident),*) => {$(
        impl<'b, T: Pod> IntoArg<'b> for $view<'b, T> {
            #[inline]
            fn into_arg(self) -> Arg<'b> {
                Arg::buffer::<T>(self.into_hold())
            }
        }
    )*};
}
views!(ReadView, WriteView);

impl<'v, T: Pod> IntoArg<'v> for &'v ReadView<'_, T> {
    #[inline]
    fn into_arg(self) -> Arg<'v> {
        Arg::lent::<T>(self.hold())
    }
}

/// Borrows the view exclusively while the argument lives: on a queue that runs its work on the calling thread, two launches of
/// one view would write concurrently.
impl<'v, T: Pod> IntoArg<'v> for &'v mut WriteView<'_, T> {
    #[inline]
    fn into_arg(self) -> Arg<'v> {
        Arg::lent::<T>(self.hold())
    }
}

impl<'b, T: Pod> IntoArg<'b> for &'b Buffer<T> {
    #[inline]
    fn into_arg(self) -> Arg<'b> {
        Arg::part::<T>(self.part())
    }
}

impl<'b, T: Pod> IntoArg<'b> for &'b SubBuffer<'_, T> {
    #[inline]
    fn into_arg(self) -> Arg<'b> {
        Arg::part::<T>(self.part())
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl<'b> IntoArg<'b> for $type {
            #[inline]
            fn into_arg(self) -> Arg<'b> {
                Arg::value(self)
            }
        }
    )*};
}
values!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16);
values!(num_complex::Complex32, num_complex::Complex64);

/// Vectors: a `float4` is `[f32; 4]`.
impl<'b, T: Pod, const N: usize> IntoArg<'b> for [T; N]
where
    [T; N]: Pod,
{
    fn into_arg(self) -> Arg<'b> {
        Arg::value(self)
    }
}

/// The arguments of a launch: buffers, views, values, [`Arg::value`] for structs, [`Arg::local`].
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        [$($crate::IntoArg::into_arg($arg)),*]
    };
}
