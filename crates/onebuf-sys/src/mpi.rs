//! MPI: one table of the functions in use, over each of the three binary interfaces that MPI libraries have.
//!
//! Open MPI, the MPICH family and the MPI 5 standard differ in handles, constants and the layout of a status, not in the
//! functions. Each interface has one file here with its numbers; the rest is written once. Nothing is compiled against MPI, and
//! the library is found when the program runs ([`find`]).
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety). MPI is called by the thread
//! that its thread level allows, after it was initialised and before it is finalised. Memory of a request stays in place until
//! the request is complete. Handles belong to the library that made them, which is the only one in the process.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::loader::{Loaded, Missing, as_function, library_of};
use crate::probe::Probe;

#[macro_use]
mod table;
pub mod find;
mod mpich;
mod open_mpi;
mod standard;
mod types;

// 32-bit processes never load the library.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests;

pub use types::{
    Abi, Classes, Comm, Constants, Datatype, Errhandler, MpiRefused, MpiStatus, Request, Requests,
    StatusLayout, Statuses,
};
use types::{Handle, HandleAbi, Native, Words};

/// The API's name in messages.
pub const API: &str = "mpi";
const HINT: &str = "on Debian or Ubuntu: apt install libopenmpi3 or libmpich12; ONEBUF_MPI_LIB names another library";

table! {
    initialized = MPI_Initialized() -> get;
    finalized = MPI_Finalized() -> get;
    query_thread = MPI_Query_thread() -> get;
    is_thread_main = MPI_Is_thread_main() -> get;
    init_thread = MPI_Init_thread(argc: *mut c_void, argv: *mut c_void, wanted: i32) -> get;
    finalize = MPI_Finalize() -> status;
    library_version = MPI_Get_library_version() -> raw unsafe extern "C" fn(*mut c_char, *mut i32) -> i32;
    [has_abi_version]
    abi_version = MPI_Abi_get_version() -> raw unsafe extern "C" fn(*mut i32, *mut i32) -> i32;
    error_class = MPI_Error_class(status: i32) -> get;
    error_string = MPI_Error_string() -> raw unsafe extern "C" fn(i32, *mut c_char, *mut i32) -> i32;

    comm_rank = MPI_Comm_rank(comm: Comm) -> get;
    comm_size = MPI_Comm_size(comm: Comm) -> get;
    comm_idup = MPI_Comm_idup() -> raw unsafe extern "C" fn(H, *mut H, *mut H) -> i32;
    comm_free = MPI_Comm_free() -> free Comm, "comm";
    comm_set_errhandler = MPI_Comm_set_errhandler(comm: Comm, handler: Errhandler) -> status;

    isend = MPI_Isend(
        from: *const c_void, count: i32, of: Datatype, to: i32, tag: i32, comm: Comm
    ) -> create Request, "request";
    irecv = MPI_Irecv(
        into: *mut c_void, count: i32, of: Datatype, from: i32, tag: i32, comm: Comm
    ) -> create Request, "request";
    send_init = MPI_Send_init(
        from: *const c_void, count: i32, of: Datatype, to: i32, tag: i32, comm: Comm
    ) -> create Request, "request";
    recv_init = MPI_Recv_init(
        into: *mut c_void, count: i32, of: Datatype, from: i32, tag: i32, comm: Comm
    ) -> create Request, "request";
    start = MPI_Start() -> change Request;
    testsome = MPI_Testsome() -> raw unsafe extern "C" fn(i32, *mut H, *mut i32, *mut i32, *mut c_void) -> i32;
    cancel = MPI_Cancel() -> change Request;
    test_cancelled = MPI_Test_cancelled(status: *const c_void) -> get;
    request_free = MPI_Request_free() -> free Request, "request";
    elements = MPI_Get_elements_x() -> raw unsafe extern "C" fn(*const c_void, H, *mut i64) -> i32;

    ibcast = MPI_Ibcast(at: *mut c_void, count: i32, of: Datatype, root: i32, comm: Comm) -> create Request, "request";
    iallgather = MPI_Iallgather(
        from: *const c_void, count: i32, of: Datatype, into: *mut c_void, each: i32, of_each: Datatype, comm: Comm
    ) -> create Request, "request";
    ibarrier = MPI_Ibarrier(comm: Comm) -> create Request, "request";

    type_hvector = MPI_Type_create_hvector(count: i32, length: i32, stride: isize, of: Datatype) -> create Datatype, "datatype";
    type_hindexed = MPI_Type_create_hindexed(
        count: i32, lengths: *const i32, at: *const isize, of: Datatype
    ) -> create Datatype, "datatype";
    type_commit = MPI_Type_commit() -> change Datatype;
    type_free = MPI_Type_free() -> free Datatype, "datatype";

    // Fault tolerance (ULFM).
    [has_comm_revoke]
    comm_revoke = MPIX_Comm_revoke(comm: Comm) -> status;
    [has_comm_shrink]
    comm_shrink = MPIX_Comm_shrink(comm: Comm) -> create Comm, "comm";

    // What a library says of device memory.
    [has_query_cuda]
    query_cuda = MPIX_Query_cuda_support() -> raw unsafe extern "C" fn() -> i32;
    [has_query_hip]
    query_hip = MPIX_Query_hip_support() -> raw unsafe extern "C" fn() -> i32;
    [has_query_rocm]
    query_rocm = MPIX_Query_rocm_support() -> raw unsafe extern "C" fn() -> i32;

    // What applications do without onebuf, for comparison.
    [has_wait]
    wait = MPI_Wait() -> raw unsafe extern "C" fn(*mut H, *mut c_void) -> i32;
    [has_alltoall]
    alltoall = MPI_Alltoall(
        from: *const c_void, count: i32, of: Datatype, into: *mut c_void, each: i32, of_each: Datatype, comm: Comm
    ) -> status;
    [has_barrier]
    barrier = MPI_Barrier(comm: Comm) -> status;
}

/// The functions, by the type of the library's handles.
enum Calls {
    Ints(Functions<i32>),
    Pointers(Functions<*mut c_void>),
}

/// Where a call puts a handle; the caller gets it as a word.
struct Out<'w, H: HandleAbi> {
    native: H,
    word: &'w mut usize,
}

impl<'w, H: HandleAbi> Out<'w, H> {
    fn new(word: &'w mut usize) -> Self {
        Self { native: H::from_word(*word), word }
    }

    fn at(&mut self) -> *mut H {
        &raw mut self.native
    }
}

impl<H: HandleAbi> Drop for Out<'_, H> {
    fn drop(&mut self) {
        *self.word = self.native.word();
    }
}

/// The symbol table of an MPI library.
pub struct Mpi {
    abi: Abi,
    constants: Constants,
    probe: Option<Arc<Probe>>,
    calls: Calls,
    /// The library as it was named when it was opened.
    name: String,
    version: String,
}

impl Mpi {
    /// The table of an opened library. Calls nothing in it but `MPI_Get_library_version` and `MPI_Abi_get_version`, which are
    /// allowed before MPI is initialised.
    pub(crate) fn of(loaded: Loaded, probe: Option<Arc<Probe>>) -> Result<Self, Missing> {
        let refused = |reason: String| Missing {
            api: API,
            tried: vec![loaded.name.clone()],
            loaded: true,
            code: None,
            reason,
            hint: HINT.into(),
        };
        let version = find::version(&loaded)
            .ok_or_else(|| refused(format!("{} lacks MPI_Get_library_version", loaded.name)))?;
        let abi = find::abi(&loaded, &version).ok_or_else(|| {
            let known = "Open MPI, MPICH and its relatives, and MPI 5 are known";
            refused(format!("{} has an unknown binary interface ({version}); {known}", loaded.name))
        })?;
        let constants = match abi {
            Abi::OpenMpi => open_mpi::constants(&loaded)
                .map_err(|name| refused(format!("{} lacks {name}", loaded.name)))?,
            Abi::Mpich => mpich::CONSTANTS,
            Abi::Standard => standard::CONSTANTS,
        };
        let calls = match abi {
            Abi::Mpich => Calls::Ints(Functions::resolve(&loaded)),
            Abi::OpenMpi | Abi::Standard => Calls::Pointers(Functions::resolve(&loaded)),
        };
        let lacking = match &calls {
            Calls::Ints(calls) => calls.lacking(),
            Calls::Pointers(calls) => calls.lacking(),
        };
        if !lacking.is_empty() {
            return Err(Missing::incomplete(API, loaded, &lacking, HINT));
        }
        Ok(Self { abi, constants, probe, calls, name: loaded.name, version })
    }

    /// Which binary interface the library has.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// The numbers of the interface.
    pub fn constants(&self) -> &Constants {
        &self.constants
    }

    /// The first line of the library's own version text.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The name by which the library was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the loaded library.
    pub fn library(&self) -> Option<PathBuf> {
        let at = match &self.calls {
            Calls::Ints(calls) => calls.init_thread? as *const c_void,
            Calls::Pointers(calls) => calls.init_thread? as *const c_void,
        };
        library_of(at)
    }

    /// The probe that the table was loaded with.
    pub fn probe(&self) -> Option<&Arc<Probe>> {
        self.probe.as_ref()
    }

    /// An empty array of requests for this library.
    pub fn requests(&self) -> Requests {
        Requests::new(matches!(self.calls, Calls::Ints(_)))
    }

    /// Room for the statuses of this library.
    pub fn statuses(&self) -> Statuses {
        Statuses::new(self.constants.status)
    }

    /// `MPIX_Query_cuda_support`: whether the library says that it takes memory of CUDA devices; `None` if it does not say.
    ///
    /// # Safety
    ///
    /// MPI is initialised, and not finalised.
    pub unsafe fn claims_cuda(&self) -> Option<bool> {
        let ask = || -> Result<i32, MpiRefused> {
            self.enter("MPIX_Query_cuda_support")?;
            Ok(call!(self, query_cuda, MPIX_Query_cuda_support, H, ()))
        };
        self.has_query_cuda().then(ask)?.ok().map(|said| said != 0)
    }

    /// `MPIX_Query_hip_support` (MPICH) or `MPIX_Query_rocm_support` (Open MPI): whether the library says that it takes memory of HIP
    /// devices; `None` if it does not say.
    ///
    /// # Safety
    ///
    /// As for [`Mpi::claims_cuda`].
    pub unsafe fn claims_hip(&self) -> Option<bool> {
        let ask = || -> Result<i32, MpiRefused> {
            self.enter("MPIX_Query_hip_support")?;
            match self.has_query_hip() {
                true => Ok(call!(self, query_hip, MPIX_Query_hip_support, H, ())),
                false => Ok(call!(self, query_rocm, MPIX_Query_rocm_support, H, ())),
            }
        };
        let says = self.has_query_hip() || self.has_query_rocm();
        says.then(ask)?.ok().map(|said| said != 0)
    }

    /// `MPI_Comm_idup`: the new communicator may be used once the request is complete. `into` is where the library puts it
    /// meanwhile: see [`Duplicate`].
    ///
    /// # Safety
    ///
    /// The contract of the C function; `into` stays in place until the request is complete.
    pub unsafe fn comm_idup(
        &self,
        comm: Comm,
        into: &mut Duplicate,
    ) -> Result<Request, MpiRefused> {
        self.enter("MPI_Comm_idup")?;
        let (mut request, to) = (0, (&raw mut into.word).cast::<c_void>());
        let status = call!(
            self,
            comm_idup,
            MPI_Comm_idup,
            H,
            (Native::<H>::native(comm), to.cast(), Out::<H>::new(&mut request).at())
        );
        answer("MPI_Comm_idup", status)?;
        self.count("request", 1);
        self.count("comm", 1);
        Ok(Request(request))
    }

    /// The communicator of a duplication that is complete.
    pub fn duplicated(&self, from: &Duplicate) -> Comm {
        let at = (&raw const from.word).cast::<c_void>();
        Comm(match &self.calls {
            // SAFETY: the library has stored a handle of this type there, or nothing, which is a zero.
            Calls::Ints(_) => unsafe { at.cast::<i32>().read() }.word(),
            // SAFETY: as above.
            Calls::Pointers(_) => unsafe { at.cast::<*mut c_void>().read() }.word(),
        })
    }

    /// `MPI_Testsome`: appends the indices of the requests that are complete. A request that was not persistent is then freed.
    /// If one has failed, each status says how its request ended.
    ///
    /// # Safety
    ///
    /// The contract of the C function: the requests are alive.
    pub unsafe fn testsome(
        &self,
        requests: &mut Requests,
        done: &mut Vec<i32>,
        statuses: &mut Statuses,
    ) -> Result<(), MpiRefused> {
        self.enter("MPI_Testsome")?;
        let many = requests.len();
        let count = i32::try_from(many).unwrap_or(i32::MAX);
        done.clear();
        done.resize(many, 0);
        statuses.clear(many);
        let at = match &mut requests.0 {
            Words::Ints(all) => all.as_mut_ptr().cast::<c_void>(),
            Words::Pointers(all) => all.as_mut_ptr().cast(),
        };
        let (mut found, into) = (0, statuses.words.as_mut_ptr().cast::<c_void>());
        let status = call!(
            self,
            testsome,
            MPI_Testsome,
            H,
            (count, at.cast(), &raw mut found, done.as_mut_ptr(), into)
        );
        let found = if found == self.constants.undefined { 0 } else { found };
        done.truncate(usize::try_from(found).unwrap_or(0));
        match answer("MPI_Testsome", status) {
            Err(refused) if self.class_of(refused.status) == self.constants.classes.in_status => {
                Ok(())
            }
            other => other,
        }
    }

    /// `MPI_Get_elements_x`: how many bytes a receive has got.
    ///
    /// # Safety
    ///
    /// The status at the index is that of a receive that is complete.
    pub unsafe fn received(&self, statuses: &Statuses, index: usize) -> Result<u64, MpiRefused> {
        self.enter("MPI_Get_elements_x")?;
        let (mut bytes, at, byte) = (0, statuses.at(index), self.constants.byte);
        let status = call!(
            self,
            elements,
            MPI_Get_elements_x,
            H,
            (at, Native::<H>::native(byte), &raw mut bytes)
        );
        answer("MPI_Get_elements_x", status)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// `MPI_Test_cancelled`: whether the request was cancelled and did nothing.
    ///
    /// # Safety
    ///
    /// The status at the index is that of a request that is complete.
    pub unsafe fn was_cancelled(
        &self,
        statuses: &Statuses,
        index: usize,
    ) -> Result<bool, MpiRefused> {
        // SAFETY: the caller guarantees the status.
        unsafe { self.test_cancelled(statuses.at(index)) }.map(|flag| flag != 0)
    }

    /// `MPI_Wait`, without the status.
    ///
    /// # Safety
    ///
    /// The contract of the C function. It has no time limit.
    pub unsafe fn wait(&self, request: Request) -> Result<(), MpiRefused> {
        self.enter("MPI_Wait")?;
        let (mut word, mut status) = (request.0, self.statuses());
        status.clear(1);
        let into = status.words.as_mut_ptr().cast::<c_void>();
        let code = call!(self, wait, MPI_Wait, H, (Out::<H>::new(&mut word).at(), into));
        answer("MPI_Wait", code)
    }

    /// The class of an error code, and what the library says of it.
    ///
    /// # Safety
    ///
    /// MPI is initialised, and this thread may call it.
    pub unsafe fn describe(&self, status: MpiStatus) -> (i32, String) {
        let text = match &self.calls {
            Calls::Ints(calls) => calls.error_string,
            Calls::Pointers(calls) => calls.error_string,
        };
        let mut room = vec![0u8; self.constants.max_error_string + 1];
        let (mut len, at) = (0, room.as_mut_ptr().cast::<c_char>());
        let class = self.class_of(status);
        // SAFETY: room for the longest text.
        let told = text.is_some_and(|text| unsafe { text(status.0, at, &raw mut len) } == 0);
        let text = if told { lines_of(&room) } else { String::new() };
        (class, text)
    }

    /// The class of an error code. Codes below the ones that MPI defines are their own class.
    fn class_of(&self, status: MpiStatus) -> i32 {
        let mut class = 0;
        let known = match &self.calls {
            Calls::Ints(calls) => calls.error_class,
            Calls::Pointers(calls) => calls.error_class,
        };
        // SAFETY: takes any number, and stores a class.
        match known.map(|known| unsafe { known(status.0, &raw mut class) }) {
            Some(0) => class,
            _ => status.0,
        }
    }

    /// Refuses a call in a forked child, and the one that the probe has chosen.
    fn enter(&self, call: &'static str) -> Result<(), MpiRefused> {
        if crate::fork::is_child() {
            return Err(MpiRefused { call, status: MpiStatus::FORKED });
        }
        let Some(probe) = &self.probe else { return Ok(()) };
        probe.enter(call).map_err(|code| MpiRefused { call, status: MpiStatus(code) })
    }

    fn count(&self, kind: &'static str, change: i64) {
        if let Some(probe) = &self.probe {
            probe.count(kind, change);
        }
    }

    /// Tells the probe that a request is complete, and so freed by MPI.
    pub fn note_freed(&self) {
        self.count("request", -1);
    }
}

/// Where `MPI_Comm_idup` puts the new communicator.
#[derive(Debug, Default)]
pub struct Duplicate {
    word: u64,
}

fn answer(call: &'static str, status: i32) -> Result<(), MpiRefused> {
    match MpiStatus(status) {
        MpiStatus::SUCCESS => Ok(()),
        status => Err(MpiRefused { call, status }),
    }
}

/// The first line of a C string.
/// All lines of a text in one. MPICH has the cause of an error in the last ones.
fn lines_of(room: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(room).unwrap_or_default().to_string_lossy();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// The first line of a text.
fn text_of(room: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(room).unwrap_or_default().to_string_lossy();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi({}, {})", self.abi, self.version)
    }
}
