//! Kernels: functions of this process, which `native` finds in a source. A driver's backend compiles a text of the source here, and
//! has types of its own that implement `onebuf_hal::Program` and `onebuf_hal::Kernel`.

use onebuf_hal::native::{NativeCode, NativeProgram};

/// The native kernels of a source.
pub type ToyProgram = NativeProgram;

/// One of them.
pub type ToyKernel = NativeCode;
