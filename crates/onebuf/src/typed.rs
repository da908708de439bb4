//! Kernels whose parameters are a list of Rust types, which the compiler compares with the arguments of each launch.
//!
//! # Safety
//! Declaring a kernel is unsafe, as for [`Program::kernel`], which the unsafe functions of this file call with their callers'
//! guarantee.

#![allow(unsafe_code)]

use onebuf_core::{
    Access, Arg, Buffer, Complex32, Complex64, Device, Fence, Grid, IntoArg, Kernel, Program,
    Queue, ReadView, Result, Signature, Source, SubBuffer, WriteView, bytemuck::Pod, half::f16,
};
use std::{fmt, marker::PhantomData, ops::Deref};

/// A parameter that has an element for each work-item, for kernels in which work-item `i` touches element `i`:
/// `Each<&mut f32>`, `Each<&f32>`, `Each<Out<f32>>`, `Each<Local<f32>>` (for each work-item of a group). Launches with more
/// work-items than elements are refused, as by [`Signature::each`].
pub struct Each<P>(PhantomData<fn(P)>);

/// A buffer that the kernel only writes: `Out<[f32]>`, or `Each<Out<f32>>`.
pub struct Out<T: ?Sized>(PhantomData<fn(Box<T>)>);

/// Group-local memory of `T`. As an argument, [`Local::of`] gives the number of elements.
pub struct Local<T> {
    count: usize,
    element: PhantomData<fn(T)>,
}

impl<T: Pod> Local<T> {
    /// Local memory for `count` elements.
    pub fn of(count: usize) -> Self {
        Self { count, element: PhantomData }
    }
}

impl<'b, T: Pod> IntoArg<'b> for Local<T> {
    fn into_arg(self) -> Arg<'b> {
        Arg::local::<T>(self.count)
    }
}

/// A struct that is passed by value, as parameter and as argument. Its layout must match the kernel's. Numbers, and vectors as
/// arrays, need no wrapper.
#[derive(Clone, Copy, Debug)]
pub struct Value<T>(pub T);

impl<'b, T: Pod> IntoArg<'b> for Value<T> {
    fn into_arg(self) -> Arg<'b> {
        Arg::value(self.0)
    }
}

/// A type that declares one parameter of a kernel.
///
/// | type | the kernel takes |
/// |---|---|
/// | `&[T]`, `&mut [T]`, [`Out<[T]>`](Out) | a buffer that it reads, reads and writes, or writes, with an index of its own |
/// | [`Each<&T>`](Each), `Each<&mut T>`, `Each<Out<T>>` | a buffer with an element for each work-item |
/// | `f32`, `u32`, …, `[f32; 4]` (`float4`), [`Value<S>`](Value) | a value |
/// | [`Local<T>`], `Each<Local<T>>` | group-local memory; with an element for each work-item of a group |
#[diagnostic::on_unimplemented(
    message = "`{Self}` declares no parameter of a kernel",
    note = "use a number, an array, `Value<S>`, `&[T]`, `&mut [T]`, `Out<[T]>`, `Each<&T>`, `Each<&mut T>`, `Each<Out<T>>` or `Local<T>`"
)]
pub trait Parameter {
    /// Adds the parameter to a signature.
    fn declare(signature: Signature) -> Signature;
}

/// A value of type `Self` fits a parameter declared as `P`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no argument for the parameter `{P}`",
    note = "a buffer parameter takes `&buffer`, a region or a view with the same elements; a value parameter takes its own type"
)]
pub trait Argument<'b, P>: IntoArg<'b> {}

/// A list of parameters: a tuple of [`Parameter`]s.
pub trait Parameters {
    /// The signature with these parameters.
    fn signature() -> Signature;
}

/// The arguments of a kernel with the parameters `P`: a tuple with an [`Argument`] for each.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of arguments for the parameters `{P}`",
    note = "pass a tuple with one argument for each parameter"
)]
pub trait Arguments<'b, P> {
    /// The arguments as a launch takes them.
    fn into_args(self) -> impl AsRef<[Arg<'b>]>;
}

macro_rules! buffers {
    ($($parameter:ty: $method:ident $access:ident;)*) => {$(
        impl<T: Pod> Parameter for $parameter {
            fn declare(signature: Signature) -> Signature {
                signature.$method::<T>(Access::$access)
            }
        }
        impl<'b, T: Pod> Argument<'b, $parameter> for &'b Buffer<T> {}
        impl<'b, T: Pod> Argument<'b, $parameter> for &'b SubBuffer<'_, T> {}
        impl<'b, T: Pod> Argument<'b, $parameter> for WriteView<'b, T> {}
        impl<'b, T: Pod> Argument<'b, $parameter> for &'b mut WriteView<'_, T> {}
    )*};
}
buffers! {
    &[T]: buffer Read;
    &mut [T]: buffer ReadWrite;
    Out<[T]>: buffer Write;
    Each<&T>: each Read;
    Each<&mut T>: each ReadWrite;
    Each<Out<T>>: each Write;
}

macro_rules! read_views {
    ($($parameter:ty),*) => {$(
        impl<'b, T: Pod> Argument<'b, $parameter> for ReadView<'b, T> {}
        impl<'b, T: Pod> Argument<'b, $parameter> for &'b ReadView<'_, T> {}
    )*};
}
read_views!(&[T], Each<&T>);

macro_rules! values {
    ($($type:ty),*) => {$(
        impl Parameter for $type {
            fn declare(signature: Signature) -> Signature {
                signature.value::<$type>()
            }
        }
        impl Argument<'_, $type> for $type {}
    )*};
}
values!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, f16, Complex32, Complex64);

impl<T: Pod, const N: usize> Parameter for [T; N]
where
    [T; N]: Pod,
{
    fn declare(signature: Signature) -> Signature {
        signature.value::<[T; N]>()
    }
}
impl<T: Pod, const N: usize> Argument<'_, [T; N]> for [T; N] where [T; N]: Pod {}

impl<T: Pod> Parameter for Value<T> {
    fn declare(signature: Signature) -> Signature {
        signature.value::<T>()
    }
}
impl<T: Pod> Argument<'_, Value<T>> for Value<T> {}

impl<T: Pod> Parameter for Local<T> {
    fn declare(signature: Signature) -> Signature {
        signature.local::<T>()
    }
}
impl<T: Pod> Argument<'_, Local<T>> for Local<T> {}

impl<T: Pod> Parameter for Each<Local<T>> {
    fn declare(signature: Signature) -> Signature {
        signature.each_local::<T>()
    }
}
impl<T: Pod> Argument<'_, Each<Local<T>>> for Local<T> {}

macro_rules! lists {
    ($($P:ident $A:ident $at:tt),*) => {
        impl<$($P: Parameter),*> Parameters for ($($P,)*) {
            fn signature() -> Signature {
                let signature = Signature::new();
                $(let signature = $P::declare(signature);)*
                signature
            }
        }

        impl<'b, $($P, $A: Argument<'b, $P>),*> Arguments<'b, ($($P,)*)> for ($($A,)*) {
            #[inline]
            fn into_args(self) -> impl AsRef<[Arg<'b>]> {
                [$(self.$at.into_arg()),*]
            }
        }
    };
}
lists!(P0 A0 0);
lists!(P0 A0 0, P1 A1 1);
lists!(P0 A0 0, P1 A1 1, P2 A2 2);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8);
lists!(P0 A0 0, P1 A1 1, P2 A2 2, P3 A3 3, P4 A4 4, P5 A5 5, P6 A6 6, P7 A7 7, P8 A8 8, P9 A9 9);

/// A kernel with the parameters `P`, such as `(Each<&mut f32>, f32)`. Made by [`DeviceKernelExt::kernel`] and
/// [`ProgramKernelExt::typed`]. Cheap to clone.
///
/// It is also a [`Kernel`], for what takes those: `queue.launch(&gain, [n], args![&x, 2.0f32])`, pipelines, grafts.
pub struct TypedKernel<P> {
    kernel: Kernel,
    parameters: PhantomData<fn(P)>,
}

impl<P> TypedKernel<P> {
    /// Launches the kernel on its device's [default queue](Device::default_queue). A wrong argument does not compile:
    ///
    /// ```compile_fail,E0277
    /// # use onebuf::{Buffer, Each, Result, TypedKernel};
    /// # fn wrong(gain: &TypedKernel<(Each<&mut f32>, f32)>, numbers: &Buffer<u32>) -> Result<()> {
    /// gain.launch([64], (numbers, 2.0)) // a buffer of u32
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Kernel::launch`].
    pub fn launch<'b>(&self, grid: impl Into<Grid>, args: impl Arguments<'b, P>) -> Result<()> {
        self.kernel.launch(grid, args.into_args())
    }

    /// Launches the kernel on a queue. Views among the arguments were taken on that queue.
    ///
    /// # Errors
    /// As for [`Queue::launch`].
    pub fn launch_on<'b>(
        &self,
        queue: &Queue,
        grid: impl Into<Grid>,
        args: impl Arguments<'b, P>,
    ) -> Result<()> {
        queue.launch(&self.kernel, grid, args.into_args())
    }

    /// Launches the kernel on a queue, and returns the fence that this launch reaches: see [`Queue::launch_fenced`].
    ///
    /// # Errors
    /// As for [`Queue::launch`].
    pub fn launch_fenced<'b>(
        &self,
        queue: &Queue,
        grid: impl Into<Grid>,
        args: impl Arguments<'b, P>,
    ) -> Result<Fence> {
        queue.launch_fenced(&self.kernel, grid, args.into_args())
    }
}

impl<P> Deref for TypedKernel<P> {
    type Target = Kernel;

    fn deref(&self) -> &Kernel {
        &self.kernel
    }
}

impl<P> Clone for TypedKernel<P> {
    fn clone(&self) -> Self {
        Self { kernel: self.kernel.clone(), parameters: PhantomData }
    }
}

impl<P> fmt::Debug for TypedKernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernel.fmt(f)
    }
}

/// Kernels of a source, with typed parameters.
pub trait DeviceKernelExt {
    /// Builds a source for the device and returns one of its kernels. The parameters are a tuple of types: see [`Parameter`]. A
    /// string is OpenCL C; other languages, and several forms of one program, are a [`Source`].
    ///
    /// ```
    /// use onebuf::{Each, Source, prelude::*};
    ///
    /// let hub = onebuf::discover()?;
    /// let gain = Source::opencl_c("kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }")
    ///     .with_native("gain", |args| {
    ///         let by = args.value::<f32>(1)?;
    ///         args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= by);
    ///         Ok(())
    ///     });
    /// // SAFETY: work-item i touches x[i] only.
    /// let gain = unsafe { hub.host().kernel::<(Each<&mut f32>, f32)>(gain, "gain")? };
    /// let signal = hub.buffer_from(&[1.0_f32; 64]).build()?;
    /// gain.launch([64], (&signal, 2.0))?;
    /// assert_eq!(signal.to_vec()?, [2.0; 64]);
    /// assert!(gain.launch([65], (&signal, 2.0)).is_err()); // one work-item too many
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Safety
    /// As for [`Program::kernel`]: for every launch that fits these parameters, the kernel stays inside the given buffers (an
    /// [`Each`] has an element for each work-item), reads and writes only what is declared so, and terminates.
    ///
    /// # Errors
    /// As for [`Device::program`] and [`Program::kernel`].
    unsafe fn kernel<P: Parameters>(
        &self,
        source: impl Into<Source>,
        name: &str,
    ) -> Result<TypedKernel<P>>;
}

impl DeviceKernelExt for Device {
    unsafe fn kernel<P: Parameters>(
        &self,
        source: impl Into<Source>,
        name: &str,
    ) -> Result<TypedKernel<P>> {
        // SAFETY: the caller's guarantee.
        unsafe { self.program(&source.into())?.typed(name) }
    }
}

/// Kernels of a program, with typed parameters.
pub trait ProgramKernelExt {
    /// Returns one of the program's kernels, with typed parameters: see [`DeviceKernelExt::kernel`].
    ///
    /// # Safety
    /// As for [`DeviceKernelExt::kernel`].
    ///
    /// # Errors
    /// As for [`Program::kernel`].
    unsafe fn typed<P: Parameters>(&self, name: &str) -> Result<TypedKernel<P>>;
}

impl ProgramKernelExt for Program {
    unsafe fn typed<P: Parameters>(&self, name: &str) -> Result<TypedKernel<P>> {
        // SAFETY: the caller's guarantee.
        let kernel = unsafe { self.kernel(name, P::signature())? };
        Ok(TypedKernel { kernel, parameters: PhantomData })
    }
}
