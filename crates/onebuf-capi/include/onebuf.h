// onebuf: one buffer, every compute API. The C interface.
//
// Made by `./dev header` from crates/onebuf-capi/src; do not edit.
//
// Handles. Every object is named by a handle, a structure with a number. Zero names nothing. A handle that
// was freed, that is of another kind, or that was never made is ONEBUF_INVALID_HANDLE, and harmless. Objects
// keep what they need: a buffer may be freed while a view of it is held, a hub while its buffers live.
//
// Errors. Every function that can fail returns a onebuf_status and gives results through pointers, which are
// zero when it failed. onebuf_last_error_message() says what was wrong. Nothing throws, nothing aborts.
//
// Threads. Every function may be called from any thread, with any handle, at any time. Freeing an object that
// another thread is using is fine: it goes when that call ends. What may happen to a buffer at the same time
// is decided by views and mappings: whoever comes second gets ONEBUF_BUSY. Only messages are a thread's own.
//
// Promises. What cannot be checked is the caller's promise: a pointer is NULL or valid for what the function
// does with it; data pointers are valid for as many bytes as are named beside them; strings end with a zero;
// an options structure is as large as its `size` says; native handles and mapped data are used only as long
// as their view, queue or mapping is not freed, and only as it allows; native handles that onebuf is given are
// NULL or alive, and of the kind that is asked for; a kernel does what was declared of it.
//
// Options. Structures whose first field is `size` grow in later versions. Set everything to zero and `size`
// to the structure's sizeof, or begin with ONEBUF_OPTIONS(type); zeroes are the defaults.

#ifndef ONEBUF_H
#define ONEBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Status ==========================================================================================
//
// Every function that can fail returns a status and gives its results through pointers; what those point at
// is zero when it failed.

// How a call ended: ONEBUF_OK, or why it failed.
typedef int32_t onebuf_status;
// It did what was asked.
#define ONEBUF_OK 0
// A library, driver or device is not on this machine.
#define ONEBUF_UNAVAILABLE 1
// The device or route cannot do this.
#define ONEBUF_UNSUPPORTED 2
// It would need a copy that nobody asked for, and the policy forbids those.
#define ONEBUF_COPY_FORBIDDEN 3
// The buffer was made without this device.
#define ONEBUF_NOT_SHARED 4
// Not now: somebody holds a conflicting view or mapping, or the work asked about is not done.
#define ONEBUF_BUSY 5
// Memory ran out.
#define ONEBUF_OUT_OF_MEMORY 6
// The device stopped working.
#define ONEBUF_DEVICE_LOST 7
// The process at the other end is gone.
#define ONEBUF_PEER_LOST 8
// The call itself is wrong; the message names the argument and the rule.
#define ONEBUF_INVALID_ARGUMENT 9
// An object of one context or hub was given where another's is needed.
#define ONEBUF_FOREIGN_CONTEXT 10
// The driver's compiler refused the program; the message has its log.
#define ONEBUF_BUILD 11
// A wait ran out of time. The work may still finish.
#define ONEBUF_TIMEOUT 12
// The driver answered with a status that has no better name here.
#define ONEBUF_DRIVER 13
// A file of onebuf's own cannot be used.
#define ONEBUF_CACHE 14
// The other process is not trusted: another user's, or one that does not keep to the rules.
#define ONEBUF_PEER_REFUSED 15
// The handle names nothing: null, freed, of another kind, or never made.
#define ONEBUF_INVALID_HANDLE 100
// A pointer is NULL that may not be.
#define ONEBUF_NULL_POINTER 101
// A bug in onebuf: please report the message.
#define ONEBUF_PANIC 102
// An error of a kind that this version has no number for.
#define ONEBUF_OTHER 103

// The status' name, such as `ONEBUF_BUSY`; `unknown` for a number that is none. Never NULL.
const char *onebuf_status_name(onebuf_status status);

// Error messages ==================================================================================
//
// The message of the thread's last failure says what was wrong and what to do.

// What was wrong in this thread's last call that failed, and what to do; empty when none has. Valid until
// the thread's next call that fails, or its end. Never NULL.
const char *onebuf_last_error_message(void);

// Sets this thread's message, as a call that fails does: for callbacks, whose own reasons a pipeline passes on.
onebuf_status onebuf_set_error_message(const char *message);

// Version =========================================================================================
//
// Programs built against one minor version run with every later patch of it. Before 1.0 a minor version
// may change what is here, and the library's soname has it (`libonebuf.so.0.MINOR`); from 1.0 on only the major
// version does (`libonebuf.so.MAJOR`).

// Major version of this header.
#define ONEBUF_VERSION_MAJOR 0
// Minor version of this header.
#define ONEBUF_VERSION_MINOR 1
// Patch version of this header.
#define ONEBUF_VERSION_PATCH 1

// The library's version as text, such as `0.1.0`.
const char *onebuf_version(void);

// The library's version as a number: `major * 1000000 + minor * 1000 + patch`.
uint32_t onebuf_version_number(void);

// The log =========================================================================================
//
// What the library has to say beside statuses goes to standard error, a line for each message, as the environment
// variable ONEBUF_LOG says when the first hub is discovered: `off`, `error`, `warn`, `info`, `debug`, `trace`, or a
// list such as `warn,onebuf::backend=debug`. Without it, the implied copies of buffers with ONEBUF_COPIES_WARN are
// written and nothing else. A program with a log of its own takes the messages by onebuf_log_to().

// How much a message matters.
typedef uint32_t onebuf_log_level;
// Something is lost or broken.
#define ONEBUF_LOG_ERROR 1
// Something is not as it should be; implied copies where they are warned of.
#define ONEBUF_LOG_WARN 2
// What happens.
#define ONEBUF_LOG_INFO 3
// What happens, in detail.
#define ONEBUF_LOG_DEBUG 4
// Everything.
#define ONEBUF_LOG_TRACE 5

// Takes one message, without a line's end. `target` names the part of the library that it comes from. It is called
// by any thread, by several at once, and at times while the library holds locks: it must not call the library.
// The strings are valid until it returns.
typedef void (*onebuf_log_function)(void *user,
                                    onebuf_log_level level,
                                    const char *target,
                                    const char *message);

// Messages of this level and of lower numbers go to a function, and none to standard error; ONEBUF_LOG is not
// asked. A `callback` of NULL undoes that, and `level` does not matter then. When this returns, the function that
// was set before is no longer running, nor called again.
// No thread may hold a lock that the function takes while it calls onebuf: the function is called inside of such calls.
//
// ONEBUF_BUSY inside of such a function; ONEBUF_UNSUPPORTED in a Rust program that collects the messages itself.
onebuf_status onebuf_log_to(onebuf_log_level level,
                            onebuf_log_function callback,
                            void *user);

// Words ===========================================================================================
//
// Choices are numbers, and zero is always the default: a structure of zeroes asks for nothing special. A
// number that is no choice is ONEBUF_INVALID_ARGUMENT.

// A `timeout_ms` that means the hub's own timeout.
#define ONEBUF_DEFAULT_TIMEOUT 18446744073709551615ull

// What kernels do with a buffer.
typedef uint32_t onebuf_access;
// Kernels read and write.
#define ONEBUF_READ_WRITE 0
// Kernels only read.
#define ONEBUF_READ 1
// Kernels only write.
#define ONEBUF_WRITE 2

// What the host does with a buffer once it is made.
typedef uint32_t onebuf_host_access;
// The host reads and writes.
#define ONEBUF_HOST_READ_WRITE 0
// The host only reads.
#define ONEBUF_HOST_READ 1
// The host only writes.
#define ONEBUF_HOST_WRITE 2
// The host does neither.
#define ONEBUF_HOST_NONE 3

// What to do about copies that nobody asked for. Of a hub's and a buffer's choice the stricter holds.
typedef uint32_t onebuf_copies;
// Make them, count them.
#define ONEBUF_COPIES_ALLOW 0
// Make them, count them, write a line for each to the log: see onebuf_log_to().
#define ONEBUF_COPIES_WARN 1
// Refuse what would need one.
#define ONEBUF_COPIES_FORBID 2

// What a buffer's life will be like. A wish: it breaks ties, it forbids nothing.
typedef uint32_t onebuf_hint;
// Nothing is known.
#define ONEBUF_HINT_NONE 0
// Mostly used by the CPU.
#define ONEBUF_HINT_CPU_PREFERRED 1
// Mostly used by kernels.
#define ONEBUF_HINT_GPU_PREFERRED 2
// Used by both at a fine grain.
#define ONEBUF_HINT_COHERENT 3
// Written once, read once, in turn.
#define ONEBUF_HINT_STREAMING 4

// In what form memory is allocated.
typedef uint32_t onebuf_memory_kind;
// The plan chooses.
#define ONEBUF_MEMORY_KIND_ANY 0
// Ordinary pages of this process.
#define ONEBUF_MEMORY_KIND_HOST_PAGES 1
// Shared virtual memory that CPU and device use at once.
#define ONEBUF_MEMORY_KIND_FINE_SVM 2
// Shared virtual memory that is mapped and unmapped in turn.
#define ONEBUF_MEMORY_KIND_COARSE_SVM 3
// Device memory that the driver maps for the CPU.
#define ONEBUF_MEMORY_KIND_MAPPED_DEVICE 4
// Memory on the chip itself.
#define ONEBUF_MEMORY_KIND_ON_CHIP 5
// Device memory that the CPU reaches only by enqueued copies.
#define ONEBUF_MEMORY_KIND_DEVICE 6
// Device memory that other APIs and processes can import by a file descriptor.
#define ONEBUF_MEMORY_KIND_EXPORTABLE 7
// Memory at one address for CPU and device, whose pages are moved to whoever takes over: counted as implied copies. Of hubs
// with `managed_memory` only.
#define ONEBUF_MEMORY_KIND_MANAGED 8

// How memory that lives on one device is seen on another.
typedef uint32_t onebuf_route;
// The plan chooses.
#define ONEBUF_ROUTE_ANY 0
// One device.
#define ONEBUF_ROUTE_SAME 1
// One set of host pages.
#define ONEBUF_ROUTE_HOST_POINTER 2
// One virtual address.
#define ONEBUF_ROUTE_SVM_POINTER 3
// A device address that is valid in both APIs.
#define ONEBUF_ROUTE_RAW_ADDRESS 4
// An opaque file descriptor.
#define ONEBUF_ROUTE_OPAQUE_FD 5
// A dma-buf.
#define ONEBUF_ROUTE_DMA_BUF 6
// A sharing call that one API has for the other.
#define ONEBUF_ROUTE_API_SHARE 7
// Another chip's memory, accessed directly.
#define ONEBUF_ROUTE_PEER 8
// Another process' memory.
#define ONEBUF_ROUTE_IPC 9
// A pinned, chunked copy.
#define ONEBUF_ROUTE_STAGED 10

// A sync method, best first: how one queue waits for another's work.
typedef uint32_t onebuf_sync_method;
// Not asked for, or not known.
#define ONEBUF_SYNC_ANY 0
// One in-order queue, or work that was over: nothing to do.
#define ONEBUF_SYNC_SAME_QUEUE 1
// A semaphore that the device waits on.
#define ONEBUF_SYNC_SEMAPHORE 2
// An event of the API that both queues belong to.
#define ONEBUF_SYNC_EVENT 3
// The queue waits for a value in shared memory.
#define ONEBUF_SYNC_WAIT_VALUE 4
// A completion callback opens a host signal in the other queue.
#define ONEBUF_SYNC_CALLBACK 5
// The calling thread waits.
#define ONEBUF_SYNC_HOST_WAIT 6

// Strings =========================================================================================
//
// Text and bytes that onebuf gives away are strings: look at one as long as it is not freed, then free it.

// Text or bytes made by onebuf. Free it.
typedef struct onebuf_string {
    // Zero names nothing.
    uint64_t id;
} onebuf_string;

// The string's text, which ends with a zero; empty for a handle that names nothing. Valid until the
// string is freed.
const char *onebuf_string_data(onebuf_string string);

// How many bytes it has, the zero at its end not counted; zero for a handle that names nothing.
size_t onebuf_string_size(onebuf_string string);

// Frees a string.
onebuf_status onebuf_string_free(onebuf_string string);

// Devices =========================================================================================
//
// A device is one API's view of one chip. Its handle is the hub's: it is valid until the hub's is freed,
// and the same whenever the same device is asked for. What was made with it stays usable after that. Handles
// of the devices of a foreign context are that context's in the same way.

// A device. Not to be freed: it goes with its hub or context.
typedef struct onebuf_device {
    // Zero names nothing.
    uint64_t id;
} onebuf_device;

// Its id, such as `opencl:0`.
onebuf_status onebuf_device_id(onebuf_device device, onebuf_string *text);

// Its own name.
onebuf_status onebuf_device_name(onebuf_device device, onebuf_string *text);

// Its API: `host`, `opencl`.
onebuf_status onebuf_device_api(onebuf_device device, onebuf_string *text);

// Who makes the driver; for OpenCL, the platform's name.
onebuf_status onebuf_device_platform(onebuf_device device, onebuf_string *text);

// The driver's version.
onebuf_status onebuf_device_driver(onebuf_device device, onebuf_string *text);

// The API's version, as the driver gives it.
onebuf_status onebuf_device_version(onebuf_device device, onebuf_string *text);

// What it can do: words of onebuf's (`host_pointer`, `svm_fine`, `out_of_order` …) and the extensions it
// declares, with spaces between.
onebuf_status onebuf_device_features(onebuf_device device,
                                     onebuf_string *text);

// Whether it has a feature, by the whole word.
onebuf_status onebuf_device_has(onebuf_device device, const char *feature, bool *has);

// Its memory in bytes; zero where it is not known.
onebuf_status onebuf_device_memory_bytes(onebuf_device device, uint64_t *bytes);

// The largest buffer in bytes.
onebuf_status onebuf_device_max_buffer_bytes(onebuf_device device, uint64_t *bytes);

// Regions of a buffer that this device sees begin at multiples of so many bytes.
onebuf_status onebuf_device_region_align(onebuf_device device, size_t *bytes);

// Hubs ============================================================================================
//
// A hub is this process's view of the machine: the devices found, and what is known of the routes between
// them. Hubs live side by side. Whatever was made with a hub keeps it alive; freeing the handle ends only
// the handle, and those of its devices.

// A hub. Free it.
typedef struct onebuf_hub {
    // Zero names nothing.
    uint64_t id;
} onebuf_hub;

// Where a hub remembers the programs that it compiled.
typedef uint32_t onebuf_program_cache;
// In memory, and in the cache folder for other processes.
#define ONEBUF_PROGRAM_CACHE_DISK 0
// In memory, as long as the hub lives.
#define ONEBUF_PROGRAM_CACHE_MEMORY 1
// Nowhere.
#define ONEBUF_PROGRAM_CACHE_OFF 2

// What a hub shall look for, and how it behaves. Zeroes are the defaults.
typedef struct onebuf_hub_options {
    // `sizeof(onebuf_hub_options)`.
    size_t size;
    // What to do about implied copies, for every buffer of the hub.
    onebuf_copies copies;
    // Not zero: looks for no OpenCL.
    uint32_t without_opencl;
    // How long waits last, in milliseconds; zero: 60 seconds.
    uint64_t timeout_ms;
    // The folder of cached verdicts and programs; NULL: the user's cache folder.
    const char *cache_folder;
    // The OpenCL library's path or soname; NULL: what the environment says, or the system's.
    const char *opencl_library;
    // Where compiled programs are remembered.
    onebuf_program_cache program_cache;
    // Not zero: plans with no verdict of earlier experiments, and keeps programs on disk only where
    // `cache_folder` is given.
    uint32_t without_verdicts;
    // The CUDA driver's path or soname; NULL: what the environment says, or the system's.
    const char *cuda_library;
    // The same of the compiler of CUDA C, NVRTC.
    const char *nvrtc_library;
    // The same of the HIP runtime.
    const char *hip_library;
    // The same of the compiler of HIP C, HIPRTC.
    const char *hiprtc_library;
    // Not zero: looks for no CUDA.
    uint32_t without_cuda;
    // Not zero: looks for no HIP.
    uint32_t without_hip;
    // Not zero: lets buffers ask for ONEBUF_STRATEGY_MANAGED; zero: what the environment says (`ONEBUF_MANAGED`).
    uint32_t managed_memory;
} onebuf_hub_options;

// Finds what is installed, and loads what experiments have shown before. A missing API is a fact, not an
// error: see onebuf_hub_missing(). `options` may be NULL.
onebuf_status onebuf_hub_discover(const onebuf_hub_options *options,
                                  onebuf_hub *hub);

// Frees the hub's handle and those of its devices.
onebuf_status onebuf_hub_free(onebuf_hub hub);

// How many devices there are, the host among them.
onebuf_status onebuf_hub_device_count(onebuf_hub hub, size_t *count);

// A device by its place in the hub's list; the host is the first. Its handle is the hub's.
onebuf_status onebuf_hub_device_at(onebuf_hub hub, size_t index, onebuf_device *device);

// The first device that fits: by id (`opencl:1`), API (`opencl`), type (`cpu`, `gpu`, `accelerator`), or a
// part of its name or platform, in any case. ONEBUF_UNAVAILABLE when none does, and the message lists what
// there is. Its handle is the hub's.
onebuf_status onebuf_hub_device(onebuf_hub hub,
                                const char *selector,
                                onebuf_device *device);

// What is not to be had here and why, and what went wrong without stopping the discovery, in words; empty
// when there is nothing to tell.
onebuf_status onebuf_hub_missing(onebuf_hub hub,
                                 onebuf_string *text);

// Fences ==========================================================================================
//
// A fence is a point that work reaches. Ask it, wait for it with a timeout, or let a queue wait for it.

// A fence. Free it.
typedef struct onebuf_fence {
    // Zero names nothing.
    uint64_t id;
} onebuf_fence;

// When a launch ran, in nanoseconds of its device's clock. Only differences mean something.
typedef struct onebuf_profile {
    // It was enqueued.
    uint64_t queued_ns;
    // It was handed to the device.
    uint64_t submitted_ns;
    // It began to run.
    uint64_t started_ns;
    // It ended.
    uint64_t ended_ns;
} onebuf_profile;

// Whether the work is done. When the work failed, the status says how.
onebuf_status onebuf_fence_poll(onebuf_fence fence, bool *done);

// Waits until the work is done. ONEBUF_TIMEOUT when it takes longer; the work goes on.
onebuf_status onebuf_fence_wait(onebuf_fence fence, uint64_t timeout_ms);

// The same, for a timeout in nanoseconds: for callers who wait for less than a millisecond.
onebuf_status onebuf_fence_wait_ns(onebuf_fence fence, uint64_t timeout_ns);

// The sync method by which the fence orders, or ordered, what comes after it.
onebuf_status onebuf_fence_sync_method(onebuf_fence fence, onebuf_sync_method *sync_method);

// When the work ran: for the fence of one launch, on a queue opened for profiling, once it is done.
onebuf_status onebuf_fence_profile(onebuf_fence fence, onebuf_profile *profile);

// Frees a fence. The work goes on.
onebuf_status onebuf_fence_free(onebuf_fence fence);

// Queues ==========================================================================================
//
// A queue is a stream of work on a device. Kernels are launched on it: see onebuf_queue_launch().

// A queue. Free it.
typedef struct onebuf_queue {
    // Zero names nothing.
    uint64_t id;
} onebuf_queue;

// In which order a queue runs its work.
typedef uint32_t onebuf_queue_order;
// One after the other.
#define ONEBUF_QUEUE_IN_ORDER 0
// As the buffers they use allow. ONEBUF_UNSUPPORTED where the device has no such queues.
#define ONEBUF_QUEUE_OUT_OF_ORDER 1

// What queue to open. Zeroes are the defaults.
typedef struct onebuf_queue_options {
    // `sizeof(onebuf_queue_options)`.
    size_t size;
    // In which order it runs its work.
    onebuf_queue_order order;
    // Not zero: launches' fences know when their work ran.
    uint32_t profiling;
} onebuf_queue_options;

// Opens a queue. `options` may be NULL.
onebuf_status onebuf_queue_create(onebuf_device device,
                                  const onebuf_queue_options *options,
                                  onebuf_queue *queue);

// Frees a queue. Work that was enqueued still ends.
onebuf_status onebuf_queue_free(onebuf_queue queue);

// Sees to it that enqueued work starts without further calls.
onebuf_status onebuf_queue_flush(onebuf_queue queue);

// Waits until everything enqueued so far is done.
onebuf_status onebuf_queue_finish(onebuf_queue queue, uint64_t timeout_ms);

// The point that everything enqueued so far will have reached.
onebuf_status onebuf_queue_fence(onebuf_queue queue, onebuf_fence *fence);

// Makes work enqueued from now on wait for a fence of any queue of the hub, by the best sync method there is, and
// says which. `sync_method` may be NULL.
onebuf_status onebuf_queue_wait_for(onebuf_queue queue,
                                    onebuf_fence fence,
                                    onebuf_sync_method *sync_method);

// The native queue (a `cl_command_queue` for OpenCL, a `CUstream` for CUDA, a `hipStream_t` for HIP) for libraries that enqueue work of their own; NULL
// where there is none. Work enqueued there while a view on this queue is held is fenced like work of
// onebuf's. Valid until the queue is freed.
onebuf_status onebuf_queue_native(onebuf_queue queue,
                                  void **native);

// Buffers =========================================================================================
//
// A buffer is memory that a set of devices sees: one allocation, however many they are. A region of one is
// a buffer too. Sizes and offsets are bytes. Who may use a buffer when is decided at run time: many readers
// or one writer, and whoever comes second gets ONEBUF_BUSY.

// A buffer, or a region of one. Free it.
typedef struct onebuf_buffer {
    // Zero names nothing.
    uint64_t id;
} onebuf_buffer;

// What a buffer shall be. Zeroes are the defaults.
typedef struct onebuf_buffer_options {
    // `sizeof(onebuf_buffer_options)`.
    size_t size;
    // The devices that use it. The host need not be named: reads, writes and mappings always work, and
    // naming it asks for memory that it sees without a copy.
    const onebuf_device *devices;
    // How many devices.
    size_t device_count;
    // What kernels do with it.
    onebuf_access access;
    // What the host does with it once it is made.
    onebuf_host_access host_access;
    // What to do about implied copies; of this and the hub's choice the stricter holds.
    onebuf_copies copies;
    // What its life will be like.
    onebuf_hint hint;
    // Forces the form of the memory.
    onebuf_memory_kind memory_kind;
    // Forces how the other devices see it.
    onebuf_route route;
    // Forces a sync method, or a lower one, between different APIs.
    onebuf_sync_method sync;
    // Not zero: uses routes that drivers declare, and callbacks, although no experiment has proven them here.
    uint32_t trust_declared;
    // Forces where the memory lives, unless null.
    onebuf_device allocate_on;
    // Alignment in bytes, a power of two; zero: the strictest of the devices'.
    size_t align;
    // OpenCL's own creation flags, said in these words as well; zero: none.
    uint64_t cl_flags;
    // What it holds at first, as many bytes as the buffer has; NULL: zeroes.
    const void *contents;
    // Memory of the caller's to be used where it lies, as many bytes as the buffer has; NULL: none. Nobody
    // else uses it until `host_memory_done` was called.
    void *host_memory;
    // Called once, on any thread, when neither onebuf nor a driver uses `host_memory` any more: also when the
    // buffer could not be made, unless `size` was wrong. May be NULL, for memory that is never freed.
    void (*host_memory_done)(void *user);
    // What `host_memory_done` is given.
    void *host_memory_user;
    // Not zero: also lets another API's kernels use the address that this one's kernels see
    // (ONEBUF_ROUTE_RAW_ADDRESS). No API promises that it means anything there; it is used where it was proven here,
    // and where the runtime under both APIs says whose memory it is.
    uint32_t raw_addresses;
} onebuf_buffer_options;

// Makes a buffer of so many bytes. `options` may be NULL: the host alone uses it then.
onebuf_status onebuf_buffer_create(onebuf_hub hub,
                                   size_t bytes,
                                   const onebuf_buffer_options *options,
                                   onebuf_buffer *buffer);

// Some bytes of a buffer as a buffer of their own, for what `access` says: no more than the buffer itself
// was made for. It begins at a multiple of every device's onebuf_device_region_align(). A region has no
// regions. Regions that do not overlap are used at the same time by queues of one device.
onebuf_status onebuf_buffer_region(onebuf_buffer buffer,
                                   size_t offset,
                                   size_t bytes,
                                   onebuf_access access,
                                   onebuf_buffer *region);

// Frees a buffer or region. The memory goes when its views, mappings and regions are freed too and no
// work uses it; a buffer of a pool goes back to that. A standing map ends with it.
onebuf_status onebuf_buffer_free(onebuf_buffer buffer);

// How many bytes it has.
onebuf_status onebuf_buffer_size(onebuf_buffer buffer, size_t *bytes);

// Where it lies, who sees it by which route, and why no better one was taken, in words.
onebuf_status onebuf_buffer_explain(onebuf_buffer buffer, onebuf_string *text);

// Writes so many bytes from `offset` on. Waits for the work before; `data` is the caller's again afterwards.
onebuf_status onebuf_buffer_write(onebuf_buffer buffer,
                                  size_t offset,
                                  const void *data,
                                  size_t bytes);

// Reads so many bytes from `offset` on. Waits for the work before.
onebuf_status onebuf_buffer_read(onebuf_buffer buffer, size_t offset, void *data, size_t bytes);

// Repeats a pattern over so many bytes from `offset` on; both are multiples of the pattern's size.
onebuf_status onebuf_buffer_fill(onebuf_buffer buffer,
                                 size_t offset,
                                 size_t bytes,
                                 const void *pattern,
                                 size_t pattern_bytes);

// Copies so many bytes from one buffer to another of the same hub, or within one: inside a device where
// both have one in common. A region's copy waits for the whole buffer.
onebuf_status onebuf_buffer_copy(onebuf_buffer to,
                                 size_t to_offset,
                                 onebuf_buffer from,
                                 size_t from_offset,
                                 size_t bytes);

// The last writes as a fence (the last reads, where nothing was written yet); a null fence, and ONEBUF_OK,
// when there was no work at all.
onebuf_status onebuf_buffer_fence(onebuf_buffer buffer,
                                  onebuf_fence *fence);

// Mappings ========================================================================================
//
// A mapping lets the host use a buffer in place, through a pointer. It waits for the work before; nobody
// else writes the buffer (or, while the host writes, uses it) until it is unmapped.

// A mapping. Unmap it.
typedef struct onebuf_mapping {
    // Zero names nothing.
    uint64_t id;
} onebuf_mapping;

// Maps a buffer or region as a whole: for reading with ONEBUF_READ, else for reading and writing. `data`
// is valid, for as many bytes as the buffer has, until it is unmapped.
//
// Where the host cannot see the memory it gets a copy, which is counted as implied; or
// ONEBUF_COPY_FORBIDDEN.
onebuf_status onebuf_buffer_map(onebuf_buffer buffer,
                                onebuf_access access,
                                void **data,
                                onebuf_mapping *mapping);

// Ends a mapping. Fails only where the host worked on a copy that could not be written back; the mapping
// is over then too.
onebuf_status onebuf_mapping_unmap(onebuf_mapping mapping);

// Views ===========================================================================================
//
// A view says "this queue reads (or writes) this buffer now". Taking it makes the newest contents visible
// there and orders the queue after the work that made them; freeing it notes how far the queue is. It gives
// the native handle, for libraries that enqueue work of their own. A launch takes views by itself.

// A view. Free it.
typedef struct onebuf_view {
    // Zero names nothing.
    uint64_t id;
} onebuf_view;

// Lets kernels on the queue read the buffer (ONEBUF_READ), or read and write it, until the view is freed.
// ONEBUF_BUSY while somebody else holds what excludes it; ONEBUF_NOT_SHARED for a device that the buffer
// was made without.
onebuf_status onebuf_view_take(onebuf_buffer buffer,
                               onebuf_queue queue,
                               onebuf_access access,
                               onebuf_view *view);

// The `cl_mem`, for OpenCL code that enqueues on the view's queue. Valid until the view is freed.
// ONEBUF_UNSUPPORTED where the device sees the buffer as an address instead.
onebuf_status onebuf_view_cl_mem(onebuf_view view, void **cl_mem);

// The address that kernels on the view's queue use: an SVM pointer, or a host pointer. Valid until the view
// is freed. ONEBUF_UNSUPPORTED where the device sees the buffer as an object instead.
onebuf_status onebuf_view_address(onebuf_view view,
                                  void **address);

// The `CUdeviceptr`, for CUDA code and libraries that enqueue on the stream of the view's queue
// (onebuf_queue_native()). Valid until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
onebuf_status onebuf_view_cuda_ptr(onebuf_view view,
                                   uint64_t *pointer);

// The `hipDeviceptr_t`, for HIP code and libraries that enqueue on the stream of the view's queue
// (onebuf_queue_native()). Valid until the view is freed. ONEBUF_UNSUPPORTED on a queue of another API.
onebuf_status onebuf_view_hip_ptr(onebuf_view view,
                                  void **pointer);

// The sync method by which the queue waited for earlier work.
onebuf_status onebuf_view_sync_method(onebuf_view view, onebuf_sync_method *sync_method);

// Frees a view: others may use the buffer, after what was enqueued.
onebuf_status onebuf_view_free(onebuf_view view);

// Transfers =======================================================================================
//
// Reads and writes that go on while the caller does something else. A transfer owns its host memory, so that
// none of the caller's is ever in a driver's hands: a write's data is copied when it starts, and a read's is
// looked at in the transfer's memory once it is done.

// A transfer. Free it.
typedef struct onebuf_transfer {
    // Zero names nothing.
    uint64_t id;
} onebuf_transfer;

// Starts a read of so many bytes from `offset` on. Later work on the buffer comes after it.
onebuf_status onebuf_buffer_read_async(onebuf_buffer buffer,
                                       size_t offset,
                                       size_t bytes,
                                       onebuf_transfer *transfer);

// Starts a write of so many bytes from `offset` on. `data` is copied: it is the caller's again at once.
onebuf_status onebuf_buffer_write_async(onebuf_buffer buffer,
                                        size_t offset,
                                        const void *data,
                                        size_t bytes,
                                        onebuf_transfer *transfer);

// Whether the transfer is done; no while another thread waits for it.
onebuf_status onebuf_transfer_poll(onebuf_transfer transfer, bool *done);

// Waits for the transfer. ONEBUF_TIMEOUT when it takes longer; the wait may be repeated.
onebuf_status onebuf_transfer_wait(onebuf_transfer transfer, uint64_t timeout_ms);

// The bytes that were read (or written), valid until the transfer is freed. ONEBUF_BUSY before a wait for
// it has succeeded. `bytes` may be NULL.
onebuf_status onebuf_transfer_data(onebuf_transfer transfer,
                                   const void **data,
                                   size_t *bytes);

// Frees a transfer. One that is under way is waited for, for the hub's timeout at most.
onebuf_status onebuf_transfer_free(onebuf_transfer transfer);

// Programs ========================================================================================
//
// A program is built for one device: of OpenCL C, CUDA C, HIP C, PTX, GLSL, SPIR-V or the device's own binary, or of
// functions of this process, for the host. The hub remembers what it compiled.

// A program. Free it.
typedef struct onebuf_program {
    // Zero names nothing.
    uint64_t id;
} onebuf_program;

// One argument of a launch, as a native function gets it.
typedef struct onebuf_native_arg {
    // A buffer's bytes, or a value.
    void *data;
    // How many bytes.
    size_t bytes;
    // Not zero: the bytes may be written.
    uint32_t writable;
} onebuf_native_arg;

// A launch, as a native function gets it. Valid during the call.
typedef struct onebuf_native_call {
    // Work-items per dimension; unused dimensions are 1.
    size_t global[3];
    // The first work-item's index per dimension.
    size_t offset[3];
    // The arguments.
    const onebuf_native_arg *args;
    // How many arguments.
    size_t arg_count;
} onebuf_native_call;

// A kernel of the host: called once for a whole launch, on the thread that launches, from several threads
// at once if those do. Zero means that it worked. It must not throw.
typedef int32_t (*onebuf_native_function)(void *user, const onebuf_native_call *call);

// A named function.
typedef struct onebuf_native {
    // The kernel's name.
    const char *name;
    // What it does.
    onebuf_native_function function;
    // What it is given first; valid, for any thread, as long as the program or a kernel of it lives.
    void *user;
} onebuf_native;

// A kernel in GLSL, for OpenGL and Vulkan. A shader has but one `main`, so the kernel's name is given beside it.
// A buffer is the storage block whose binding is the argument's number; all values together, in their order,
// are one `std140` uniform block whose binding is the number of the first of them. Groups have the shader's
// own size.
typedef struct onebuf_shader {
    // The kernel's name.
    const char *name;
    // The shader's text, ending with a zero.
    const char *text;
} onebuf_shader;

// A program in as many forms as there are; a device takes the one it can use: its own binary first, then
// SPIR-V, then text. The host takes functions. Pointers need to be valid during the call only.
typedef struct onebuf_program_options {
    // `sizeof(onebuf_program_options)`.
    size_t size;
    // OpenCL C, ending with a zero; NULL: none.
    const char *opencl_c;
    // A file of OpenCL C or SPIR-V; NULL: none. Not beside `opencl_c` and `spirv`.
    const char *file;
    // A SPIR-V module; NULL: none.
    const void *spirv;
    // How many bytes of SPIR-V.
    size_t spirv_bytes;
    // The device's own binary, from onebuf_program_binary(); NULL: none.
    const void *binary;
    // How many bytes of binary.
    size_t binary_bytes;
    // Functions of this process, for the host.
    const onebuf_native *natives;
    // How many functions.
    size_t native_count;
    // Options for the compiler, such as `-cl-fast-relaxed-math`; NULL: none.
    const char *compiler_options;
    // Kernels in GLSL, for OpenGL and Vulkan.
    const onebuf_shader *shaders;
    // How many kernels in GLSL.
    size_t shader_count;
    // CUDA C, ending with a zero; NULL: none. Each kernel is `extern "C" __global__`; group-local arguments are no
    // parameters but parts of its one `extern __shared__` array, in their order, each aligned to 16 bytes.
    const char *cuda_c;
    // The same in HIP C; NULL: none.
    const char *hip_c;
    // PTX, ending with a zero, which CUDA devices take before CUDA C; NULL: none.
    const char *ptx;
} onebuf_program_options;

// Builds a program for a device. ONEBUF_BUILD when the compiler refuses it: the message has its log.
onebuf_status onebuf_program_build(onebuf_device device,
                                   const onebuf_program_options *options,
                                   onebuf_program *program);

// What the compiler said although it succeeded.
onebuf_status onebuf_program_log(onebuf_program program, onebuf_string *text);

// The device's own binary, for `onebuf_program_options.binary`: bytes of onebuf_string_size().
onebuf_status onebuf_program_binary(onebuf_program program, onebuf_string *binary);

// How a program came to be.
typedef uint32_t onebuf_origin;
// It was built of its source.
#define ONEBUF_ORIGIN_BUILT 0
// The hub had it already.
#define ONEBUF_ORIGIN_MEMORY 1
// An earlier process left it in the cache folder.
#define ONEBUF_ORIGIN_DISK 2
// The binary that was given.
#define ONEBUF_ORIGIN_BINARY 3

// How it came to be.
onebuf_status onebuf_program_origin(onebuf_program program, onebuf_origin *origin);

// Frees a program. Its kernels stay usable.
onebuf_status onebuf_program_free(onebuf_program program);

// Kernels and launches ============================================================================
//
// A kernel is declared with what it takes, and each launch is checked against that. The declaration is the
// caller's promise: for every launch that fits it the kernel stays inside the buffers given, reads only
// those declared for reading, writes only those declared for writing, and ends.

// A kernel. Free it.
typedef struct onebuf_kernel {
    // Zero names nothing.
    uint64_t id;
} onebuf_kernel;

// What a parameter or an argument is.
typedef uint32_t onebuf_arg_kind;
// A buffer. As an argument: a view of it is taken for this launch.
#define ONEBUF_ARG_BUFFER 1
// A value: bytes that are copied, of a type that is not said. Only their number is checked.
#define ONEBUF_ARG_VALUE 2
// Memory of each work-group.
#define ONEBUF_ARG_LOCAL 3
// Only as an argument: a view that the caller holds on this queue, for a buffer parameter.
#define ONEBUF_ARG_VIEW 4
// Only as an argument: a buffer, whose standing map ends first, as by onebuf_buffer_to_device().
#define ONEBUF_ARG_TURN 5
// A value that is an integer, with or without a sign. It is not taken for a floating-point number.
#define ONEBUF_ARG_INTEGER 6
// A value that is a floating-point number. It is not taken for an integer.
#define ONEBUF_ARG_FLOAT 7

// A parameter of a kernel.
typedef struct onebuf_param {
    // What it is.
    onebuf_arg_kind kind;
    // What the kernel does with a buffer.
    onebuf_access access;
    // How many bytes a value has.
    size_t bytes;
    // Launches whose buffer has fewer bytes than so many per work-item are refused; zero: not checked.
    size_t bytes_per_item;
} onebuf_param;

// An argument of a launch.
typedef struct onebuf_arg {
    // What it is.
    onebuf_arg_kind kind;
    // Of a buffer: ONEBUF_READ takes a view for reading, else one for reading and writing.
    onebuf_access access;
    // A buffer.
    onebuf_buffer buffer;
    // A view.
    onebuf_view view;
    // A value.
    const void *value;
    // How many bytes the value, or the memory of each work-group, has.
    size_t bytes;
} onebuf_arg;

// How many work-items, in how large groups.
typedef struct onebuf_grid {
    // Dimensions in use, 1 to 3.
    size_t dims;
    // Work-items per dimension.
    size_t global[3];
    // Group size per dimension; all zero: the driver chooses.
    size_t local[3];
    // The first work-item's index per dimension, for kernels declared with ONEBUF_KERNEL_OFFSETS.
    size_t offset[3];
} onebuf_grid;
// The kernel may be launched from another index than zero on.
#define ONEBUF_KERNEL_OFFSETS 1

// Declares a kernel of a program. `flags` are zero, or ONEBUF_KERNEL_OFFSETS.
onebuf_status onebuf_kernel_create(onebuf_program program,
                                   const char *name,
                                   const onebuf_param *params,
                                   size_t param_count,
                                   uint32_t flags,
                                   onebuf_kernel *kernel);

// Frees a kernel. Work that was enqueued still ends.
onebuf_status onebuf_kernel_free(onebuf_kernel kernel);

// Starts a kernel. Views of buffers are taken for this launch and released when it is enqueued; views of
// the caller's stay the caller's. `fence`, unless NULL, gets the point that this launch will have reached.
// On the host's queue the kernel has run when this returns.
onebuf_status onebuf_queue_launch(onebuf_queue queue,
                                  onebuf_kernel kernel,
                                  const onebuf_grid *grid,
                                  const onebuf_arg *args,
                                  size_t arg_count,
                                  onebuf_fence *fence);

// Pools ===========================================================================================
//
// A pool hands out buffers and gets them back when they are freed, so that the next comes without an
// allocation. What a used buffer holds at first is unspecified.

// A pool. Free it.
typedef struct onebuf_pool {
    // Zero names nothing.
    uint64_t id;
} onebuf_pool;

// What a pool has done and holds.
typedef struct onebuf_pool_statistics {
    // `sizeof(onebuf_pool_statistics)`: set it before the call.
    size_t size;
    // Buffers handed out that were used before.
    uint64_t hits;
    // Buffers handed out that had to be made.
    uint64_t misses;
    // Buffers freed.
    uint64_t freed;
    // Buffers that came back and could not be used again.
    uint64_t lost;
    // Buffers in use.
    uint64_t live_buffers;
    // Their bytes, rounded up to their size classes.
    uint64_t live_bytes;
    // Buffers ready to be used again.
    uint64_t idle_buffers;
    // Their bytes.
    uint64_t idle_bytes;
    // The most bytes ever in use at one time.
    uint64_t peak_live_bytes;
    // The most bytes ever held at one time, idle ones included.
    uint64_t peak_held_bytes;
} onebuf_pool_statistics;

// Makes a pool; `limit_bytes` is the most it holds, idle buffers included; zero: no limit.
onebuf_status onebuf_pool_create(onebuf_hub hub, uint64_t limit_bytes, onebuf_pool *pool);

// A buffer of so many bytes, as onebuf_buffer_create() would make it; without memory of the caller's. At
// the limit it waits so long for buffers to come back, then it is ONEBUF_OUT_OF_MEMORY. Freed, the buffer
// goes back. `options` may be NULL.
onebuf_status onebuf_pool_get(onebuf_pool pool,
                              size_t bytes,
                              const onebuf_buffer_options *options,
                              uint64_t timeout_ms,
                              onebuf_buffer *buffer);

// Frees what is idle, until no more than so many bytes of it are left. `freed_bytes` may be NULL.
onebuf_status onebuf_pool_trim(onebuf_pool pool, uint64_t keep_bytes, uint64_t *freed_bytes);

// What the pool has done and holds.
onebuf_status onebuf_pool_get_statistics(onebuf_pool pool, onebuf_pool_statistics *statistics);

// Frees a pool, and what is idle in it. Buffers that are out stay usable.
onebuf_status onebuf_pool_free(onebuf_pool pool);

// The ledger ======================================================================================
//
// Every byte that onebuf moved is counted: as asked for (a read, write, fill or copy that the caller
// requested) or as implied (staging, a driver's hidden copy).

// Bytes that callers asked to be moved.
onebuf_status onebuf_ledger_asked_bytes(onebuf_hub hub, uint64_t *bytes);

// Bytes that were moved although nobody asked; zero on proven zero-copy routes.
onebuf_status onebuf_ledger_implied_bytes(onebuf_hub hub, uint64_t *bytes);

// Everything that was moved, by pair of devices, in words.
onebuf_status onebuf_ledger_text(onebuf_hub hub, onebuf_string *text);

// The doctor ======================================================================================
//
// Proves each route between devices by experiment, in processes of its own, and remembers the verdicts. Hubs
// discovered afterwards plan with them.

// How to examine. Zeroes are the defaults, but for `helper`.
typedef struct onebuf_doctor_options {
    // `sizeof(onebuf_doctor_options)`.
    size_t size;
    // The program that makes the experiments: the path of `onebuf`, or of a program that calls
    // onebuf_doctor_helper_main() first thing, such as the caller's own (`/proc/self/exe`).
    const char *helper;
    // The folder for verdicts; NULL: the user's cache folder.
    const char *cache_folder;
    // How long a helper may say nothing before its route counts as hung, in milliseconds; zero: 10 seconds.
    uint64_t silence_ms;
    // Touches every page of buffers up to so many bytes; zero: 256 MiB.
    uint64_t reach_bytes;
    // Not zero: makes every experiment again, whatever is remembered.
    uint32_t fresh;
} onebuf_doctor_options;

// Tries every route between different devices of the hub that has no verdict yet, which takes seconds for
// each, and gives all verdicts as JSON: `{"schema":2,"routes":[{"from","to","kind","state","zero_copy",…}],
// "experiments":n,"notes":[…]}`. The hub itself does not change: discover a new one. A cache that cannot be read or
// written stops nothing; the notes say what was wrong with it.
onebuf_status onebuf_doctor_run(onebuf_hub hub,
                                const onebuf_doctor_options *options,
                                onebuf_string *json);

// Does nothing, unless the doctor started this process as its helper: then it makes the experiment and does
// not return. Call it first thing in `main`, before anything loads a driver.
onebuf_status onebuf_doctor_helper_main(void);

// Foreign objects =================================================================================
//
// OpenCL objects that somebody else made: what they are, and their contexts as a source of devices. Native
// handles (`cl_mem`, `cl_context`, `cl_command_queue`, `cl_event`) are `void *` here, so that no header of
// OpenCL's is needed. They are the caller's promise: NULL is told, and what else the driver can tell; for the
// rest they are alive, of the kind that is asked for, and of the OpenCL library that the hub has loaded.

// A context that somebody else made. Free it.
typedef struct onebuf_context {
    // Zero names nothing.
    uint64_t id;
} onebuf_context;

// Where the bytes of a `cl_mem` lie, as far as its flags tell.
typedef uint32_t onebuf_placement;
// Wherever the driver likes.
#define ONEBUF_PLACEMENT_DEVICE 0
// In the memory of the application that it was made over (`CL_MEM_USE_HOST_PTR`).
#define ONEBUF_PLACEMENT_USE_HOST_POINTER 1
// Where the driver can map them without a copy, if it can at all (`CL_MEM_ALLOC_HOST_PTR`).
#define ONEBUF_PLACEMENT_ALLOC_HOST_POINTER 2
// On the chip itself.
#define ONEBUF_PLACEMENT_ON_CHIP 3

// What a `cl_mem` is. Set `size`; the rest is filled in.
typedef struct onebuf_foreign_buffer_info {
    // `sizeof(onebuf_foreign_buffer_info)`.
    size_t size;
    // Its size.
    size_t bytes;
    // The flags that it was made with, as OpenCL numbers them.
    uint64_t flags;
    // What kernels may do with it.
    onebuf_access access;
    // What the host may.
    onebuf_host_access host_access;
    // Where its bytes lie.
    onebuf_placement placement;
    // Not zero: it was filled from host memory when it was made (`CL_MEM_COPY_HOST_PTR`).
    uint32_t copied;
    // Its `cl_context`. No reference is taken.
    void *context;
    // The first of that context's devices that the hub knows, as the hub's; null when it knows none.
    onebuf_device device;
    // How many of that context's devices the hub knows.
    size_t device_count;
    // The host memory that it was made over; NULL: none.
    void *host_pointer;
    // How often it is mapped now. While it is, no kernel may use it.
    uint32_t map_count;
    // How many references there are to it.
    uint32_t reference_count;
    // The `cl_mem` that it is a part of; NULL: none. No reference is taken.
    void *parent;
    // Its first byte in that.
    size_t offset;
    // Whether it was made over shared virtual memory: 1 or 0; -1 where the driver cannot tell (before OpenCL
    // 2.0).
    int32_t uses_svm;
    // Not zero: kernels can use its bytes by a shared virtual address as well.
    uint32_t svm_can_alias;
    // The alignment that regions of it must have.
    size_t align_bytes;
    // How many numbers its list of properties has (memory imported from another API has some).
    size_t property_count;
} onebuf_foreign_buffer_info;

// What a `cl_context` is. Set `size`; the rest is filled in.
typedef struct onebuf_foreign_context_info {
    // `sizeof(onebuf_foreign_context_info)`.
    size_t size;
    // How many devices it has.
    size_t device_count;
    // How many of them the hub knows.
    size_t known_count;
    // The first of those, as the hub's; null when it knows none.
    onebuf_device device;
    // How many numbers its list of properties has.
    size_t property_count;
    // How many references there are to it.
    uint32_t reference_count;
} onebuf_foreign_context_info;

// What a `cl_command_queue` is. Set `size`; the rest is filled in.
typedef struct onebuf_foreign_queue_info {
    // `sizeof(onebuf_foreign_queue_info)`.
    size_t size;
    // Its `cl_context`. No reference is taken.
    void *context;
    // Its device, as the hub's; null when the hub does not know it.
    onebuf_device device;
    // All bits of its properties, as OpenCL numbers them.
    uint64_t properties;
    // In which order it runs its work.
    onebuf_queue_order order;
    // Not zero: it takes times.
    uint32_t profiling;
    // How many references there are to it.
    uint32_t reference_count;
} onebuf_foreign_queue_info;

// What a `cl_mem` is, as its driver tells. ONEBUF_INVALID_ARGUMENT for an image or pipe, and for what the
// driver knows to be no memory object.
onebuf_status onebuf_foreign_buffer_query(onebuf_hub hub,
                                          void *cl_mem,
                                          onebuf_foreign_buffer_info *info);

// The same in words, with the ids of the devices that the hub knows.
onebuf_status onebuf_foreign_buffer_describe(onebuf_hub hub,
                                             void *cl_mem,
                                             onebuf_string *text);

// What a `cl_context` is, as its driver tells.
onebuf_status onebuf_foreign_context_query(onebuf_hub hub,
                                           void *cl_context,
                                           onebuf_foreign_context_info *info);

// What a `cl_command_queue` is, as its driver tells.
onebuf_status onebuf_foreign_queue_query(onebuf_hub hub,
                                         void *cl_queue,
                                         onebuf_foreign_queue_info *info);

// Registers a `cl_context` that somebody else made. Its devices become devices of the hub, with ids such as
// `opencl:0@1`: queues and programs of ours can be made in it, buffers shared with it. The same context
// again is the same registration. One reference is held until everything that was made in it is gone.
// ONEBUF_BUSY when the hub has no device entry left for another device; ONEBUF_UNAVAILABLE for a hub without OpenCL.
onebuf_status onebuf_context_wrap(onebuf_hub hub,
                                  void *cl_context,
                                  onebuf_context *context);

// The device in a second context, as if somebody else had made it: for libraries that must stay apart.
// ONEBUF_UNSUPPORTED for a device without contexts.
onebuf_status onebuf_context_second(onebuf_hub hub,
                                    onebuf_device device,
                                    onebuf_context *context);

// How many devices it has.
onebuf_status onebuf_context_device_count(onebuf_context context, size_t *count);

// A device by its place in the context. Its handle is the context's: valid until that is freed, and the
// hub's where the context is the hub's own.
onebuf_status onebuf_context_device_at(onebuf_context context,
                                       size_t index,
                                       onebuf_device *device);

// The device of the context that a queue is on. ONEBUF_FOREIGN_CONTEXT for a queue of another context.
onebuf_status onebuf_context_device_of(onebuf_context context,
                                       onebuf_queue queue,
                                       onebuf_device *device);

// The `cl_context`. Valid until the context is freed; no reference is taken.
onebuf_status onebuf_context_native(onebuf_context context, void **native);

// Frees a context and the handles of its devices. What was made in it stays usable.
onebuf_status onebuf_context_free(onebuf_context context);

// Wrapping ========================================================================================
//
// Memory and queues that somebody else made, used like those of onebuf, without a copy. onebuf holds one
// reference to each while it uses it, and gives up exactly that one; a call that fails leaves every count as
// it was.
//
// The owner's side. While a view or mapping of a wrapped buffer is held, and until work that was enqueued
// under it is done, its owner does with the memory only what that allows: nothing beside a writer, reads
// beside readers. What the owner has enqueued is the caller's to tell: `after`, onebuf_buffer_written_until(),
// onebuf_queue_wait_for(). What onebuf has enqueued is over, and the memory unmapped and up to date, when the
// last handle of a wrapped buffer was freed; onebuf_buffer_hand_to() orders the owner's queue behind it instead.

// How foreign memory is to be used. Zeroes are the defaults.
typedef struct onebuf_wrap_options {
    // `sizeof(onebuf_wrap_options)`.
    size_t size;
    // How many bytes it must have; zero: as many as it has.
    size_t bytes;
    // Other devices that use it, beside those of its own context.
    const onebuf_device *devices;
    // How many devices.
    size_t device_count;
    // The owner's work on it ends there: whoever uses the buffer waits for these.
    const onebuf_fence *after;
    // How many fences.
    size_t after_count;
    // What to do about implied copies; of this and the hub's choice the stricter holds.
    onebuf_copies copies;
    // Forces how the other devices see it.
    onebuf_route route;
    // Not zero: uses routes that drivers declare, and callbacks, although no experiment has proven them here.
    uint32_t trust_declared;
    // Takes the caller's reference over, unless NULL: called once with the native handle (or pointer), when
    // onebuf has done with the memory and all its work on it is over. It may be called on any thread, inside
    // of any call that frees something; it must not throw, and must not wrap the same memory again. Not called
    // when the call fails: then nothing was taken over.
    void (*release)(void *native, void *user);
    // What `release` is given besides.
    void *release_user;
    // Not zero: allows ONEBUF_ROUTE_RAW_ADDRESS, as in `onebuf_buffer_options`.
    uint32_t raw_addresses;
} onebuf_wrap_options;

// A buffer over a `cl_mem` that somebody else made. The devices of its context see it, the host sees it
// through mappings, and other devices by the routes that the plan finds, when the options name them.
// `options` may be NULL.
//
// A sub-buffer is wrapped as what it is: a region of its parent. All wraps of one memory object, of its parent
// and of its parts share one state: views of one exclude views of the other, and each is ordered after the
// other's work. ONEBUF_INVALID_ARGUMENT for another number of bytes; ONEBUF_BUSY while its owner has it mapped.
// Not for what a buffer of the same hub was made of.
onebuf_status onebuf_buffer_wrap(onebuf_hub hub,
                                 void *cl_mem,
                                 const onebuf_wrap_options *options,
                                 onebuf_buffer *buffer);

// A buffer over shared virtual memory that somebody else allocated in their context: so many bytes from
// `pointer` on, which stay allocated until the buffer is gone. `options` may be NULL.
onebuf_status onebuf_buffer_wrap_svm(onebuf_context context,
                                     void *pointer,
                                     size_t bytes,
                                     const onebuf_wrap_options *options,
                                     onebuf_buffer *buffer);

// A `cl_command_queue` that somebody else made, to be used like one of ours. What its owner enqueues there is
// in order with what we do, and onebuf_queue_fence() covers both.
onebuf_status onebuf_queue_wrap(onebuf_hub hub,
                                void *cl_queue,
                                onebuf_queue *queue);

// A queue of ours at the device where the buffer lives, in its context: for work on this buffer.
onebuf_status onebuf_queue_for(onebuf_buffer buffer, onebuf_queue *queue);

// Whether its memory is somebody else's.
onebuf_status onebuf_buffer_is_foreign(onebuf_buffer buffer, bool *foreign);

// Somebody else's writes to this memory end at that point: whoever uses the buffer next waits for it.
// ONEBUF_BUSY while a view or mapping of it is held, and while its newest contents are elsewhere: see
// onebuf_buffer_hand_to(). A region means the whole buffer, here and below.
onebuf_status onebuf_buffer_written_until(onebuf_buffer buffer,
                                          onebuf_fence fence);

// The same for somebody else's reads: whoever writes the buffer next waits for them.
onebuf_status onebuf_buffer_read_until(onebuf_buffer buffer, onebuf_fence fence);

// Makes the newest contents visible on that queue and orders it after all work on the buffer, for commands
// that its owner will enqueue there by itself. Says by which sync method; `sync_method` may be NULL.
onebuf_status onebuf_buffer_hand_to(onebuf_buffer buffer,
                                    onebuf_queue queue,
                                    onebuf_sync_method *sync_method);

// Gives the buffer up for its `cl_mem` on that device, which is the caller's then: one reference, to be
// released. All work on it is over, the newest contents are in it, and what it lies over stays until the driver
// destroys it; it never returns to a pool. ONEBUF_BUSY, and nothing happened, while anything that was made of
// the buffer is not freed. After any other failure the buffer is gone.
onebuf_status onebuf_buffer_into_cl_mem(onebuf_buffer buffer,
                                        onebuf_device device,
                                        void **cl_mem);

// Events ==========================================================================================
//
// Events of OpenCL go in as fences, and come out of fences. A user event is one that the host completes.

// An event that the host completes. Free it.
typedef struct onebuf_user_event {
    // Zero names nothing.
    uint64_t id;
} onebuf_user_event;

// A `cl_event` that somebody else made, as a fence: a queue can wait for it, a buffer be told of it. Events
// that the host completes are as good. One reference is held until the fence, and what waits for it, is gone.
onebuf_status onebuf_fence_wrap(onebuf_hub hub,
                                void *cl_event,
                                onebuf_fence *fence);

// The `cl_event`s that must complete for the fence to be reached, for code that enqueues by itself: as many
// as `count` says then, none when it is known to have been reached. Each has a reference that is the caller's to
// release. There is room for `capacity` of them: ONEBUF_INVALID_ARGUMENT, and none is given, where more is
// needed. Zero, and NULL for `cl_events`, only asks how many there are: never more later. A fence of a queue
// has one at most. ONEBUF_UNSUPPORTED for work on a device that has no such events.
onebuf_status onebuf_fence_cl_events(onebuf_fence fence,
                                     void **cl_events,
                                     size_t capacity,
                                     size_t *count);

// A new event of the context. ONEBUF_UNSUPPORTED where the driver cannot wait for the host.
onebuf_status onebuf_user_event_create(onebuf_context context, onebuf_user_event *event);

// Lets what waits for it run. Again, it does nothing.
onebuf_status onebuf_user_event_complete(onebuf_user_event event);

// The point that is reached when it is completed.
onebuf_status onebuf_user_event_fence(onebuf_user_event event, onebuf_fence *fence);

// The `cl_event`, for the owner's commands to wait for. Valid until the event is freed; no reference is taken.
onebuf_status onebuf_user_event_native(onebuf_user_event event,
                                       void **native);

// Frees a user event. One that was not completed fails, and with it what waits for it: nothing waits for ever.
onebuf_status onebuf_user_event_free(onebuf_user_event event);

// The bridge ======================================================================================
//
// Copies between any two buffers by the shortest way there is: they may belong to different devices,
// platforms, contexts, even hubs, and both may be regions. The source comes first. What was asked for is counted
// as asked.

// How a copy went. Set `size`; the rest is filled in.
typedef struct onebuf_crossing {
    // `sizeof(onebuf_crossing)`.
    size_t size;
    // How many bytes were copied: none where they were at their place already.
    uint64_t bytes;
    // In how many chunks they went through host memory; zero where it was one copy.
    uint64_t chunks;
    // How many bytes hand-overs of the two buffers copied meanwhile, though nobody had asked.
    uint64_t implied_bytes;
    // By which way the bytes went.
    onebuf_route way;
} onebuf_crossing;

// Copies so many bytes, and waits until they are there. Source and target may be one buffer, and may overlap:
// the target then holds what the source held. `crossing` may be NULL.
onebuf_status onebuf_bridge_copy(onebuf_buffer from,
                                 size_t from_offset,
                                 onebuf_buffer to,
                                 size_t to_offset,
                                 size_t bytes,
                                 onebuf_crossing *crossing);

// Starts the same, and gives the fence that tells when the bytes are there. Neither buffer can be used before
// its turn: views and mappings taken meanwhile come after the copy. It is done before this returns where only
// the host has one end, and where the buffers belong to two hubs. `crossing` may be NULL.
onebuf_status onebuf_bridge_copy_async(onebuf_buffer from,
                                       size_t from_offset,
                                       onebuf_buffer to,
                                       size_t to_offset,
                                       size_t bytes,
                                       onebuf_crossing *crossing,
                                       onebuf_fence *fence);

// Copies so many bytes of the caller's into a buffer. `crossing` may be NULL.
onebuf_status onebuf_bridge_from_host(const void *data,
                                      onebuf_buffer to,
                                      size_t to_offset,
                                      size_t bytes,
                                      onebuf_crossing *crossing);

// Copies so many bytes of a buffer to the caller. `crossing` may be NULL.
onebuf_status onebuf_bridge_to_host(onebuf_buffer from,
                                    size_t from_offset,
                                    void *data,
                                    size_t bytes,
                                    onebuf_crossing *crossing);

// Memory by descriptors ===========================================================================
//
// A buffer's memory for another API, library or process, and theirs as a buffer: by file descriptors. Who owns a
// descriptor is simple: what onebuf gives is the caller's, to be closed once; what onebuf is given stays the
// caller's, whether the call succeeds or not.

// What sort of descriptor memory is passed on as.
typedef uint32_t onebuf_fd_kind;
// One that only drivers of the chip's own vendor understand.
#define ONEBUF_FD_OPAQUE 0
// A dma-buf, which cameras, codecs and displays understand too.
#define ONEBUF_FD_DMA_BUF 1

// A buffer's memory as another program imports it.
typedef struct onebuf_exported {
    // The caller's, to be closed once; -1 when the call failed. It keeps the memory, whatever becomes of the
    // buffer.
    int32_t fd;
    // What sort of descriptor it is.
    onebuf_fd_kind kind;
    // Where in the allocation the buffer begins, in bytes.
    size_t offset;
    // How many bytes the buffer has.
    size_t bytes;
    // How large the allocation is: most APIs import it whole.
    size_t allocation_bytes;
} onebuf_exported;

// What memory to import.
typedef struct onebuf_import_options {
    // `sizeof(onebuf_import_options)`.
    size_t size;
    // The descriptor. It stays the caller's: onebuf works with a duplicate.
    int32_t fd;
    // What sort of descriptor it is.
    onebuf_fd_kind kind;
    // How large the allocation behind it is.
    size_t allocation_bytes;
    // Where in it the buffer begins.
    size_t offset;
    // How many bytes the buffer has; zero: all from `offset` on.
    size_t bytes;
    // What kernels do with it.
    onebuf_access access;
    // What to do about implied copies; of this and the hub's choice the stricter holds.
    onebuf_copies copies;
    // Who else sees it: by the same descriptor where they import such from that chip, else by copies.
    const onebuf_device *devices;
    // How many devices.
    size_t device_count;
} onebuf_import_options;

// A descriptor of the buffer's memory. The newest contents are in it then, and nothing of onebuf's is at work on it;
// what others do with it afterwards they order themselves. They can write the memory for good: from then on maps and host
// functions as kernels are ONEBUF_UNSUPPORTED, as for a buffer that is offered. ONEBUF_UNSUPPORTED unless the buffer was made with
// ONEBUF_STRATEGY_EXPORTABLE on a device that exports such, and for a region; ONEBUF_BUSY while a view is held.
onebuf_status onebuf_buffer_export(onebuf_buffer buffer,
                                   onebuf_fd_kind kind,
                                   onebuf_exported *exported);

// Memory that another program exported, as a buffer on a device. Order their work and onebuf's by other means.
//
// The caller promises that the descriptor refers to memory of `allocation_bytes` bytes which the device's own driver, or one
// that it is specified to import from, exported, or to a dma-buf, and that no process which the caller does not trust was able
// to write the file behind it before. No driver can tell a forged descriptor: lavapipe believes a header in the file, and a
// forged one gives kernels any memory of the process. Kernels stay in bounds whatever they read, since others may write the
// memory at any time.
//
// ONEBUF_UNSUPPORTED where the device does not import such descriptors; ONEBUF_INVALID_ARGUMENT for one that is not
// open, that is a socket, a pipe or the like, or a file shorter than the allocation, and for a range that does not lie inside;
// ONEBUF_DRIVER where the driver finds it to be something else.
onebuf_status onebuf_buffer_import(onebuf_hub hub,
                                   onebuf_device device,
                                   const onebuf_import_options *options,
                                   onebuf_buffer *buffer);

// Libraries =======================================================================================
//
// Matrix products, Fourier transforms and linear systems on buffers, in place: by cuBLAS, cuFFT and cuSOLVER on a CUDA
// queue, by rocBLAS, rocFFT and rocSOLVER on a HIP queue, by the CPU on the host's. Each call takes its views by
// itself, as a launch does, and enqueues; on the host it computes. Matrices are column-major: element (i, j) lies at
// `i + j * ld`. ONEBUF_UNAVAILABLE where the library is not installed; ONEBUF_INVALID_ARGUMENT for sizes that the
// buffers do not hold, before anything is done.

// What matrices and signals are made of.
typedef uint32_t onebuf_number;
// `float`.
#define ONEBUF_F32 0
// `double`.
#define ONEBUF_F64 1
// Two `float`s, real and imaginary.
#define ONEBUF_C32 2
// Two `double`s, real and imaginary.
#define ONEBUF_C64 3

// What is done to a matrix before it is used.
typedef uint32_t onebuf_op;
// Nothing.
#define ONEBUF_OP_NONE 0
// It is transposed.
#define ONEBUF_OP_TRANSPOSE 1
// It is transposed and conjugated.
#define ONEBUF_OP_ADJOINT 2

// A product: `C = alpha op(A) op(B) + beta C`, where op(A) is m x k, op(B) is k x n, C is m x n.
typedef struct onebuf_gemm_options {
    // `sizeof(onebuf_gemm_options)`.
    size_t size;
    // What the matrices are made of.
    onebuf_number number;
    // What is done to A.
    onebuf_op op_a;
    // What is done to B.
    onebuf_op op_b;
    // Zero.
    uint32_t reserved;
    // Rows of C.
    size_t m;
    // Columns of C.
    size_t n;
    // Columns of op(A).
    size_t k;
    // Leading dimension of A; zero: its rows.
    size_t lda;
    // Leading dimension of B; zero: its rows.
    size_t ldb;
    // Leading dimension of C; zero: its rows.
    size_t ldc;
    // Two numbers, real and imaginary; NULL: one.
    const double *alpha;
    // Two numbers, real and imaginary; NULL: zero, and what C holds does not matter.
    const double *beta;
} onebuf_gemm_options;

// Transforms of complex signals that lie one behind the other. Not divided by the length.
typedef struct onebuf_fft_options {
    // `sizeof(onebuf_fft_options)`.
    size_t size;
    // ONEBUF_C32 or ONEBUF_C64.
    onebuf_number number;
    // Not zero: by exp(+2 pi i j k / n), the way back.
    uint32_t inverse;
    // Samples of each signal.
    size_t len;
    // How many signals; zero: one.
    size_t batch;
} onebuf_fft_options;

// The row exchanges of a factored matrix. Free it.
typedef struct onebuf_lu {
    // Zero names nothing.
    uint64_t id;
} onebuf_lu;

// Multiplies on the queue. A and B may be one buffer; C is another.
onebuf_status onebuf_gemm(onebuf_queue queue,
                          const onebuf_gemm_options *options,
                          onebuf_buffer a,
                          onebuf_buffer b,
                          onebuf_buffer c);

// Transforms `from` into `to` on the queue; in place where `to` is the null handle, or the same.
onebuf_status onebuf_fft(onebuf_queue queue,
                         const onebuf_fft_options *options,
                         onebuf_buffer from,
                         onebuf_buffer to);

// Replaces the n x n matrix in `a` by its factors, and gives the row exchanges. `ld` is the leading dimension, or zero
// for n. Waits for the device. ONEBUF_INVALID_ARGUMENT for a singular matrix, whose contents are lost.
onebuf_status onebuf_lu_factor(onebuf_queue queue,
                               onebuf_number number,
                               size_t n,
                               size_t ld,
                               onebuf_buffer a,
                               onebuf_lu *lu);

// Replaces the right-hand sides in `b`, so many columns, by the solutions of `op(A) X = B`; `a` holds the factors.
// `ldb` is the leading dimension of `b`, or zero for its rows.
onebuf_status onebuf_lu_solve(onebuf_queue queue,
                              onebuf_lu lu,
                              onebuf_op op,
                              onebuf_buffer a,
                              size_t columns,
                              size_t ldb,
                              onebuf_buffer b);

// Writes the inverse of the matrix whose factors `a` holds into `inverse`, column by column without gaps.
onebuf_status onebuf_lu_invert(onebuf_queue queue,
                               onebuf_lu lu,
                               onebuf_buffer a,
                               onebuf_buffer inverse);

// Frees the row exchanges. The factors are the buffer's.
onebuf_status onebuf_lu_free(onebuf_lu lu);

// Standing maps ===================================================================================
//
// For programs that keep one pointer to a buffer's memory and say whose turn it is: the host's, or the
// kernels'. A buffer has one standing map at most, whoever asks for it, and asking again costs no driver
// call. It ends when the kernels' turn comes, or with the buffer.

// Gives the host its turn: maps the buffer, for reading with ONEBUF_READ, else for reading and writing,
// unless it is mapped so already. Waits for the work before. `data` is valid, for as many bytes as the buffer
// has, until onebuf_buffer_to_device() or the buffer's end; kernels that would use it are ONEBUF_BUSY
// meanwhile.
onebuf_status onebuf_buffer_to_host(onebuf_buffer buffer,
                                    onebuf_access access,
                                    void **data);

// Gives the kernels their turn: ends the standing map, where there is one. Fails only where the host worked
// on a copy that could not be written back; the map is over then too.
onebuf_status onebuf_buffer_to_device(onebuf_buffer buffer);

// Writes so many bytes from `offset` on: through the standing map, as the caller's own stores would, and as
// onebuf_buffer_write() where there is none.
onebuf_status onebuf_buffer_store(onebuf_buffer buffer,
                                  size_t offset,
                                  const void *data,
                                  size_t bytes);

// Reads so many bytes from `offset` on: through the standing map, as the caller's own loads would, and as
// onebuf_buffer_read() where there is none.
onebuf_status onebuf_buffer_load(onebuf_buffer buffer,
                                 size_t offset,
                                 void *data,
                                 size_t bytes);

// Waits until the host may read the buffer (ONEBUF_READ), or write it: until kernels no longer write, or no
// longer use it. ONEBUF_TIMEOUT when that takes longer; the work goes on.
onebuf_status onebuf_buffer_wait_ns(onebuf_buffer buffer,
                                    onebuf_access access,
                                    uint64_t timeout_ns);

// Owners ==========================================================================================
//
// For languages whose variables are copied and ended without a word, such as Fortran: an object may have
// owners, named by their addresses, and is freed with the last of them. An address owns one object at most,
// whatever bits lie there: a copy that was not announced owns nothing, and frees nothing.

// Makes an address the owner of an object: the `id` of a buffer's, fence's, program's or kernel's handle; of
// nothing for zero. What it owned before loses an owner, and is freed when that was the last. The address is
// never looked at. An object that nobody ever owned is the caller's to free.
onebuf_status onebuf_own(const void *owner,
                         uint64_t id);

// The variable at an address ends, or is about to be assigned: it owns nothing from now on. The object whose
// last owner it was goes with the thread's next call of these two: the right side of `b = b` is still needed.
onebuf_status onebuf_disown(const void *owner);

// Peers ===========================================================================================
//
// Two processes on one buffer: a peer is the other one, at either end of an offer. The two take turns: a hand-over waits for all work on the buffer and
// lets the other begin; out of turn every use of the buffer is ONEBUF_BUSY. However a peer ends, whoever waits for it
// has ONEBUF_PEER_LOST at once: the owner has its turn again, and its buffer lives on.

// The process at the other end of an offered buffer. Free it.
typedef struct onebuf_peer {
    // Zero names nothing.
    uint64_t id;
} onebuf_peer;

// How to attach. Zeroes are the defaults, but for `name`.
typedef struct onebuf_attach_options {
    // `sizeof(onebuf_attach_options)`.
    size_t size;
    // The name, or path, that the owner offers it by.
    const char *name;
    // How many bytes an element has: both sides say the same number. Zero: 1.
    size_t element_bytes;
    // Other users who are trusted as owners; one's own always is.
    const uint32_t *uids;
    // How many users.
    size_t uid_count;
    // How long the owner may take to give the buffer, in milliseconds; zero: 10 seconds.
    uint64_t timeout_ms;
} onebuf_attach_options;

// Who it is, and how far the two are.
typedef struct onebuf_peer_info {
    // `sizeof(onebuf_peer_info)`.
    size_t size;
    // Its process id; zero where this process cannot see it.
    uint32_t pid;
    // Its user.
    uint32_t uid;
    // The number of this visit among all of its offer, the same at both ends.
    uint64_t session;
    // How often the buffer was handed over, either way.
    uint64_t round;
    // Not zero: this process may use the buffer now.
    uint32_t our_turn;
    // Not zero: the other said goodbye, which one that died does not.
    uint32_t left;
} onebuf_peer_info;

// Attaches to a buffer that another process offers. It is the owner's turn then: onebuf_peer_wait() for one's own.
// `buffer_options` say who sees it here and how; they may be NULL, and bring neither memory nor contents. Memory of a device
// is imported only on a device that they name, and not by a driver that believes what the owner's file says (those that run on
// the CPU). Both handles are to be freed; without the peer's the buffer is ONEBUF_PEER_LOST.
//
// ONEBUF_UNAVAILABLE when nobody offers it; ONEBUF_TIMEOUT when the owner does not answer; ONEBUF_PEER_REFUSED for one
// of another user, or whose words or memory fail a check; ONEBUF_INVALID_ARGUMENT for elements of another size;
// ONEBUF_UNSUPPORTED for memory of a device where no device that takes it was named.
onebuf_status onebuf_peer_attach(onebuf_hub hub,
                                 const onebuf_attach_options *options,
                                 const onebuf_buffer_options *buffer_options,
                                 onebuf_peer *peer,
                                 onebuf_buffer *buffer);

// Who it is, and how far the two are. ONEBUF_BUSY while another thread waits for it.
onebuf_status onebuf_peer_query(onebuf_peer peer, onebuf_peer_info *info);

// Waits for all work on the buffer, and gives the other process its turn. ONEBUF_PEER_LOST when it is gone: the buffer
// stays this process's. ONEBUF_BUSY while a view is held, or out of turn.
onebuf_status onebuf_peer_hand_over(onebuf_peer peer);

// Waits until the other process hands the buffer over. ONEBUF_TIMEOUT when it takes longer: wait again, or leave.
// ONEBUF_PEER_LOST as soon as it is gone: an owner has its buffer again, with what the peer had written until then; the
// turn of an owner that is gone falls to nobody.
onebuf_status onebuf_peer_wait(onebuf_peer peer,
                               uint64_t timeout_ms);

// Whether the other process is still there, in this one's turn: ONEBUF_PEER_LOST when it is not.
onebuf_status onebuf_peer_check(onebuf_peer peer);

// Ends the visit in good order: an owner's buffer is its own again; an attached one is ONEBUF_PEER_LOST.
onebuf_status onebuf_peer_free(onebuf_peer peer);

// Offers ==========================================================================================
//
// A buffer for another process of the same user: the owner offers it under a name, the other attaches to it
// (onebuf_peer_attach()) and has the same memory, without a copy. Fences do not cross processes, so the two take
// turns, as peers do. From the offer on the buffer cannot be mapped, nor used by native kernels:
// another process can write it at any time.

// An offer. Free it.
typedef struct onebuf_offer {
    // Zero names nothing.
    uint64_t id;
} onebuf_offer;

// How to offer. Zeroes are the defaults, but for `name`.
typedef struct onebuf_offer_options {
    // `sizeof(onebuf_offer_options)`.
    size_t size;
    // By what the others find it: a name, or the path of a socket in a folder that only its user may enter.
    const char *name;
    // How many bytes an element has: both sides say the same number. Zero: 1.
    size_t element_bytes;
    // Other users whose processes may attach; those of one's own always may.
    const uint32_t *uids;
    // How many users.
    size_t uid_count;
    // How long a peer that has come may take for its part of the handshake, in milliseconds; zero: 5 seconds.
    uint64_t greeting_ms;
} onebuf_offer_options;

// Offers a buffer. ONEBUF_UNSUPPORTED unless it lies in host pages of its own, or in a device's memory that can be
// exported; ONEBUF_BUSY while a view is held, while it is offered already, or while the name is another owner's;
// ONEBUF_CACHE for a folder that others can enter. The buffer may be freed: it lives as long as the offer.
onebuf_status onebuf_offer_open(onebuf_buffer buffer,
                                const onebuf_offer_options *options,
                                onebuf_offer *offer);

// The socket's path, by which processes with another notion of names find it.
onebuf_status onebuf_offer_path(onebuf_offer offer, onebuf_string *text);

// Waits for the next peer, checks it, and gives it the memory; it is this process's turn then. One peer at a time:
// ONEBUF_BUSY while one is here. ONEBUF_TIMEOUT when no peer has come and done its part of the
// handshake; ONEBUF_PEER_REFUSED for one of another user, or that says nothing; ONEBUF_INVALID_ARGUMENT for one with other elements;
// ONEBUF_PEER_LOST for one that went away. After any of these the next one may be waited for.
onebuf_status onebuf_offer_accept(onebuf_offer offer,
                                  uint64_t timeout_ms,
                                  onebuf_peer *peer);

// Frees an offer: nobody can attach any more. A peer that is here stays until its handle is freed.
onebuf_status onebuf_offer_free(onebuf_offer offer);

// Sources =========================================================================================
//
// Where a pipeline's frames come from, where that is no function of the caller's: memory, files, a signal that is
// computed, the network. A pipeline that is given one (`onebuf_pipeline_options.feed`) has it until it is freed; the handle
// is still there to ask it, and is freed on its own.

// A source. Free it.
typedef struct onebuf_source {
    // Zero names nothing.
    uint64_t id;
} onebuf_source;
// So many times that there is no end.
#define ONEBUF_FOREVER UINT64_MAX

// One plane wave.
typedef struct onebuf_wave {
    // Its amplitude.
    double level;
    // Turns per sample, from -0.5 to 0.5.
    double frequency;
    // Where it comes from: degrees from straight ahead, from -90 to 90.
    double direction;
} onebuf_wave;

// A signal that is computed: plane waves and noise on a line of sensors half a wavelength apart. Zeroes are the
// defaults, but for `channels` and `samples`. A frame is channels of samples, one channel behind the other, each
// sample two floats.
typedef struct onebuf_synthetic_options {
    // `sizeof(onebuf_synthetic_options)`.
    size_t size;
    // How many sensors.
    size_t channels;
    // How many samples of each.
    size_t samples;
    // The waves; NULL: three, from the left, from ahead and from the right.
    const onebuf_wave *waves;
    // How many waves.
    size_t wave_count;
    // How large the noise is, evenly between this and its negative in both parts; zero: 0.1, negative: none.
    double noise;
    // For other noise; zero: 1.
    uint64_t seed;
    // How many frames; zero: without an end.
    uint64_t frames;
} onebuf_synthetic_options;

// Frames in the packets of onebuf_sink_udp() and `onebuf send`. Zeroes are the defaults, but for `address`.
typedef struct onebuf_udp_source_options {
    // `sizeof(onebuf_udp_source_options)`.
    size_t size;
    // Where to listen, such as `0.0.0.0:5000`; with port 0 the system chooses one.
    const char *address;
    // Not zero: only the stream of this number, and not the first that comes.
    uint32_t one_stream;
    // That number.
    uint32_t stream;
    // How many frames may be open at a time; zero: 2.
    size_t window;
    // For how long nothing of use may come before that is ONEBUF_TIMEOUT; zero: 10 seconds.
    uint64_t timeout_ms;
    // Room for packets that wait, which the system may have a limit for; zero: 32 MiB.
    size_t receive_buffer_bytes;
    // For how long nothing of use may come from a stream's sender before another stream takes over; zero: 1 second.
    uint64_t takeover_ms;
} onebuf_udp_source_options;

// Frames as they lie in memory, over one connection. Zeroes are the defaults, but for `address`.
typedef struct onebuf_tcp_source_options {
    // `sizeof(onebuf_tcp_source_options)`.
    size_t size;
    // Where the sender is, such as `192.168.0.7:5000`; or where to listen for it.
    const char *address;
    // Not zero: the sender connects, once the pipeline runs.
    uint32_t listen;
    // For connecting, and for every silence afterwards; zero: 10 seconds.
    uint64_t timeout_ms;
    // How long a frame may take from its first byte to its last, however steadily bytes come, before that is ONEBUF_TIMEOUT;
    // zero: 60 seconds, and a second more for every megabyte of the frame.
    uint64_t frame_limit_ms;
} onebuf_tcp_source_options;

// What has come over UDP, and what has not.
typedef struct onebuf_udp_counts {
    // `sizeof(onebuf_udp_counts)`: set it before the call.
    size_t size;
    // Frames that came whole.
    uint64_t frames;
    // Frames of which something is missing: they are not passed on.
    uint64_t incomplete_frames;
    // Packets that came and were of use.
    uint64_t packets;
    // Packets that never came, or too late.
    uint64_t lost_packets;
    // Packets that came when their frame was over.
    uint64_t late_packets;
    // Packets that had come before.
    uint64_t duplicate_packets;
    // Packets of other streams or other senders than the one that is received.
    uint64_t stray_packets;
    // Packets that are not ours, or do not fit the frames.
    uint64_t malformed_packets;
    // Packets that were copied once, because they did not come where they were expected.
    uint64_t moved_packets;
    // Packets that the system had no room for.
    uint64_t kernel_drops;
    // The room that the system gives to packets that wait.
    uint64_t receive_buffer_bytes;
    // Streams that took over from one whose sender had gone quiet.
    uint64_t takeovers;
} onebuf_udp_counts;

// Frames that lie one behind the other in the caller's memory, so many times (ONEBUF_FOREVER: without an end). The memory
// stays, and nobody writes it, until the source and the pipeline that has it are freed.
onebuf_status onebuf_source_memory(const void *data,
                                   size_t bytes,
                                   uint64_t times,
                                   onebuf_source *source);

// The frames of a file, as they lie in memory, so many times (ONEBUF_FOREVER: without an end).
onebuf_status onebuf_source_file(const char *path, uint64_t times, onebuf_source *source);

// The frames of a NumPy file, whose first axis counts them, or all of it is one; so many times (ONEBUF_FOREVER: without an
// end). `element` is what NumPy calls its elements: `<f4` are floats, `<c8` pairs of them. A file that has others, or is not
// whole, is ONEBUF_INVALID_ARGUMENT.
onebuf_status onebuf_source_npy(const char *path,
                                const char *element,
                                uint64_t times,
                                onebuf_source *source);

// A signal that is computed: the same in every run.
onebuf_status onebuf_source_synthetic(const onebuf_synthetic_options *options,
                                      onebuf_source *source);

// Frames in packets, over UDP: straight into the slots where the host sees those. A frame that lacks a packet is counted, and not passed
// on. One stream is received at a time; one that goes quiet without an end is replaced by the next that sends (`takeover_ms`).
onebuf_status onebuf_source_udp(const onebuf_udp_source_options *options,
                                onebuf_source *source);

// Frames as they lie in memory, one behind the other, over TCP. The sender's closing is the end; within a frame it is
// ONEBUF_PEER_LOST.
onebuf_status onebuf_source_tcp(const onebuf_tcp_source_options *options,
                                onebuf_source *source);

// Where a source of the network listens, or is connected from: `HOST:PORT`. ONEBUF_UNSUPPORTED for others.
onebuf_status onebuf_source_address(onebuf_source source,
                                    onebuf_string *text);

// What a UDP source has counted, from any thread, also while a pipeline runs. ONEBUF_UNSUPPORTED for others.
onebuf_status onebuf_source_udp_counts(onebuf_source source,
                                       onebuf_udp_counts *counts);

// Frees a source. A pipeline that has it keeps what it needs.
onebuf_status onebuf_source_free(onebuf_source source);

// Sinks ===========================================================================================
//
// Where a pipeline's frames go, where that is no function of the caller's: memory, files, the network. A pipeline that is
// given one (`onebuf_pipeline_options.drain`) has it until it is freed; the handle is still there to ask it, and is freed on its
// own.

// A sink. Free it.
typedef struct onebuf_sink {
    // Zero names nothing.
    uint64_t id;
} onebuf_sink;

// Frames in packets, for onebuf_source_udp(). Zeroes are the defaults, but for `address`.
typedef struct onebuf_udp_sink_options {
    // `sizeof(onebuf_udp_sink_options)`.
    size_t size;
    // Where to, such as `127.0.0.1:5000`.
    const char *address;
    // Not zero: the stream has the number `stream`, and not some number.
    uint32_t one_stream;
    // That number.
    uint32_t stream;
    // How many bytes of a frame a packet carries at most; zero: as many as fit the way there, and no more than 8192.
    size_t payload_bytes;
    // So many bytes of frames per second and no more, evenly; zero: as fast as it goes.
    double bytes_per_s;
    // On purpose: which part of the packets is lost, from 0 to 1.
    double lose;
    // On purpose: which part of them comes twice, from 0 to 1.
    double duplicate;
    // On purpose: by how many packets of its frame one may be late.
    size_t reorder;
    // For other bad luck; zero: 1.
    uint64_t seed;
} onebuf_udp_sink_options;

// What a UDP sink has sent.
typedef struct onebuf_udp_sent {
    // `sizeof(onebuf_udp_sent)`: set it before the call.
    size_t size;
    // Frames.
    uint64_t frames;
    // Packets.
    uint64_t packets;
    // Bytes of frames, without the packets' heads.
    uint64_t bytes;
    // Packets that were lost on purpose.
    uint64_t lost_packets;
    // Packets that were sent twice on purpose.
    uint64_t duplicate_packets;
    // How often the other end said that nobody listens there.
    uint64_t refused;
} onebuf_udp_sent;

// Frames go one behind the other into the caller's memory, which stays, and is nobody else's, until the sink and the pipeline that
// has it are freed. A frame that finds no room stops the pipeline with ONEBUF_INVALID_ARGUMENT.
onebuf_status onebuf_sink_memory(void *data,
                                 size_t bytes,
                                 onebuf_sink *sink);

// Frames go one behind the other into a file, as they lie in memory. A file that there is is emptied.
onebuf_status onebuf_sink_file(const char *path,
                               onebuf_sink *sink);

// Frames of this shape go into a NumPy file whose first axis counts them; it is whole after each of them. `element` is what NumPy
// calls their elements: `<f4` are floats, `<c8` pairs of them.
onebuf_status onebuf_sink_npy(const char *path,
                              const char *element,
                              const size_t *shape,
                              size_t axis_count,
                              onebuf_sink *sink);

// Frames go out in packets, over UDP, straight out of the slots where the host sees those. onebuf_sink_finish() says that
// there are no more; so does the end of the sink and the pipeline that has it.
onebuf_status onebuf_sink_udp(const onebuf_udp_sink_options *options,
                              onebuf_sink *sink);

// Says that there are no more frames, after a run: the receiver's pipeline ends. A frame after that begins a new stream.
// ONEBUF_UNSUPPORTED for sinks that need no such word.
onebuf_status onebuf_sink_finish(onebuf_sink sink);

// What a UDP sink has sent, from any thread; it waits for nobody. ONEBUF_UNSUPPORTED for others.
onebuf_status onebuf_sink_udp_sent(onebuf_sink sink, onebuf_udp_sent *sent);

// Frees a sink. A pipeline that has it keeps what it needs.
onebuf_status onebuf_sink_free(onebuf_sink sink);

// Frames and callbacks ============================================================================
//
// What a pipeline gives to functions of the caller, and what those give back.
//
// Each callback returns a status: another than ONEBUF_OK stops the pipeline, and onebuf_pipeline_run() returns it with
// the message of the thread that failed (see onebuf_set_error_message()), and with where it was. They may call
// everything of onebuf's but run the same pipeline; they must not throw, and free nothing that they are given.

// What a source did with a slot.
typedef uint32_t onebuf_filled;
// It holds the next frame.
#define ONEBUF_FILLED_FRAME 0
// Something of the frame is missing: it is counted, and not passed on.
#define ONEBUF_FILLED_INCOMPLETE 1
// Nothing came for a while: the source is asked again, unless the pipeline is to stop.
#define ONEBUF_FILLED_IDLE 2
// There are no more.
#define ONEBUF_FILLED_END 3

// A frame, as a callback gets it. Valid during the call.
typedef struct onebuf_frame {
    // Its number, from zero. Those of frames that were dropped or incomplete are left out.
    uint64_t number;
    // The slot's buffers. The pipeline owns them, and no other stage uses them now.
    const onebuf_buffer *buffers;
    // How many buffers.
    size_t buffer_count;
    // The stage's queue, the pipeline's; null for sources and sinks.
    onebuf_queue queue;
} onebuf_frame;

// Fills a slot with the frame of this number, and says what it did; it holds a frame when nothing is said.
typedef onebuf_status (*onebuf_source_function)(void *user,
                                                const onebuf_frame *frame,
                                                onebuf_filled *filled);

// Enqueues one frame's work on its queue, and waits for nothing; or takes a result, as a sink.
typedef onebuf_status (*onebuf_frame_function)(void *user, const onebuf_frame *frame);

// Pipelines =======================================================================================
//
// Frames that come without pause: a source fills a slot, stages enqueue work on it, a sink takes the result, and the
// slots go round. A slot is one buffer or several, made once. The source and each stage have a thread of their own; the
// sink is called on the thread that runs the pipeline. Only a caller that needs the bytes waits for a device: a buffer's
// own fences order the stages' queues.

// A pipeline. Free it.
typedef struct onebuf_pipeline {
    // Zero names nothing.
    uint64_t id;
} onebuf_pipeline;

// What to do when the source is faster than the rest.
typedef uint32_t onebuf_when_full;
// The source waits.
#define ONEBUF_WHEN_FULL_BLOCK 0
// The frame that has waited longest before the first stage is dropped, and counted.
#define ONEBUF_WHEN_FULL_DROP_OLDEST 1
// The frame that has just come is dropped, and counted.
#define ONEBUF_WHEN_FULL_DROP_NEWEST 2

// A buffer that each slot has.
typedef struct onebuf_slot_buffer {
    // How many bytes.
    size_t bytes;
    // What it shall be: with all devices of the stages that use it. NULL: the host alone uses it. It brings neither
    // memory nor contents.
    const onebuf_buffer_options *options;
} onebuf_slot_buffer;

// A stage.
typedef struct onebuf_stage {
    // Its name, for reports and messages.
    const char *name;
    // The device that its queue is of.
    onebuf_device device;
    // What it does.
    onebuf_frame_function run;
    // What `run` is given first.
    void *user;
    // Null, or all kernels that it launches, where it does nothing else with its queue. Beside a stage of CUDA or HIP on the
    // same chip, kernels of OpenCL then run in that stage's queue, where the doctor has proven that they can: nothing is
    // handed over. The slots' buffers have to be shared with both devices. `onebuf_pipeline_json` tells what became of it.
    const onebuf_kernel *kernels;
    // How many kernels.
    size_t kernel_count;
} onebuf_stage;

// What a pipeline shall be. Zeroes are the defaults, but for `depth`, `buffers`, `source` or `feed`, and `sink` or
// `drain`. Pointers need to be valid during the call only, `user`s as long as the pipeline runs.
typedef struct onebuf_pipeline_options {
    // `sizeof(onebuf_pipeline_options)`.
    size_t size;
    // How many slots go round; two are double buffering.
    size_t depth;
    // What each slot has.
    const onebuf_slot_buffer *buffers;
    // How many buffers.
    size_t buffer_count;
    // Where frames come from.
    onebuf_source_function source;
    // What `source` is given first.
    void *source_user;
    // What is done with them, in this order.
    const onebuf_stage *stages;
    // How many stages; none is fine.
    size_t stage_count;
    // Where they go, in their order.
    onebuf_frame_function sink;
    // What `sink` is given first.
    void *sink_user;
    // How many frames a stage enqueues before it passes them on; zero: as was measured to be best here.
    size_t batch;
    // What to do when the source is faster than the rest.
    onebuf_when_full when_full;
    // Not zero: everything runs on the thread that runs the pipeline. A pipeline with a stage on a device whose driver is
    // known to crash when two threads call it at once does so by itself, with a warning in the log.
    uint32_t one_thread;
    // Where frames come from, instead of `source`; null: from there.
    onebuf_source feed;
    // Which buffer of a slot it fills: in place where the host sees that, else by one upload.
    size_t feed_buffer;
    // Where they go, instead of `sink`; null: there.
    onebuf_sink drain;
    // Which buffer of a slot it takes: in place where the host sees that, else by one download.
    size_t drain_buffer;
    // Not zero: every stage's kernels run on its own device, whatever is proven.
    uint32_t no_graft;
    // Ignored: programs of an earlier version have undefined bytes here, which their `size` covers.
    uint32_t reserved;
    // Not zero: each part has a thread of its own, also where a stage's driver is known to crash then. `one_thread` is
    // stronger.
    uint32_t threads;
} onebuf_pipeline_options;

// How a pipeline does, or did. Times are in nanoseconds; those of a pipeline that had no frame yet are zero.
typedef struct onebuf_pipeline_report {
    // `sizeof(onebuf_pipeline_report)`.
    size_t size;
    // Frames that came out at the sink.
    uint64_t frames;
    // Frames that were dropped because the rest was slower than the source.
    uint64_t dropped;
    // Frames that the source could not complete; they were not passed on.
    uint64_t incomplete;
    // Frames that are on their way.
    uint64_t on_the_way;
    // How long it has been running.
    uint64_t elapsed_ns;
    // Half of the frames took no longer from the source's having filled them to the sink's being done.
    uint64_t latency_p50_ns;
    // The same for 99 of 100.
    uint64_t latency_p99_ns;
    // Not zero: everything ran on one thread, because that was asked for or a stage's driver does not survive two.
    uint32_t one_thread;
} onebuf_pipeline_report;

// Opens the stages' queues and makes the slots. ONEBUF_INVALID_ARGUMENT without a slot, or for a batch that the ring has
// no room for.
onebuf_status onebuf_pipeline_create(onebuf_hub hub,
                                     const onebuf_pipeline_options *options,
                                     onebuf_pipeline *pipeline);

// Runs until the source ends, somebody stops it, or something fails; what is on its way then comes out first, unless
// something failed. It may be run again: the slots stay. ONEBUF_BUSY while it runs. `report` may be NULL; it is written
// after a failure, too.
onebuf_status onebuf_pipeline_run(onebuf_pipeline pipeline,
                                  onebuf_pipeline_report *report);

// Asks the pipeline that runs to end, from any thread: the source is not asked again, and what is on its way comes out.
onebuf_status onebuf_pipeline_stop(onebuf_pipeline pipeline);

// How it does, from any thread, also while it runs.
onebuf_status onebuf_pipeline_get_report(onebuf_pipeline pipeline, onebuf_pipeline_report *report);

// The same with each stage's own times, as JSON.
onebuf_status onebuf_pipeline_json(onebuf_pipeline pipeline, onebuf_string *json);

// Frees a pipeline, its queues and its slots. One that runs is asked to end, and goes when it has.
onebuf_status onebuf_pipeline_free(onebuf_pipeline pipeline);

// Short hands ======================================================================================

#ifndef __cplusplus
// Initialises a structure that begins with its size.
#define ONEBUF_OPTIONS(type) {.size = sizeof(type)}
#endif

// A value as an argument, from a variable that lives until the launch returns. Whether it is an integer or a
// floating-point number is seen from its type, and checked against the kernel's parameter.
#define ONEBUF_VALUE(variable) onebuf_arg_number(ONEBUF_KIND_OF(variable), &(variable), sizeof(variable))

// What a variable is as a value: ONEBUF_ARG_INTEGER, ONEBUF_ARG_FLOAT, or ONEBUF_ARG_VALUE for structures and
// vectors. Of an enumeration: an integer in C, a value in C++.
#ifdef __cplusplus
extern "C++" {
inline onebuf_arg_kind onebuf_kind_of(const volatile void *) { return ONEBUF_ARG_VALUE; }
#define ONEBUF_KIND(type, kind) inline onebuf_arg_kind onebuf_kind_of(const volatile type *) { return kind; }
ONEBUF_KIND(float, ONEBUF_ARG_FLOAT)
ONEBUF_KIND(double, ONEBUF_ARG_FLOAT)
ONEBUF_KIND(bool, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(signed char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(short, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned short, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(int, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned int, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(long long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned long long, ONEBUF_ARG_INTEGER)
#undef ONEBUF_KIND
}
#define ONEBUF_KIND_OF(variable) onebuf_kind_of(&(variable))
#elif defined __STDC_VERSION__ && __STDC_VERSION__ >= 201112L
#define ONEBUF_KIND_OF(variable) _Generic((variable), \
    float: ONEBUF_ARG_FLOAT, double: ONEBUF_ARG_FLOAT, _Bool: ONEBUF_ARG_INTEGER, \
    char: ONEBUF_ARG_INTEGER, signed char: ONEBUF_ARG_INTEGER, unsigned char: ONEBUF_ARG_INTEGER, \
    short: ONEBUF_ARG_INTEGER, unsigned short: ONEBUF_ARG_INTEGER, int: ONEBUF_ARG_INTEGER, \
    unsigned int: ONEBUF_ARG_INTEGER, long: ONEBUF_ARG_INTEGER, unsigned long: ONEBUF_ARG_INTEGER, \
    long long: ONEBUF_ARG_INTEGER, unsigned long long: ONEBUF_ARG_INTEGER, default: ONEBUF_ARG_VALUE)
#else
#define ONEBUF_KIND_OF(variable) ONEBUF_ARG_VALUE
#endif

// A buffer as an argument: a view of it is taken for the launch.
static inline onebuf_arg onebuf_arg_buffer(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_BUFFER, access, buffer, {0}, NULL, 0};
    return arg;
}

// A buffer as an argument, whose standing map ends first.
static inline onebuf_arg onebuf_arg_turn(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_TURN, access, buffer, {0}, NULL, 0};
    return arg;
}

// A view that the caller holds as an argument.
static inline onebuf_arg onebuf_arg_view(onebuf_view view) {
    onebuf_arg arg = {ONEBUF_ARG_VIEW, 0, {0}, view, NULL, 0};
    return arg;
}

// A value as an argument: so many bytes, which are copied, of a kind that is said.
static inline onebuf_arg onebuf_arg_number(onebuf_arg_kind kind, const void *value, size_t bytes) {
    onebuf_arg arg = {kind, 0, {0}, {0}, value, bytes};
    return arg;
}

// A value as an argument, of which only the number of bytes is checked.
static inline onebuf_arg onebuf_arg_value(const void *value, size_t bytes) {
    return onebuf_arg_number(ONEBUF_ARG_VALUE, value, bytes);
}

// Memory of each work-group as an argument.
static inline onebuf_arg onebuf_arg_local(size_t bytes) {
    onebuf_arg arg = {ONEBUF_ARG_LOCAL, 0, {0}, {0}, NULL, bytes};
    return arg;
}

// So many work-items in one dimension.
static inline onebuf_grid onebuf_grid_1d(size_t items) {
    onebuf_grid grid = {1, {items, 1, 1}, {0, 0, 0}, {0, 0, 0}};
    return grid;
}

#ifdef __cplusplus
}
#endif

#endif
