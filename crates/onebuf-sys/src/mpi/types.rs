//! Handles, statuses and constants of MPI, the same for every library.
//!
//! # Safety
//!
//! Handles are numbers here, and never followed. An array of statuses has the layout of the library that fills it in.

use std::ffi::c_void;
use std::fmt;

/// A C type of a call's argument. Handles have two: an `int` with MPICH, a pointer with the others.
pub(super) trait Native<H> {
    type C;

    fn native(self) -> Self::C;
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl<H> Native<H> for $ty {
            type C = $ty;

            fn native(self) -> $ty {
                self
            }
        }
    )*};
}

plain!(i32, *const c_void, *mut c_void, *const i32, *const isize, isize);

/// How a library passes handles.
pub(super) trait HandleAbi: Copy {
    fn from_word(word: usize) -> Self;
    fn word(self) -> usize;
}

impl HandleAbi for i32 {
    fn from_word(word: usize) -> Self {
        word as u32 as i32
    }

    fn word(self) -> usize {
        self as u32 as usize
    }
}

impl HandleAbi for *mut c_void {
    fn from_word(word: usize) -> Self {
        std::ptr::without_provenance_mut(word)
    }

    fn word(self) -> usize {
        self.addr()
    }
}

/// An object of MPI: a number that only its library understands.
pub(super) trait Handle: Copy {
    fn from_word(word: usize) -> Self;
    fn word(self) -> usize;
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub(super) usize);

        impl Handle for $name {
            fn from_word(word: usize) -> Self {
                Self(word)
            }

            fn word(self) -> usize {
                self.0
            }
        }

        impl<H: HandleAbi> Native<H> for $name {
            type C = H;

            fn native(self) -> H {
                H::from_word(self.0)
            }
        }
    )*};
}

handles! {
    /// `MPI_Comm`.
    Comm;
    /// `MPI_Datatype`.
    Datatype;
    /// `MPI_Request`.
    Request;
    /// `MPI_Errhandler`.
    Errhandler;
}

impl Comm {
    /// A communicator of the application, as the number that MPI's C bindings pass: the `int` of MPICH, the pointer's value
    /// with the others.
    pub fn from_native(word: usize) -> Self {
        Self(word)
    }
}

/// Which of the three binary interfaces a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// Open MPI's: handles are addresses of exported objects.
    OpenMpi,
    /// MPICH's, which Intel MPI, MVAPICH and Cray MPICH share: handles are integers.
    Mpich,
    /// That of the MPI 5 standard: handles are pointers with fixed small values.
    Standard,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abi::OpenMpi => "Open MPI",
            Abi::Mpich => "MPICH",
            Abi::Standard => "MPI 5",
        })
    }
}

/// The layout of `MPI_Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLayout {
    /// Its size in bytes.
    pub size: usize,
    /// The offset of `MPI_SOURCE`.
    pub source: usize,
    /// The offset of `MPI_TAG`.
    pub tag: usize,
    /// The offset of `MPI_ERROR`.
    pub error: usize,
}

/// The numbers of one binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are MPI's own.
pub struct Constants {
    pub comm_world: Comm,
    pub comm_self: Comm,
    pub comm_null: Comm,
    pub byte: Datatype,
    pub request_null: Request,
    pub errors_return: Errhandler,
    pub status: StatusLayout,
    pub thread_single: i32,
    pub thread_funneled: i32,
    pub thread_serialized: i32,
    pub thread_multiple: i32,
    pub undefined: i32,
    pub max_error_string: usize,
    /// At least as long as any version text.
    pub max_library_version_string: usize,
    pub classes: Classes,
}

/// The error classes that onebuf distinguishes. Zero: this interface has no such class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Classes {
    pub buffer: i32,
    pub count: i32,
    pub datatype: i32,
    pub tag: i32,
    pub comm: i32,
    pub rank: i32,
    pub request: i32,
    pub arg: i32,
    pub truncate: i32,
    pub other: i32,
    pub intern: i32,
    pub in_status: i32,
    pub pending: i32,
    pub no_mem: i32,
    pub proc_aborted: i32,
    pub proc_failed: i32,
    pub proc_failed_pending: i32,
    pub revoked: i32,
}

impl Classes {
    /// Every class with its name in the header.
    pub fn named(&self) -> [(&'static str, i32); 18] {
        [
            ("MPI_ERR_BUFFER", self.buffer),
            ("MPI_ERR_COUNT", self.count),
            ("MPI_ERR_TYPE", self.datatype),
            ("MPI_ERR_TAG", self.tag),
            ("MPI_ERR_COMM", self.comm),
            ("MPI_ERR_RANK", self.rank),
            ("MPI_ERR_REQUEST", self.request),
            ("MPI_ERR_ARG", self.arg),
            ("MPI_ERR_TRUNCATE", self.truncate),
            ("MPI_ERR_OTHER", self.other),
            ("MPI_ERR_INTERN", self.intern),
            ("MPI_ERR_IN_STATUS", self.in_status),
            ("MPI_ERR_PENDING", self.pending),
            ("MPI_ERR_NO_MEM", self.no_mem),
            ("MPI_ERR_PROC_ABORTED", self.proc_aborted),
            ("MPIX_ERR_PROC_FAILED", self.proc_failed),
            ("MPIX_ERR_PROC_FAILED_PENDING", self.proc_failed_pending),
            ("MPIX_ERR_REVOKED", self.revoked),
        ]
    }

    /// The name of a class; `None` for one that onebuf does not distinguish.
    pub fn name(&self, class: i32) -> Option<&'static str> {
        let found = self.named().into_iter().find(|(_, number)| *number == class && class != 0);
        found.map(|(name, _)| name)
    }

    /// Whether the class says that another process is gone.
    pub fn is_lost_peer(&self, class: i32) -> bool {
        let lost = [self.proc_aborted, self.proc_failed, self.proc_failed_pending, self.revoked];
        class != 0 && lost.contains(&class)
    }
}

/// An error code of MPI: a number that its library turns into a class and a text ([`Mpi::describe`](super::Mpi::describe)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct MpiStatus(pub i32);

impl MpiStatus {
    /// `MPI_SUCCESS`, 0 in every interface.
    pub const SUCCESS: Self = Self(0);
    /// Not from MPI: the library does not export this optional call.
    pub const NOT_LOADED: Self = Self(i32::MIN);
    /// Not from MPI: it reported success, but returned a null handle.
    pub const NULL_HANDLE: Self = Self(i32::MIN + 1);
    /// Not from MPI: this is a forked child, where no driver is called.
    pub const FORKED: Self = Self(crate::fork::FORKED);
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiRefused {
    /// The name of the call.
    pub call: &'static str,
    /// Its error code.
    pub status: MpiStatus,
}

impl fmt::Display for MpiRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            MpiStatus::NOT_LOADED => write!(f, "{}: not exported by the MPI library", self.call),
            MpiStatus::NULL_HANDLE => {
                write!(f, "{}: a null handle from a call that succeeded", self.call)
            }
            MpiStatus::FORKED => write!(f, "{}: {}", self.call, crate::fork::WHY),
            MpiStatus(code) => write!(f, "{}: error code {code}", self.call),
        }
    }
}

impl std::error::Error for MpiRefused {}

/// Requests in the layout that the library's array calls take.
#[derive(Clone, Debug)]
pub struct Requests(pub(super) Words);

#[derive(Clone, Debug)]
pub(super) enum Words {
    Ints(Vec<i32>),
    Pointers(Vec<usize>),
}

impl Requests {
    pub(super) fn new(ints: bool) -> Self {
        Self(if ints { Words::Ints(Vec::new()) } else { Words::Pointers(Vec::new()) })
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        match &self.0 {
            Words::Ints(all) => all.len(),
            Words::Pointers(all) => all.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: Request) {
        match &mut self.0 {
            Words::Ints(all) => all.push(HandleAbi::from_word(request.0)),
            Words::Pointers(all) => all.push(request.0),
        }
    }

    /// The request at an index.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, at: usize) -> Request {
        Request(match &self.0 {
            Words::Ints(all) => all[at].word(),
            Words::Pointers(all) => all[at],
        })
    }

    /// Removes the request at an index; the last one takes its place.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn swap_remove(&mut self, at: usize) -> Request {
        Request(match &mut self.0 {
            Words::Ints(all) => all.swap_remove(at).word(),
            Words::Pointers(all) => all.swap_remove(at),
        })
    }
}

/// The statuses of an array call.
#[derive(Debug)]
pub struct Statuses {
    /// Words, because a status is aligned like them.
    pub(super) words: Vec<u64>,
    pub(super) layout: StatusLayout,
}

impl Statuses {
    pub(super) fn new(layout: StatusLayout) -> Self {
        Self { words: Vec::new(), layout }
    }

    /// Makes room for this many, with the error fields zero: MPI sets them only if one of the requests has failed.
    pub(super) fn clear(&mut self, many: usize) {
        self.words.clear();
        self.words.resize((many * self.layout.size).div_ceil(size_of::<u64>()), 0);
    }

    /// The address of one status.
    pub(super) fn at(&self, index: usize) -> *const c_void {
        let offset = index * self.layout.size;
        assert!(offset + self.layout.size <= size_of_val(&self.words[..]), "status {index}");
        // An offset inside of the vector, as just checked.
        self.words.as_ptr().cast::<u8>().wrapping_add(offset).cast()
    }

    fn field(&self, index: usize, at: usize) -> i32 {
        // SAFETY: inside of the vector: a layout's fields are inside of its size. Every bit pattern is a number.
        unsafe { self.at(index).cast::<u8>().add(at).cast::<i32>().read_unaligned() }
    }

    /// The sender's rank.
    pub fn source(&self, index: usize) -> i32 {
        self.field(index, self.layout.source)
    }

    /// The message's tag.
    pub fn tag(&self, index: usize) -> i32 {
        self.field(index, self.layout.tag)
    }

    /// How the request ended.
    pub fn error(&self, index: usize) -> MpiStatus {
        MpiStatus(self.field(index, self.layout.error))
    }
}
