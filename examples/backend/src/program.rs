//! Kernels: functions of this process, which `native` finds in a source. A backend for a driver compiles the source here and
//! has its own types that implement `onebuf_hal::Program` and `onebuf_hal::Kernel`.

use onebuf_hal::native::{NativeCode, NativeProgram};

/// The native kernels of a source.
pub type ToyProgram = NativeProgram;

/// One native kernel.
pub type ToyKernel = NativeCode;
