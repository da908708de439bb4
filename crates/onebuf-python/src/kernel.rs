//! Kernels: compiled for a device, with arguments that are compared with their own parameters.
//!
//! # Safety
//! Declaring a kernel is unsafe in Rust: it must stay inside of its buffers. Python has no such word. `Device.kernel` says in
//! its documentation that the kernel is trusted, as C code is that a program loads.

use crate::{
    again,
    array::PyBuffer,
    compile::Compiled,
    ending::{detached, enter},
    error::{Fault, Result},
    lend::DeviceUse,
    param::{Given, Param},
    stream::{Borrower, has_streams},
    types::{PyDevice, PyFence, PyQueue},
};
use onebuf::{Access, Fence, Grid, Queue, reflect::NativeArgument};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};
use std::sync::Arc;

/// A kernel, compiled for one device.
///
/// `k(x, 2.0)` launches it with as many work-items as the first buffer has elements; `k[n](…)` and `k[w, h](…)` state the number.
/// The arguments are compared with the kernel's own parameters. One buffer may be several of them. The launch returns when the work is enqueued;
/// with `fence=True` it returns the `Fence` of this launch. `local` is the size of a group, `offset` the index of the first work-item, `queue` another queue.
#[pyclass(frozen, module = "onebuf", name = "Kernel")]
pub(crate) struct PyKernel {
    pub shared: Arc<Compiled>,
}

/// A kernel with its number of work-items: `k[n]`.
#[pyclass(frozen, module = "onebuf", name = "Launch")]
pub(crate) struct PyLaunch {
    shared: Arc<Compiled>,
    grid: Sizes,
}

/// Work-items in 1 to 3 dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    dims: usize,
    sizes: [usize; 3],
}

impl Sizes {
    /// As many work-items as there are elements.
    pub fn of(elements: usize) -> Self {
        Self { dims: 1, sizes: [elements, 1, 1] }
    }

    /// The sizes of its dimensions.
    pub fn used(&self) -> &[usize] {
        &self.sizes[..self.dims]
    }

    pub fn parse(given: &Bound<'_, PyAny>, what: &str) -> Result<Self> {
        let all = crate::layout::shape(given)?;
        if !(1..=3).contains(&all.len()) {
            return Err(Fault::invalid(format!(
                "{what} of {} dimensions: 1 to 3 are possible",
                all.len()
            )));
        }
        let mut sizes = [1; 3];
        sizes[..all.len()].copy_from_slice(&all);
        Ok(Self { dims: all.len(), sizes })
    }

    pub fn grid(self, local: Option<Self>, offset: Option<Self>) -> Result<Grid> {
        if [local, offset].into_iter().flatten().any(|other| other.dims != self.dims) {
            return Err(Fault::invalid(
                "a group, and an offset, have as many dimensions as the work-items",
            ));
        }
        let [x, y, z] = self.sizes;
        let grid = match self.dims {
            1 => Grid::from([x]),
            2 => Grid::from([x, y]),
            _ => Grid::from([x, y, z]),
        };
        let grid = match local.map(|local| (local.dims, local.sizes)) {
            None => grid,
            Some((1, [x, ..])) => grid.local([x]),
            Some((2, [x, y, _])) => grid.local([x, y]),
            Some((_, sizes)) => grid.local(sizes),
        };
        Ok(match offset.map(|offset| (offset.dims, offset.sizes)) {
            None => grid,
            Some((1, [x, ..])) => grid.offset([x]),
            Some((2, [x, y, _])) => grid.offset([x, y]),
            Some((_, sizes)) => grid.offset(sizes),
        })
    }

    /// The number of indices up to the last work-item, if the first has this one.
    pub fn end(self, offset: Option<Self>) -> usize {
        let first = offset.map_or([0; 3], |offset| offset.sizes);
        let ends = self.sizes.into_iter().zip(first).take(self.dims);
        ends.fold(1, |all, (size, first)| all.saturating_mul(size.saturating_add(first)))
    }
}

impl PyKernel {
    pub fn new(compiled: Compiled) -> Self {
        Self { shared: Arc::new(compiled) }
    }
}

/// What a launch may be given by name.
#[derive(Default)]
pub(crate) struct Named {
    pub grid: Option<Sizes>,
    pub local: Option<Sizes>,
    pub offset: Option<Sizes>,
    pub queue: Option<Queue>,
    /// Whether the launch returns its fence.
    pub fence: bool,
}

impl Named {
    pub fn read(named: Option<&Bound<'_, PyDict>>) -> Result<Self> {
        let mut all = Self::default();
        for (name, value) in named.into_iter().flatten() {
            match name.extract::<String>()?.as_str() {
                "grid" if !value.is_none() => all.grid = Some(Sizes::parse(&value, "a grid")?),
                "local" if !value.is_none() => all.local = Some(Sizes::parse(&value, "a group")?),
                "offset" if !value.is_none() => {
                    all.offset = Some(Sizes::parse(&value, "an offset")?);
                }
                "fence" => all.fence = value.is_truthy()?,
                "queue" if !value.is_none() => {
                    let queue = value.cast::<PyQueue>().map_err(PyErr::from)?;
                    all.queue = Some(queue.get().0.clone());
                }
                "grid" | "local" | "offset" | "queue" => {}
                other => {
                    let what = format!(
                        "a launch has no argument `{other}`: grid, local, offset, queue and fence are known"
                    );
                    return Err(pyo3::exceptions::PyTypeError::new_err(what).into());
                }
            }
        }
        Ok(all)
    }
}

impl Compiled {
    /// Compares the arguments with the parameters, and launches.
    pub fn launch(&self, args: &Bound<'_, PyTuple>, named: Named) -> Result<Option<PyFence>> {
        let py = args.py();
        let _inside = enter(py);
        if args.len() != self.params.len() {
            let (name, takes, given) = (self.kernel.name(), self.params.len(), args.len());
            let what = format!("kernel `{name}` takes {takes} arguments, {given} were given");
            return Err(Fault::invalid(what));
        }
        let mut first = None;
        let mut all = Vec::with_capacity(args.len());
        for (index, (given, param)) in args.iter_borrowed().zip(&self.params).enumerate() {
            let taken = param.take(&given).map_err(|why| self.misfit(index, &why))?;
            if let Given::Buffer(piece, access) = &taken {
                piece.root().check_kernel(&self.device, access.writes())?;
                if first.is_none() {
                    first =
                        given.cast::<PyBuffer>().ok().map(|buffer| param.elements(buffer.get()));
                }
            }
            all.push(taken);
        }
        let grid = named.grid.or(first.map(Sizes::of));
        let grid = grid.ok_or_else(|| {
            Fault::invalid("a kernel without buffers needs its number of work-items: `k[n](…)`")
        })?;
        let items = grid.end(named.offset);
        let grid = grid.grid(named.local, named.offset)?;
        self.settle(py, &all, named.queue.as_ref())?;
        let fence = detached(py, || self.start(&all, grid, items, named.queue, named.fence))?;
        Ok(fence.map(|fence| PyFence::new(fence, self.device.hub())))
    }

    /// Waits where the launch would wait for another device's work, so that signals end the wait.
    fn settle(&self, py: Python<'_>, all: &[Given], queue: Option<&Queue>) -> Result<()> {
        let device = queue.map_or_else(|| self.device.index(), |queue| queue.device().index());
        all.iter().try_for_each(|given| match given {
            Given::Buffer(piece, access) => piece.root().settle_for(py, device, access.writes()),
            _ => Ok(()),
        })
    }

    fn start(
        &self,
        all: &[Given],
        grid: Grid,
        items: usize,
        queue: Option<Queue>,
        fenced: bool,
    ) -> Result<Option<Fence>> {
        let is_lent = |given: &Given| match given {
            Given::Buffer(piece, _) => piece.root().lent_to().is_some(),
            _ => false,
        };
        if has_streams(&self.device) && all.iter().any(is_lent) {
            let queue = queue.map_or_else(|| self.device.lending_queue(), Ok)?;
            self.start_lent(all, grid, items, &queue)?;
            return Ok(fenced.then(|| queue.fence()));
        }
        let queue = queue.map_or_else(|| self.device.default_queue(), Ok)?;
        let held = again::Repeated::new(all, &queue)?;
        let args = held.arguments(all)?;
        if fenced {
            return Ok(Some(queue.launch_fenced(&self.kernel, grid, &args)?));
        }
        queue.launch(&self.kernel, grid, &args)?;
        Ok(None)
    }

    /// Launches on buffers of which some are lent to this device: in order with the streams of their borrowers.
    fn start_lent(&self, all: &[Given], grid: Grid, items: usize, queue: &Queue) -> Result<()> {
        if self.each {
            self.check_each(all, items)?;
        }
        let mut uses: Vec<DeviceUse> = Vec::with_capacity(all.len());
        let mut addresses = Vec::with_capacity(all.len());
        for given in all {
            let Given::Buffer(piece, access) = given else { continue };
            let (root, borrower) = (piece.root(), Borrower::own(queue.clone()));
            let lent =
                root.lend_to_now(&self.device, None, access.writes(), "a kernel", borrower)?;
            root.order(queue, true)?;
            addresses.push((lent.address + piece.start()).to_ne_bytes());
            uses.push(lent);
        }
        let mut addresses = addresses.iter();
        let mut args = Vec::with_capacity(all.len());
        for given in all {
            args.push(match given {
                Given::Buffer(..) => match addresses.next() {
                    Some(at) => NativeArgument::Bytes(at),
                    None => continue,
                },
                Given::Value(bytes, count) => NativeArgument::Bytes(&bytes[..*count]),
                Given::Long(bytes) => NativeArgument::Bytes(bytes),
                Given::Local(bytes) => NativeArgument::Local(*bytes),
            });
        }
        // SAFETY: the arguments were compared with the parameters; the loans keep the memory, in order with the queue. The kernel is
        // trusted: see the head of this file.
        unsafe { self.kernel.launch_native(queue, grid, &args) }?;
        uses.iter().filter_map(DeviceUse::root).try_for_each(|root| root.order(queue, false))
    }

    /// That every buffer has an element for each work-item.
    fn check_each(&self, all: &[Given], items: usize) -> Result<()> {
        for (index, (given, param)) in all.iter().zip(&self.params).enumerate() {
            let (Given::Buffer(piece, _), Some(bytes)) = (given, param.each_bytes()) else {
                continue;
            };
            let have = piece.bytes() / bytes;
            if have < items {
                let name = self.kernel.name();
                return Err(Fault::invalid(format!(
                    "kernel `{name}` refuses this launch: argument {index} has {have} elements for {items} work-items"
                )));
            }
        }
        Ok(())
    }

    #[cold]
    pub fn misfit(&self, index: usize, why: &str) -> Fault {
        let (name, written) = (self.kernel.name(), &self.params[index].written);
        Fault::invalid(format!("argument {index} of kernel `{name}` is `{written}`: {why}"))
    }

    pub fn described(&self) -> String {
        let params: Vec<_> = self.params.iter().map(|param| param.written.as_str()).collect();
        format!("{}({})", self.kernel.name(), params.join(", "))
    }
}

#[pymethods]
impl PyKernel {
    /// The kernel's name.
    #[getter]
    fn name(&self) -> &str {
        self.shared.kernel.name()
    }

    /// The device that it was compiled for.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.shared.device.clone())
    }

    /// The declarations of its parameters, in the program's language.
    #[getter]
    fn parameters(&self) -> Vec<&str> {
        self.shared.params.iter().map(|param| param.written.as_str()).collect()
    }

    /// For each parameter, whether it is a buffer that the kernel may write.
    #[getter]
    fn writes(&self) -> Vec<bool> {
        let writes = |param: &Param| matches!(param.takes, crate::param::Takes::Buffer { access, .. } if access != Access::Read);
        self.shared.params.iter().map(writes).collect()
    }

    /// What the compiler said.
    #[getter]
    fn log(&self) -> &str {
        self.shared.program.log()
    }

    /// The driver's own form of the compiled program, which `Device.kernel` of the same driver takes in place of a source.
    #[getter]
    fn binary<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let bytes = detached(py, || self.shared.program.binary())?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[pyo3(signature = (*args, **named))]
    fn __call__(
        &self,
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Result<Option<PyFence>> {
        self.shared.launch(args, Named::read(named)?)
    }

    fn __getitem__(&self, grid: &Bound<'_, PyAny>) -> Result<PyLaunch> {
        let grid = Sizes::parse(grid, "a grid")?;
        Ok(PyLaunch { shared: self.shared.clone(), grid })
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Kernel {} for {}>", self.shared.described(), self.shared.device.id())
    }
}

#[pymethods]
impl PyLaunch {
    #[pyo3(signature = (*args, **named))]
    fn __call__(
        &self,
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Result<Option<PyFence>> {
        self.shared.launch(args, Named { grid: Some(self.grid), ..Named::read(named)? })
    }

    fn __repr__(&self) -> String {
        let (what, sizes) = (self.shared.described(), self.grid.used());
        format!("<onebuf.Launch of {what} with {sizes:?} work-items>")
    }
}
