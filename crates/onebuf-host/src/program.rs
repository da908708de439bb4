//! Kernels that are functions of this process.

use onebuf_hal::native::{NativeCode, NativeProgram};

/// The native kernels of a source.
pub type HostProgram = NativeProgram;

/// One native kernel.
pub type HostKernel = NativeCode;
