// SYCL's objects in onebuf: contexts, queues and events of SYCL's OpenCL backend, and USM pointers.
//
// Header only; needs a SYCL 2020 compiler whose devices run on OpenCL, and `CL/cl.h`. SYCL and onebuf must use the same OpenCL
// library, which they do by default (`libOpenCL.so.1`).
//
// sycl::get_native() adds a reference that its caller releases. onebuf adds one of its own to each object that it wraps, so these
// functions release SYCL's.

#ifndef ONEBUF_SYCL_HPP
#define ONEBUF_SYCL_HPP

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#include <CL/cl.h>
#include <sycl/sycl.hpp>

#include <onebuf.hpp>

namespace onebuf {
namespace detail {

/// Refuses an object with this message.
template <class T> Result<T> refuse(const char *message) {
    onebuf_set_error_message(message);
    return result(ONEBUF_UNSUPPORTED, []() -> T { std::abort(); });
}

inline constexpr const char *not_opencl = "not supported: a SYCL object of another backend needs sycl::backend::opencl";

/// Releases a reference at the end of a scope.
template <class Handle, cl_int(CL_API_CALL *Release)(Handle)> class Released {
public:
    explicit Released(Handle handle) : handle_(handle) {}
    ~Released() {
        if (handle_) Release(handle_);
    }
    Released(const Released &) = delete;
    Released &operator=(const Released &) = delete;
    Handle get() const { return handle_; }

private:
    Handle handle_;
};

} // namespace detail

/// Registers a SYCL context: its devices become devices of the hub.
inline Result<ForeignContext> sycl_context(const Hub &hub, const ::sycl::context &context) {
    if (context.get_backend() != ::sycl::backend::opencl) return detail::refuse<ForeignContext>(detail::not_opencl);
    detail::Released<cl_context, clReleaseContext> native(::sycl::get_native<::sycl::backend::opencl>(context));
    return hub.foreign_context(native.get());
}

/// Makes a queue of the hub of a SYCL queue, which both use. Its fence covers what SYCL has enqueued; SYCL may hold commands back
/// whose dependencies are not met, so `queue.ext_oneapi_submit_barrier()`, or an in-order queue, comes before a fence.
inline Result<Queue> sycl_queue(const Hub &hub, const ::sycl::queue &queue) {
    if (queue.get_backend() != ::sycl::backend::opencl) return detail::refuse<Queue>(detail::not_opencl);
    detail::Released<cl_command_queue, clReleaseCommandQueue> native(::sycl::get_native<::sycl::backend::opencl>(queue));
    return hub.wrap_queue(native.get());
}

/// The fences of a SYCL event: none if the event has completed and SYCL has no native event of it.
inline Result<std::vector<Fence>> sycl_fences(const Hub &hub, const ::sycl::event &event) {
    if (event.get_backend() != ::sycl::backend::opencl) return detail::refuse<std::vector<Fence>>(detail::not_opencl);
    std::vector<Fence> fences;
    for (cl_event native : ::sycl::get_native<::sycl::backend::opencl>(event)) {
        detail::Released<cl_event, clReleaseEvent> kept(native);
        auto fence = hub.wrap_event(native);
#ifdef ONEBUF_NO_EXCEPTIONS
        if (!fence) return fence.error();
        fences.push_back(std::move(*fence));
#else
        fences.push_back(std::move(fence));
#endif
    }
    return fences;
}

#ifndef ONEBUF_NO_EXCEPTIONS
/// SYCL events that complete when the fence is reached, for `handler::depends_on`. The fence's work runs in that context.
inline std::vector<::sycl::event> sycl_events(const Fence &fence, const ::sycl::context &context) {
    std::vector<::sycl::event> events;
    for (cl_event native : fence.cl_events()) {
        detail::Released<cl_event, clReleaseEvent> kept(native);
        events.push_back(::sycl::make_event<::sycl::backend::opencl>(std::vector<cl_event>{native}, context));
    }
    return events;
}
#endif

/// Uses a USM allocation in place, for devices of any API that can use the host's pages: `malloc_host`, and `malloc_shared` on a
/// CPU. Commands of SYCL on it have completed, and SYCL does not use it before `done` was called; see Hub::buffer_over().
/// Other allocations are refused: a device's own, and shared ones whose pages move between a GPU and the host.
template <class T>
Result<Buffer<T>> sycl_usm(const Hub &hub, const ::sycl::queue &queue, T *pointer, std::size_t count,
                           const BufferOptions &options, std::function<void()> done) {
    const auto kind = ::sycl::get_pointer_type(pointer, queue.get_context());
    const bool stays = kind == ::sycl::usm::alloc::shared && queue.get_device().is_cpu();
    if (kind == ::sycl::usm::alloc::host || stays) return hub.buffer_over(pointer, count, options, std::move(done));
    // As onebuf does itself if it refuses the memory.
    if (done) done();
    return detail::refuse<Buffer<T>>("not supported: this USM pointer needs host memory that stays where it is: sycl::malloc_host");
}

} // namespace onebuf

#endif
