//! Kernels: compiled for a device, with arguments that are compared with their own parameters.
//!
//! # Safety
//! Declaring a kernel is unsafe in Rust: it must stay inside of its buffers. Python has no such word. `Device.kernel` says in
//! its documentation that the kernel is trusted, as C code is that a program loads.

use crate::{
    array::{Piece, PyBuffer},
    ending::detached,
    error::{Fault, Result},
    param::{Given, Param},
    types::{PyDevice, PyQueue},
};
use onebuf::{
    Access, Arg, Device, Error, Grid, IntoArg, Kernel, Queue, RouteKind, Signature, Source,
    SyncMethod, plan::Hop, reflect::ReflectedKernel,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::sync::Arc;

/// A kernel, compiled for one device.
///
/// `k(x, 2.0)` launches it with as many work-items as the first buffer has elements; `k[n](…)` and `k[w, h](…)` state the number.
/// The arguments are compared with the kernel's own parameters. The launch returns when the work is enqueued.
#[pyclass(frozen, module = "onebuf", name = "Kernel")]
pub(crate) struct PyKernel {
    shared: Arc<Shared>,
}

/// A kernel with its number of work-items: `k[n]`.
#[pyclass(frozen, module = "onebuf", name = "Launch")]
pub(crate) struct PyLaunch {
    shared: Arc<Shared>,
    grid: Sizes,
}

struct Shared {
    kernel: Kernel,
    device: Device,
    params: Vec<Param>,
    log: String,
}

/// Work-items in 1 to 3 dimensions.
#[derive(Clone, Copy)]
struct Sizes {
    dims: usize,
    sizes: [usize; 3],
}

impl Sizes {
    fn parse(given: &Bound<'_, PyAny>, what: &str) -> Result<Self> {
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

    fn grid(self, local: Option<Self>) -> Result<Grid> {
        if local.is_some_and(|local| local.dims != self.dims) {
            return Err(Fault::invalid("a group has as many dimensions as the work-items"));
        }
        let [x, y, z] = self.sizes;
        let grid = match self.dims {
            1 => Grid::from([x]),
            2 => Grid::from([x, y]),
            _ => Grid::from([x, y, z]),
        };
        Ok(match local.map(|local| (local.dims, local.sizes)) {
            None => grid,
            Some((1, [x, ..])) => grid.local([x]),
            Some((2, [x, y, _])) => grid.local([x, y]),
            Some((_, sizes)) => grid.local(sizes),
        })
    }
}

impl PyKernel {
    pub fn build(
        py: Python<'_>,
        device: &Device,
        source: &str,
        name: Option<&str>,
        options: &str,
        each: bool,
    ) -> Result<Self> {
        let source = match device.info().api.0 {
            "cuda" => Source::cuda_c(source.to_owned()),
            "hip" => Source::hip_c(source.to_owned()),
            _ => Source::opencl_c(source.to_owned()),
        };
        let source = source.with_options(options);
        let program = detached(py, || device.program(&source))?;
        let found = choose(detached(py, || program.kernels())?, name, device)?;
        let params = found.parameters.into_iter().enumerate();
        let params: Vec<Param> = params
            .map(|(index, param)| Param::new(index, &found.name, param))
            .collect::<Result<_>>()?;
        let mut signature = params.iter().fold(Signature::new(), |all, param| param.declare(all));
        if each {
            signature = signature.require(for_each(&params));
        }
        // SAFETY: see the head of this file.
        let kernel = detached(py, || unsafe { program.kernel(&found.name, signature) })?;
        let log = program.log().to_owned();
        let shared = Shared { kernel, device: device.clone(), params, log };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// The kernel of that name, or the only one.
fn choose(
    mut kernels: Vec<ReflectedKernel>,
    name: Option<&str>,
    device: &Device,
) -> Result<ReflectedKernel> {
    if kernels.is_empty() {
        let what = format!("kernels on {}", device.id());
        let needs =
            "a driver that lists them with their parameters: OpenCL 1.2, and a source in OpenCL C";
        return Err(Error::unsupported(what, needs).into());
    }
    let at = match name {
        Some(name) => kernels.iter().position(|known| known.name == name),
        None => (kernels.len() == 1).then_some(0),
    };
    if let Some(at) = at {
        return Ok(kernels.swap_remove(at));
    }
    let all: Vec<_> = kernels.into_iter().map(|kernel| kernel.name).collect();
    let all = all.join(", ");
    Err(Fault::invalid(match name {
        Some(name) => format!("no kernel `{name}` in the source, which has {all}"),
        None => format!("the source has several kernels: name one of {all}"),
    }))
}

/// Requires an element for each work-item of every buffer.
fn for_each(
    params: &[Param],
) -> impl Fn(&onebuf::Call<'_>) -> std::result::Result<(), String> + use<> {
    let sizes: Vec<Option<usize>> = params.iter().map(Param::each_bytes).collect();
    move |call| {
        let items = call.global().into_iter().fold(1, usize::saturating_mul);
        for (index, bytes) in sizes.iter().enumerate() {
            let Some(bytes) = bytes else { continue };
            let have = call.len(index) / bytes;
            if have < items {
                return Err(format!("argument {index} has {have} elements for {items} work-items"));
            }
        }
        Ok(())
    }
}

/// What a launch may be given by name.
#[derive(Default)]
struct Named {
    grid: Option<Sizes>,
    local: Option<Sizes>,
    queue: Option<Queue>,
}

impl Named {
    fn read(named: Option<&Bound<'_, PyDict>>) -> Result<Self> {
        let mut all = Self::default();
        for (name, value) in named.into_iter().flatten() {
            match name.extract::<String>()?.as_str() {
                "grid" if !value.is_none() => all.grid = Some(Sizes::parse(&value, "a grid")?),
                "local" if !value.is_none() => all.local = Some(Sizes::parse(&value, "a group")?),
                "queue" if !value.is_none() => {
                    let queue = value.cast::<PyQueue>().map_err(PyErr::from)?;
                    all.queue = Some(queue.get().0.clone());
                }
                "grid" | "local" | "queue" => {}
                other => {
                    let what = format!(
                        "a launch has no argument `{other}`: grid, local and queue are known"
                    );
                    return Err(pyo3::exceptions::PyTypeError::new_err(what).into());
                }
            }
        }
        Ok(all)
    }
}

impl Shared {
    /// Compares the arguments with the parameters, and launches.
    fn launch(
        &self,
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
        grid: Option<Sizes>,
    ) -> Result<()> {
        let py = args.py();
        let named = Named::read(named)?;
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
        let grid = grid.or(named.grid).or(first.map(|n| Sizes { dims: 1, sizes: [n, 1, 1] }));
        let grid = grid.ok_or_else(|| {
            Fault::invalid("a kernel without buffers needs its number of work-items: `k[n](…)`")
        })?;
        let grid = grid.grid(named.local)?;
        self.settle(py, &all, named.queue.as_ref())?;
        detached(py, || self.start(&all, grid, named.queue))
    }

    /// Waits where the launch would wait for another device's work, so that signals end the wait: before a staged copy, and where the
    /// host joins the two queues.
    fn settle(&self, py: Python<'_>, all: &[Given], queue: Option<&Queue>) -> Result<()> {
        let device = queue.map_or_else(|| self.device.index(), |queue| queue.device().index());
        for given in all {
            let Given::Buffer(piece, access) = given else { continue };
            let (root, buffer) = (piece.root(), &piece.root().buffer);
            let routes = &buffer.plan().routes;
            if routes.len() < 2 || !root.moved_to(device) {
                continue;
            }
            let waits =
                |hop: &Hop| hop.kind == RouteKind::Staged || hop.sync == SyncMethod::HostWait;
            if routes.iter().any(waits) {
                let fence = if access.writes() { buffer.uses() } else { buffer.fence() };
                crate::wait::for_work(py, fence, buffer.hub().timeout())?;
            }
        }
        Ok(())
    }

    fn start(&self, all: &[Given], grid: Grid, queue: Option<Queue>) -> Result<()> {
        let args: Vec<Arg<'_>> = all.iter().map(argument).collect();
        let queue = match queue {
            Some(queue) => queue,
            None => self.device.default_queue()?,
        };
        Ok(queue.launch(&self.kernel, grid, &args)?)
    }

    #[cold]
    fn misfit(&self, index: usize, why: &str) -> Fault {
        let (name, written) = (self.kernel.name(), &self.params[index].written);
        Fault::invalid(format!("argument {index} of kernel `{name}` is `{written}`: {why}"))
    }

    fn described(&self) -> String {
        let params: Vec<_> = self.params.iter().map(|param| param.written.as_str()).collect();
        format!("{}({})", self.kernel.name(), params.join(", "))
    }
}

/// The library's argument for a converted one.
fn argument(given: &Given) -> Arg<'_> {
    match given {
        Given::Buffer(Piece::Whole(root), _) => (&root.buffer).into_arg(),
        Given::Buffer(Piece::Part(region, _), _) => (&region.part).into_arg(),
        Given::Value(bytes, count) => Arg::bytes(&bytes[..*count]),
        Given::Long(bytes) => Arg::bytes(bytes),
        Given::Local(bytes) => Arg::local::<u8>(*bytes),
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
        &self.shared.log
    }

    #[pyo3(signature = (*args, **named))]
    fn __call__(&self, args: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> Result<()> {
        self.shared.launch(args, named, None)
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
    fn __call__(&self, args: &Bound<'_, PyTuple>, named: Option<&Bound<'_, PyDict>>) -> Result<()> {
        self.shared.launch(args, named, Some(self.grid))
    }

    fn __repr__(&self) -> String {
        let sizes = &self.grid.sizes[..self.grid.dims];
        format!("<onebuf.Launch of {} with {sizes:?} work-items>", self.shared.described())
    }
}
