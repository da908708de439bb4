//! The interface that the MPI 5 standard defines, the same for every library that has it (`libmpi_abi.so.1`).

use super::types::{Classes, Comm, Constants, Datatype, Errhandler, Request, StatusLayout};

const STATUS: StatusLayout = StatusLayout { size: 32, source: 0, tag: 4, error: 8 };

/// The standard has no classes for processes that failed.
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
    in_status: 19,
    pending: 18,
    no_mem: 39,
    proc_aborted: 58,
    proc_failed: 0,
    proc_failed_pending: 0,
    revoked: 0,
};

pub(super) const CONSTANTS: Constants = Constants {
    comm_world: Comm(0x101),
    comm_self: Comm(0x102),
    comm_null: Comm(0x100),
    byte: Datatype(0x247),
    request_null: Request(0x180),
    errors_return: Errhandler(0x143),
    status: STATUS,
    thread_single: 0,
    thread_funneled: 1024,
    thread_serialized: 2048,
    thread_multiple: 4096,
    undefined: -32766,
    max_error_string: 512,
    max_library_version_string: 8192,
    classes: CLASSES,
};
