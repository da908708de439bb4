//! The suite's kernels in the language of every device. They are written once in OpenCL C; CUDA C and HIP C differ
//! mostly in names.

use onebuf::Source;

/// Defines the names of OpenCL C in CUDA C and HIP C.
const PRELUDE: &str = r#"
#define kernel extern "C" __global__
#define uchar unsigned char
#define ushort unsigned short
#define uint unsigned int
#define ulong unsigned long
struct alignas(16) uchar16 { uchar s[16]; };
struct alignas(64) float16 { float s[16]; };
__device__ inline size_t onebuf_of(uint x, uint y, uint z, int d) { return d == 0 ? x : d == 1 ? y : z; }
#define get_local_id(d) onebuf_of(threadIdx.x, threadIdx.y, threadIdx.z, d)
#define get_group_id(d) onebuf_of(blockIdx.x, blockIdx.y, blockIdx.z, d)
#define get_local_size(d) onebuf_of(blockDim.x, blockDim.y, blockDim.z, d)
#define get_global_id(d) (get_group_id(d) * get_local_size(d) + get_local_id(d))
#define get_global_size(d) (onebuf_of(gridDim.x, gridDim.y, gridDim.z, d) * get_local_size(d))
"#;

/// Address spaces, which CUDA C does not have. They are removed from the text, not defined as macros, because the
/// compiler's own `__global__` expands to an attribute named `global`.
const SPACES: [&str; 2] = ["global ", "private "];

/// Kernels in OpenCL C, without local memory and helper functions, for devices of every language. Launches have no
/// offset if the device does not support one.
pub fn kernels(text: &str) -> Source {
    two_texts(text, text)
}

/// As `kernels`, with a separate text for CUDA C and HIP C. `like_cuda` uses OpenCL C's names for what differs in name only.
pub fn two_texts(opencl: &str, like_cuda: &str) -> Source {
    let like_cuda = self::like_cuda(like_cuda);
    Source::opencl_c(opencl.to_owned()).with_cuda_c(like_cuda.clone()).with_hip_c(like_cuda)
}

/// Translates a text to CUDA C and HIP C.
pub fn like_cuda(text: &str) -> String {
    let plain = SPACES.iter().fold(text.to_owned(), |text, space| text.replace(space, ""));
    format!("{PRELUDE}{plain}")
}
