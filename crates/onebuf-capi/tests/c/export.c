// Descriptors and native handles in C, on a device that exports its memory: `export CUDA-LIBRARY` or `export HIP-LIBRARY hip`.

#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 3 << 20 };

static bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

static onebuf_hub discover(const char *library, bool hip, bool managed) {
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.managed_memory = managed;
    options.without_opencl = 1;
    options.without_verdicts = 1;
    if (hip) {
        options.hip_library = options.hiprtc_library = library;
        options.without_cuda = 1;
    } else {
        options.cuda_library = options.nvrtc_library = library;
        options.without_hip = 1;
    }
    onebuf_hub hub;
    OK(onebuf_hub_discover(&options, &hub));
    onebuf_string text;
    OK(onebuf_hub_missing(hub, &text));
    TRUE(strstr(onebuf_string_data(text), hip ? "cuda: switched off" : "hip: switched off"));
    OK(onebuf_string_free(text));
    return hub;
}

static onebuf_buffer exportable(onebuf_hub hub, onebuf_device device) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &device;
    options.device_count = 1;
    options.memory_kind = ONEBUF_MEMORY_KIND_EXPORTABLE;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

// The same memory under two buffers: checks every page from both sides, with separate memory as the control.
static void share(onebuf_hub hub, onebuf_device device, onebuf_fd_kind kind) {
    onebuf_buffer ours = exportable(hub, device), apart = exportable(hub, device);
    onebuf_exported out;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_export(ours, 7, &out));
    TRUE(out.fd == -1);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_export(ours, !kind, &out)); // a kind that this API does not support
    onebuf_buffer part;
    OK(onebuf_buffer_region(ours, 0, 4096, ONEBUF_READ, &part));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_export(part, kind, &out));
    OK(onebuf_buffer_free(part));
    OK(onebuf_buffer_export(ours, kind, &out));
    TRUE(out.fd >= 0 && out.kind == kind && out.bytes == BYTES && out.allocation_bytes >= out.offset + BYTES);

    onebuf_import_options in = ONEBUF_OPTIONS(onebuf_import_options);
    in.fd = out.fd;
    in.kind = kind;
    in.allocation_bytes = out.allocation_bytes;
    in.offset = out.offset;
    in.bytes = out.bytes;
    onebuf_buffer theirs;
    OK(onebuf_buffer_import(hub, device, &in, &theirs));
    TRUE(is_open(out.fd)); // the descriptor stays the caller's
    static unsigned char pages[BYTES], seen[BYTES];
    for (size_t i = 0; i < BYTES; i++) pages[i] = (unsigned char)(i * 31 + i / 4096);
    OK(onebuf_buffer_write(ours, 0, pages, BYTES));
    OK(onebuf_buffer_read(theirs, 0, seen, BYTES));
    TRUE(!memcmp(pages, seen, BYTES));
    for (size_t i = 0; i < BYTES; i++) pages[i] ^= 0x5a;
    OK(onebuf_buffer_write(theirs, 0, pages, BYTES));
    OK(onebuf_buffer_read(ours, 0, seen, BYTES));
    TRUE(!memcmp(pages, seen, BYTES));
    OK(onebuf_buffer_read(apart, 0, seen, BYTES));
    for (size_t page = 0; page < BYTES; page += 4096) TRUE(memcmp(pages + page, seen + page, 4096));

    // Wrong imports return errors, and the descriptor stays the caller's each time.
    onebuf_buffer none;
    in.bytes = out.allocation_bytes + 1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_import(hub, device, &in, &none));
    in.bytes = out.bytes;
    in.kind = !kind;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_import(hub, device, &in, &none));
    in.kind = kind;
    int other = open("/dev/null", O_RDWR);
    in.fd = other;
    TRUE(onebuf_buffer_import(hub, device, &in, &none) != ONEBUF_OK && none.id == 0);
    TRUE(is_open(other) && is_open(out.fd));
    close(other);
    in.fd = other; // closed
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_import(hub, device, &in, &none));
    in.fd = -1;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_import(hub, device, &in, &none));
    ENDS(ONEBUF_NULL_POINTER, onebuf_buffer_import(hub, device, &in, NULL));

    // The descriptor keeps the memory allocated after the buffer is freed.
    OK(onebuf_buffer_free(ours));
    OK(onebuf_buffer_read(theirs, 0, seen, BYTES));
    TRUE(!memcmp(pages, seen, BYTES));
    TRUE(close(out.fd) == 0);
    OK(onebuf_buffer_free(theirs));
    OK(onebuf_buffer_free(apart));
}

// Native handles, for code that calls the API itself.
static void natives(onebuf_hub hub, onebuf_device device, bool hip) {
    onebuf_buffer buffer = exportable(hub, device);
    onebuf_queue queue;
    onebuf_view view;
    uint64_t cuda = 0;
    void *at = NULL, *stream = NULL, *address = NULL;
    OK(onebuf_queue_create(device, NULL, &queue));
    OK(onebuf_queue_native(queue, &stream));
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    OK(onebuf_view_address(view, &address));
    ENDS(hip ? ONEBUF_UNSUPPORTED : ONEBUF_OK, onebuf_view_cuda_ptr(view, &cuda));
    ENDS(hip ? ONEBUF_OK : ONEBUF_UNSUPPORTED, onebuf_view_hip_ptr(view, &at));
    void *ordinal = &ordinal, *context = NULL;
    OK(onebuf_device_native(device, hip ? "hipDevice_t" : "CUdevice", &ordinal));
    ENDS(hip ? ONEBUF_UNSUPPORTED : ONEBUF_OK, onebuf_device_native(device, "CUcontext", &context));
    TRUE((uintptr_t)ordinal < 8 && (context != NULL) == !hip);
    onebuf_device_info info = ONEBUF_OPTIONS(onebuf_device_info);
    OK(onebuf_device_query(device, &info));
    TRUE(info.kind == ONEBUF_DEVICE_GPU && info.has_pci && info.memory_bytes > BYTES);
    TRUE(stream && address && (hip ? at == address && !cuda : cuda == (uint64_t)(uintptr_t)address && !at));
    ENDS(ONEBUF_NULL_POINTER, onebuf_view_cuda_ptr(view, NULL));
    onebuf_exported out;
    ENDS(ONEBUF_OK, onebuf_view_free(view));
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ_WRITE, &view));
    ENDS(ONEBUF_BUSY, onebuf_buffer_export(buffer, hip, &out)); // a view is held
    OK(onebuf_view_free(view));
    OK(onebuf_queue_free(queue));
    OK(onebuf_buffer_free(buffer));
}

// Managed memory: one pointer for host and kernels. Its pages move, and the ledger counts the moves.
static void one_pointer(const char *library, bool hip) {
    onebuf_hub hub = discover(library, hip, true);
    onebuf_device devices[2];
    OK(onebuf_hub_device(hub, "host", &devices[0]));
    OK(onebuf_hub_device(hub, hip ? "hip:0" : "cuda:0", &devices[1]));
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices;
    options.device_count = 2;
    options.memory_kind = ONEBUF_MEMORY_KIND_MANAGED;
    onebuf_buffer buffer, none;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    options.copies = ONEBUF_COPIES_FORBID;
    ENDS(ONEBUF_COPY_FORBIDDEN, onebuf_buffer_create(hub, BYTES, &options, &none));
    void *here = NULL, *there = NULL;
    onebuf_mapping mapping;
    onebuf_queue queue;
    onebuf_view view;
    uint64_t moved = 0;
    OK(onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &here, &mapping));
    memset(here, 7, BYTES);
    OK(onebuf_mapping_unmap(mapping));
    OK(onebuf_queue_create(devices[1], NULL, &queue));
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    OK(onebuf_view_address(view, &there));
    OK(onebuf_ledger_implied_bytes(hub, &moved));
    TRUE(here == there && moved == 2 * BYTES);
    ENDS(ONEBUF_BUSY, onebuf_buffer_map(buffer, ONEBUF_READ, &here, &mapping));
    OK(onebuf_view_free(view));
    OK(onebuf_queue_free(queue));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_hub_free(hub));
}

int main(int argc, char **argv) {
    bool hip = argc > 2;
    TRUE(argc > 1);
    onebuf_hub hub = discover(argv[1], hip, false);
    onebuf_device device;
    OK(onebuf_hub_device(hub, hip ? "hip:0" : "cuda:0", &device));
    share(hub, device, hip ? ONEBUF_FD_DMA_BUF : ONEBUF_FD_OPAQUE);
    natives(hub, device, hip);
    onebuf_buffer_options managed = ONEBUF_OPTIONS(onebuf_buffer_options);
    managed.devices = &device;
    managed.device_count = 1;
    managed.memory_kind = ONEBUF_MEMORY_KIND_MANAGED;
    onebuf_buffer none;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_create(hub, BYTES, &managed, &none)); // managed memory was not enabled in the hub
    OK(onebuf_hub_free(hub));
    one_pointer(argv[1], hip);
    printf("descriptors work\n");
    return 0;
}
