// Helpers shared by the test programs in C++.

#ifndef CHECK_HPP
#define CHECK_HPP

#include <onebuf.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

inline void line_of(bool fine, int line) {
    if (fine) return;
    std::fprintf(stderr, "line %d\n", line);
    std::exit(1);
}
#define TRUE(what) line_of(static_cast<bool>(what), __LINE__)

template <class Call> onebuf_status status_of(Call call) {
    try {
        call();
        return ONEBUF_OK;
    } catch (const onebuf::Error &error) {
        return error.status();
    }
}

/// The error of a call that must fail.
template <class Call> onebuf::Error error_of(Call call, int line) {
    try {
        call();
    } catch (const onebuf::Error &error) {
        return error;
    }
    line_of(false, line);
    std::abort();
}
#define ERROR_OF(call) error_of([&] { call; }, __LINE__)

inline bool has(const std::string &text, const char *part) {
    bool found = text.find(part) != std::string::npos;
    if (!found) std::fprintf(stderr, "no `%s` in: %.400s\n", part, text.c_str());
    return found;
}

inline std::int32_t native_add(void *, const onebuf_native_call *call) {
    auto *x = static_cast<unsigned *>(call->args[0].data);
    for (std::size_t i = 0; i < call->global[0]; ++i) x[i] += *static_cast<const unsigned *>(call->args[1].data);
    return 0;
}

/// The program `add`, for any device.
inline onebuf::Program add_for(const onebuf::Device &device) {
    onebuf_native native{"add", native_add, nullptr};
    onebuf::ProgramOptions source;
    source.opencl_c = "kernel void add(global uint *x, uint n) { x[get_global_id(0)] += n; }";
    source.cuda_c = source.hip_c =
        "extern \"C\" __global__ void add(unsigned *x, unsigned n) { x[blockIdx.x * blockDim.x + threadIdx.x] += n; }";
    source.natives = &native, source.native_count = 1;
    return device.program(source);
}
inline onebuf::Kernel kernel_of(const onebuf::Program &program, onebuf::Access access = onebuf::Access::ReadWrite) {
    return program.kernel("add", {onebuf::Param::buffer(access, sizeof(unsigned)), onebuf::Param::value<unsigned>()});
}

#endif
