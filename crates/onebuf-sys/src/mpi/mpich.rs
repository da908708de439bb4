//! MPICH's interface: handles are integers. MPICH, Intel MPI, MVAPICH and Cray MPICH have agreed on it since 2013 (`libmpi.so.12`).

use super::types::{Classes, Comm, Constants, Datatype, Errhandler, Request, StatusLayout};

const STATUS: StatusLayout = StatusLayout { size: 20, source: 8, tag: 12, error: 16 };

const CLASSES: Classes = Classes {
    buffer: 1,
    count: 2,
    datatype: 3,
    tag: 4,
    comm: 5,
    rank: 6,
    request: 19,
    arg: 12,
    truncate: 14,
    other: 15,
    intern: 16,
    in_status: 17,
    pending: 18,
    no_mem: 34,
    proc_aborted: 76,
    proc_failed: 101,
    proc_failed_pending: 102,
    revoked: 103,
};

pub(super) const CONSTANTS: Constants = Constants {
    comm_world: Comm(0x4400_0000),
    comm_self: Comm(0x4400_0001),
    comm_null: Comm(0x0400_0000),
    byte: Datatype(0x4c00_010d),
    request_null: Request(0x2c00_0000),
    errors_return: Errhandler(0x5400_0001),
    status: STATUS,
    thread_single: 0,
    thread_funneled: 1,
    thread_serialized: 2,
    thread_multiple: 3,
    undefined: -32766,
    max_error_string: 512,
    max_library_version_string: 8192,
    classes: CLASSES,
};

/// How the version texts of these libraries begin.
pub(super) const VENDORS: [&str; 4] = ["MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH"];
