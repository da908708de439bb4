//! Joining the other ranks: which MPI, who initialises it, and which thread calls it.
//!
//! # Safety
//! MPI is called by the thread that its thread level allows: the communication thread if that has initialised MPI, or if the
//! application did with `MPI_THREAD_MULTIPLE`; the calling thread of [`Join::scoped`] otherwise. Questions that MPI allows at
//! any time are asked by the caller's thread.

#![allow(unsafe_code)]

use crate::{
    deadline::Deadline,
    engine::{Engine, Link},
    error,
    flight::SLICE,
    greet::greet,
    ranks::Ranks,
    transport::{
        Transport,
        alone::Alone,
        datatypes::MOST_COUNT,
        mpi::{Library, MpiTransport},
    },
    world::{Parts, World},
};
use onebuf::Probe;
use onebuf_hal::{Error, Result};
use onebuf_sys::mpi::{Comm, Mpi, find};
use std::{
    collections::BTreeMap,
    ptr,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// How to join the other ranks.
///
/// ```
/// use onebuf_mpi::Join;
/// use std::time::Duration;
///
/// # fn main() -> onebuf::Result<()> {
/// let world = Join::new().timeout(Duration::from_secs(20)).agree("samples", 65536).start()?;
/// println!("rank {} of {}", world.rank(), world.size()); // without mpirun: rank 0 of 1
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is joined until `start` or `scoped`"]
pub struct Join {
    timeout: Duration,
    library: Option<String>,
    options: BTreeMap<String, String>,
    comm: Option<usize>,
    probe: Option<Arc<Probe>>,
    most_count: usize,
}

impl Default for Join {
    fn default() -> Self {
        Self::new()
    }
}

/// Which thread may call MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// The one that initialises it.
    Initialises,
    /// Any.
    Any,
    /// The one that has initialised it.
    Main,
}

impl Join {
    /// Joins with the default settings: the library that the process or its launcher has, and a timeout of 30 s.
    pub fn new() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            library: None,
            options: BTreeMap::new(),
            comm: None,
            probe: None,
            most_count: MOST_COUNT,
        }
    }

    /// Sets the limit of waits that have none of their own, and of the start.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Names the MPI library: a path, a soname, or `none` for a world of one rank. Without it `ONEBUF_MPI_LIB` applies, then
    /// a library that the process has loaded, then the launcher's.
    pub fn library(mut self, library: impl Into<String>) -> Self {
        self.library = Some(library.into());
        self
    }

    /// Adds an option that must be the same on all ranks. If one differs, the start fails on every rank, and the error names
    /// the option, its values and their ranks.
    pub fn agree(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        let line = |text: String| text.replace(['\n', '='], " ");
        self.options.insert(line(name.into()), value.to_string().replace('\n', " "));
        self
    }

    /// Uses the ranks of a communicator of the application instead of `MPI_COMM_WORLD`. `comm` is the handle as the C bindings
    /// pass it: the `int` of MPICH, the pointer's value of other libraries.
    ///
    /// # Safety
    /// It is a live communicator of the MPI library that will be found, which the application has initialised.
    pub unsafe fn communicator(mut self, comm: usize) -> Self {
        self.comm = Some(comm);
        self
    }

    /// Sends every call of MPI through a probe, which counts and can make one fail. For tests.
    #[doc(hidden)]
    pub fn probe(mut self, probe: Arc<Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Divides messages into parts of at most this many bytes, as if MPI's counts were smaller. For tests.
    #[doc(hidden)]
    pub fn most_count(mut self, bytes: usize) -> Self {
        self.most_count = bytes;
        self
    }

    /// Joins the other ranks. A thread of its own calls MPI from now on; it initialises MPI if the application has not.
    ///
    /// A process that no launcher has started is a world of one rank, and loads no MPI, unless one is named.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the library cannot be used; [`Error::Unsupported`] if the application has initialised MPI with
    /// less than `MPI_THREAD_MULTIPLE` (see [`Join::scoped`]), or has finalised it; [`Error::InvalidArgument`] with the ranks'
    /// numbers if they do not fit together; [`Error::Timeout`] if not all of them come.
    pub fn start(self) -> Result<World> {
        self.start_while(|| Ok(()))
    }

    /// Like [`Join::start`]; an error of `go_on`, which is called every 50 ms, ends the wait. MPI goes on starting on its thread then,
    /// because nothing can stop that. For bindings of languages whose signals end waits.
    #[doc(hidden)]
    pub fn start_while(self, mut go_on: impl FnMut() -> Result<()>) -> Result<World> {
        let (library, caller) = self.library_and_caller()?;
        if caller == Caller::Main {
            return Err(Error::unsupported(
                "a communication thread beside an application that has initialised MPI for one thread",
                "MPI_THREAD_MULTIPLE, or `Join::scoped` on the thread that has initialised MPI",
            ));
        }
        let (ready, answer) = mpsc::channel();
        let (timeout, name, options) =
            (self.timeout, version_of(library.as_ref()), self.options.clone());
        let serve = move || {
            let opened = self.open(library, caller);
            match opened.map(|(transport, ranks)| (Engine::new(transport, ranks.clone()), ranks)) {
                Ok(((engine, link), ranks)) => {
                    let _ = ready.send(Ok((link, ranks)));
                    engine.run();
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        };
        let spawned = thread::Builder::new().name("onebuf-mpi".into()).spawn(serve);
        let thread = spawned
            .map_err(|why| Error::unsupported("communication", format!("a thread ({why})")))?;
        // MPI_Init has no limit of its own.
        let until = Deadline::after(timeout + Duration::from_secs(1));
        let (link, ranks) = loop {
            match answer.recv_timeout(until.left().min(SLICE)) {
                Ok(joined) => break joined?,
                Err(RecvTimeoutError::Timeout) if !until.is_over() => go_on()?,
                Err(_) => {
                    let what = "MPI to start: not all ranks have come";
                    return Err(Error::timeout(what, timeout));
                }
            }
        };
        Ok(World::new(Parts { link, ranks, timeout, library: name, options, thread: Some(thread) }))
    }

    /// Joins the other ranks, and runs `program` on a thread of its own while the calling thread calls MPI. For applications
    /// that have initialised MPI with `MPI_THREAD_FUNNELED` or `MPI_THREAD_SERIALIZED`; the calling thread must be the one that
    /// did, and `program` must not call MPI itself.
    ///
    /// ```
    /// let sum = onebuf_mpi::Join::new().scoped(|world| world.rank() + world.size())?;
    /// assert_eq!(sum, 1); // without mpirun
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Join::start`].
    ///
    /// # Panics
    /// If `program` does.
    pub fn scoped<R: Send>(self, program: impl FnOnce(&World) -> R + Send) -> Result<R> {
        let (library, caller) = self.library_and_caller()?;
        let (timeout, name, options) =
            (self.timeout, version_of(library.as_ref()), self.options.clone());
        let (transport, ranks) = self.open(library, caller)?;
        let (engine, link) = Engine::new(transport, ranks.clone());
        let world = World::new(Parts {
            link: link.clone(),
            ranks,
            timeout,
            library: name,
            options,
            thread: None,
        });
        thread::scope(|scope| {
            let program = scope.spawn(move || {
                let _ending = Ending { link, world: world.clone() };
                program(&world)
            });
            engine.run();
            match program.join() {
                Ok(result) => Ok(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Finds the library, and who may call it.
    fn library_and_caller(&self) -> Result<(Option<Mpi>, Caller)> {
        if self.library.as_deref() == Some("none") {
            return Ok((None, Caller::Any));
        }
        let off = |missing: &onebuf_sys::Missing| missing.reason.contains("switched off");
        let mpi = match find::load(self.library.as_deref(), self.probe.clone()) {
            Ok(mpi) => mpi,
            Err(missing) if off(&missing) => None,
            Err(missing) => return Err(error::missing(missing)),
        };
        let caller = mpi.as_ref().map_or(Ok(Caller::Any), caller)?;
        Ok((mpi, caller))
    }

    /// Opens the transport, and learns who the others are. Runs on the thread that calls MPI.
    fn open(
        self,
        library: Option<Mpi>,
        caller: Caller,
    ) -> Result<(Box<dyn Transport>, Arc<Ranks>)> {
        let until = Deadline::after(self.timeout);
        let mut transport: Box<dyn Transport> = match library {
            None => Box::new(Alone::default()),
            Some(mpi) => {
                check_thread(&mpi, caller)?;
                let ours = caller == Caller::Initialises;
                if ours {
                    initialise(&mpi)?;
                }
                let comm = self.comm.map_or(mpi.constants().comm_world, Comm::from_native);
                let library = Rc::new(Library { mpi, ours });
                Box::new(MpiTransport::open(library, comm, self.most_count, until)?)
            }
        };
        match greet(&mut *transport, &self.options, until) {
            Ok(ranks) => Ok((transport, Arc::new(ranks))),
            Err(error) => {
                // All ranks refuse ranks that do not fit, and so end together.
                let together = matches!(error, Error::InvalidArgument(_));
                transport.close(together, until).and(Err(error))
            }
        }
    }
}

fn version_of(library: Option<&Mpi>) -> String {
    library.map_or_else(String::new, |mpi| mpi.version().to_owned())
}

/// Who may call MPI in its present state.
fn caller(mpi: &Mpi) -> Result<Caller> {
    // SAFETY: allowed at any time, by any thread.
    let (finalized, initialized) = unsafe { (mpi.finalized(), mpi.initialized()) };
    let asked =
        |got: Result<i32, onebuf_sys::MpiRefused>| got.map_err(|why| error::refused(mpi, why));
    if asked(finalized)? != 0 {
        return Err(Error::unsupported(
            "MPI after its end",
            "a process in which MPI has not been finalised: join once, and keep the world",
        ));
    }
    if asked(initialized)? == 0 {
        return Ok(Caller::Initialises);
    }
    // SAFETY: MPI is initialised; any thread may ask.
    let level = asked(unsafe { mpi.query_thread() })?;
    let levels = mpi.constants();
    if level == levels.thread_multiple {
        Ok(Caller::Any)
    } else if level == levels.thread_single {
        let what = "onebuf beside an application that has initialised MPI for a process of one thread (MPI_Init)";
        Err(Error::unsupported(what, "MPI_Init_thread with MPI_THREAD_FUNNELED or higher"))
    } else {
        Ok(Caller::Main)
    }
}

/// Checks that this is the thread that may call MPI.
fn check_thread(mpi: &Mpi, caller: Caller) -> Result<()> {
    if caller != Caller::Main {
        return Ok(());
    }
    // SAFETY: MPI is initialised; any thread may ask.
    match unsafe { mpi.is_thread_main() } {
        Ok(0) => Err(Error::unsupported(
            "communication on this thread",
            "the thread that has initialised MPI, or MPI_THREAD_MULTIPLE",
        )),
        Ok(_) => Ok(()),
        Err(why) => Err(error::refused(mpi, why)),
    }
}

/// Initialises MPI for calls of this thread.
fn initialise(mpi: &Mpi) -> Result<()> {
    let wanted = mpi.constants().thread_funneled;
    // SAFETY: not initialised yet; without the program's arguments.
    let got = unsafe { mpi.init_thread(ptr::null_mut(), ptr::null_mut(), wanted) };
    let got = got.map_err(|why| error::refused(mpi, why))?;
    let constants = mpi.constants();
    for comm in [constants.comm_world, constants.comm_self] {
        // Some libraries report a request's error to one of these, whichever communicator the request is of.
        // SAFETY: MPI is initialised.
        unsafe { mpi.comm_set_errhandler(comm, constants.errors_return) }
            .map_err(|why| error::refused(mpi, why))?;
    }
    match got >= wanted {
        true => Ok(()),
        false => {
            Err(Error::unsupported("this MPI", "MPI_THREAD_FUNNELED, which it does not provide"))
        }
    }
}

/// Ends the engine when the program of [`Join::scoped`] returns or panics.
struct Ending {
    link: Link,
    world: World,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let failed = self.world.has_failed() || thread::panicking();
        if let Err(error) = self.link.close(Deadline::after(self.world.last_wait()), failed) {
            tracing::warn!(%error, "the ranks do not end together");
        }
    }
}
