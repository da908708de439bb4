// onebuf for C++17: RAII classes over onebuf.h, header only.
//
// Every function exists once and returns onebuf::Result<T>. With exceptions enabled that is T itself, and failures are
// thrown as onebuf::Error. If ONEBUF_NO_EXCEPTIONS is defined, or the compiler has exceptions disabled, it holds a T or
// an Error: test it with `if (result)`, then use `*result` or `result.error()`.
//
// Owning classes can be moved, not copied; the destructor frees the object. The rules of onebuf.h for threads,
// contracts and lifetimes apply here too.

#ifndef ONEBUF_HPP
#define ONEBUF_HPP

#include "onebuf.h"

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#if !defined(__cpp_exceptions) && !defined(ONEBUF_NO_EXCEPTIONS)
#define ONEBUF_NO_EXCEPTIONS
#endif

namespace onebuf {

// Errors ==========================================================================================

/// Why a call failed: its status, a message that states the cause and a remedy, and the parts of it.
class Error : public std::runtime_error {
public:
    /// The calling thread's last failure.
    explicit Error(onebuf_status status) : std::runtime_error(onebuf_last_error_message()), status_(status) {
        onebuf_error_info info{};
        info.size = sizeof info;
        if (onebuf_last_error(&info) != ONEBUF_OK || info.status != status) return;
        driver_code_ = info.driver_code, asked_bytes_ = info.asked_bytes, limit_bytes_ = info.limit_bytes;
        subject_ = info.subject, reason_ = info.reason, driver_call_ = info.driver_call;
    }

    onebuf_status status() const noexcept { return status_; }
    const char *name() const noexcept { return onebuf_status_name(status_); }
    /// What it concerns: a device, an API, a route, a file, or what was requested; empty if nothing.
    const std::string &subject() const noexcept { return subject_; }
    /// The reason: what would be needed, the driver's name of its status, or the compiler's log.
    const std::string &reason() const noexcept { return reason_; }
    /// The driver's call that failed, for ONEBUF_DRIVER.
    const std::string &driver_call() const noexcept { return driver_call_; }
    /// The driver's own status, for ONEBUF_DRIVER.
    std::int32_t driver_code() const noexcept { return driver_code_; }
    /// The requested bytes, for ONEBUF_OUT_OF_MEMORY.
    std::uint64_t asked_bytes() const noexcept { return asked_bytes_; }
    /// The limit, for ONEBUF_OUT_OF_MEMORY, if it is known.
    std::uint64_t limit_bytes() const noexcept { return limit_bytes_; }

private:
    onebuf_status status_;
    std::int32_t driver_code_ = 0;
    std::uint64_t asked_bytes_ = 0, limit_bytes_ = 0;
    std::string subject_, reason_, driver_call_;
};

#ifdef ONEBUF_NO_EXCEPTIONS

/// A value, or an error.
template <class T> class [[nodiscard]] Result {
    using Stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

public:
    Result(Stored value) : held_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

    explicit operator bool() const noexcept { return held_.index() == 0; }
    bool has_value() const noexcept { return held_.index() == 0; }

    /// The value; aborts the program with the message if there is none.
    Stored &value() & { return ensure(), *std::get_if<0>(&held_); }
    Stored &&value() && { return ensure(), std::move(*std::get_if<0>(&held_)); }
    Stored &operator*() & { return value(); }
    Stored &&operator*() && { return std::move(*this).value(); }
    Stored *operator->() { return &value(); }

    /// The error; only if there is no value.
    const Error &error() const { return *std::get_if<1>(&held_); }

private:
    void ensure() const {
        if (!has_value()) {
            std::fprintf(stderr, "onebuf: %s: %s\n", error().name(), error().what());
            std::abort();
        }
    }

    std::variant<Stored, Error> held_;
};

#else

/// A value; failures are thrown.
template <class T> using Result = T;

#endif

/// The version of the library, such as `0.1.0`.
inline const char *version() noexcept { return onebuf_version(); }
/// The version of the library as a number that grows with it.
inline std::uint32_t version_number() noexcept { return onebuf_version_number(); }
/// Call this first in `main` of a program that is its own helper for the doctor.
inline void doctor_helper_main() noexcept { (void)onebuf_doctor_helper_main(); }

namespace detail {

inline Result<void> check(onebuf_status status) {
#ifdef ONEBUF_NO_EXCEPTIONS
    if (status != ONEBUF_OK) return Error(status);
    return std::monostate{};
#else
    if (status != ONEBUF_OK) throw Error(status);
#endif
}

/// The result of `make`, unless the call failed.
template <class Make> auto result(onebuf_status status, Make make) -> Result<decltype(make())> {
#ifdef ONEBUF_NO_EXCEPTIONS
    if (status != ONEBUF_OK) return Error(status);
#else
    if (status != ONEBUF_OK) throw Error(status);
#endif
    return make();
}

/// Owns a handle.
template <class Handle, onebuf_status (*Free)(Handle)> class Owner {
public:
    Owner() = default;
    explicit Owner(Handle handle) noexcept : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, Handle{0})) {}
    Owner &operator=(Owner &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() { reset(); }

    /// The handle, for onebuf.h; this object keeps the ownership.
    Handle handle() const noexcept { return handle_; }
    /// The handle; the caller takes the ownership.
    Handle release() noexcept { return std::exchange(handle_, Handle{0}); }
    /// Frees the object now.
    void reset() noexcept {
        if (handle_.id != 0) Free(release());
    }
    explicit operator bool() const noexcept { return handle_.id != 0; }

private:
    Handle handle_{0};
};

inline std::string take(onebuf_string string) {
    std::string text(onebuf_string_data(string), onebuf_string_size(string));
    onebuf_string_free(string);
    return text;
}

/// The result of a function that returns a string.
template <class Ask> Result<std::string> text(Ask ask) {
    onebuf_string string{0};
    onebuf_status status = ask(&string);
    return result(status, [&] { return take(string); });
}

/// The result of a function that returns a plain value.
template <class T, class Ask> Result<T> value(Ask ask) {
    T found{};
    onebuf_status status = ask(&found);
    return result(status, [&] { return found; });
}

// cl.h defines one of these; without it native handles are plain pointers.
#if defined(__OPENCL_CL_H) || defined(OPENCL_CL_H_)
using ClMem = ::cl_mem;
using ClQueue = ::cl_command_queue;
using ClContext = ::cl_context;
using ClEvent = ::cl_event;
using ClDevice = ::cl_device_id;
using ClPlatform = ::cl_platform_id;
#else
using ClMem = void *;
using ClQueue = void *;
using ClContext = void *;
using ClEvent = void *;
using ClDevice = void *;
using ClPlatform = void *;
#endif

// Native handles, and the classes of CL/opencl.hpp around them if it was included before.
inline void *native_mem(ClMem mem) { return mem; }
inline void *native_queue(ClQueue queue) { return queue; }
inline void *native_context(ClContext context) { return context; }
inline void *native_event(ClEvent event) { return event; }
#if defined(CL_HPP_)
inline void *native_mem(const cl::Memory &mem) { return mem(); }
inline void *native_queue(const cl::CommandQueue &queue) { return queue(); }
inline void *native_context(const cl::Context &context) { return context(); }
inline void *native_event(const cl::Event &event) { return event(); }
#endif

/// A pointer, stream or event of CUDA or HIP. Some of them are numbers.
template <class Object> void *address(const Object *pointer) {
    return const_cast<void *>(static_cast<const void *>(pointer));
}
inline void *address(std::nullptr_t) { return nullptr; }
template <class Number, class = typename std::enable_if<std::is_integral<Number>::value>::type>
void *address(Number number) {
    return reinterpret_cast<void *>(static_cast<std::uintptr_t>(number));
}

/// A duration in nanoseconds; zero if it is negative.
inline std::uint64_t ns_of(std::chrono::nanoseconds time) {
    return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
}

/// Size of `count` elements in bytes; saturates on overflow, which onebuf then refuses.
template <class T> std::size_t bytes_of(std::size_t count) {
    return count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
}

} // namespace detail

// Timeouts ========================================================================================

/// A timeout; the default is the hub's.
class Timeout {
public:
    Timeout() = default;
    /// Any duration, rounded up to milliseconds.
    template <class Rep, class Period> Timeout(std::chrono::duration<Rep, Period> time) {
        auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
        ms_ = ms > 0 ? static_cast<std::uint64_t>(ms) : 0;
    }
    std::uint64_t ms() const noexcept { return ms_; }

private:
    std::uint64_t ms_ = ONEBUF_DEFAULT_TIMEOUT;
};

} // namespace onebuf

// Words, structures, and the classes of handles with those calls that only translate types.
#include "onebuf_types.hpp"

namespace onebuf {

// Fences ==========================================================================================

/// A point that work on a queue reaches.
class Fence : public detail::FenceHandle {
public:
    using FenceHandle::FenceHandle;

    /// Waits for at most this many nanoseconds.
    Result<void> wait_ns(std::chrono::nanoseconds time) const {
        return detail::check(onebuf_fence_wait_ns(handle(), detail::ns_of(time)));
    }
    /// When the work ran. Available for one launch on a queue with profiling, once it is done.
    Result<onebuf_profile> profile() const {
        return detail::value<onebuf_profile>(
            [&](onebuf_profile *to) { return onebuf_fence_profile(handle(), to); });
    }
    /// The native events that must complete before the fence is reached; none if it is known to be reached. The caller
    /// must release each.
    Result<std::vector<detail::ClEvent>> cl_events() const {
        std::size_t count = 0;
        onebuf_status status = onebuf_fence_cl_events(handle(), nullptr, 0, &count);
        std::vector<void *> raw(count);
        if (status == ONEBUF_OK && count > 0) status = onebuf_fence_cl_events(handle(), raw.data(), count, &count);
        return detail::result(status, [&] {
            std::vector<detail::ClEvent> all;
            for (std::size_t at = 0; at < count; ++at) all.push_back(static_cast<detail::ClEvent>(raw[at]));
            return all;
        });
    }
};

/// An event that the host completes. If it is destroyed before, it fails, and so does work that waits for it.
class UserEvent : public detail::UserEventHandle {
public:
    using UserEventHandle::UserEventHandle;

    /// A fence that is reached when the event is completed.
    Result<Fence> fence() const {
        onebuf_fence made{0};
        onebuf_status status = onebuf_user_event_fence(handle(), &made);
        return detail::result(status, [&] { return Fence(made); });
    }
    /// The `cl_event`, for commands that must wait for it; valid as long as this lives.
    Result<detail::ClEvent> cl_event() const {
        void *native = nullptr;
        onebuf_status status = onebuf_user_event_native(handle(), &native);
        return detail::result(status, [&] { return static_cast<detail::ClEvent>(native); });
    }
};

// The log ========================================================================================

/// Sends messages of this level and more severe ones to a function, and none to standard error. The function must not
/// throw and must not call the library: see onebuf_log_function in onebuf.h.
inline Result<void> log_to(LogLevel level, onebuf_log_function function, void *user = nullptr) {
    return detail::check(onebuf_log_to(static_cast<onebuf_log_level>(level), function, user));
}
/// Sends messages to standard error again, selected by ONEBUF_LOG.
inline Result<void> log_to_stderr() { return detail::check(onebuf_log_to(0, nullptr, nullptr)); }

// Kernels =========================================================================================

namespace detail {

/// The argument kind of a value of this type.
template <class T> onebuf_arg_kind kind_of() {
    if constexpr (std::is_enum_v<T>) return ONEBUF_ARG_INTEGER;
    else return onebuf_kind_of(static_cast<const T *>(nullptr));
}

} // namespace detail

/// A parameter of a kernel.
struct Param : onebuf_param {
    /// A buffer, how the kernel accesses it, and how many bytes each work-item needs (zero: not checked).
    static Param buffer(Access access = Access::ReadWrite, std::size_t bytes_per_item = 0) {
        return Param{{ONEBUF_ARG_BUFFER, static_cast<onebuf_access>(access), 0, bytes_per_item}};
    }
    /// A value of this type. Launches must pass a value of the same size: an integer for an integer, a floating-point
    /// number for a floating-point number. For structures and vectors only the size is checked.
    template <class T> static Param value() {
        static_assert(std::is_trivially_copyable_v<T>, "kernels take plain values");
        return Param{{detail::kind_of<T>(), 0, sizeof(T), 0}};
    }
    /// Local memory, and how many bytes each work-item of a group needs (zero: not checked).
    static Param local(std::size_t bytes_per_item = 0) { return Param{{ONEBUF_ARG_LOCAL, 0, 0, bytes_per_item}}; }
};

class Device;

/// A declared kernel.
class Kernel : public detail::KernelHandle {
public:
    using KernelHandle::KernelHandle;

    /// Makes a kernel that OpenCL compiled launchable on queues of a CUDA or HIP device too; fails if that cannot be done.
    Result<void> graft(const Device &device) const;
    /// Does so if the doctor has proven that for the two devices, and returns whether.
    Result<bool> graft_if_proven(const Device &device) const;
};

/// A program built for one device.
class Program : public detail::ProgramHandle {
public:
    using ProgramHandle::ProgramHandle;

    /// Declares a kernel. The caller guarantees that it does what its parameters say: see onebuf.h.
    Result<Kernel> kernel(const char *name, std::initializer_list<Param> params, std::uint32_t flags = 0) const {
        std::vector<onebuf_param> plain(params.begin(), params.end());
        onebuf_kernel made{0};
        onebuf_status status = onebuf_kernel_create(handle(), name, plain.data(), plain.size(), flags, &made);
        return detail::result(status, [&] { return Kernel(made); });
    }
    /// Declares a kernel whose launches also pass a check; see onebuf_launch_check in onebuf.h. The function and `user` are
    /// valid as long as the kernel lives.
    Result<Kernel> kernel(const char *name, std::initializer_list<Param> params, std::uint32_t flags, onebuf_launch_check check,
                          void *user = nullptr) const {
        std::vector<onebuf_param> plain(params.begin(), params.end());
        onebuf_kernel_options options{};
        options.size = sizeof options;
        options.params = plain.data(), options.param_count = plain.size();
        options.flags = flags, options.check = check, options.check_user = user;
        onebuf_kernel made{0};
        onebuf_status status = onebuf_kernel_create_with(handle(), name, &options, &made);
        return detail::result(status, [&] { return Kernel(made); });
    }
    /// Moves a program that OpenCL compiled to a CUDA or HIP device; fails if that cannot be done.
    Result<Program> graft(const Device &device) const;
    /// Moves it if the doctor has proven that for the two devices; otherwise returns the same program.
    Result<Program> graft_if_proven(const Device &device, bool *grafted = nullptr) const;
};

/// The number of work-items and the size of work-groups.
struct Grid : onebuf_grid {
    Grid(std::size_t x) : onebuf_grid{1, {x, 1, 1}, {0, 0, 0}, {0, 0, 0}} {}
    Grid(std::size_t x, std::size_t y) : onebuf_grid{2, {x, y, 1}, {0, 0, 0}, {0, 0, 0}} {}
    Grid(std::size_t x, std::size_t y, std::size_t z) : onebuf_grid{3, {x, y, z}, {0, 0, 0}, {0, 0, 0}} {}
    Grid &groups(std::size_t x, std::size_t y = 0, std::size_t z = 0) {
        local[0] = x, local[1] = y, local[2] = z;
        return *this;
    }
    Grid &from(std::size_t x, std::size_t y = 0, std::size_t z = 0) {
        offset[0] = x, offset[1] = y, offset[2] = z;
        return *this;
    }
};

template <class T> class Buffer;
template <class T> class View;

/// Local memory of each work-group, as an argument.
struct Local {
    std::size_t bytes;
};

/// A buffer that a launch must only read, as an argument: a parameter that is declared for writing is refused.
struct Reads {
    onebuf_buffer buffer;
};
template <class T> Reads reads(const Buffer<T> &buffer) { return {buffer.handle()}; }

/// A buffer whose earlier contents are discarded, as an argument: the parameter is declared for writing only, and the kernel writes
/// every element.
struct Overwrites {
    onebuf_buffer buffer;
};
template <class T> Overwrites overwrites(const Buffer<T> &buffer) { return {buffer.handle()}; }

/// A buffer as an argument; its persistent map (Buffer::to_host) is ended first.
struct Turn {
    onebuf_buffer buffer;
    onebuf_access access;
};
template <class T> Turn turn(const Buffer<T> &buffer, Access access = Access::ReadWrite) {
    return {buffer.handle(), static_cast<onebuf_access>(access)};
}

namespace detail {

/// The length of an array of so many elements, because arrays cannot be empty.
constexpr std::size_t room(std::size_t count) { return count > 0 ? count : 1; }

template <class T> onebuf_arg argument(const Buffer<T> &buffer) {
    return onebuf_arg_buffer(buffer.handle(), ONEBUF_READ_WRITE);
}
template <class T> onebuf_arg argument(const View<T> &view) { return onebuf_arg_view(view.handle()); }
inline onebuf_arg argument(const Reads &reads) { return onebuf_arg_buffer(reads.buffer, ONEBUF_READ); }
inline onebuf_arg argument(const Overwrites &overwrites) { return onebuf_arg_overwrite(overwrites.buffer); }
inline onebuf_arg argument(const Turn &turn) { return onebuf_arg_turn(turn.buffer, turn.access); }
inline onebuf_arg argument(const Local &local) { return onebuf_arg_local(local.bytes); }
template <class T> onebuf_arg argument(const T &value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>, "kernels take buffers and plain values");
    if constexpr (std::is_scalar_v<T>) return onebuf_arg_number(kind_of<T>(), &value, sizeof value);
    else return onebuf_arg_value(&value, sizeof value);
}

} // namespace detail

// Queues ==========================================================================================

/// Options of a queue.
struct QueueOptions : onebuf_queue_options {
    QueueOptions() : onebuf_queue_options{} { size = sizeof(onebuf_queue_options); }
    QueueOptions &out_of_order() { return order = ONEBUF_QUEUE_OUT_OF_ORDER, *this; }
    QueueOptions &profiled() { return profiling = 1, *this; }
};

/// A stream of work on a device.
class Queue : public detail::QueueHandle {
public:
    using QueueHandle::QueueHandle;

    /// Launches a kernel on buffers, `reads(buffer)`, `overwrites(buffer)`, `turn(buffer)`, views, plain values and Local. A buffer is taken
    /// for the access that the kernel's parameter declares; `reads` also refuses a parameter that is written.
    /// Values must have the declared type: `2.0f` for a `float`; `2`, an `int`, is refused there.
    template <class... Args> Result<void> launch(const Kernel &kernel, const Grid &grid, const Args &...args) const {
        return detail::check(start(kernel, grid, nullptr, args...));
    }
    /// Launches a kernel and returns a fence that this launch will reach.
    template <class... Args>
    Result<Fence> launch_fenced(const Kernel &kernel, const Grid &grid, const Args &...args) const {
        onebuf_fence made{0};
        onebuf_status status = start(kernel, grid, &made, args...);
        return detail::result(status, [&] { return Fence(made); });
    }
    /// Launches a kernel, waits, and returns how long that took: the work that a driver defers to the first launch is done
    /// afterwards.
    template <class... Args>
    Result<std::chrono::nanoseconds> warm_up(const Kernel &kernel, const Grid &grid, const Args &...args) const {
        const onebuf_arg list[detail::room(sizeof...(args))] = {detail::argument(args)...};
        std::uint64_t took = 0;
        onebuf_status status = onebuf_queue_warm_up(handle(), kernel.handle(), &grid, list, sizeof...(args), &took);
        return detail::result(status, [&] { return std::chrono::nanoseconds(took); });
    }
    /// Launches a kernel, and waits until no view or mapping conflicts with its arguments. ONEBUF_TIMEOUT if that takes
    /// longer: nothing was launched then. Returns a fence that the launch will reach.
    template <class... Args>
    Result<Fence> launch_within(Timeout timeout, const Kernel &kernel, const Grid &grid, const Args &...args) const {
        const onebuf_arg list[detail::room(sizeof...(args))] = {detail::argument(args)...};
        onebuf_fence made{0};
        onebuf_status status =
            onebuf_queue_launch_within(handle(), kernel.handle(), &grid, list, sizeof...(args), timeout.ms(), &made);
        return detail::result(status, [&] { return Fence(made); });
    }
    Result<Fence> fence() const {
        onebuf_fence made{0};
        onebuf_status status = onebuf_queue_fence(handle(), &made);
        return detail::result(status, [&] { return Fence(made); });
    }
    /// Makes later work wait for a fence.
    Result<SyncMethod> wait_for(const Fence &fence) const {
        onebuf_sync_method used = 0;
        onebuf_status status = onebuf_queue_wait_for(handle(), fence.handle(), &used);
        return detail::result(status, [&] { return static_cast<SyncMethod>(used); });
    }
    /// The native queue; valid as long as this lives.
    Result<detail::ClQueue> cl_queue() const {
        void *native = nullptr;
        onebuf_status status = onebuf_queue_native(handle(), &native);
        return detail::result(status, [&] { return static_cast<detail::ClQueue>(native); });
    }

private:
    template <class... Args>
    onebuf_status start(const Kernel &kernel, const Grid &grid, onebuf_fence *fence, const Args &...args) const {
        const onebuf_arg list[detail::room(sizeof...(args))] = {detail::argument(args)...};
        return onebuf_queue_launch(handle(), kernel.handle(), &grid, list, sizeof...(args), fence);
    }
};

/// Several queues of one device, for many threads or jobs.
class QueuePool : public detail::QueuePoolHandle {
public:
    using QueuePoolHandle::QueuePoolHandle;

    /// The next queue in rotation.
    Result<Queue> next_queue() const { return pick(onebuf_queue_pool_next); }
    /// The queue with the least unfinished work.
    Result<Queue> least_busy() const { return pick(onebuf_queue_pool_least_busy); }
    /// The queue at an index.
    Result<Queue> at(std::size_t index) const {
        onebuf_queue found{0};
        onebuf_status status = onebuf_queue_pool_at(handle(), index, &found);
        return detail::result(status, [&] { return Queue(found); });
    }

private:
    Result<Queue> pick(onebuf_status (*which)(onebuf_queue_pool, onebuf_queue *)) const {
        onebuf_queue found{0};
        onebuf_status status = which(handle(), &found);
        return detail::result(status, [&] { return Queue(found); });
    }
};

// Devices =========================================================================================

/// One API's view of one chip. The hub owns it; copies are cheap.
class Device : public detail::DeviceHandle {
public:
    using DeviceHandle::DeviceHandle;

    Result<detail::ClContext> cl_context() const { return native_as<detail::ClContext>("cl_context"); }
    Result<detail::ClDevice> cl_device() const { return native_as<detail::ClDevice>("cl_device_id"); }
    Result<detail::ClPlatform> cl_platform() const { return native_as<detail::ClPlatform>("cl_platform_id"); }

    Result<Queue> queue(const QueueOptions &options = {}) const {
        onebuf_queue made{0};
        onebuf_status status = onebuf_queue_create(handle(), &options, &made);
        return detail::result(status, [&] { return Queue(made); });
    }
    /// The device's default queue: every call returns the same one.
    Result<Queue> default_queue() const {
        onebuf_queue found{0};
        onebuf_status status = onebuf_device_default_queue(handle(), &found);
        return detail::result(status, [&] { return Queue(found); });
    }
    /// Opens several queues, to be used in rotation or by load.
    Result<QueuePool> queues(std::size_t count, const QueueOptions &options = {}) const {
        onebuf_queue_pool made{0};
        onebuf_status status = onebuf_queue_pool_create(handle(), count, &options, &made);
        return detail::result(status, [&] { return QueuePool(made); });
    }
    Result<Program> program(const ProgramOptions &options) const {
        onebuf_program made{0};
        onebuf_status status = onebuf_program_build(handle(), &options, &made);
        return detail::result(status, [&] { return Program(made); });
    }
    /// A program in OpenCL C.
    Result<Program> program(const char *opencl_c, const char *compiler_options = nullptr) const {
        ProgramOptions options;
        options.opencl_c = opencl_c;
        options.compiler_options = compiler_options;
        return program(options);
    }
    friend bool operator==(const Device &a, const Device &b) noexcept { return a.handle().id == b.handle().id; }

private:
    template <class Native> Result<Native> native_as(const char *name) const {
        void *found = nullptr;
        onebuf_status status = onebuf_device_native(handle(), name, &found);
        return detail::result(status, [&] { return static_cast<Native>(found); });
    }
};

inline Result<void> Kernel::graft(const Device &device) const {
    return detail::check(onebuf_kernel_graft(handle(), device.handle(), nullptr));
}

inline Result<bool> Kernel::graft_if_proven(const Device &device) const {
    return detail::value<bool>([&](bool *to) { return onebuf_kernel_graft(handle(), device.handle(), to); });
}

inline Result<Program> Program::graft(const Device &device) const {
    onebuf_program made{0};
    onebuf_status status = onebuf_program_graft(handle(), device.handle(), nullptr, &made);
    return detail::result(status, [&] { return Program(made); });
}
inline Result<Program> Program::graft_if_proven(const Device &device, bool *grafted) const {
    onebuf_program made{0};
    bool moved = false;
    onebuf_status status = onebuf_program_graft(handle(), device.handle(), &moved, &made);
    if (grafted) *grafted = moved;
    return detail::result(status, [&] { return Program(made); });
}

// Buffers =========================================================================================

/// Options of a buffer.
class BufferOptions {
public:
    BufferOptions() { plain_.size = sizeof plain_; }
    BufferOptions(std::initializer_list<Device> devices) : BufferOptions() { shared_with(devices); }

    template <class Devices> BufferOptions &shared_with(const Devices &devices) {
        for (const Device &device : devices) devices_.push_back(device.handle());
        return *this;
    }
    BufferOptions &shared_with(std::initializer_list<Device> devices) {
        return shared_with<std::initializer_list<Device>>(devices);
    }
    BufferOptions &access(Access access) { return plain_.access = static_cast<onebuf_access>(access), *this; }
    BufferOptions &host_access(HostAccess access) {
        return plain_.host_access = static_cast<onebuf_host_access>(access), *this;
    }
    BufferOptions &copies(Copies copies) { return plain_.copies = static_cast<onebuf_copies>(copies), *this; }
    BufferOptions &hint(Hint hint) { return plain_.hint = static_cast<onebuf_hint>(hint), *this; }
    BufferOptions &memory_kind(MemoryKind memory_kind) {
        return plain_.memory_kind = static_cast<onebuf_memory_kind>(memory_kind), *this;
    }
    BufferOptions &route(Route route) { return plain_.route = static_cast<onebuf_route>(route), *this; }
    BufferOptions &sync(SyncMethod sync_method) { return plain_.sync = static_cast<onebuf_sync_method>(sync_method), *this; }
    BufferOptions &trust_declared(bool trust) { return plain_.trust_declared = trust, *this; }
    /// Also allows kernels of another API to use the address that kernels of this API see; see onebuf.h.
    BufferOptions &raw_addresses(bool allow) { return plain_.raw_addresses = allow, *this; }
    BufferOptions &allocate_on(const Device &device) { return plain_.allocate_on = device.handle(), *this; }
    BufferOptions &align(std::size_t bytes) { return plain_.align = bytes, *this; }
    BufferOptions &cl_flags(std::uint64_t flags) { return plain_.cl_flags = flags, *this; }
    /// A name for messages, logs and traces.
    BufferOptions &name(std::string name) { return name_ = std::move(name), *this; }

    /// The options for onebuf.h; valid as long as this lives unchanged.
    onebuf_buffer_options plain() const noexcept {
        onebuf_buffer_options plain = plain_;
        plain.devices = devices_.data();
        plain.device_count = devices_.size();
        if (!name_.empty()) plain.name = name_.c_str();
        return plain;
    }

private:
    onebuf_buffer_options plain_{};
    std::vector<onebuf_device> devices_;
    std::string name_;
};

/// Options of a mapping.
struct MapOptions : onebuf_map_options {
    MapOptions() : onebuf_map_options{} { size = sizeof(onebuf_map_options); }
    /// Maps elements of `T`: `count` of them from `at` on; zero: all the rest.
    template <class T> MapOptions &range(std::size_t at, std::size_t count = 0) {
        return offset = detail::bytes_of<T>(at), bytes = detail::bytes_of<T>(count), *this;
    }
    /// The host writes every byte of the range: earlier contents are not brought along. Implies Access::Write.
    MapOptions &overwrite() { return access(Access::Write), discard = 1, *this; }
    MapOptions &access(Access how) { return onebuf_map_options::access = static_cast<onebuf_access>(how), *this; }
    /// Waits until no conflicting view or mapping is held.
    MapOptions &wait(Timeout timeout) { return wait_ms = timeout.ms(), *this; }
};

/// A mapping that was asked for, and begins with wait().
template <class T> class PendingMap;

/// Host access to a buffer in place, while this lives. `const T` only reads.
template <class T> class Mapped : public detail::MappingHandle {
public:
    Mapped() = default;
    Mapped(onebuf_mapping mapping, T *data, std::size_t count) : MappingHandle(mapping), data_(data), size_(count) {}

    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

    /// Ends the mapping and reports whether changes were written back, which can fail only if the host worked on a
    /// copy.
    Result<void> unmap() { return detail::check(onebuf_mapping_unmap(this->release())); }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

template <class T> class PendingMap : public detail::MappingHandle {
public:
    PendingMap() = default;
    PendingMap(onebuf_mapping mapping, std::size_t count) : MappingHandle(mapping), size_(count) {}

    /// Whether wait() would return without waiting for work.
    Result<bool> ready() const {
        return detail::value<bool>([&](bool *to) { return onebuf_mapping_poll(this->handle(), to); });
    }
    /// Waits for the work and until no conflicting view or mapping is held, and maps. This object is empty afterwards; on
    /// failure it stays, and the wait may be repeated.
    Result<Mapped<T>> wait(Timeout timeout = {}) {
        void *data = nullptr;
        onebuf_status status = onebuf_mapping_wait(this->handle(), timeout.ms(), &data);
        return detail::result(status, [&] { return Mapped<T>(this->release(), static_cast<T *>(data), size_); });
    }

private:
    std::size_t size_ = 0;
};

/// Lets a queue read (or write) a buffer while this lives.
template <class T> class View : public detail::ViewHandle {
public:
    using ViewHandle::ViewHandle;

    /// The `cl_mem` (as `void *` unless CL/cl.h was included before); valid as long as this lives.
    Result<detail::ClMem> cl_mem() const {
        void *native = nullptr;
        onebuf_status status = onebuf_view_cl_mem(this->handle(), &native);
        return detail::result(status, [&] { return static_cast<detail::ClMem>(native); });
    }
    /// The address that kernels use: an SVM or host pointer; valid as long as this lives.
    Result<T *> address() const {
        void *found = nullptr;
        onebuf_status status = onebuf_view_address(this->handle(), &found);
        return detail::result(status, [&] { return static_cast<T *>(found); });
    }
    /// The `VkBuffer` and the byte offset at which the view begins in it, on a queue of Vulkan; valid as long as this
    /// lives.
    Result<std::pair<std::uint64_t, std::uint64_t>> vk_buffer() const {
        std::uint64_t found = 0, offset = 0;
        onebuf_status status = onebuf_view_vk_buffer(this->handle(), &found, &offset);
        return detail::result(status, [&] { return std::make_pair(found, offset); });
    }
};

/// An asynchronous read or write; it owns the memory.
template <class T> class Transfer : public detail::TransferHandle {
public:
    using TransferHandle::TransferHandle;

    /// Waits, and returns a pointer to the data, valid as long as this lives.
    Result<const T *> wait(Timeout timeout = {}) const {
        const void *data = nullptr;
        onebuf_status status = onebuf_transfer_wait(this->handle(), timeout.ms());
        if (status == ONEBUF_OK) status = onebuf_transfer_data(this->handle(), &data, nullptr);
        return detail::result(status, [&] { return static_cast<const T *>(data); });
    }
};

/// Typed memory that a set of devices can access. Counts and offsets are in elements.
template <class T> class Buffer : public detail::BufferHandle {
    static_assert(std::is_trivially_copyable_v<T>, "buffers hold plain data");

public:
    Buffer() = default;
    Buffer(onebuf_buffer handle, std::size_t count) : BufferHandle(handle), size_(count) {}

    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }

    Result<void> write(const T *data, std::size_t count, std::size_t at = 0) const {
        return detail::check(onebuf_buffer_write(this->handle(), bytes(at), data, bytes(count)));
    }
    /// Writes a vector, array or other contiguous range to the beginning of the buffer.
    template <class Range> Result<void> write(const Range &from) const { return write(std::data(from), std::size(from)); }
    /// One write of a batch: elements, and the index of the first.
    struct Write {
        std::size_t at;
        const T *data;
        std::size_t count;
    };
    /// Makes several writes in one hand-over; later ones win.
    Result<void> write_batch(const std::vector<Write> &writes) const {
        std::vector<onebuf_write> plain;
        for (const Write &one : writes) plain.push_back({bytes(one.at), one.data, bytes(one.count)});
        return detail::check(onebuf_buffer_write_batch(this->handle(), plain.data(), plain.size()));
    }
    /// Does the first part of a hand-over to a device now; see onebuf_buffer_release_to().
    Result<void> release_to(const Device &device, Access access = Access::ReadWrite) const {
        return detail::check(onebuf_buffer_release_to(this->handle(), device.handle(), static_cast<onebuf_access>(access)));
    }
    Result<void> read(T *data, std::size_t count, std::size_t at = 0) const {
        return detail::check(onebuf_buffer_read(this->handle(), bytes(at), data, bytes(count)));
    }
    /// Reads the whole buffer into a vector.
    Result<std::vector<T>> to_vector() const {
        std::vector<T> all(size_);
        onebuf_status status = onebuf_buffer_read(this->handle(), 0, all.data(), size_bytes());
        return detail::result(status, [&] { return std::move(all); });
    }
    Result<void> fill(const T &value) const { return fill(value, 0, size_); }
    Result<void> fill(const T &value, std::size_t at, std::size_t count) const {
        return detail::check(onebuf_buffer_fill(this->handle(), bytes(at), bytes(count), &value, sizeof value));
    }
    Result<void> copy_from(const Buffer &from, std::size_t from_at, std::size_t count, std::size_t at = 0) const {
        return detail::check(
            onebuf_buffer_copy(this->handle(), bytes(at), from.handle(), bytes(from_at), bytes(count)));
    }
    Result<Transfer<T>> read_async(std::size_t at, std::size_t count) const {
        onebuf_transfer made{0};
        onebuf_status status = onebuf_buffer_read_async(this->handle(), bytes(at), bytes(count), &made);
        return detail::result(status, [&] { return Transfer<T>(made); });
    }
    Result<Transfer<T>> write_async(const T *data, std::size_t count, std::size_t at = 0) const {
        onebuf_transfer made{0};
        onebuf_status status = onebuf_buffer_write_async(this->handle(), bytes(at), data, bytes(count), &made);
        return detail::result(status, [&] { return Transfer<T>(made); });
    }

    /// A part of the buffer as a buffer of its own; see onebuf_buffer_region().
    Result<Buffer> region(std::size_t at, std::size_t count, Access access = Access::ReadWrite) const {
        onebuf_buffer made{0};
        onebuf_status status = onebuf_buffer_region(this->handle(), bytes(at), bytes(count),
                                                    static_cast<onebuf_access>(access), &made);
        return detail::result(status, [&] { return Buffer(made, count); });
    }
    /// Maps the buffer for reading and writing.
    Result<Mapped<T>> map() const { return map_as<T>(ONEBUF_READ_WRITE); }
    /// Maps the buffer for reading.
    Result<Mapped<const T>> map_read() const { return map_as<const T>(ONEBUF_READ); }
    /// Maps a range for reading and writing.
    Result<Mapped<T>> map_range(std::size_t at, std::size_t count) const { return map(MapOptions().range<T>(at, count)); }
    /// Maps a range for reading.
    Result<Mapped<const T>> map_range_read(std::size_t at, std::size_t count) const {
        return map_with<const T>(MapOptions().access(Access::Read).template range<T>(at, count));
    }
    /// Maps the buffer for writing every element: earlier contents are not brought along. Do not read there.
    Result<Mapped<T>> map_overwrite() const { return map(MapOptions().overwrite()); }
    /// Maps with options: a range, for writing only, waiting.
    Result<Mapped<T>> map(const MapOptions &options) const { return map_with<T>(options); }
    /// Asks for a mapping without waiting for the work on the buffer.
    Result<PendingMap<T>> map_async(const MapOptions &options = {}) const {
        onebuf_mapping made{0};
        onebuf_status status = onebuf_buffer_map_async(this->handle(), &options, &made);
        return detail::result(status, [&] { return PendingMap<T>(made, mapped_count(options)); });
    }
    /// Maps the buffer, and waits until no conflicting view or mapping is held.
    Result<Mapped<T>> map_within(Timeout timeout) const { return map_with<T>(MapOptions().wait(timeout)); }
    /// Maps the buffer for reading, and waits until no conflicting view or mapping is held.
    Result<Mapped<const T>> map_read_within(Timeout timeout) const {
        return map_with<const T>(MapOptions().access(Access::Read).wait(timeout));
    }
    /// Lets kernels on the queue read it while the view lives.
    Result<View<T>> read_on(const Queue &queue) const { return view(queue, ONEBUF_READ); }
    /// Lets kernels on the queue read and write it while the view lives.
    Result<View<T>> write_on(const Queue &queue) const { return view(queue, ONEBUF_READ_WRITE); }
    /// Lets kernels on the queue write it while the view lives, and discards its contents: a device with memory of its own gets no
    /// bytes of them. Kernels that read it are refused.
    Result<View<T>> overwrite_on(const Queue &queue) const {
        onebuf_view made{0};
        onebuf_status status = onebuf_view_overwrite(this->handle(), queue.handle(), &made);
        return detail::result(status, [&] { return View<T>(made); });
    }
    /// Takes a view for reading, and waits until no conflicting view or mapping is held.
    Result<View<T>> read_on_within(const Queue &queue, Timeout timeout) const { return view(queue, ONEBUF_READ, timeout); }
    /// Takes a view for reading and writing, and waits until no other view or mapping is held.
    Result<View<T>> write_on_within(const Queue &queue, Timeout timeout) const {
        return view(queue, ONEBUF_READ_WRITE, timeout);
    }

    // Persistent map: one pointer for the lifetime of the buffer, used by the host or by kernels in turn.

    /// Gives the buffer to the host: maps it until to_device() or until the buffer is freed.
    Result<T *> to_host(Access access = Access::ReadWrite) const {
        void *data = nullptr;
        onebuf_status status = onebuf_buffer_to_host(this->handle(), static_cast<onebuf_access>(access), &data);
        return detail::result(status, [&] { return static_cast<T *>(data); });
    }
    /// Writes one element, through the persistent map if there is one.
    Result<void> store(std::size_t at, const T &value) const {
        return detail::check(onebuf_buffer_store(this->handle(), bytes(at), &value, sizeof value));
    }
    /// Reads one element, through the persistent map if there is one; not for array elements, which cannot be returned.
    template <class Element = T> Result<Element> load(std::size_t at) const {
        static_assert(std::is_same_v<Element, T>, "the buffer's own elements");
        Element found{};
        onebuf_status status = onebuf_buffer_load(this->handle(), bytes(at), &found, sizeof found);
        return detail::result(status, [&] { return found; });
    }
    /// Waits until the host may read the buffer, or write it.
    Result<void> wait(std::chrono::nanoseconds time, Access access = Access::ReadWrite) const {
        return detail::check(
            onebuf_buffer_wait_ns(this->handle(), static_cast<onebuf_access>(access), detail::ns_of(time)));
    }
    /// Makes several writes, of byte ranges, in one hand-over; through the persistent map if there is one.
    Result<void> store_many(const std::vector<onebuf_write> &writes) const {
        return detail::check(onebuf_buffer_store_many(this->handle(), writes.data(), writes.size()));
    }
    /// Completes the host's stores to these elements of the persistent map, also streaming stores.
    Result<void> flush(std::size_t at, std::size_t count) const {
        return detail::check(onebuf_buffer_flush(this->handle(), bytes(at), bytes(count)));
    }
    /// A fence for the last writes; null if there was no work.
    Result<Fence> fence() const {
        onebuf_fence found{0};
        onebuf_status status = onebuf_buffer_fence(this->handle(), &found);
        return detail::result(status, [&] { return Fence(found); });
    }
    /// A fence for all reads and writes so far; null if there was no work.
    Result<Fence> uses() const {
        onebuf_fence found{0};
        onebuf_status status = onebuf_buffer_uses(this->handle(), &found);
        return detail::result(status, [&] { return Fence(found); });
    }

    /// A descriptor of its memory, for other APIs and processes. The caller must close it.
    Result<onebuf_exported> export_fd(FdKind kind) const {
        onebuf_exported found{};
        onebuf_status status = onebuf_buffer_export(this->handle(), static_cast<onebuf_fd_kind>(kind), &found);
        return detail::result(status, [&] { return found; });
    }

    /// Tells onebuf that foreign writes end at the fence: the next user of the buffer waits for it.
    Result<void> written_until(const Fence &fence) const {
        return detail::check(onebuf_buffer_written_until(this->handle(), fence.handle()));
    }
    /// Tells onebuf that foreign reads end at the fence: the next writer of the buffer waits for it.
    Result<void> read_until(const Fence &fence) const {
        return detail::check(onebuf_buffer_read_until(this->handle(), fence.handle()));
    }
    /// Makes the newest contents visible on that queue, for commands that its owner enqueues there.
    Result<SyncMethod> hand_to(const Queue &queue) const {
        onebuf_sync_method used = 0;
        onebuf_status status = onebuf_buffer_hand_to(this->handle(), queue.handle(), &used);
        return detail::result(status, [&] { return static_cast<SyncMethod>(used); });
    }
    /// A queue on the device and in the context where the buffer is allocated.
    Result<Queue> queue() const {
        onebuf_queue made{0};
        onebuf_status status = onebuf_queue_for(this->handle(), &made);
        return detail::result(status, [&] { return Queue(made); });
    }
    /// Gives up the buffer for its `cl_mem`, whose one reference the caller owns:
    /// `std::move(buffer).into_cl_mem(device)`. The object is empty afterwards; see onebuf_buffer_into_cl_mem() for
    /// what happens on failure.
    Result<detail::ClMem> into_cl_mem(const Device &device) && {
        void *native = nullptr;
        onebuf_status status = onebuf_buffer_into_cl_mem(this->handle(), device.handle(), &native);
        if (status == ONEBUF_OK) this->release();
        return detail::result(status, [&] { return static_cast<detail::ClMem>(native); });
    }

private:
    static std::size_t bytes(std::size_t count) { return detail::bytes_of<T>(count); }
    template <class As> Result<Mapped<As>> map_as(onebuf_access access) const {
        void *data = nullptr;
        onebuf_mapping made{0};
        onebuf_status status = onebuf_buffer_map(this->handle(), access, &data, &made);
        return detail::result(status, [&] { return Mapped<As>(made, static_cast<As *>(data), size_); });
    }
    template <class As> Result<Mapped<As>> map_with(const MapOptions &options) const {
        void *data = nullptr;
        onebuf_mapping made{0};
        onebuf_status status = onebuf_buffer_map_with(this->handle(), &options, &data, &made);
        return detail::result(status, [&] { return Mapped<As>(made, static_cast<As *>(data), mapped_count(options)); });
    }
    std::size_t mapped_count(const MapOptions &options) const {
        return (options.bytes > 0 ? options.bytes : size_bytes() - options.offset) / sizeof(T);
    }
    Result<View<T>> view(const Queue &queue, onebuf_access access, Timeout timeout) const {
        onebuf_view made{0};
        onebuf_status status = onebuf_view_take_within(this->handle(), queue.handle(), access, timeout.ms(), &made);
        return detail::result(status, [&] { return View<T>(made); });
    }
    Result<View<T>> view(const Queue &queue, onebuf_access access) const {
        onebuf_view made{0};
        onebuf_status status = onebuf_view_take(this->handle(), queue.handle(), access, &made);
        return detail::result(status, [&] { return View<T>(made); });
    }

    std::size_t size_ = 0;
};

// Foreign objects =================================================================================

/// Options of a wrapped buffer.
class WrapOptions {
public:
    /// Takes over the caller's reference: called once with the native handle (or pointer), on any thread, when onebuf
    /// no longer uses the memory. Must not throw. Not called if wrapping fails.
    using Release = std::function<void(void *)>;

    WrapOptions() { plain_.size = sizeof plain_; }
    WrapOptions(std::initializer_list<Device> devices) : WrapOptions() { shared_with(devices); }

    /// The required number of elements.
    WrapOptions &count(std::size_t elements) { return count_ = elements, *this; }
    template <class Devices> WrapOptions &shared_with(const Devices &devices) {
        for (const Device &device : devices) devices_.push_back(device.handle());
        return *this;
    }
    WrapOptions &shared_with(std::initializer_list<Device> devices) { return shared_with<std::initializer_list<Device>>(devices); }
    /// The owner's work on the memory ends at this fence, which must live until the memory is wrapped.
    WrapOptions &after(const Fence &fence) { return after_.push_back(fence.handle()), *this; }
    WrapOptions &copies(Copies copies) { return plain_.copies = static_cast<onebuf_copies>(copies), *this; }
    WrapOptions &route(Route route) { return plain_.route = static_cast<onebuf_route>(route), *this; }
    WrapOptions &trust_declared(bool trust) { return plain_.trust_declared = trust, *this; }
    WrapOptions &raw_addresses(bool allow) { return plain_.raw_addresses = allow, *this; }
    /// A name for messages, logs and traces.
    WrapOptions &name(std::string name) { return name_ = std::move(name), *this; }
    WrapOptions &owned(Release release) { return release_ = std::move(release), *this; }

    /// Calls `wrap` with the options for onebuf.h; `count` is the default number of elements.
    template <class T, class Wrap> onebuf_status plainly(std::size_t count, Wrap wrap) const {
        onebuf_wrap_options plain = plain_;
        plain.bytes = detail::bytes_of<T>(count_ > 0 ? count_ : count);
        plain.devices = devices_.data();
        plain.device_count = devices_.size();
        plain.after = after_.data();
        plain.after_count = after_.size();
        if (!name_.empty()) plain.name = name_.c_str();
        std::unique_ptr<Release> release(release_ ? new Release(release_) : nullptr);
        plain.release = release ? run : nullptr;
        plain.release_user = release.get();
        onebuf_status status = wrap(&plain);
        if (status == ONEBUF_OK) release.release(); // `run` deletes it
        return status;
    }

private:
    static void run(void *native, void *user) noexcept {
        std::unique_ptr<Release> release(static_cast<Release *>(user));
        (*release)(native);
    }

    onebuf_wrap_options plain_{};
    std::size_t count_ = 0;
    std::vector<onebuf_device> devices_;
    std::vector<onebuf_fence> after_;
    std::string name_;
    Release release_;
};

/// A context that the application created, as a source of devices.
class ForeignContext : public detail::ContextHandle {
public:
    using ContextHandle::ContextHandle;

    /// Its devices, valid as long as this lives.
    Result<std::vector<Device>> devices() const {
        std::size_t count = 0;
        std::vector<Device> all;
        onebuf_status status = onebuf_context_device_count(handle(), &count);
        for (std::size_t at = 0; status == ONEBUF_OK && at < count; ++at) {
            onebuf_device found{0};
            status = onebuf_context_device_at(handle(), at, &found);
            all.emplace_back(found);
        }
        return detail::result(status, [&] { return std::move(all); });
    }
    /// Its first device; most contexts have only one.
    Result<Device> device() const {
        onebuf_device found{0};
        onebuf_status status = onebuf_context_device_at(handle(), 0, &found);
        return detail::result(status, [&] { return Device(found); });
    }
    /// The context's device that a queue belongs to.
    Result<Device> device(const Queue &queue) const {
        onebuf_device found{0};
        onebuf_status status = onebuf_context_device_of(handle(), queue.handle(), &found);
        return detail::result(status, [&] { return Device(found); });
    }
    Result<UserEvent> user_event() const {
        onebuf_user_event made{0};
        onebuf_status status = onebuf_user_event_create(handle(), &made);
        return detail::result(status, [&] { return UserEvent(made); });
    }
    /// Wraps shared virtual memory of the context, which must stay allocated until the buffer is gone.
    template <class T> Result<Buffer<T>> wrap_svm(T *pointer, std::size_t count, const WrapOptions &options = {}) const {
        onebuf_buffer made{0};
        onebuf_status status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap_svm(handle(), pointer, detail::bytes_of<T>(count), plain, &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// The `cl_context`; valid as long as this lives.
    Result<detail::ClContext> cl_context() const {
        void *native = nullptr;
        onebuf_status status = onebuf_context_native(handle(), &native);
        return detail::result(status, [&] { return static_cast<detail::ClContext>(native); });
    }
};

/// An OpenGL context that the application created, as a device of the hub.
class ForeignGl : public detail::GlHandle {
public:
    using GlHandle::GlHandle;

    /// A context of onebuf that shares objects with it, for every thread. Valid as long as this lives.
    Result<Device> device() const {
        onebuf_device found{0};
        onebuf_status status = onebuf_gl_device(handle(), &found);
        return detail::result(status, [&] { return Device(found); });
    }
    /// The application's context itself as a queue, for the thread where it is current; see onebuf_gl_queue().
    Result<Queue> queue() const {
        onebuf_queue made{0};
        onebuf_status status = onebuf_gl_queue(handle(), &made);
        return detail::result(status, [&] { return Queue(made); });
    }
    /// Wraps an OpenGL buffer; see onebuf_buffer_wrap_gl() for what its owner may do meanwhile.
    template <class T> Result<Buffer<T>> wrap(std::uint32_t name, const WrapOptions &options = {}) const {
        GlBufferInfo info;
        onebuf_buffer made{0};
        onebuf_status status = onebuf_gl_buffer_query(handle(), name, &info);
        std::size_t count = (info.bytes + sizeof(T) - 1) / sizeof(T);
        if (status == ONEBUF_OK) status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap_gl(handle(), name, plain, &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
};

/// A `VkDevice` that the application created, as a device of the hub.
class ForeignVulkan : public detail::VulkanHandle {
public:
    using VulkanHandle::VulkanHandle;

    /// The device, valid as long as this lives.
    Result<Device> device() const {
        onebuf_device found{0};
        onebuf_status status = onebuf_vk_device(handle(), &found);
        return detail::result(status, [&] { return Device(found); });
    }
    /// Wraps memory of the device; see onebuf_buffer_wrap_vk() for what its owner guarantees.
    template <class T> Result<Buffer<T>> wrap(const VulkanBuffer &memory, const WrapOptions &options = {}) const {
        onebuf_buffer made{0};
        std::size_t count = (memory.bytes + sizeof(T) - 1) / sizeof(T);
        onebuf_status status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap_vk(handle(), &memory, plain, &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
};

// Other processes =================================================================================

/// The process at the other end of an offered buffer. The two take turns; out of turn the buffer is busy.
class Peer : public detail::PeerHandle {
public:
    using PeerHandle::PeerHandle;
};

/// A buffer that other processes may attach to, one after another, while this lives.
class Offer : public detail::OfferHandle {
public:
    using OfferHandle::OfferHandle;

    /// Offers a buffer under a name; peers must state the same element size.
    template <class T> static Result<Offer> open(const Buffer<T> &buffer, const char *name, OfferOptions how = {}) {
        onebuf_offer made{0};
        how.name = name;
        how.element_bytes = sizeof(T);
        onebuf_status status = onebuf_offer_open(buffer.handle(), &how, &made);
        return detail::result(status, [&] { return Offer(made); });
    }
    /// Waits for the next peer. It is then this process's turn.
    Result<Peer> accept(Timeout timeout = {}) const {
        onebuf_peer made{0};
        onebuf_status status = onebuf_offer_accept(handle(), timeout.ms(), &made);
        return detail::result(status, [&] { return Peer(made); });
    }
};

/// The path of the socket of a name.
inline Result<std::string> socket_path(const char *name) {
    return detail::text([&](onebuf_string *to) { return onebuf_socket_path(name, to); });
}
/// Removes every socket that this process has created.
inline Result<void> remove_sockets() { return detail::check(onebuf_sockets_remove()); }
/// Does so when SIGINT, SIGTERM or SIGHUP ends the process.
inline Result<void> remove_sockets_on_signals() { return detail::check(onebuf_sockets_remove_on_signals()); }

/// A buffer of another process, and the connection to it.
template <class T> struct Attached {
    Peer peer;
    Buffer<T> buffer;
};

// Hubs ============================================================================================

/// Memory to import.
struct ImportOptions : onebuf_import_options {
    ImportOptions(int descriptor, FdKind sort, std::size_t allocation) : onebuf_import_options{} {
        size = sizeof(onebuf_import_options);
        fd = descriptor;
        kind = static_cast<onebuf_fd_kind>(sort);
        allocation_bytes = allocation;
    }
    /// A range of the allocation; the default is all of it.
    ImportOptions &range(std::size_t at, std::size_t count) { return offset = at, bytes = count, *this; }
};

/// Receives what a hub does. Any thread may call it, several at once, and also while the library holds locks: its functions must not
/// use objects of the hub, must not throw, and should be short. Devices are named by their index in Hub::devices().
class Observer {
public:
    virtual ~Observer() = default;
    /// Called when a launch, hand-over, wait, copy, stage or graft has ended.
    virtual void event(const onebuf_event &) {}
    /// Called when a buffer was created.
    virtual void buffer_made(const onebuf_new_buffer &) {}
    /// Called when the buffer of this number was handed over from a queue of one device to another queue.
    virtual void handed_over(std::uint64_t /*buffer*/, std::int32_t /*from*/, std::int32_t /*to*/, SyncMethod) {}
    /// Called when an implied copy of the buffer's bytes was made.
    virtual void copied_implicitly(std::uint64_t /*buffer*/, std::uint64_t /*bytes*/) {}
    /// Called when a route of the buffer failed, by its index in onebuf_new_buffer::routes.
    virtual void route_failed(std::uint64_t /*buffer*/, std::size_t /*route*/) {}
};

namespace detail {

/// The observer as functions of C, which own it.
inline onebuf_observer functions_of(std::shared_ptr<Observer> observer) {
    using Shared = std::shared_ptr<Observer>;
    onebuf_observer plain{};
    plain.size = sizeof plain;
    plain.user = new Shared(std::move(observer));
    plain.event = [](void *user, const onebuf_event *event) { (*static_cast<Shared *>(user))->event(*event); };
    plain.buffer_made = [](void *user, const onebuf_new_buffer *made) { (*static_cast<Shared *>(user))->buffer_made(*made); };
    plain.handed_over = [](void *user, std::uint64_t buffer, std::int32_t from, std::int32_t to, std::uint32_t sync) {
        (*static_cast<Shared *>(user))->handed_over(buffer, from, to, static_cast<SyncMethod>(sync));
    };
    plain.copied_implicitly = [](void *user, std::uint64_t buffer, std::uint64_t bytes) {
        (*static_cast<Shared *>(user))->copied_implicitly(buffer, bytes);
    };
    plain.route_failed = [](void *user, std::uint64_t buffer, std::size_t route) {
        (*static_cast<Shared *>(user))->route_failed(buffer, route);
    };
    plain.done = [](void *user) { delete static_cast<Shared *>(user); };
    return plain;
}

} // namespace detail

/// A pool of reusable buffers.
class Pool : public detail::PoolHandle {
public:
    using PoolHandle::PoolHandle;

    template <class T>
    Result<Buffer<T>> get(std::size_t count, const BufferOptions &options = {},
                          Timeout timeout = std::chrono::milliseconds(0)) const {
        onebuf_buffer made{0};
        std::size_t bytes = detail::bytes_of<T>(count);
        onebuf_buffer_options plain = options.plain();
        onebuf_status status = onebuf_pool_get(handle(), bytes, &plain, timeout.ms(), &made);
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Gets a buffer all elements of which are zero.
    template <class T>
    Result<Buffer<T>> get_cleared(std::size_t count, const BufferOptions &options = {},
                                  Timeout timeout = std::chrono::milliseconds(0)) const {
        onebuf_buffer made{0};
        onebuf_buffer_options plain = options.plain();
        onebuf_status status = onebuf_pool_get_cleared(handle(), detail::bytes_of<T>(count), &plain, timeout.ms(), &made);
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Allocates buffers until `idle` of this kind are ready.
    template <class T> Result<void> prepare(std::size_t count, std::size_t idle, const BufferOptions &options = {}) const {
        onebuf_buffer_options plain = options.plain();
        return detail::check(onebuf_pool_prepare(handle(), detail::bytes_of<T>(count), &plain, idle));
    }
    /// Frees idle buffers until at most this many bytes of them are left; returns the number of bytes freed.
    Result<std::uint64_t> trim(std::uint64_t keep_bytes = 0) const {
        return detail::value<std::uint64_t>(
            [&](std::uint64_t *to) { return onebuf_pool_trim(handle(), keep_bytes, to); });
    }
};

class Pipeline;

/// A hub that `onebuf top` can watch, while this lives.
class Published : public detail::PublishedHandle {
public:
    using PublishedHandle::PublishedHandle;

    /// Also publishes a pipeline.
    Result<void> pipeline(const char *name, const Pipeline &pipeline) const;
};

/// This process's view of the machine.
class Hub : public detail::HubHandle {
public:
    using HubHandle::HubHandle;

    static Result<Hub> discover(const HubOptions &options = {}) {
        onebuf_hub made{0};
        onebuf_status status = onebuf_hub_discover(&options, &made);
        return detail::result(status, [&] { return Hub(made); });
    }
    /// Discovers a hub that calls an observer while it works. The hub and its objects keep the observer alive.
    static Result<Hub> discover(HubOptions options, std::shared_ptr<Observer> observer) {
        if (!observer) return discover(options);
        onebuf_observer plain = detail::functions_of(std::move(observer));
        options.observer = &plain;
        return discover(options);
    }

    /// The first device that matches: `opencl:1`, `opencl`, `gpu`, or a part of its name.
    Result<Device> device(const char *selector) const {
        onebuf_device found{0};
        onebuf_status status = onebuf_hub_device(handle(), selector, &found);
        return detail::result(status, [&] { return Device(found); });
    }
    Result<Device> host() const { return device("host"); }
    /// All devices that match.
    Result<std::vector<Device>> select(const char *selector) const {
        std::size_t count = 0;
        onebuf_status status = onebuf_hub_select(handle(), selector, nullptr, 0, &count);
        std::vector<onebuf_device> found(count);
        if (status == ONEBUF_OK) status = onebuf_hub_select(handle(), selector, found.data(), found.size(), &count);
        return detail::result(status, [&] { return std::vector<Device>(found.begin(), found.end()); });
    }
    /// The device of a queue.
    Result<Device> device(const Queue &queue) const {
        onebuf_device found{0};
        onebuf_status status = onebuf_hub_device_of(handle(), queue.handle(), &found);
        return detail::result(status, [&] { return Device(found); });
    }
    /// All devices, the host first.
    Result<std::vector<Device>> devices() const {
        std::size_t count = 0;
        std::vector<Device> all;
        onebuf_status status = onebuf_hub_device_count(handle(), &count);
        for (std::size_t at = 0; status == ONEBUF_OK && at < count; ++at) {
            onebuf_device found{0};
            status = onebuf_hub_device_at(handle(), at, &found);
            all.emplace_back(found);
        }
        return detail::result(status, [&] { return std::move(all); });
    }

    /// Creates a buffer of `count` elements, for the devices that the options name.
    template <class T> Result<Buffer<T>> buffer(std::size_t count, const BufferOptions &options = {}) const {
        return make<T>(count, options, nullptr);
    }
    /// Creates a buffer with these initial elements.
    template <class T>
    Result<Buffer<T>> buffer(const std::vector<T> &contents, const BufferOptions &options = {}) const {
        return make<T>(contents.size(), options, contents.data());
    }
    /// Creates a buffer with the elements of any contiguous range: an array, a `std::array`, a `std::span`.
    template <class T, class Range, class = std::enable_if_t<std::is_convertible_v<
                                        decltype(std::data(std::declval<const Range &>())), const T *>>>
    Result<Buffer<T>> buffer(const Range &contents, const BufferOptions &options = {}) const {
        return make<T>(std::size(contents), options, std::data(contents));
    }
    /// Creates a buffer over memory of the caller, which is used in place (`CL_MEM_USE_HOST_PTR`). Do not use the memory until
    /// `done` was called: once, on any thread, when neither onebuf nor a driver uses it, also if the call fails. `done` must
    /// not throw.
    template <class T>
    Result<Buffer<T>> buffer_over(T *memory, std::size_t count, const BufferOptions &options, std::function<void()> done) const {
        onebuf_buffer made{0};
        onebuf_buffer_options plain = options.plain();
        plain.host_memory = memory;
        plain.host_memory_user = new std::function<void()>(std::move(done));
        plain.host_memory_done = [](void *user) {
            std::unique_ptr<std::function<void()>> end(static_cast<std::function<void()> *>(user));
            if (*end) (*end)();
        };
        onebuf_status status = onebuf_buffer_create(handle(), detail::bytes_of<T>(count), &plain, &made);
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Plans a buffer without creating it, and explains the plan.
    template <class T> Result<std::string> plan(std::size_t count, const BufferOptions &options = {}) const {
        onebuf_buffer_options plain = options.plain();
        return detail::text([&](onebuf_string *to) { return onebuf_buffer_plan(handle(), detail::bytes_of<T>(count), &plain, to); });
    }
    /// Plans a buffer without creating it, and returns the plan as JSON.
    template <class T> Result<std::string> plan_json(std::size_t count, const BufferOptions &options = {}) const {
        onebuf_buffer_options plain = options.plain();
        return detail::text(
            [&](onebuf_string *to) { return onebuf_buffer_plan_json(handle(), detail::bytes_of<T>(count), &plain, to); });
    }
    /// Imports memory that another program exported, on a device. The descriptor stays the caller's. See
    /// onebuf_buffer_import() for what the caller guarantees: a forged descriptor gives access to any memory of the
    /// process.
    template <class T> Result<Buffer<T>> import_fd(const Device &device, ImportOptions options) const {
        onebuf_buffer made{0};
        std::size_t bytes = options.bytes ? options.bytes : options.allocation_bytes - options.offset;
        onebuf_status status = onebuf_buffer_import(handle(), device.handle(), &options, &made);
        return detail::result(status, [&] { return Buffer<T>(made, bytes / sizeof(T)); });
    }

    // Objects that the application created: raw handles, and objects of CL/opencl.hpp if that was included before.

    /// Wraps a `cl_mem` or `cl::Buffer`; see onebuf_buffer_wrap() for what its owner may do meanwhile.
    template <class T, class Mem> Result<Buffer<T>> wrap(const Mem &mem, const WrapOptions &options = {}) const {
        ForeignBufferInfo info;
        onebuf_buffer made{0};
        onebuf_status status = onebuf_foreign_buffer_query(handle(), detail::native_mem(mem), &info);
        // The size must be a multiple of the element size; otherwise onebuf refuses it.
        std::size_t count = (info.bytes + sizeof(T) - 1) / sizeof(T);
        if (status == ONEBUF_OK) status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap(handle(), detail::native_mem(mem), plain, &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Wraps a `cl_command_queue` or `cl::CommandQueue`.
    template <class Native> Result<Queue> wrap_queue(const Native &queue) const {
        onebuf_queue made{0};
        onebuf_status status = onebuf_queue_wrap(handle(), detail::native_queue(queue), &made);
        return detail::result(status, [&] { return Queue(made); });
    }
    /// Wraps a `cl_event` or `cl::Event` as a fence.
    template <class Native> Result<Fence> wrap_event(const Native &event) const {
        onebuf_fence made{0};
        onebuf_status status = onebuf_fence_wrap(handle(), detail::native_event(event), &made);
        return detail::result(status, [&] { return Fence(made); });
    }
    /// Registers a `cl_context` or `cl::Context`.
    template <class Native> Result<ForeignContext> foreign_context(const Native &context) const {
        onebuf_context made{0};
        onebuf_status status = onebuf_context_wrap(handle(), detail::native_context(context), &made);
        return detail::result(status, [&] { return ForeignContext(made); });
    }
    // Objects of CUDA and HIP: runtime and driver handles are the same values. `device` is theirs.

    /// Wraps `count` elements of a CUDA or HIP pointer; see onebuf_buffer_wrap_pointer(). `Pointer` is `T *`, `void *`,
    /// `CUdeviceptr` or `hipDeviceptr_t`.
    template <class T, class Pointer>
    Result<Buffer<T>> wrap_pointer(const Device &device, Pointer pointer, std::size_t count,
                                   const WrapOptions &options = {}) const {
        onebuf_buffer made{0};
        onebuf_status status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap_pointer(device.handle(), detail::address(pointer), detail::bytes_of<T>(count), plain,
                                              &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Maps an allocation of `cuMemCreate` or `hipMemCreate`; see onebuf_buffer_wrap_allocation().
    template <class T, class Handle>
    Result<Buffer<T>> wrap_allocation(const Device &device, Handle handle, std::size_t count,
                                      const WrapOptions &options = {}) const {
        onebuf_buffer made{0};
        auto number = reinterpret_cast<std::uintptr_t>(detail::address(handle));
        onebuf_status status = options.plainly<T>(count, [&](const onebuf_wrap_options *plain) {
            return onebuf_buffer_wrap_allocation(device.handle(), number, detail::bytes_of<T>(count), plain, &made);
        });
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Opens another process's memory by its `cudaIpcMemHandle_t` or `hipIpcMemHandle_t`, from a byte on; see
    /// onebuf_buffer_open_ipc().
    template <class T, class Handle>
    Result<Buffer<T>> open_ipc(const Device &device, const Handle &handle, std::size_t count,
                               std::size_t offset = 0) const {
        static_assert(sizeof(Handle) == 64, "a cudaIpcMemHandle_t or hipIpcMemHandle_t");
        onebuf_buffer made{0};
        onebuf_status status =
            onebuf_buffer_open_ipc(device.handle(), reinterpret_cast<const std::uint8_t *>(&handle), offset,
                                   detail::bytes_of<T>(count), &made);
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
    /// Wraps a `cudaStream_t`, `CUstream` or `hipStream_t`, default streams too; see onebuf_queue_wrap_stream().
    template <class Stream> Result<Queue> wrap_stream(const Device &device, Stream stream) const {
        onebuf_queue made{0};
        onebuf_status status = onebuf_queue_wrap_stream(device.handle(), detail::address(stream), &made);
        return detail::result(status, [&] { return Queue(made); });
    }
    /// Wraps a `cudaEvent_t`, `CUevent` or `hipEvent_t` as a fence; see onebuf_fence_wrap_stream_event().
    template <class Event> Result<Fence> wrap_stream_event(const Device &device, Event event) const {
        onebuf_fence made{0};
        onebuf_status status = onebuf_fence_wrap_stream_event(device.handle(), detail::address(event), &made);
        return detail::result(status, [&] { return Fence(made); });
    }
    template <class Pointer> Result<PointerInfo> pointer_info(const Device &device, Pointer pointer) const {
        PointerInfo found;
        onebuf_status status = onebuf_pointer_query(device.handle(), detail::address(pointer), &found);
        return detail::result(status, [&] { return found; });
    }

    /// Opens the device in a second context.
    Result<ForeignContext> second_context(const Device &device) const {
        onebuf_context made{0};
        onebuf_status status = onebuf_context_second(handle(), device.handle(), &made);
        return detail::result(status, [&] { return ForeignContext(made); });
    }
    /// Moves a `cl_program` that the application has built to a CUDA or HIP device.
    Result<Program> graft_foreign(void *cl_program, const Device &device) const {
        onebuf_program made{0};
        onebuf_status status = onebuf_foreign_program_graft(handle(), cl_program, device.handle(), &made);
        return detail::result(status, [&] { return Program(made); });
    }
    /// Registers the OpenGL context that is current on this thread.
    Result<ForeignGl> foreign_gl() const {
        onebuf_gl made{0};
        onebuf_status status = onebuf_gl_wrap(handle(), &made);
        return detail::result(status, [&] { return ForeignGl(made); });
    }
    /// Registers a `VkDevice`.
    Result<ForeignVulkan> foreign_vulkan(const VulkanHandles &handles) const {
        onebuf_vk made{0};
        onebuf_status status = onebuf_vk_wrap(handle(), &handles, &made);
        return detail::result(status, [&] { return ForeignVulkan(made); });
    }
    template <class Native> Result<ForeignBufferInfo> buffer_info(const Native &mem) const {
        ForeignBufferInfo found;
        onebuf_status status = onebuf_foreign_buffer_query(handle(), detail::native_mem(mem), &found);
        return detail::result(status, [&] { return found; });
    }
    /// Waits until the driver counts at most this many references, and returns the properties.
    template <class Native>
    Result<ForeignBufferInfo> buffer_at_rest(const Native &mem, std::uint32_t references, Timeout timeout = {}) const {
        ForeignBufferInfo found;
        onebuf_status status =
            onebuf_foreign_buffer_at_rest(handle(), detail::native_mem(mem), references, timeout.ms(), &found);
        return detail::result(status, [&] { return found; });
    }
    /// Describes it in text, with the ids of the devices that the hub knows.
    template <class Native> Result<std::string> describe(const Native &mem) const {
        return detail::text([&](onebuf_string *to) {
            return onebuf_foreign_buffer_describe(handle(), detail::native_mem(mem), to);
        });
    }
    template <class Native> Result<ForeignContextInfo> context_info(const Native &context) const {
        ForeignContextInfo found;
        onebuf_status status = onebuf_foreign_context_query(handle(), detail::native_context(context), &found);
        return detail::result(status, [&] { return found; });
    }
    /// As buffer_at_rest().
    template <class Native>
    Result<ForeignContextInfo> context_at_rest(const Native &context, std::uint32_t references, Timeout timeout = {}) const {
        ForeignContextInfo found;
        onebuf_status status =
            onebuf_foreign_context_at_rest(handle(), detail::native_context(context), references, timeout.ms(), &found);
        return detail::result(status, [&] { return found; });
    }
    template <class Native> Result<ForeignQueueInfo> queue_info(const Native &queue) const {
        ForeignQueueInfo found;
        onebuf_status status = onebuf_foreign_queue_query(handle(), detail::native_queue(queue), &found);
        return detail::result(status, [&] { return found; });
    }
    /// As buffer_at_rest().
    template <class Native>
    Result<ForeignQueueInfo> queue_at_rest(const Native &queue, std::uint32_t references, Timeout timeout = {}) const {
        ForeignQueueInfo found;
        onebuf_status status =
            onebuf_foreign_queue_at_rest(handle(), detail::native_queue(queue), references, timeout.ms(), &found);
        return detail::result(status, [&] { return found; });
    }

    /// Attaches to a buffer of T that another process offers; the options say which devices access it here.
    template <class T>
    Result<Attached<T>> attach(const char *name, const BufferOptions &options = {}, AttachOptions how = {}) const {
        onebuf_peer peer{0};
        onebuf_buffer made{0};
        std::size_t bytes = 0;
        onebuf_buffer_options plain = options.plain();
        how.name = name;
        how.element_bytes = sizeof(T);
        onebuf_status status = onebuf_peer_attach(handle(), &how, &plain, &peer, &made);
        Attached<T> attached{Peer(peer), {}};
        if (status == ONEBUF_OK) status = onebuf_buffer_size(made, &bytes);
        attached.buffer = Buffer<T>(made, bytes / sizeof(T));
        return detail::result(status, [&] { return std::move(attached); });
    }

    Result<Pool> pool(const PoolOptions &options) const {
        onebuf_pool made{0};
        onebuf_status status = onebuf_pool_create_with(handle(), &options, &made);
        return detail::result(status, [&] { return Pool(made); });
    }
    Result<Pool> pool(std::uint64_t limit_bytes = 0) const {
        onebuf_pool made{0};
        onebuf_status status = onebuf_pool_create(handle(), limit_bytes, &made);
        return detail::result(status, [&] { return Pool(made); });
    }

    /// What was moved from one device to another, or inside one.
    Result<Traffic> traffic(const Device &from, const Device &to) const {
        Traffic found;
        onebuf_status status = onebuf_ledger_query(handle(), from.handle(), to.handle(), &found);
        return detail::result(status, [&] { return found; });
    }
    /// Writes the trace of a hub with HubOptions::trace_events to a file, in the Trace Event format.
    Result<void> save_trace(const std::string &path) const { return detail::check(onebuf_trace_save(handle(), path.c_str())); }
    /// Lets `onebuf top` of the same user watch this hub under a name.
    Result<Published> publish(const char *name) const {
        onebuf_published made{0};
        onebuf_status status = onebuf_publish(handle(), name, &made);
        return detail::result(status, [&] { return Published(made); });
    }
    /// Tests every route that has no verdict yet, with this helper program; returns the verdicts as JSON.
    Result<std::string> doctor(const char *helper) const {
        DoctorOptions options;
        options.helper = helper;
        return doctor(options);
    }
    Result<std::string> doctor(const DoctorOptions &options) const {
        return detail::text([&](onebuf_string *to) { return onebuf_doctor_run(handle(), &options, to); });
    }

private:
    template <class T>
    Result<Buffer<T>> make(std::size_t count, const BufferOptions &options, const T *contents) const {
        onebuf_buffer made{0};
        std::size_t bytes = detail::bytes_of<T>(count);
        onebuf_buffer_options plain = options.plain();
        plain.contents = contents;
        onebuf_status status = onebuf_buffer_create(handle(), bytes, &plain, &made);
        return detail::result(status, [&] { return Buffer<T>(made, count); });
    }
};

// Libraries =======================================================================================

namespace detail {

template <class T> struct NumberOf;
template <> struct NumberOf<float> { static constexpr onebuf_number value = ONEBUF_F32; };
template <> struct NumberOf<double> { static constexpr onebuf_number value = ONEBUF_F64; };
template <> struct NumberOf<std::complex<float>> { static constexpr onebuf_number value = ONEBUF_C32; };
template <> struct NumberOf<std::complex<double>> { static constexpr onebuf_number value = ONEBUF_C64; };

} // namespace detail

/// A matrix product `C = alpha op(A) op(B) + beta C` of column-major matrices.
struct Gemm {
    std::size_t m, n, k;
    Op op_a = Op::None, op_b = Op::None;
    std::complex<double> alpha = 1, beta = 0;
    /// Leading dimensions; zero: the number of rows.
    std::size_t lda = 0, ldb = 0, ldc = 0;
};

/// Computes the product on the queue; T is float, double or a std::complex of these.
template <class T>
Result<void> gemm(const Queue &queue, const Gemm &gemm, const Buffer<T> &a, const Buffer<T> &b, const Buffer<T> &c) {
    const double alpha[] = {gemm.alpha.real(), gemm.alpha.imag()}, beta[] = {gemm.beta.real(), gemm.beta.imag()};
    onebuf_gemm_options plain{};
    plain.size = sizeof plain;
    plain.number = detail::NumberOf<T>::value;
    plain.op_a = static_cast<onebuf_op>(gemm.op_a);
    plain.op_b = static_cast<onebuf_op>(gemm.op_b);
    plain.m = gemm.m, plain.n = gemm.n, plain.k = gemm.k;
    plain.lda = gemm.lda, plain.ldb = gemm.ldb, plain.ldc = gemm.ldc;
    plain.alpha = alpha, plain.beta = beta;
    return detail::check(onebuf_gemm(queue.handle(), &plain, a.handle(), b.handle(), c.handle()));
}

/// Transforms signals of `len` samples, stored one after another, in place. The result is not divided by the length.
template <class T>
Result<void> fft(const Queue &queue, const Buffer<T> &signals, std::size_t len, std::size_t batch = 1, bool inverse = false) {
    onebuf_fft_options plain{};
    plain.size = sizeof plain;
    plain.number = detail::NumberOf<T>::value;
    plain.inverse = inverse;
    plain.len = len, plain.batch = batch;
    return detail::check(onebuf_fft(queue.handle(), &plain, signals.handle(), onebuf_buffer{0}));
}

/// The row permutation of a factored matrix; the factors replace the matrix.
template <class T> class Lu : public detail::LuHandle {
public:
    using LuHandle::LuHandle;

    /// Factors the n x n matrix in `a`; a singular matrix is an error.
    static Result<Lu> factor(const Queue &queue, std::size_t n, const Buffer<T> &a, std::size_t ld = 0) {
        onebuf_lu made{0};
        onebuf_status status =
            onebuf_lu_factor(queue.handle(), detail::NumberOf<T>::value, n, ld, a.handle(), &made);
        return detail::result(status, [&] { return Lu(made); });
    }
    /// Replaces right-hand sides by solutions.
    Result<void> solve(const Queue &queue, const Buffer<T> &a, const Buffer<T> &b, std::size_t columns = 1,
                       Op op = Op::None, std::size_t ldb = 0) const {
        return detail::check(onebuf_lu_solve(queue.handle(), this->handle(), static_cast<onebuf_op>(op), a.handle(),
                                             columns, ldb, b.handle()));
    }
    Result<void> invert(const Queue &queue, const Buffer<T> &a, const Buffer<T> &inverse) const {
        return detail::check(onebuf_lu_invert(queue.handle(), this->handle(), a.handle(), inverse.handle()));
    }
};

// Pipelines =======================================================================================

/// An object that something else owns: used like an owned one, but not freed.
template <class Object> class Borrowed {
public:
    template <class... Args> explicit Borrowed(Args... args) : object_(args...) {}
    Borrowed(const Borrowed &) = delete;
    Borrowed &operator=(const Borrowed &) = delete;
    ~Borrowed() { object_.release(); }

    const Object &operator*() const noexcept { return object_; }
    const Object *operator->() const noexcept { return &object_; }
    operator const Object &() const noexcept { return object_; }

private:
    Object object_;
};

/// A frame, as callbacks of a pipeline get it; valid during the call.
class Frame {
public:
    explicit Frame(const onebuf_frame &plain) : plain_(plain) {}

    /// The number of the frame, from zero.
    std::uint64_t number() const noexcept { return plain_.number; }
    /// One of the slot's buffers; no other stage uses it during the call.
    template <class T> Borrowed<Buffer<T>> buffer(std::size_t index = 0) const {
        onebuf_buffer handle{0};
        std::size_t bytes = 0;
        if (index < plain_.buffer_count) handle = plain_.buffers[index];
        if (onebuf_buffer_size(handle, &bytes) != ONEBUF_OK) bytes = 0; // its use reports the error
        return Borrowed<Buffer<T>>(handle, bytes / sizeof(T));
    }
    /// The stage's queue; null for sources and sinks.
    Borrowed<Queue> queue() const { return Borrowed<Queue>(plain_.queue); }

private:
    const onebuf_frame &plain_;
};

namespace detail {

/// A pipeline's callbacks, at an address that C can use.
struct Functions {
    struct Stage {
        std::string name;
        onebuf_device device;
        std::function<Result<void>(const Frame &)> run;
        std::vector<onebuf_kernel> kernels;
    };
    std::function<Result<Filled>(const Frame &)> source;
    std::vector<Stage> stages;
    std::function<Result<void>(const Frame &)> sink;
};

/// Runs a callback for C: exceptions are caught, and their text becomes the thread's error message.
template <class Run> onebuf_status guarded(Run run) noexcept {
#ifdef ONEBUF_NO_EXCEPTIONS
    auto ran = run();
    if (ran) return ONEBUF_OK;
    onebuf_set_error_message(ran.error().what());
    return ran.error().status();
#else
    try {
        run();
        return ONEBUF_OK;
    } catch (const Error &error) {
        onebuf_set_error_message(error.what());
        return error.status();
    } catch (const std::exception &error) {
        onebuf_set_error_message(error.what());
    } catch (...) {
        onebuf_set_error_message("a pipeline's function threw something that is no std::exception");
    }
    return ONEBUF_OTHER;
#endif
}

inline onebuf_status fill(void *user, const onebuf_frame *frame, onebuf_filled *filled) {
    const auto &source = *static_cast<std::function<Result<Filled>(const Frame &)> *>(user);
    return guarded([&]() -> Result<void> {
#ifdef ONEBUF_NO_EXCEPTIONS
        auto done = source(Frame(*frame));
        if (!done) return done.error();
        *filled = static_cast<onebuf_filled>(*done);
        return std::monostate{};
#else
        *filled = static_cast<onebuf_filled>(source(Frame(*frame)));
#endif
    });
}

inline onebuf_status work(void *user, const onebuf_frame *frame) {
    const auto &run = *static_cast<std::function<Result<void>(const Frame &)> *>(user);
    return guarded([&]() -> Result<void> { return run(Frame(*frame)); });
}

} // namespace detail

/// Options of a computed signal: plane waves and noise.
struct SyntheticOptions : onebuf_synthetic_options {
    SyntheticOptions(std::size_t channels_, std::size_t samples_) : onebuf_synthetic_options{} {
        size = sizeof(onebuf_synthetic_options);
        channels = channels_, samples = samples_;
    }
};

/// Options of a UDP source. The address must live until the source is created.
struct UdpSourceOptions : onebuf_udp_source_options {
    explicit UdpSourceOptions(const char *listen_at) : onebuf_udp_source_options{} {
        size = sizeof(onebuf_udp_source_options);
        address = listen_at;
    }
};

/// Options of a UDP sink. The address must live until the sink is created.
struct UdpSinkOptions : onebuf_udp_sink_options {
    explicit UdpSinkOptions(const char *to) : onebuf_udp_sink_options{} {
        size = sizeof(onebuf_udp_sink_options);
        address = to;
    }
};

/// A source of the library, instead of a callback: memory, files, a computed signal, the network.
class Source : public detail::SourceHandle {
public:
    using SourceHandle::SourceHandle;
    static constexpr std::uint64_t Forever = ONEBUF_FOREVER;

    /// Plays memory that must stay allocated and unchanged until the source and its pipeline are gone.
    static Result<Source> memory(const void *data, std::size_t bytes, std::uint64_t times = 1) {
        return made([&](onebuf_source *to) { return onebuf_source_memory(data, bytes, times, to); });
    }
    template <class T> static Result<Source> memory(const std::vector<T> &all, std::uint64_t times = 1) {
        return memory(all.data(), all.size() * sizeof(T), times);
    }
    static Result<Source> file(const std::string &path, std::uint64_t times = 1) {
        return made([&](onebuf_source *to) { return onebuf_source_file(path.c_str(), times, to); });
    }
    /// Plays a NumPy file; `element` is NumPy's type string, such as `<f4` or `<c8`.
    static Result<Source> npy(const std::string &path, const char *element, std::uint64_t times = 1) {
        return made([&](onebuf_source *to) { return onebuf_source_npy(path.c_str(), element, times, to); });
    }
    static Result<Source> synthetic(const SyntheticOptions &options) {
        return made([&](onebuf_source *to) { return onebuf_source_synthetic(&options, to); });
    }
    /// Computes one frame of a signal, without a source: as many samples as a frame has.
    static Result<void> synthetic_frame(const SyntheticOptions &options, std::uint64_t number, std::complex<float> *frame,
                                        std::size_t samples) {
        return detail::check(
            onebuf_synthetic_frame(&options, number, frame, detail::bytes_of<std::complex<float>>(samples)));
    }
    static Result<Source> udp(const UdpSourceOptions &options) {
        return made([&](onebuf_source *to) { return onebuf_source_udp(&options, to); });
    }
    /// Receives from a sender over TCP; with `listen` the sender connects once the pipeline runs.
    static Result<Source> tcp(const std::string &address, bool listen = false,
                              std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
        TcpSourceOptions options;
        options.address = address.c_str();
        options.listen = listen;
        options.timeout_ms = static_cast<std::uint64_t>(timeout.count());
        return tcp(options);
    }
    static Result<Source> tcp(const TcpSourceOptions &options) {
        return made([&](onebuf_source *to) { return onebuf_source_tcp(&options, to); });
    }

    /// Fills one frame without a pipeline; see onebuf_source_fill().
    Result<Filled> fill(void *data, std::size_t bytes) const {
        onebuf_filled found = 0;
        onebuf_status status = onebuf_source_fill(handle(), data, bytes, &found);
        return detail::result(status, [&] { return static_cast<Filled>(found); });
    }
    /// The shape of a NumPy source's array.
    Result<std::vector<std::size_t>> shape() const {
        std::size_t count = 0;
        onebuf_status status = onebuf_source_shape(handle(), nullptr, 0, &count);
        std::vector<std::size_t> found(count);
        if (status == ONEBUF_OK) status = onebuf_source_shape(handle(), found.data(), found.size(), &count);
        return detail::result(status, [&] { return std::move(found); });
    }

private:
    template <class Make> static Result<Source> made(Make make) {
        onebuf_source source{0};
        onebuf_status status = make(&source);
        return detail::result(status, [&] { return Source(source); });
    }
};

/// A sink of the library, instead of a callback: memory, files, the network.
class Sink : public detail::SinkHandle {
public:
    using SinkHandle::SinkHandle;

    /// Writes to memory that must stay allocated, and unused by others, until the sink and its pipeline are gone.
    static Result<Sink> memory(void *data, std::size_t bytes) {
        return made([&](onebuf_sink *to) { return onebuf_sink_memory(data, bytes, to); });
    }
    template <class T> static Result<Sink> memory(std::vector<T> &all) {
        return memory(all.data(), all.size() * sizeof(T));
    }
    static Result<Sink> file(const std::string &path) {
        return made([&](onebuf_sink *to) { return onebuf_sink_file(path.c_str(), to); });
    }
    /// Writes a NumPy file of frames of this shape; `element` is NumPy's type string, such as `<f4` or `<c8`.
    static Result<Sink> npy(const std::string &path, const char *element, const std::vector<std::size_t> &shape) {
        return made([&](onebuf_sink *to) {
            return onebuf_sink_npy(path.c_str(), element, shape.data(), shape.size(), to);
        });
    }
    static Result<Sink> udp(const UdpSinkOptions &options) {
        return made([&](onebuf_sink *to) { return onebuf_sink_udp(&options, to); });
    }
    /// Takes one frame without a pipeline.
    Result<void> take(const void *data, std::size_t bytes, std::uint64_t number) const {
        return detail::check(onebuf_sink_take(handle(), data, bytes, number));
    }


private:
    template <class Make> static Result<Sink> made(Make make) {
        onebuf_sink sink{0};
        onebuf_status status = make(&sink);
        return detail::result(status, [&] { return Sink(sink); });
    }
};

/// A source, stages, a sink, and a ring of slots between them. It can be run repeatedly.
class Pipeline : public detail::PipelineHandle {
public:
    Pipeline() = default;
    Pipeline(onebuf_pipeline handle, std::unique_ptr<detail::Functions> functions)
        : PipelineHandle(handle), functions_(std::move(functions)) {}

    /// Where the last run failed: the stage's name, `source` or `sink`, and the number of the frame; empty if it did not fail.
    Result<std::pair<std::string, std::uint64_t>> failure() const {
        onebuf_string at{0};
        std::uint64_t frame = 0;
        onebuf_status status = onebuf_pipeline_failure(handle(), &at, &frame);
        return detail::result(status, [&] { return std::make_pair(detail::take(at), frame); });
    }

private:
    std::unique_ptr<detail::Functions> functions_;
};

inline Result<void> Published::pipeline(const char *name, const Pipeline &pipeline) const {
    return detail::check(onebuf_published_pipeline(handle(), name, pipeline.handle()));
}

/// Options of a pipeline. Its functions may throw: that stops the pipeline, and run() throws the cause.
class PipelineOptions {
public:
    /// A ring of `depth` slots; two is double buffering.
    explicit PipelineOptions(std::size_t depth) {
        plain_.size = sizeof plain_;
        plain_.depth = depth;
    }

    /// Adds a buffer of `count` T to each slot; the first is number 0.
    template <class T> PipelineOptions &buffer(std::size_t count, BufferOptions options = {}) {
        buffers_.emplace_back(detail::bytes_of<T>(count), std::move(options));
        return *this;
    }
    /// The function that fills a slot, on a thread of its own.
    PipelineOptions &source(std::function<Result<Filled>(const Frame &)> fill) {
        return functions_->source = std::move(fill), *this;
    }
    /// A source of the library instead, and the index of the slot's buffer that it fills. It need not outlive build().
    PipelineOptions &feed(const Source &source, std::size_t buffer = 0) {
        plain_.feed = source.handle(), plain_.feed_buffer = buffer;
        return *this;
    }
    /// The next stage: a function that enqueues one frame's work on its queue, on a thread of its own, without waiting.
    PipelineOptions &stage(std::string name, const Device &device, std::function<Result<void>(const Frame &)> run) {
        functions_->stages.push_back({std::move(name), device.handle(), std::move(run), {}});
        return *this;
    }
    /// Lists all kernels that the previous stage launches, if it does nothing else with its queue. OpenCL kernels then
    /// run in the queue of a neighbouring CUDA or HIP stage on the same chip, if the doctor has proven that this works.
    /// The kernels need not outlive build().
    PipelineOptions &launches(std::initializer_list<std::reference_wrapper<const Kernel>> kernels) {
        // Without a stage: an empty one, which build() refuses.
        if (functions_->stages.empty()) functions_->stages.push_back({"launches() before any stage()", {0}, nullptr, {}});
        for (const Kernel &kernel : kernels) functions_->stages.back().kernels.push_back(kernel.handle());
        return *this;
    }
    /// Runs every stage's kernels on the stage's own device, even if a graft is proven.
    PipelineOptions &no_graft() { return plain_.no_graft = 1, *this; }
    /// The function that consumes the results, in order, on the thread that calls run().
    PipelineOptions &sink(std::function<Result<void>(const Frame &)> take) {
        return functions_->sink = std::move(take), *this;
    }
    /// A sink of the library instead, and the index of the slot's buffer that it takes. It need not outlive build().
    PipelineOptions &drain(const Sink &sink, std::size_t buffer = 0) {
        plain_.drain = sink.handle(), plain_.drain_buffer = buffer;
        return *this;
    }
    PipelineOptions &batch(std::size_t frames) { return plain_.batch = frames, *this; }
    PipelineOptions &when_full(WhenFull what) { return plain_.when_full = static_cast<onebuf_when_full>(what), *this; }
    /// Runs everything on the thread that calls run(). This is automatic if a stage's driver is known to crash when two
    /// threads call it at once.
    PipelineOptions &one_thread() { return plain_.one_thread = 1, *this; }
    /// Runs the source and each stage on a thread of its own, even if a stage's driver is known to crash then.
    PipelineOptions &threads() { return plain_.threads = 1, *this; }

    /// Opens the queues and allocates the slots. The functions move to the pipeline, so build only once.
    Result<Pipeline> build(const Hub &hub) {
        std::vector<onebuf_buffer_options> shapes;
        for (const auto &part : buffers_) shapes.push_back(part.second.plain());
        std::vector<onebuf_slot_buffer> parts;
        for (std::size_t at = 0; at < shapes.size(); ++at) parts.push_back({buffers_[at].first, &shapes[at]});
        std::vector<onebuf_stage> stages;
        for (auto &stage : functions_->stages) {
            stages.push_back({stage.name.c_str(), stage.device, stage.run ? detail::work : nullptr, &stage.run,
                              stage.kernels.data(), stage.kernels.size()});
        }
        onebuf_pipeline_options plain = plain_;
        plain.buffers = parts.data(), plain.buffer_count = parts.size();
        plain.source = functions_->source ? detail::fill : nullptr, plain.source_user = &functions_->source;
        plain.stages = stages.data(), plain.stage_count = stages.size();
        plain.sink = functions_->sink ? detail::work : nullptr, plain.sink_user = &functions_->sink;
        onebuf_pipeline made{0};
        onebuf_status status = onebuf_pipeline_create(hub.handle(), &plain, &made);
        return detail::result(status, [&] { return Pipeline(made, take_functions()); });
    }

private:
    /// Moves the functions out without changing their addresses.
    std::unique_ptr<detail::Functions> take_functions() {
        return std::exchange(functions_, std::make_unique<detail::Functions>());
    }

    onebuf_pipeline_options plain_{};
    std::vector<std::pair<std::size_t, BufferOptions>> buffers_;
    std::unique_ptr<detail::Functions> functions_ = std::make_unique<detail::Functions>();
};

// Owners by address ===============================================================================

/// For programs whose variables C or Fortran copies: makes an address the owner of an object; see onebuf_own().
inline Result<void> own(const void *owner, std::uint64_t id) { return detail::check(onebuf_own(owner, id)); }
/// Ends the ownership of that address.
inline Result<void> disown(const void *owner) { return detail::check(onebuf_disown(owner)); }

// Viewers =========================================================================================

/// Watches a program of the same user that has published its hub, as `onebuf top` does.
class Viewer : public detail::ViewerHandle {
public:
    using ViewerHandle::ViewerHandle;

    /// The names of published programs, one a line.
    static Result<std::string> names() { return detail::text(onebuf_viewer_names); }
    static Result<Viewer> attach(const char *name, Timeout timeout = {}) {
        onebuf_viewer made{0};
        onebuf_status status = onebuf_viewer_attach(name, timeout.ms(), &made);
        return detail::result(status, [&] { return Viewer(made); });
    }
};

// Routes and verdicts =============================================================================

/// A verdict, and the reason for it.
struct Judged {
    Verdict verdict;
    std::string why;
    /// For grafts: whether the two devices could graft at all.
    bool possible = true;
};

/// The verdict on the route by which `to` accesses memory that is allocated on `from`.
inline Result<Judged> route_verdict(const Device &from, const Device &to, Route route) {
    Judged found;
    onebuf_string why{0};
    onebuf_status status =
        onebuf_route_query(from.handle(), to.handle(), static_cast<onebuf_route>(route), &found.verdict, &why);
    return detail::result(status, [&] { return found.why = detail::take(why), std::move(found); });
}
/// The doctor's verdict on grafting OpenCL programs of `from` onto `to`.
inline Result<Judged> graft_verdict(const Device &from, const Device &to) {
    Judged found;
    onebuf_string why{0};
    onebuf_status status = onebuf_graft_query(from.handle(), to.handle(), &found.verdict, &why, &found.possible);
    return detail::result(status, [&] { return found.why = detail::take(why), std::move(found); });
}

/// Rewrites compiled OpenCL programs for CUDA or HIP by hand, without a device; Program::graft does this for a program of a hub.
namespace graft {

inline Result<std::string> ptx(const char *text) {
    return detail::text([&](onebuf_string *to) { return onebuf_graft_ptx(text, to); });
}
inline Result<std::string> code_object(const void *object, std::size_t bytes) {
    return detail::text([&](onebuf_string *to) { return onebuf_graft_code_object(object, bytes, to); });
}
inline Result<std::string> spirv(const void *module, std::size_t bytes) {
    return detail::text([&](onebuf_string *to) { return onebuf_graft_spirv(module, bytes, to); });
}

} // namespace graft

// The cache =======================================================================================

/// The folder with the doctor's verdicts and the compiled programs. NULL means the user's.
namespace cache {

inline Result<std::string> folder() { return detail::text(onebuf_cache_folder); }
inline Result<CacheInfo> contents(const char *folder = nullptr) {
    CacheInfo found;
    onebuf_status status = onebuf_cache_query(folder, &found);
    return detail::result(status, [&] { return found; });
}
/// Removes verdicts and programs; returns the earlier contents.
inline Result<CacheInfo> clear(const char *folder = nullptr) {
    CacheInfo found;
    onebuf_status status = onebuf_cache_clear(folder, &found);
    return detail::result(status, [&] { return found; });
}

} // namespace cache

// The bridge ======================================================================================

/// Copies between any two buffers by the fastest path available. Counts and offsets are in elements.
namespace bridge {

/// An asynchronous copy.
struct Started {
    Crossing crossing;
    Fence fence;
};

/// Copies `count` elements of `from` at `from_at` to `to` at `to_at`.
template <class T>
Result<Crossing> copy(const Buffer<T> &from, std::size_t from_at, std::size_t count, const Buffer<T> &to, std::size_t to_at = 0) {
    using detail::bytes_of;
    Crossing went;
    onebuf_status status =
        onebuf_bridge_copy(from.handle(), bytes_of<T>(from_at), to.handle(), bytes_of<T>(to_at), bytes_of<T>(count), &went);
    return detail::result(status, [&] { return went; });
}
/// Starts such a copy.
template <class T>
Result<Started> copy_async(const Buffer<T> &from, std::size_t from_at, std::size_t count, const Buffer<T> &to, std::size_t to_at = 0) {
    using detail::bytes_of;
    Crossing went;
    onebuf_fence made{0};
    onebuf_status status = onebuf_bridge_copy_async(
        from.handle(), bytes_of<T>(from_at), to.handle(), bytes_of<T>(to_at), bytes_of<T>(count), &went, &made);
    return detail::result(status, [&] { return Started{went, Fence(made)}; });
}
/// Copies bytes between two `cl_mem` of the application in one call, after its commands on both queues and before those that
/// follow; see onebuf_bridge_copy_cl(). Takes raw handles, or objects of CL/opencl.hpp.
template <class FromQueue, class FromMem, class ToQueue, class ToMem>
Result<Crossing> copy_cl(const Hub &hub, const FromQueue &from_queue, const FromMem &from, std::size_t from_byte,
                         const ToQueue &to_queue, const ToMem &to, std::size_t to_byte, std::size_t bytes) {
    Crossing went;
    onebuf_cl_range source{detail::native_mem(from), detail::native_queue(from_queue), from_byte};
    onebuf_cl_range target{detail::native_mem(to), detail::native_queue(to_queue), to_byte};
    onebuf_status status = onebuf_bridge_copy_cl(hub.handle(), &source, &target, bytes, &went);
    return detail::result(status, [&] { return went; });
}
template <class T> Result<Crossing> from_host(const T *data, std::size_t count, const Buffer<T> &to, std::size_t to_at = 0) {
    using detail::bytes_of;
    Crossing went;
    onebuf_status status = onebuf_bridge_from_host(data, to.handle(), bytes_of<T>(to_at), bytes_of<T>(count), &went);
    return detail::result(status, [&] { return went; });
}
template <class T> Result<Crossing> to_host(const Buffer<T> &from, std::size_t from_at, T *data, std::size_t count) {
    using detail::bytes_of;
    Crossing went;
    onebuf_status status = onebuf_bridge_to_host(from.handle(), bytes_of<T>(from_at), data, bytes_of<T>(count), &went);
    return detail::result(status, [&] { return went; });
}

} // namespace bridge

// OpenCL's C++ objects ============================================================================

#if defined(CL_HPP_) && !defined(ONEBUF_NO_EXCEPTIONS)

/// The cl_mem as an object of CL/opencl.hpp, which must be included before. It shares ownership of the cl_mem; use it only while
/// the view lives.
template <class T> cl::Buffer cl_buffer(const View<T> &view) { return cl::Buffer(view.cl_mem(), true); }

/// The queue as an object of CL/opencl.hpp. Commands enqueued on it while a view of the queue is held are ordered.
inline cl::CommandQueue cl_queue(const Queue &queue) { return cl::CommandQueue(queue.cl_queue(), true); }

/// The fence's events as objects of CL/opencl.hpp, for its commands to wait for.
inline std::vector<cl::Event> cl_events(const Fence &fence) {
    std::vector<cl::Event> all;
    for (::cl_event event : fence.cl_events()) all.emplace_back(event, false);
    return all;
}

/// The event as an object of CL/opencl.hpp; it shares ownership of the cl_event.
inline cl::Event cl_event(const UserEvent &event) { return cl::Event(event.cl_event(), true); }

/// Gives up the buffer for an object of CL/opencl.hpp, which owns the cl_mem.
template <class T> cl::Buffer into_cl_buffer(Buffer<T> &&buffer, const Device &device) {
    return cl::Buffer(std::move(buffer).into_cl_mem(device), false);
}

#endif

} // namespace onebuf

#endif
