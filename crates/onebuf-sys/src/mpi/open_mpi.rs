//! Open MPI's interface: handles are addresses of exported objects. Stable since 1.7; `libmpi.so.40` since 3.0.

use super::types::{Classes, Comm, Constants, Datatype, Errhandler, Request, StatusLayout};
use crate::loader::Loaded;
use std::ffi::CStr;

/// The object by which this interface is recognised.
pub(super) const WORLD: &CStr = c"ompi_mpi_comm_world";

const STATUS: StatusLayout =
    StatusLayout { size: 16 + size_of::<usize>(), source: 0, tag: 4, error: 8 };

/// The last four belong to Open MPI 5; older libraries never return them.
const CLASSES: Classes = Classes {
    buffer: 1,
    count: 2,
    datatype: 3,
    tag: 4,
    comm: 5,
    rank: 6,
    request: 7,
    arg: 13,
    truncate: 15,
    other: 16,
    intern: 17,
    in_status: 18,
    pending: 19,
    no_mem: 39,
    proc_aborted: 74,
    proc_failed: 75,
    proc_failed_pending: 76,
    revoked: 77,
};

/// The handles are zero: they are addresses, which [`constants`] looks up.
pub(super) const CONSTANTS: Constants = Constants {
    comm_world: Comm(0),
    comm_self: Comm(0),
    comm_null: Comm(0),
    byte: Datatype(0),
    request_null: Request(0),
    errors_return: Errhandler(0),
    status: STATUS,
    thread_single: 0,
    thread_funneled: 1,
    thread_serialized: 2,
    thread_multiple: 3,
    undefined: -32766,
    max_error_string: 256,
    max_library_version_string: 256,
    classes: CLASSES,
};

/// The constants, or the name of an object that the library lacks.
pub(super) fn constants(loaded: &Loaded) -> Result<Constants, &'static str> {
    let object = |name: &'static CStr| {
        let at = loaded.symbol(name).map(|at| at.as_ptr().addr());
        at.ok_or(name.to_str().unwrap_or("an object"))
    };
    Ok(Constants {
        comm_world: Comm(object(WORLD)?),
        comm_self: Comm(object(c"ompi_mpi_comm_self")?),
        comm_null: Comm(object(c"ompi_mpi_comm_null")?),
        byte: Datatype(object(c"ompi_mpi_byte")?),
        request_null: Request(object(c"ompi_request_null")?),
        errors_return: Errhandler(object(c"ompi_mpi_errors_return")?),
        ..CONSTANTS
    })
}
