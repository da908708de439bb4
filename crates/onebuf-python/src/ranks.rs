//! Buffers as messages between the ranks of an MPI job.
//!
//! # Safety
//! A message borrows buffers behind the `Arc`s that [`Open`] keeps and drops last. mpi4py's communicators are asked for their handles by mpi4py
//! itself, and the library that is found is the one that it has loaded: two are an error.

use crate::{
    array::{Piece, PyBuffer},
    ending::{Inside, detached},
    error::{Fault, Result},
    wait,
};
use onebuf::Error;
use onebuf_mpi::{InFlight, Join, PeerState, Span, World};
use onebuf_sys::fork;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};
use std::{
    collections::BTreeMap,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

type Slot<T> = Arc<Mutex<T>>;

/// All messages and worlds, so that they end before the interpreter does: mpi4py finalises MPI then.
static MESSAGES: Mutex<Vec<Weak<Mutex<MessageState>>>> = Mutex::new(Vec::new());
static WORLDS: Mutex<Vec<Weak<Mutex<Option<World>>>>> = Mutex::new(Vec::new());

fn locked<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes one that exists, and forgets those that are gone.
fn note<T>(all: &Mutex<Vec<Weak<T>>>, one: &Arc<T>) {
    let mut all = locked(all);
    all.retain(|one| one.strong_count() > 0);
    all.push(Arc::downgrade(one));
}

/// Ends all communication. Called without the interpreter.
pub(crate) fn end() {
    if fork::is_child() {
        // The communication thread is the parent's.
        return;
    }
    let messages = std::mem::take(&mut *locked(&MESSAGES));
    for message in messages.iter().filter_map(Weak::upgrade) {
        // One that a thread still waits for keeps its world.
        if let Ok(mut state) = message.try_lock() {
            drop(std::mem::replace(&mut *state, MessageState::Done));
        }
    }
    let worlds = std::mem::take(&mut *locked(&WORLDS));
    for world in worlds.iter().filter_map(Weak::upgrade) {
        let open = locked(&world).take();
        drop(open);
    }
}

/// The ranks of an MPI job, and this process's place among them.
///
/// Without arguments all ranks that the launcher has started; `comm` is a communicator of mpi4py. If MPI is initialised already, as by `from mpi4py import MPI`, that
/// MPI is used; otherwise it is initialised here. Options in `agree` must be the same on all ranks. Without a launcher it is a world of one rank.
///
/// A thread of its own calls MPI. Buffers are sent and received in place if the host can map them. `close` it, or leave the `with` block, before `MPI.Finalize()`; the
/// end of the interpreter does so by itself.
#[pyclass(frozen, module = "onebuf", name = "World")]
pub(crate) struct PyWorld {
    /// Empty after `close`.
    world: Slot<Option<World>>,
    rank: usize,
    size: usize,
    timeout: Duration,
    library: String,
}

/// mpi4py's communicator as the C bindings pass it.
fn handle(comm: &Bound<'_, PyAny>) -> Result<usize> {
    let needed =
        || Fault::invalid("`comm`: a communicator of mpi4py is needed, such as `MPI.COMM_WORLD`");
    let mpi = comm.py().import("mpi4py.MPI").map_err(|_| needed())?;
    let is_one = comm.is_instance(&mpi.getattr("Intracomm")?)? && comm.is_truthy()?;
    let handle = is_one.then(|| mpi.call_method1("_handleof", (comm,))).ok_or_else(needed)??;
    Ok(handle.extract::<usize>()?)
}

/// Drops a world, or what a forked child has of it: the communication thread is the parent's.
fn leave<T>(world: T) {
    match fork::is_child() {
        true => std::mem::forget(world),
        false => drop(world),
    }
}

/// Does on a thread of its own what waits for other ranks without asking whether to go on, so that a signal ends the wait here. The
/// thread goes on then, and what it makes is dropped.
fn aside<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> onebuf::Result<R> {
    let (done, made) = mpsc::channel();
    let work = move || {
        let _inside = Inside::on_its_own();
        drop(done.send(work()));
    };
    let no_thread = |why| Error::unsupported("communication", format!("a thread ({why})"));
    thread::Builder::new().name("onebuf-ranks".into()).spawn(work).map_err(no_thread)?;
    loop {
        match made.recv_timeout(wait::SLICE) {
            Ok(made) => return Ok(made),
            Err(RecvTimeoutError::Timeout) => wait::go_on()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::PeerLost {
                    reason: "the thread that waited has panicked".into(),
                });
            }
        }
    }
}

fn closed() -> Fault {
    Fault::invalid("the world was closed")
}

impl PyWorld {
    fn of(world: World) -> Self {
        let (rank, size, timeout) = (world.rank(), world.size(), world.timeout());
        let library = world.library().to_owned();
        let world = Arc::new(Mutex::new(Some(world)));
        note(&WORLDS, &world);
        Self { world, rank, size, timeout, library }
    }

    fn open(&self) -> Result<World> {
        if fork::is_child() {
            return Err(Error::forked("MPI").into());
        }
        locked(&self.world).clone().ok_or_else(closed)
    }

    /// The world itself, which is closed then, unless something else uses it.
    fn take(&self) -> Result<World> {
        if fork::is_child() {
            return Err(Error::forked("MPI").into());
        }
        let mut world = locked(&self.world);
        if world.as_ref().is_some_and(|world| !world.is_only()) {
            return Err(Fault::busy("messages of this world exist: drop them first"));
        }
        world.take().ok_or_else(closed)
    }

    /// Begins a message or a call of all ranks with these buffers.
    fn begin(
        &self,
        py: Python<'_>,
        pieces: Vec<(Piece, bool)>,
        call: impl Send + FnOnce(&World, &[Piece]) -> onebuf::Result<InFlight<'static, u8>>,
    ) -> Result<PyInFlight> {
        let world = self.open()?;
        pieces.iter().try_for_each(|(piece, writes)| piece.root().check_free(*writes))?;
        let pieces: Vec<Piece> = pieces.into_iter().map(|(piece, _)| piece).collect();
        let flight = detached(py, || call(&world, &pieces))?;
        let state = Arc::new(Mutex::new(MessageState::Runs(Open { flight, _of: pieces })));
        note(&MESSAGES, &state);
        Ok(PyInFlight { state, timeout: self.timeout })
    }

    fn seconds(&self, timeout: Option<f64>) -> Result<Duration> {
        timeout.map_or(Ok(self.timeout), wait::seconds)
    }
}

/// A message's memory.
fn span(piece: &Piece) -> Span<'static, u8> {
    match piece {
        Piece::Whole(root) => {
            // SAFETY: see the head of this file.
            let buffer: &'static onebuf::Buffer<u8> =
                unsafe { &*ptr::from_ref::<onebuf::Buffer<u8>>(&root.buffer) };
            buffer.into()
        }
        Piece::Part(region, _) => {
            // SAFETY: see the head of this file.
            let part: &'static onebuf::SubBuffer<'static, u8> =
                unsafe { &*ptr::from_ref(&region.part) };
            part.into()
        }
    }
}

/// Counts of elements as counts of bytes.
fn bytes_of(counts: Vec<usize>, item: usize) -> Result<Vec<usize>> {
    let bytes = counts.into_iter().map(|count| count.checked_mul(item));
    bytes.collect::<Option<_>>().ok_or_else(|| Fault::invalid("the counts are too large"))
}

/// As many elements for each rank.
fn evenly(x: &PyBuffer, ranks: usize, what: &str) -> Result<Vec<usize>> {
    let elements = x.layout.bytes() / x.layout.item;
    match elements.is_multiple_of(ranks) {
        true => Ok(vec![x.layout.bytes() / ranks; ranks]),
        false => Err(Fault::invalid(format!(
            "{elements} elements cannot be divided among {ranks} ranks: say how many each {what}"
        ))),
    }
}

#[pymethods]
impl PyWorld {
    #[new]
    #[pyo3(signature = (comm=None, *, timeout=30.0, agree=None, library=None))]
    fn new(
        py: Python<'_>,
        comm: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        agree: Option<BTreeMap<String, Bound<'_, PyAny>>>,
        library: Option<String>,
    ) -> Result<Self> {
        let timeout = wait::seconds(timeout)?;
        let mut join = Join::new().timeout(timeout);
        for (name, value) in agree.into_iter().flatten() {
            join = join.agree(name, value.str()?.to_string_lossy());
        }
        if let Some(library) = library {
            join = join.library(library);
        }
        if let Some(comm) = comm {
            let handle = handle(comm)?;
            // SAFETY: see the head of this file.
            join = unsafe { join.communicator(handle) };
        }
        fork::watch();
        Ok(Self::of(detached(py, || join.start_while(wait::go_on))?))
    }

    /// The number of this process, from zero.
    #[getter]
    fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The limit of waits that have none of their own, in seconds.
    #[getter]
    fn timeout(&self) -> f64 {
        self.timeout.as_secs_f64()
    }

    /// What the MPI library says of itself; empty in a world of one rank without MPI.
    #[getter]
    fn library(&self) -> &str {
        &self.library
    }

    /// What the MPI library says of device memory: `{"cuda": …, "hip": …}`, each True, False, or None where it does not say. Whatever it says, MPI is given memory of the host.
    #[getter]
    fn gpu_claim<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let (claim, said) = (self.open()?.gpu_claim(), PyDict::new(py));
        said.set_item("cuda", claim.cuda)?;
        said.set_item("hip", claim.hip)?;
        Ok(said)
    }

    /// Whether a rank was lost, or MPI has failed: then the ranks cannot end together any more.
    #[getter]
    fn has_failed(&self) -> Result<bool> {
        Ok(self.open()?.has_failed())
    }

    /// What the kernel knows of a rank's process: "running", "stopped", "gone", or "unknown" for ranks of other machines.
    fn state_of(&self, rank: usize) -> Result<&'static str> {
        let world = self.open()?;
        if rank >= self.size {
            return Err(Fault::invalid(format!("rank {rank} in a world of {}", self.size)));
        }
        Ok(match world.state_of(rank) {
            PeerState::Running => "running",
            PeerState::Stopped => "stopped",
            PeerState::Gone => "gone",
            _ => "unknown",
        })
    }

    /// A sentence for each rank of this machine that is gone or stopped.
    fn ailing(&self) -> Result<Vec<String>> {
        Ok(self.open()?.ailing())
    }

    /// Goes on with the ranks that are left after one was lost: a new world, in which ranks have new numbers, in their order. Every remaining rank calls it, and has
    /// dropped its messages. This world is closed then, even if it fails. `Unsupported` unless the MPI has ULFM.
    fn remaining(&self, py: Python<'_>) -> Result<Self> {
        let world = self.take()?;
        Ok(Self::of(detached(py, || aside(move || world.remaining()))??))
    }

    /// Begins to send a buffer, or a contiguous part of one, to a rank. Waits for the work that writes it. Tags are 0 to 16,383.
    #[pyo3(signature = (x, to, tag=0))]
    fn send(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyBuffer>,
        to: usize,
        tag: u32,
    ) -> Result<PyInFlight> {
        let piece = x.get().piece()?;
        self.begin(py, vec![(piece, false)], move |world, pieces| {
            world.send(span(&pieces[0]), to, tag)
        })
    }

    /// Begins to receive a buffer, or a contiguous part of one, from a rank, which must send as many bytes with the same tag.
    #[pyo3(signature = (x, source, tag=0))]
    fn receive(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyBuffer>,
        source: usize,
        tag: u32,
    ) -> Result<PyInFlight> {
        let piece = x.get().piece()?;
        self.begin(py, vec![(piece, true)], move |world, pieces| {
            world.receive(span(&pieces[0]), source, tag)
        })
    }

    /// Begins to copy the root's elements to all ranks. All ranks call it.
    #[pyo3(signature = (x, root=0))]
    fn broadcast(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyBuffer>,
        root: usize,
    ) -> Result<PyInFlight> {
        let piece = (x.get().piece()?, self.rank != root);
        self.begin(py, vec![piece], move |world, pieces| world.broadcast(span(&pieces[0]), root))
    }

    /// Begins to send every rank's `x` to the root, which receives them into `into`, one rank after another. `counts` are the elements of each rank, if they
    /// are not equally many. All ranks call it; only the root passes `into`.
    #[pyo3(signature = (x, root=0, into=None, counts=None))]
    fn gather(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyBuffer>,
        root: usize,
        into: Option<&Bound<'_, PyBuffer>>,
        counts: Option<Vec<usize>>,
    ) -> Result<PyInFlight> {
        let mut pieces = vec![(x.get().piece()?, false)];
        let mut bytes = Vec::new();
        if let Some(into) = into.map(Bound::get) {
            pieces.push((into.piece()?, true));
            bytes = match counts {
                Some(counts) => bytes_of(counts, into.layout.item)?,
                None => vec![x.get().layout.bytes(); self.size],
            };
        }
        self.begin(py, pieces, move |world, pieces| {
            let into = pieces.get(1).map(|into| (span(into), &*bytes));
            world.gather_v(span(&pieces[0]), root, into)
        })
    }

    /// Begins to exchange elements: the part of `x` for each rank, in the order of the ranks, goes to that rank's `into`. `sends` and `receives` are the
    /// elements for and from each rank, if they are not equally many. All ranks call it.
    #[pyo3(signature = (x, into, sends=None, receives=None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyBuffer>,
        into: &Bound<'_, PyBuffer>,
        sends: Option<Vec<usize>>,
        receives: Option<Vec<usize>>,
    ) -> Result<PyInFlight> {
        let (x, into) = (x.get(), into.get());
        let counts = |given: Option<Vec<usize>>, x: &PyBuffer, what| match given {
            Some(counts) => bytes_of(counts, x.layout.item),
            None => evenly(x, self.size, what),
        };
        let (sends, receives) = (counts(sends, x, "gets")?, counts(receives, into, "sends")?);
        let pieces = vec![(x.piece()?, false), (into.piece()?, true)];
        self.begin(py, pieces, move |world, pieces| {
            world.all_to_all_v(span(&pieces[0]), &sends, span(&pieces[1]), &receives)
        })
    }

    /// Waits until all ranks have called it.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let (world, timeout) = (self.open()?, self.seconds(timeout)?);
        Ok(detached(py, || world.barrier_while(timeout, wait::go_on))?)
    }

    /// Gathers bytes of every rank at the root, whatever their number: a list there, and None elsewhere. For reports: they are copied. All ranks call it.
    #[pyo3(signature = (data, root=0, timeout=None))]
    fn collect<'py>(
        &self,
        py: Python<'py>,
        data: Vec<u8>,
        root: usize,
        timeout: Option<f64>,
    ) -> Result<Option<Vec<Bound<'py, PyBytes>>>> {
        let (world, timeout) = (self.open()?, self.seconds(timeout)?);
        let all = detached(py, || world.collect_while(data, root, timeout, wait::go_on))?;
        Ok(all.map(|all| all.iter().map(|part| PyBytes::new(py, part)).collect()))
    }

    /// Ends the communication, when all messages have ended: waits for the other ranks, for at most the timeout.
    fn close(&self, py: Python<'_>) -> Result<()> {
        let world = locked(&self.world).take();
        match world {
            Some(world) if !fork::is_child() => Ok(detached(py, || aside(move || drop(world)))?),
            world => {
                leave(world);
                Ok(())
            }
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// After an exception the other ranks are waited for two seconds at most: they may be elsewhere.
    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> Result<()> {
        let failed = error.get_item(0).is_ok_and(|kind| !kind.is_none());
        if let (true, Some(world)) = (failed, &*locked(&self.world)) {
            world.doubt();
        }
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.World: rank {} of {}>", self.rank, self.size)
    }
}

impl Drop for PyWorld {
    fn drop(&mut self) {
        let world = locked(&self.world).take();
        if world.is_some() {
            let _ = Python::try_attach(|py| detached(py, || leave(world)));
        }
    }
}

/// A call in flight, and the buffers that it borrows. The call is dropped first.
struct Open {
    flight: InFlight<'static, u8>,
    _of: Vec<Piece>,
}

enum MessageState {
    Runs(Open),
    Done,
    Failed(Error),
}

/// A message, or a call of all ranks, on its way: `wait` for it.
///
/// Its buffers are held until then: a receive excludes all other users, a send those that write. Dropping it gives up receives for which nothing has come.
#[pyclass(frozen, module = "onebuf", name = "InFlight")]
pub(crate) struct PyInFlight {
    /// Locked while a thread waits.
    state: Slot<MessageState>,
    timeout: Duration,
}

impl PyInFlight {
    fn state(&self) -> Result<MutexGuard<'_, MessageState>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Fault::busy("another thread waits for this message"))
            }
        }
    }
}

/// Waits for the end, and looks at signals meanwhile.
fn ended(py: Python<'_>, open: &mut Open, timeout: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        if detached(py, || open.flight.is_done_within(left.min(wait::SLICE)))?
            || left <= wait::SLICE
        {
            return match detached(py, || open.flight.wait(Duration::ZERO)) {
                Err(Error::Timeout { what, .. }) => Err(Error::timeout(what, timeout).into()),
                ended => Ok(ended?),
            };
        }
        py.check_signals()?;
    }
}

#[pymethods]
impl PyInFlight {
    /// Whether it is done. `wait` gives the buffers back.
    #[getter]
    fn done(&self) -> Result<bool> {
        match &*self.state()? {
            MessageState::Runs(open) => Ok(open.flight.is_done()?),
            MessageState::Done => Ok(true),
            MessageState::Failed(error) => Err(error.clone().into()),
        }
    }

    /// Waits until the bytes were sent or received, and gives the buffers back. `Timeout` with the ranks that are late, after `timeout` seconds: the wait may be
    /// repeated. `PeerLost` with the rank that is gone; `InvalidArgument` if another rank sent another number of bytes.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let timeout = timeout.map_or(Ok(self.timeout), wait::seconds)?;
        let mut state = self.state()?;
        let outcome = match &mut *state {
            MessageState::Runs(open) => ended(py, open, timeout),
            MessageState::Done => return Ok(()),
            MessageState::Failed(error) => return Err(error.clone().into()),
        };
        let next = match &outcome {
            Ok(()) => MessageState::Done,
            Err(Fault::Library(Error::Timeout { .. }) | Fault::Python(_)) => return outcome,
            Err(Fault::Library(error)) => MessageState::Failed(error.clone()),
        };
        let last = std::mem::replace(&mut *state, next);
        detached(py, || drop(last));
        outcome
    }

    fn __repr__(&self) -> &'static str {
        match self.state.try_lock().as_deref() {
            Ok(MessageState::Done) => "<onebuf.InFlight: done>",
            Ok(MessageState::Failed(_)) => "<onebuf.InFlight: failed>",
            _ => "<onebuf.InFlight>",
        }
    }
}

/// Its end waits for what is on the way.
impl Drop for PyInFlight {
    fn drop(&mut self) {
        let last = std::mem::replace(&mut *locked(&self.state), MessageState::Done);
        if matches!(last, MessageState::Runs(_)) {
            let _ = Python::try_attach(|py| detached(py, || leave(last)));
        }
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyWorld>()?;
    module.add_class::<PyInFlight>()
}
