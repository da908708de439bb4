//! One text of a kernel for OpenCL, CUDA and HIP. It names vectors' parts one by one, because only OpenCL C adds vectors.

/// What makes the text CUDA C and HIP C.
const LIKE_CUDA: &str = "
#define kernel extern \"C\" __global__
#define uint unsigned int
#define AXIS_0(v) v.x
#define AXIS_1(v) v.y
#define get_group_id(axis) AXIS_##axis(blockIdx)
#define get_local_id(axis) AXIS_##axis(threadIdx)
#define barrier(fence) __syncthreads()
";

/// A text of OpenCL C as CUDA C and HIP C.
pub fn like_cuda(text: &str) -> String {
    // Replaced in the text, not by macros: the compiler's own `__global__` is a macro with an attribute of that name.
    let text = text.replace("global ", "").replace("local ", "__shared__ ");
    format!("{LIKE_CUDA}{text}")
}
