//! Programs, kernels with declared signatures, and the arguments of a launch.
//!
//! # Safety
//! A kernel is declared in one unsafe call; every launch is checked against that declaration.

#![allow(unsafe_code)]

use crate::{
    Error, Result,
    device::Device,
    hal::{self, Access, NativeArgs, NativeKernel, Source},
    queue::Queue,
    sync::Arc,
    view::Hold,
};
use bytemuck::Pod;
use std::{any::TypeId, borrow::Cow, fmt};

impl Source {
    /// A program in OpenCL C.
    pub fn opencl_c(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().with_opencl_c(text)
    }

    /// Adds the program in OpenCL C, for devices that speak it.
    pub fn with_opencl_c(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.texts.push((crate::backend::opencl::OPENCL_C, text.into()));
        self
    }

    /// Adds a kernel as a Rust function, for the host: called once for a whole launch.
    pub fn with_native(
        mut self,
        name: impl Into<Cow<'static, str>>,
        run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.native.push(NativeKernel { name: name.into(), run: Arc::new(run) });
        self
    }

    /// Options for the compiler, such as `-cl-fast-relaxed-math`.
    pub fn with_options(mut self, options: impl Into<String>) -> Self {
        self.options = options.into();
        self
    }
}

/// A program built for one device.
#[derive(Clone)]
pub struct Program {
    device: Device,
    hal: Arc<dyn hal::Program>,
}

impl Program {
    pub(crate) fn build(device: &Device, source: &Source) -> Result<Self> {
        let hal = device.hub().hal(device.index()).build(source)?;
        Ok(Self { device: device.clone(), hal })
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the compiler said although it succeeded.
    pub fn log(&self) -> &str {
        self.hal.log()
    }

    /// A kernel of this program, and what it does with its parameters.
    ///
    /// # Safety
    /// For every launch whose arguments fit the signature and pass its requirement, the kernel stays
    /// inside the buffers given, reads only those declared for reading and writes only those declared
    /// for writing, and ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such kernel, or its number of parameters differs.
    pub unsafe fn kernel(&self, name: &str, signature: Signature) -> Result<Kernel> {
        let hal = self.hal.kernel(name, signature.params.len())?;
        let shared = Shared { name: name.into(), device: self.device.clone(), hal, signature };
        Ok(Kernel(Arc::new(shared)))
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.device)
    }
}

#[derive(Clone, Copy)]
enum Param {
    Buffer { element: Element, access: Access },
    Value(Element),
    Local(Element),
}

impl Param {
    fn access(&self) -> Access {
        match self {
            Param::Buffer { access, .. } => *access,
            Param::Value(_) | Param::Local(_) => Access::Read,
        }
    }
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Buffer { element, access } => write!(f, "a {access} view of {}", element.name),
            Param::Value(element) => write!(f, "a value of type {}", element.name),
            Param::Local(element) => write!(f, "local memory of {}", element.name),
        }
    }
}

/// An element type, remembered at run time.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Element {
    id: TypeId,
    name: &'static str,
    bytes: usize,
}

impl Element {
    pub(crate) fn of<T: Pod>() -> Self {
        Self { id: TypeId::of::<T>(), name: std::any::type_name::<T>(), bytes: size_of::<T>() }
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
    params: Vec<Param>,
    require: Option<Requirement>,
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

    /// Group-local memory of `T`; its length is given at each launch.
    pub fn local<T: Pod>(mut self) -> Self {
        self.params.push(Param::Local(Element::of::<T>()));
        self
    }

    /// What must hold of each launch for the kernel to stay in bounds. Launches that do not pass are
    /// refused, so the promise of [`Program::kernel`] needs to hold only for those that do.
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
    grid: &'c Grid,
    args: &'c [Arg<'c>],
}

impl Call<'_> {
    /// Work-items per dimension; unused dimensions are 1.
    pub fn global(&self) -> [usize; 3] {
        self.grid.0.global
    }

    /// Elements of a buffer or of local memory; zero for a value.
    pub fn len(&self, index: usize) -> usize {
        match self.args.get(index).map(|arg| &arg.0) {
            Some(Kind::Buffer { element, hold }) => hold.bytes() / element.bytes.max(1),
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

struct Shared {
    name: String,
    device: Device,
    hal: Arc<dyn hal::Kernel>,
    signature: Signature,
}

/// A declared kernel. Launching it is safe; see [`Queue::launch`]. Cheap to clone.
#[derive(Clone)]
pub struct Kernel(Arc<Shared>);

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device it was built for.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn launch_on(&self, queue: &Queue, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        self.check(queue, &grid, args)?;
        let params = &self.0.signature.params;
        let hal_args: Vec<hal::Arg<'_>> =
            args.iter().zip(params).map(|(arg, param)| arg.to_hal(param)).collect();
        // SAFETY: the signature, declared in an unsafe call, says that the kernel stays in bounds and
        // honours each access; `check` made sure that the arguments fit it.
        unsafe { queue.line.hal.launch(&*self.0.hal, &grid.0, &hal_args) }
    }

    fn check(&self, queue: &Queue, grid: &Grid, args: &[Arg<'_>]) -> Result<()> {
        let name = &self.0.name;
        let mine = &self.0.device;
        if !(mine.hub().is(&queue.hub) && mine.index() == queue.line.device) {
            let its = queue.device();
            return Err(Error::invalid(format!(
                "kernel `{name}` was built for {mine}, the queue is of {its}: build the program for {its} too"
            )));
        }
        let params = &self.0.signature.params;
        if params.len() != args.len() {
            return Err(Error::invalid(format!(
                "kernel `{name}` takes {} arguments, {} were given",
                params.len(),
                args.len()
            )));
        }
        grid.check(name)?;
        for (index, (param, arg)) in params.iter().zip(args).enumerate() {
            arg.check(queue, param).map_err(|why| {
                Error::invalid(format!("argument {index} of kernel `{name}`: {why}"))
            })?;
        }
        match &self.0.signature.require {
            Some(require) => require(&Call { grid, args }).map_err(|why| {
                Error::invalid(format!("kernel `{name}` refuses this launch: {why}"))
            }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} on {}, {:?})", self.0.name, self.0.device, self.0.signature)
    }
}

/// Work-items in 1 to 3 dimensions: `[n]`, `[w, h]` or `[w, h, d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid(hal::Grid);

impl Grid {
    fn new(dims: usize, global: [usize; 3]) -> Self {
        Self(hal::Grid { dims, global, local: None })
    }

    /// Sets the work-group's size; the driver chooses it otherwise.
    pub fn local<const D: usize>(mut self, sizes: [usize; D]) -> Self {
        let mut local = [1; 3];
        for (to, from) in local.iter_mut().zip(sizes) {
            *to = from;
        }
        // A wrong number of dimensions is caught by the check at the launch.
        self.0.local = Some(if D == self.0.dims { local } else { [0; 3] });
        self
    }

    fn check(&self, kernel: &str) -> Result<()> {
        let hal::Grid { dims, global, local } = self.0;
        if global[..dims].contains(&0) {
            return Err(Error::invalid(format!("kernel `{kernel}`: a global size of zero")));
        }
        if local.is_some_and(|local| local[..dims].contains(&0)) {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: a work-group size of zero, or of another number of dimensions than the grid"
            )));
        }
        Ok(())
    }
}

impl From<[usize; 1]> for Grid {
    fn from([x]: [usize; 1]) -> Self {
        Self::new(1, [x, 1, 1])
    }
}

impl From<[usize; 2]> for Grid {
    fn from([x, y]: [usize; 2]) -> Self {
        Self::new(2, [x, y, 1])
    }
}

impl From<[usize; 3]> for Grid {
    fn from(sizes: [usize; 3]) -> Self {
        Self::new(3, sizes)
    }
}

/// One argument of a launch: a view, a value or local memory. Made by [`args!`](crate::args).
#[derive(Debug)]
pub struct Arg<'b>(Kind<'b>);

#[derive(Debug)]
enum Kind<'b> {
    Buffer { element: Element, hold: Hold<'b> },
    Value { element: Element, bytes: Inline },
    Local { element: Element, count: usize },
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Most values are small: no allocation for those.
#[derive(Debug)]
enum Inline {
    Small([u8; 24], u8),
    Large(Box<[u8]>),
}

impl Inline {
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

    fn get(&self) -> &[u8] {
        match self {
            Inline::Small(bytes, len) => &bytes[..usize::from(*len)],
            Inline::Large(bytes) => bytes,
        }
    }
}

impl<'b> Arg<'b> {
    pub(crate) fn buffer<T: Pod>(hold: Hold<'b>) -> Self {
        Arg(Kind::Buffer { element: Element::of::<T>(), hold })
    }

    /// A value of any plain type; for structs, whose layout must match the kernel's.
    pub fn value<T: Pod>(value: T) -> Self {
        let bytes = Inline::new(bytemuck::bytes_of(&value));
        Arg(Kind::Value { element: Element::of::<T>(), bytes })
    }

    /// Group-local memory for `count` elements of `T`.
    pub fn local<T: Pod>(count: usize) -> Self {
        Arg(Kind::Local { element: Element::of::<T>(), count })
    }

    /// For a parameter that it fits. What the kernel does to memory is what its parameter declares, which
    /// may be less than the view allows.
    fn to_hal(&self, param: &Param) -> hal::Arg<'_> {
        match &self.0 {
            Kind::Buffer { hold, .. } => hal::Arg::Memory(hold.memory(), param.access()),
            Kind::Value { bytes, .. } => hal::Arg::Bytes(bytes.get()),
            Kind::Local { element, count } => hal::Arg::Local(count.saturating_mul(element.bytes)),
        }
    }

    /// Whether it fits the parameter; the reason if not.
    fn check(&self, queue: &Queue, param: &Param) -> Result<(), String> {
        match (&self.0, param) {
            (Kind::Buffer { element, hold }, Param::Buffer { element: want, access }) => {
                if element != want {
                    return Err(format!("a view of {} where {param} is declared", element.name));
                }
                if !hold.access().allows(*access) {
                    return Err(format!("a {} view where {param} is declared", hold.access()));
                }
                if !hold.buffer_access().allows(*access) {
                    let made_for = hold.buffer_access();
                    return Err(format!("a buffer made for {made_for} where {param} is declared"));
                }
                if !hold.is_on(queue) {
                    return Err("the view was taken on another queue: take it on this one".into());
                }
                Ok(())
            }
            (Kind::Value { element, .. }, Param::Value(want)) if element == want => Ok(()),
            (Kind::Local { element, .. }, Param::Local(want)) if element == want => Ok(()),
            (Kind::Buffer { element, .. }, _) => {
                Err(format!("a view of {} where {param} is declared", element.name))
            }
            (Kind::Value { element, .. }, _) => {
                Err(format!("a value of type {} where {param} is declared", element.name))
            }
            (Kind::Local { element, .. }, _) => {
                Err(format!("local memory of {} where {param} is declared", element.name))
            }
        }
    }
}

/// What can be passed to a kernel.
pub trait IntoArg<'b> {
    /// As an argument.
    fn into_arg(self) -> Arg<'b>;
}

impl<'b> IntoArg<'b> for Arg<'b> {
    fn into_arg(self) -> Arg<'b> {
        self
    }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl<'b> IntoArg<'b> for $type {
            fn into_arg(self) -> Arg<'b> {
                Arg::value(self)
            }
        }
    )*};
}
values!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, half::f16);
values!(num_complex::Complex32, num_complex::Complex64);

/// Vectors: `float4` is `[f32; 4]`.
impl<'b, T: Pod, const N: usize> IntoArg<'b> for [T; N]
where
    [T; N]: Pod,
{
    fn into_arg(self) -> Arg<'b> {
        Arg::value(self)
    }
}

/// The arguments of a launch: views, values, [`Arg::value`] for structs, [`Arg::local`].
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        [$($crate::IntoArg::into_arg($arg)),*]
    };
}
