//! One buffer, two processes: offers, and the turns of the two.
//!
//! # Safety
//! An offer borrows the buffer behind the `Arc` that [`OpenOffer`] keeps and drops last. A visit borrows the offer, which [`Only`] keeps in place
//! and to itself until after the visit.

use crate::{
    array::PyBuffer,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    layout::{self, Layout},
    options::{BufferOptions, OptionsFor},
    root::Root,
    types::PyHub,
    wait,
};
use onebuf::{
    BufferBuilder,
    peer::{Attach, Attached, Offer, Peer, Visit},
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString},
};
use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
};

struct OpenOffer {
    offer: UnsafeCell<Offer<'static, u8>>,
    /// A call accepts, or a peer is attached.
    taken: AtomicBool,
    root: Arc<Root>,
}

// SAFETY: only the thread that has set `taken` uses the cell, and only one can set it.
unsafe impl Sync for OpenOffer {}

/// The use of an offer, which ends when this is dropped.
struct Only(Arc<OpenOffer>);

impl Only {
    fn take(open: &Arc<OpenOffer>) -> Result<Self> {
        match open.taken.swap(true, Ordering::Acquire) {
            true => Err(Fault::busy(
                "a peer is attached, or another thread waits for one: `leave` it first",
            )),
            false => Ok(Self(open.clone())),
        }
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// A peer that is attached to an offer. The visit is dropped first.
struct Visiting {
    visit: Visit<'static, 'static, u8>,
    only: Only,
}

/// Offers a whole buffer to another process of the same user, under a name.
///
/// The other process attaches by `onebuf.attach(name)`. The two take turns: see `Peer`. Buffers of host pages and of exportable device memory can be offered.
/// From now on the buffer is read and written by `read`, `write` and kernels alone, because the other process may write it at any time.
#[pyclass(frozen, module = "onebuf", name = "Offer")]
pub(crate) struct PyOffer {
    open: Mutex<Option<Arc<OpenOffer>>>,
    path: String,
}

#[pymethods]
impl PyOffer {
    #[new]
    #[pyo3(signature = (buffer, name))]
    fn new(py: Python<'_>, buffer: &Bound<'_, PyBuffer>, name: &str) -> Result<Self> {
        let buffer = buffer.get();
        let root = buffer.root()?;
        if buffer.layout.bytes() != root.buffer.len() {
            return Err(Fault::invalid("a part cannot be offered: offer its buffer"));
        }
        let item = buffer.layout.item;
        detached(py, || {
            root.awake();
            // SAFETY: see the head of this file.
            let whole: &'static Root = unsafe { &*Arc::as_ptr(&root) };
            let offer = Offer::open(&whole.buffer, name)?.element_bytes(item)?;
            let path = offer.path().display().to_string();
            let (offer, taken) = (UnsafeCell::new(offer), AtomicBool::new(false));
            let open = Arc::new(OpenOffer { offer, taken, root: root.clone() });
            Ok(Self { open: Mutex::new(Some(open)), path })
        })
    }

    /// The path of the socket.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Waits for a peer. One is served at a time; it is this process's turn then.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> Result<PyPeer> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let open = open.ok_or_else(|| Fault::invalid("the offer was withdrawn"))?;
        let timeout = timeout.map_or(Ok(open.root.buffer.hub().timeout()), wait::seconds)?;
        let only = Only::take(&open)?;
        let visit = wait::patient(py, timeout, |slice| {
            // SAFETY: `only` excludes every other user of the offer until after the visit, and keeps it in place. A visit that was not made
            // borrows nothing any more.
            let offer: &'static mut Offer<'static, u8> = unsafe { &mut *only.0.offer.get() };
            offer.accept(slice)
        })?;
        Ok(PyPeer::new(End::Visit(Visiting { visit, only }), None))
    }

    /// Withdraws the offer. A peer that is attached stays until it leaves.
    fn close(&self, py: Python<'_>) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || drop(open));
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Offer at {}>", self.path)
    }
}

/// The end of a connection that this process has.
enum End {
    Visit(Visiting),
    Attached(Attached<u8>),
}

macro_rules! of {
    ($end:expr, $inner:ident => $body:expr) => {
        match $end {
            End::Visit(Visiting { visit: $inner, .. }) => $body,
            End::Attached($inner) => $body,
        }
    };
}

/// The process at the other end: made by `Offer.accept` and `onebuf.attach`.
///
/// The two take turns with the buffer. `hand_over` waits for all work on it, and gives the turn to the other; `wait` waits until it comes back. Using the buffer in the
/// other's turn raises `Busy`; if the other process ends, waits raise `PeerLost`.
#[pyclass(frozen, module = "onebuf", name = "Peer")]
pub(crate) struct PyPeer {
    /// Empty after `leave`.
    end: Mutex<Option<End>>,
    buffer: Option<Py<PyBuffer>>,
    peer: Peer,
}

impl PyPeer {
    fn new(end: End, buffer: Option<Py<PyBuffer>>) -> Self {
        let peer = match &end {
            End::Visit(visiting) => visiting.visit.peer(),
            End::Attached(attached) => attached.owner(),
        };
        Self { end: Mutex::new(Some(end)), buffer, peer }
    }

    fn with<T>(&self, body: impl FnOnce(&mut End) -> Result<T>) -> Result<T> {
        let mut end = match self.end.try_lock() {
            Ok(end) => end,
            Err(TryLockError::Poisoned(end)) => end.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::busy("another thread waits for this peer"));
            }
        };
        body(end.as_mut().ok_or_else(|| Fault::invalid("this process has left"))?)
    }
}

#[pymethods]
impl PyPeer {
    /// The other process.
    #[getter]
    fn pid(&self) -> i32 {
        self.peer.pid as i32
    }

    /// Its user.
    #[getter]
    fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// The buffer of `onebuf.attach`; None for `Offer.accept`, whose caller has it.
    #[getter]
    fn buffer(&self, py: Python<'_>) -> Option<Py<PyBuffer>> {
        self.buffer.as_ref().map(|buffer| buffer.clone_ref(py))
    }

    /// How often the turn has changed.
    #[getter]
    fn round(&self) -> Result<u64> {
        self.with(|end| Ok(of!(end, inner => inner.round())))
    }

    /// Whether it is this process's turn.
    #[getter]
    fn is_our_turn(&self) -> Result<bool> {
        self.with(|end| Ok(of!(end, inner => inner.is_our_turn())))
    }

    /// Whether the other process has left, as far as a call has noticed.
    #[getter]
    fn has_left(&self) -> Result<bool> {
        self.with(|end| Ok(of!(end, inner => inner.has_left())))
    }

    /// Waits for all work on the buffer, and gives the turn to the other process.
    fn hand_over(&self, py: Python<'_>) -> Result<()> {
        let attached = self.buffer.as_ref().and_then(|buffer| buffer.get().root().ok());
        self.with(|end| {
            let root = match &*end {
                End::Visit(visiting) => Some(&visiting.only.0.root),
                End::Attached(_) => attached.as_ref(),
            };
            if let Some(root) = root {
                root.awake();
                // Here, so that signals end the wait.
                wait::for_work(py, root.buffer.uses(), root.buffer.hub().timeout())?;
            }
            detached(py, || Ok(of!(end, inner => inner.hand_over())?))
        })
    }

    /// Waits for this process's turn. `PeerLost` if the other ends, `Timeout` after `timeout` seconds, which changes nothing.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> Result<()> {
        let timeout = wait::seconds(timeout)?;
        self.with(|end| {
            wait::patient(py, timeout, |slice| of!(&mut *end, inner => inner.wait(slice)))
        })
    }

    /// Looks whether the other process is still there, without waiting.
    fn check(&self, py: Python<'_>) -> Result<()> {
        self.with(|end| Ok(detached(py, || of!(end, inner => inner.check()))?))
    }

    /// Ends the connection.
    fn leave(&self, py: Python<'_>) -> Result<()> {
        let end = match self.end.try_lock() {
            Ok(mut end) => end.take(),
            Err(TryLockError::Poisoned(end)) => end.into_inner().take(),
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::busy("another thread waits for this peer"));
            }
        };
        detached(py, || drop(end));
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.Peer: process {} of user {}>", self.peer.pid, self.peer.uid)
    }
}

/// Attaches to a buffer that another process offers under that name; `Peer.buffer` is the buffer. It is the owner's turn then: `wait` for this one's.
///
/// `dtype` must have the size of the owner's elements; without a `shape` the buffer has one dimension. The devices in `share` use it; `copies` and
/// `trust_declared` as for `Hub.empty`.
#[pyfunction]
#[pyo3(signature = (name, hub, *, dtype=None, shape=None, timeout=None, **options))]
pub(crate) fn attach<'py>(
    py: Python<'py>,
    name: &str,
    hub: &Bound<'py, PyHub>,
    dtype: Option<Bound<'py, PyAny>>,
    shape: Option<Bound<'py, PyAny>>,
    timeout: Option<f64>,
    options: Option<&Bound<'py, PyDict>>,
) -> Result<PyPeer> {
    let hub = hub.get().0.clone();
    let given = dtype.unwrap_or_else(|| PyString::new(py, "float32").into_any());
    let dtype = Dtype::parse(&given)?;
    let shape = shape.map(|shape| layout::shape(&shape)).transpose()?;
    let options = BufferOptions::read(&hub, OptionsFor::Shared, options)?;
    let timeout = timeout.map_or(Ok(hub.timeout()), wait::seconds)?;
    let attached = detached(py, || {
        let attach = Attach::to(name).element_bytes(dtype.size() as u32).timeout(timeout);
        attach.open_while(
            &hub,
            |request: BufferBuilder<'_, u8>| {
                let request = request.shared_with(&options.share).copies(options.copies);
                request.trust_declared(options.trust_declared)
            },
            wait::go_on,
        )
    })?;
    let shared = attached.shared_buffer();
    let shape = shape.unwrap_or_else(|| vec![shared.len() / dtype.size()]);
    let layout = Layout::dense(shape, dtype.size())?;
    if layout.bytes() != shared.len() {
        let (asked, have) = (layout.bytes(), shared.len());
        return Err(Fault::invalid(format!(
            "the shape needs {asked} bytes, the buffer has {have}"
        )));
    }
    let buffer = PyBuffer::new(Root::new(shared, false), layout, dtype);
    Ok(PyPeer::new(End::Attached(attached), Some(Py::new(py, buffer)?)))
}

/// Adds these classes and functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyOffer>()?;
    module.add_class::<PyPeer>()?;
    module.add_function(wrap_pyfunction!(attach, module)?)
}
