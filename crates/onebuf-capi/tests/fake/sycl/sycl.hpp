// A stand-in for SYCL's header, over plain OpenCL: only what onebuf_sycl.hpp names, with the reference counts that SYCL 2020
// specifies for its OpenCL backend, and with objects of other backends. Tests alone use it; sycl_runtime.cpp uses SYCL itself.

#ifndef FAKE_SYCL_HPP
#define FAKE_SYCL_HPP

#include <CL/cl.h>

#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace sycl {

enum class backend { opencl, ext_oneapi_level_zero };

namespace usm {
enum class alloc { host, device, shared, unknown };
}

class context {
public:
    explicit context(cl_context native, backend of = backend::opencl) : native_(native), of_(of) {}
    backend get_backend() const { return of_; }
    cl_context native_;

private:
    backend of_;
};

class device {
public:
    explicit device(bool cpu) : cpu_(cpu) {}
    bool is_cpu() const { return cpu_; }

private:
    bool cpu_;
};

class event {
public:
    explicit event(std::vector<cl_event> native) : native_(std::move(native)) {}
    backend get_backend() const { return backend::opencl; }
    std::vector<cl_event> native_;
};

class queue {
public:
    queue(context of, cl_command_queue native, bool cpu = true) : native_(native), of_(std::move(of)), cpu_(cpu) {}
    backend get_backend() const { return of_.get_backend(); }
    context get_context() const { return of_; }
    device get_device() const { return device(cpu_); }
    void wait() { clFinish(native_); }
    cl_command_queue native_;

private:
    context of_;
    bool cpu_;
};

// The native objects are retained for the caller.

template <backend> cl_context get_native(const context &of) { return clRetainContext(of.native_), of.native_; }
template <backend> cl_command_queue get_native(const queue &of) { return clRetainCommandQueue(of.native_), of.native_; }
template <backend> std::vector<cl_event> get_native(const event &of) {
    for (cl_event one : of.native_) clRetainEvent(one);
    return of.native_;
}

// SYCL adds a reference of its own.
template <backend> event make_event(const std::vector<cl_event> &native, const context &) {
    for (cl_event one : native) clRetainEvent(one);
    return event(native);
}

inline std::map<const void *, usm::alloc> &allocations() {
    static std::map<const void *, usm::alloc> all;
    return all;
}

inline void *aligned(std::size_t bytes, usm::alloc kind) {
    void *made = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    allocations()[made] = kind;
    return made;
}

inline usm::alloc get_pointer_type(const void *pointer, const context &) {
    auto found = allocations().find(pointer);
    return found == allocations().end() ? usm::alloc::unknown : found->second;
}

} // namespace sycl

#endif
