// `fuzz SEED STEPS DEVICE`: calls in random order with random handles (live, freed, of other kinds, made up), sizes, ranges,
// choices, strings and nulls. Every call returns a status, and never ONEBUF_PANIC. Pointers that the caller must guarantee stay
// valid; so do native handles, which live until the process exits.

#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { KEPT = 24, KINDS = 25, AREA = 1 << 17, MOST = 1 << 16 };

static uint64_t state;
static uint64_t any(void) { // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static uint32_t below(uint32_t n) { return (uint32_t)(any() % n); }
static bool rarely(void) { return below(12) == 0; }

static _Alignas(4096) char area[AREA];
static unsigned long outcomes[104];

static bool note(onebuf_status status, int line) {
    bool known = status >= 0 && status < ONEBUF_PANIC && strcmp(onebuf_status_name(status), "unknown") != 0;
    if (!known) {
        fprintf(stderr, "line %d: status %d: %s\n", line, (int)status, onebuf_last_error_message());
        exit(1);
    }
    if (status != ONEBUF_OK && !*onebuf_last_error_message()) fail("a failure without a message", line);
    outcomes[status]++;
    return status == ONEBUF_OK;
}
#define TRY(call) note(call, __LINE__)

// Handles by kind; some of them are freed.
enum { STRING, HUB, DEVICE, QUEUE, BUFFER, MAPPING, VIEW, TRANSFER, FENCE, PROGRAM, KERNEL, POOL, CONTEXT, EVENT, LU,
       OFFER, PEER, PIPELINE, SOURCE, SINK, GL, VK, QUEUES, PUBLISHED, VIEWER };
static uint64_t kept[KINDS][KEPT];

static void keep(int kind, uint64_t id) {
    if (id != 0) kept[kind][below(KEPT)] = id;
}
static uint64_t pick(int kind) {
    switch (below(40)) {
    case 0: return 0;
    case 1: return any();
    case 2: return kept[below(KINDS)][below(KEPT)];
    case 3: return kept[kind][below(KEPT)] ^ (1ull << below(64));
    case 4: return kept[kind][below(KEPT)] + below(3);
    default: return kept[kind][below(KEPT)];
    }
}
#define PICK(type, kind) ((type){pick(kind)})

static size_t size(void) {
    switch (below(12)) {
    case 0: return 0;
    case 1: return SIZE_MAX - below(3);
    case 2: return (size_t)1 << below(64);
    case 3: return (size_t)any();
    case 4: return MOST + below(3) - 1;
    default: return below(4) ? 4 * (size_t)below(256) : below(MOST + 1);
    }
}
// A buffer's size: small, zero, or larger than any memory.
static size_t room(void) {
    return rarely() ? (below(2) ? 0 : SIZE_MAX / 2 + below(5)) : 4 + 4 * (size_t)below(MOST / 8);
}
static uint32_t choice(void) { return rarely() ? (uint32_t)any() : below(3); }
static uint64_t timeout(void) { return below(3) ? below(3) : ONEBUF_DEFAULT_TIMEOUT; }
static const char *text(void) {
    static const char *const TEXTS[] = {"host", "opencl:0", "cpu", "add", "", "a", "no such thing", "\xff\xfe", "svm_fine"};
    return rarely() ? NULL : TEXTS[below(9)];
}
static void *data(void) { return rarely() ? NULL : area; }

// Random options: with the right size, with a wrong size, or with unknown bytes after the structure.
static union {
    size_t size;
    onebuf_hub_options hub;
    onebuf_queue_options queue;
    onebuf_buffer_options buffer;
    onebuf_program_options program;
    onebuf_doctor_options doctor;
    onebuf_pool_statistics statistics;
    onebuf_wrap_options wrap;
    onebuf_foreign_buffer_info buffer_info;
    onebuf_foreign_context_info context_info;
    onebuf_foreign_queue_info queue_info;
    onebuf_pointer_info pointer_info;
    onebuf_crossing crossing;
    onebuf_import_options import;
    onebuf_gemm_options gemm;
    onebuf_fft_options fft;
    onebuf_offer_options offer;
    onebuf_attach_options attach;
    onebuf_peer_info peer_info;
    onebuf_pipeline_options pipeline;
    onebuf_pipeline_report report;
    onebuf_synthetic_options synthetic;
    onebuf_udp_source_options udp_source;
    onebuf_tcp_source_options tcp_source;
    onebuf_udp_sink_options udp_sink;
    onebuf_udp_counts udp_counts;
    onebuf_udp_sent udp_sent;
    onebuf_map_options map;
    onebuf_gl_buffer_info gl_info;
    onebuf_device_info device_info;
    onebuf_vk_handles vk_handles;
    onebuf_vk_buffer vk_buffer;
    char bytes[8192];
} options;
static void size_options(size_t right) {
    static const size_t WRONG[] = {0, 1, 7, 8, 12, 4096, 4097, SIZE_MAX};
    options.size = rarely() ? WRONG[below(8)] : rarely() ? right + 8 * below(4) : right;
    if (below(60) == 0) options.bytes[right + below(32)] = 1;
}
static void *given(void) { return rarely() ? NULL : &options; }
static void *blank(void) { return memset(&options, 0, sizeof options); }

static const char *selector;

static void hubs(void) {
    onebuf_hub hub = {0}, old = PICK(onebuf_hub, HUB);
    onebuf_device device = {0};
    size_t count = 0;
    uint64_t bytes = 0;
    switch (below(9)) {
    case 0:
        if (below(20)) return;
        blank();
        options.hub.without_opencl = strcmp(selector, "host") == 0;
        options.hub.without_verdicts = 1;
        options.hub.copies = choice();
        options.hub.program_cache = choice();
        options.hub.timeout_ms = 1000;
        size_options(sizeof options.hub);
        // Without options it discovers all APIs, which is slow.
        if (TRY(onebuf_hub_discover((void *)&options, rarely() ? NULL : &hub))) keep(HUB, hub.id);
        break;
    case 1:
        if (below(40) == 0) TRY(onebuf_hub_free(old));
        break;
    case 2: TRY(onebuf_hub_device_count(old, rarely() ? NULL : &count)); break;
    case 3:
        if (TRY(onebuf_hub_device_at(old, size() % 5, &device))) keep(DEVICE, device.id);
        break;
    case 4:
        if (TRY(onebuf_hub_device(old, below(2) ? selector : text(), rarely() ? NULL : &device))) keep(DEVICE, device.id);
        break;
    case 5: TRY(onebuf_ledger_asked_bytes(old, rarely() ? NULL : &bytes)); break;
    case 6: TRY(onebuf_ledger_implied_bytes(old, &bytes)); break;
    case 7: {
        onebuf_string string = {0};
        if (TRY(below(2) ? onebuf_ledger_text(old, &string) : onebuf_hub_missing(old, &string))) keep(STRING, string.id);
        break;
    }
    default: {
        onebuf_string string = {0};
        blank();
        size_options(sizeof options.doctor);
        options.doctor.cache_folder = "/dev/null/none"; // without a helper no experiment runs
        TRY(onebuf_doctor_run(old, given(), &string));
    }
    }
}

static void devices(void) {
    onebuf_device device = PICK(onebuf_device, DEVICE);
    onebuf_string string = {0};
    uint64_t bytes;
    size_t align;
    bool has;
    onebuf_status (*texts[])(onebuf_device, onebuf_string *) = {
        onebuf_device_id, onebuf_device_name, onebuf_device_api, onebuf_device_platform,
        onebuf_device_driver, onebuf_device_version, onebuf_device_features};
    void *native;
    switch (below(7)) {
    case 5: TRY(onebuf_device_native(device, below(2) ? "cl_context" : text(), rarely() ? NULL : &native)); break;
    case 6:
        blank();
        size_options(sizeof options.device_info);
        TRY(onebuf_device_query(device, given()));
        break;
    case 0: TRY(onebuf_device_has(device, text(), rarely() ? NULL : &has)); break;
    case 1: TRY(onebuf_device_memory_bytes(device, &bytes)); break;
    case 2: TRY(onebuf_device_region_align(device, &align)); break;
    case 3: TRY(onebuf_device_max_buffer_bytes(device, rarely() ? NULL : &bytes)); break;
    default:
        if (TRY(texts[below(7)](device, rarely() ? NULL : &string))) keep(STRING, string.id);
    }
}

static void strings(void) {
    onebuf_string string = PICK(onebuf_string, STRING);
    if (strlen(onebuf_string_data(string)) > onebuf_string_size(string)) fail("a string that does not end", __LINE__);
    if (below(2)) TRY(onebuf_string_free(string));
}

static void queues(void) {
    onebuf_queue queue = PICK(onebuf_queue, QUEUE), made = {0};
    onebuf_fence fence = {0};
    void *native;
    onebuf_sync_method sync_method;
    switch (below(8)) {
    case 0:
        blank();
        size_options(sizeof options.queue);
        options.queue.order = choice();
        options.queue.profiling = choice();
        if (TRY(onebuf_queue_create(PICK(onebuf_device, DEVICE), given(), &made))) keep(QUEUE, made.id);
        break;
    case 1:
        if (rarely()) TRY(onebuf_queue_free(queue));
        break;
    case 2: TRY(onebuf_queue_flush(queue)); break;
    case 3: TRY(onebuf_queue_finish(queue, timeout())); break;
    case 4:
        if (TRY(onebuf_queue_fence(queue, rarely() ? NULL : &fence))) keep(FENCE, fence.id);
        break;
    case 5: TRY(onebuf_queue_wait_for(queue, PICK(onebuf_fence, FENCE), below(2) ? NULL : &sync_method)); break;
    default: TRY(onebuf_queue_native(queue, rarely() ? NULL : &native));
    }
}

static void *buffer_options(size_t bytes) {
    static onebuf_device several[4];
    blank();
    onebuf_buffer_options *builder = &options.buffer;
    builder->size = sizeof *builder;
    for (int i = 0; i < 4; i++) several[i] = PICK(onebuf_device, DEVICE);
    builder->devices = rarely() ? NULL : several;
    builder->device_count = below(3);
    if (below(3) == 0) {
        uint32_t *choices[] = {&builder->access, &builder->host_access, &builder->copies, &builder->hint, &builder->memory_kind,
                               &builder->route, &builder->sync, &builder->trust_declared, &builder->raw_addresses};
        *choices[below(9)] = choice();
        *choices[below(9)] = choice();
        if (rarely()) builder->allocate_on = PICK(onebuf_device, DEVICE);
        if (rarely()) builder->align = size();
        if (rarely()) builder->cl_flags = below(2) ? any() : 1ull << below(12);
        if (rarely() && bytes <= AREA) builder->contents = area;
    }
    size_options(sizeof *builder);
    return given();
}

static void buffers(void) {
    onebuf_buffer buffer = PICK(onebuf_buffer, BUFFER), other = PICK(onebuf_buffer, BUFFER), made = {0};
    onebuf_string string = {0};
    onebuf_fence fence = {0};
    onebuf_transfer transfer = {0};
    size_t bytes = room(), found;
    void *pointer = NULL;
    switch (below(16)) {
    case 0:
        if (TRY(onebuf_buffer_create(PICK(onebuf_hub, HUB), bytes, buffer_options(bytes), rarely() ? NULL : &made))) keep(BUFFER, made.id);
        break;
    case 1:
        if (TRY(onebuf_buffer_region(buffer, below(2) ? 0 : size(), size(), choice(), &made))) keep(BUFFER, made.id);
        break;
    case 2:
        if (rarely()) TRY(onebuf_buffer_free(buffer));
        break;
    case 3: TRY(onebuf_buffer_size(buffer, rarely() ? NULL : &found)); break;
    case 4: TRY(onebuf_buffer_write(buffer, size(), data(), size())); break;
    case 5: TRY(onebuf_buffer_read(buffer, size(), data(), size())); break;
    case 6: TRY(onebuf_buffer_fill(buffer, size(), size(), data(), below(3) ? 4 * below(5) : size())); break;
    case 7: TRY(onebuf_buffer_copy(buffer, size(), other, size(), size())); break;
    case 8:
        if (TRY(onebuf_buffer_explain(buffer, &string))) keep(STRING, string.id);
        break;
    case 9:
        if (TRY(below(2) ? onebuf_buffer_fence(buffer, &fence) : onebuf_buffer_uses(buffer, &fence))) keep(FENCE, fence.id);
        break;
    case 10:
        if (TRY(onebuf_buffer_read_async(buffer, size(), size(), rarely() ? NULL : &transfer))) keep(TRANSFER, transfer.id);
        break;
    case 11:
        if (TRY(onebuf_buffer_to_host(buffer, choice(), rarely() ? NULL : &pointer))) memcpy(area, pointer, 1);
        break;
    case 12: TRY(onebuf_buffer_to_device(buffer)); break;
    case 13:
        TRY(below(2) ? onebuf_buffer_store(buffer, size(), data(), size()) : onebuf_buffer_load(buffer, size(), data(), size()));
        break;
    case 14:
        if (below(2)) {
            onebuf_write writes[2] = {{size(), data(), size()}, {size(), data(), size()}};
            TRY(onebuf_buffer_store_many(buffer, rarely() ? NULL : writes, below(3)));
            TRY(onebuf_buffer_flush(buffer, size(), size()));
            onebuf_buffer_state state = {.size = rarely() ? size() % 64 : sizeof state};
            TRY(onebuf_buffer_get_state(buffer, rarely() ? NULL : &state));
        }
        TRY(onebuf_buffer_wait_ns(buffer, choice(), timeout()));
        if (rarely()) TRY(below(2) ? onebuf_own(area + below(4), below(3) ? buffer.id : 0) : onebuf_disown(area + below(4)));
        break;
    default:
        if (TRY(onebuf_buffer_write_async(buffer, size(), data(), size(), &transfer))) keep(TRANSFER, transfer.id);
    }
}

static void guards(void) {
    onebuf_mapping mapping = {0};
    onebuf_view view = PICK(onebuf_view, VIEW), taken = {0};
    onebuf_transfer transfer = PICK(onebuf_transfer, TRANSFER);
    void *pointer = NULL;
    const void *bytes = NULL;
    onebuf_sync_method sync_method;
    uint32_t name;
    size_t found;
    bool done;
    switch (below(10)) {
    case 0:
        blank();
        options.map.access = choice(), options.map.wait_ms = below(3), options.map.discard = below(2);
        if (below(3) == 0) options.map.offset = size(), options.map.bytes = size();
        size_options(sizeof options.map);
        if (rarely()) {
            if (TRY(onebuf_buffer_map_async(PICK(onebuf_buffer, BUFFER), given(), rarely() ? NULL : &mapping))) keep(MAPPING, mapping.id);
            break;
        }
        if (TRY(below(2) ? onebuf_buffer_map(PICK(onebuf_buffer, BUFFER), choice(), rarely() ? NULL : &pointer, &mapping)
                         : onebuf_buffer_map_with(PICK(onebuf_buffer, BUFFER), given(), rarely() ? NULL : &pointer, &mapping))) {
            memcpy(area, pointer, 1);
            keep(MAPPING, mapping.id);
        }
        break;
    case 1: case 2:
        TRY(onebuf_mapping_poll(PICK(onebuf_mapping, MAPPING), rarely() ? NULL : &done));
        TRY(onebuf_mapping_wait(PICK(onebuf_mapping, MAPPING), below(3), rarely() ? NULL : &pointer));
        TRY(onebuf_mapping_unmap(PICK(onebuf_mapping, MAPPING)));
        break;
    case 3:
        if (TRY(below(2) ? onebuf_view_take(PICK(onebuf_buffer, BUFFER), PICK(onebuf_queue, QUEUE), choice(), &taken)
                         : onebuf_view_take_within(PICK(onebuf_buffer, BUFFER), PICK(onebuf_queue, QUEUE), choice(), below(3), &taken)))
            keep(VIEW, taken.id);
        break;
    case 4: case 5: TRY(onebuf_view_free(view)); break;
    case 6: TRY(below(2) ? onebuf_view_cl_mem(view, &pointer) : onebuf_view_address(view, rarely() ? NULL : &pointer)); break;
    case 7: TRY(below(2) ? onebuf_view_sync_method(view, &sync_method) : onebuf_view_gl_name(view, &name)); break;
    case 8:
        if (TRY(onebuf_transfer_wait(transfer, timeout())) && TRY(onebuf_transfer_data(transfer, &bytes, &found))) memcpy(area, bytes, found);
        TRY(onebuf_transfer_data(transfer, rarely() ? NULL : &bytes, NULL));
        break;
    default:
        TRY(onebuf_transfer_poll(transfer, rarely() ? NULL : &done));
        if (below(2)) TRY(onebuf_transfer_free(transfer));
    }
}

static size_t side(void) { return rarely() ? size() : below(9); }

static void maths(void) {
    onebuf_queue queue = PICK(onebuf_queue, QUEUE);
    onebuf_buffer a = PICK(onebuf_buffer, BUFFER), b = PICK(onebuf_buffer, BUFFER), c = PICK(onebuf_buffer, BUFFER);
    onebuf_lu lu = PICK(onebuf_lu, LU), made = {0};
    static const double scale[] = {2, 0};
    blank();
    switch (below(6)) {
    case 0:
        options.gemm.number = rarely() ? choice() : below(4);
        options.gemm.op_a = choice(), options.gemm.op_b = choice();
        options.gemm.m = side(), options.gemm.n = side(), options.gemm.k = side();
        options.gemm.lda = below(2) ? 0 : side(), options.gemm.ldb = below(2) ? 0 : side();
        options.gemm.alpha = below(2) ? scale : NULL, options.gemm.beta = below(2) ? scale : NULL;
        size_options(sizeof options.gemm);
        TRY(onebuf_gemm(queue, given(), a, b, c));
        break;
    case 1:
        options.fft.number = rarely() ? choice() : 2 + below(2);
        options.fft.inverse = below(2), options.fft.len = side(), options.fft.batch = side();
        size_options(sizeof options.fft);
        TRY(onebuf_fft(queue, given(), a, below(2) ? b : (onebuf_buffer){0}));
        break;
    case 2:
        if (TRY(onebuf_lu_factor(queue, choice(), side(), below(2) ? 0 : side(), a, rarely() ? NULL : &made))) keep(LU, made.id);
        break;
    case 3: TRY(onebuf_lu_solve(queue, lu, choice(), a, side(), below(2) ? 0 : side(), b)); break;
    case 4: TRY(onebuf_lu_invert(queue, lu, a, b)); break;
    default:
        if (rarely()) TRY(onebuf_lu_free(lu));
    }
}

// No device here exports memory, so exports and imports are refused.
static void descriptors(void) {
    onebuf_exported out;
    onebuf_buffer made = {0};
    uint64_t pointer;
    void *address;
    onebuf_view view = PICK(onebuf_view, VIEW);
    blank();
    switch (below(4)) {
    case 0: TRY(onebuf_buffer_export(PICK(onebuf_buffer, BUFFER), choice(), rarely() ? NULL : &out)); break;
    case 1:
        options.import.fd = below(2) ? -1 : below(2) ? 1 : 10000 + (int)below(9);
        options.import.kind = choice();
        options.import.allocation_bytes = size(), options.import.offset = below(2) ? 0 : size();
        options.import.bytes = below(2) ? 0 : size();
        size_options(sizeof options.import);
        if (TRY(onebuf_buffer_import(PICK(onebuf_hub, HUB), PICK(onebuf_device, DEVICE), given(), rarely() ? NULL : &made))) keep(BUFFER, made.id);
        break;
    case 2: TRY(onebuf_view_cuda_ptr(view, rarely() ? NULL : &pointer)); break;
    default: TRY(onebuf_view_hip_ptr(view, rarely() ? NULL : &address));
    }
}

static void fences(void) {
    onebuf_fence fence = PICK(onebuf_fence, FENCE);
    onebuf_profile profile;
    onebuf_sync_method sync_method;
    bool done;
    switch (below(5)) {
    case 0: TRY(onebuf_fence_poll(fence, rarely() ? NULL : &done)); break;
    case 1: TRY(below(2) ? onebuf_fence_wait(fence, timeout()) : onebuf_fence_wait_ns(fence, below(1000000))); break;
    case 2: TRY(onebuf_fence_sync_method(fence, rarely() ? NULL : &sync_method)); break;
    case 3: TRY(onebuf_fence_profile(fence, rarely() ? NULL : &profile)); break;
    default: TRY(onebuf_fence_free(fence));
    }
}

// A native kernel: reads each argument, and writes only what it may write.
static int32_t touch(void *user, const onebuf_native_call *call) {
    (void)user;
    for (size_t i = 0; i < call->arg_count; i++) {
        onebuf_native_arg arg = call->args[i];
        if (arg.bytes > 0) memset(area, ((const char *)arg.data)[arg.bytes - 1], 1);
        if (arg.writable) memset(arg.data, 7, arg.bytes);
    }
    return below(9) == 0;
}

// A kind of value that mostly matches the declaration.
static onebuf_arg_kind value_kind(void) {
    return rarely() ? ONEBUF_ARG_FLOAT : below(2) ? ONEBUF_ARG_VALUE : ONEBUF_ARG_INTEGER;
}

static void programs(void) {
    onebuf_program program = PICK(onebuf_program, PROGRAM), made = {0};
    onebuf_string string = {0};
    onebuf_origin origin;
    onebuf_native native = {text(), rarely() ? NULL : touch, NULL};
    switch (below(6)) {
    case 0:
        blank();
        size_options(sizeof options.program);
        if (below(9)) options.program.opencl_c = "kernel void add(global uint *x, uint n) { x[0] += n; }";
        if (rarely()) options.program.opencl_c = "kernel void add(";
        if (rarely()) options.program.file = text();
        if (rarely()) options.program.spirv = area, options.program.spirv_bytes = below(64);
        options.program.natives = rarely() ? NULL : &native;
        options.program.native_count = below(2);
        if (TRY(onebuf_program_build(PICK(onebuf_device, DEVICE), given(), rarely() ? NULL : &made))) keep(PROGRAM, made.id);
        break;
    case 1:
        if (TRY(onebuf_program_log(program, &string))) keep(STRING, string.id);
        break;
    case 2:
        if (TRY(onebuf_program_binary(program, &string))) keep(STRING, string.id);
        break;
    case 3: TRY(onebuf_program_origin(program, rarely() ? NULL : &origin)); break;
    case 4:
        if (rarely()) TRY(onebuf_program_free(program));
        break;
    default: {
        onebuf_kernel kernel = {0};
        onebuf_param params[3];
        // The guarantee: `add` takes a buffer and a value of four bytes. Any other declaration is refused or harmless.
        for (int i = 0; i < 3; i++) {
            onebuf_param param = {rarely() ? (uint32_t)any() : i % 2 ? value_kind() : ONEBUF_ARG_BUFFER,
                                  rarely() ? 99 : ONEBUF_READ_WRITE, 4, below(3) ? 0 : size()};
            params[i] = param;
        }
        if (TRY(onebuf_kernel_create(program, below(6) ? "add" : text(), rarely() ? NULL : params, rarely() ? below(4) : 2,
                                     rarely() ? (uint32_t)any() : below(4), rarely() ? NULL : &kernel)))
            keep(KERNEL, kernel.id);
    }
    }
}

static void launches(void) {
    onebuf_fence fence = {0};
    onebuf_arg args[4];
    for (int i = 0; i < 4; i++) {
        memset(&args[i], 0, sizeof args[i]);
        args[i].kind = rarely() ? (uint32_t)any() : i % 2 ? value_kind() : below(2) ? ONEBUF_ARG_BUFFER
                       : below(2) ? ONEBUF_ARG_VIEW : below(2) ? ONEBUF_ARG_TURN : ONEBUF_ARG_OVERWRITE;
        args[i].access = choice();
        args[i].buffer = PICK(onebuf_buffer, BUFFER);
        args[i].view = PICK(onebuf_view, VIEW);
        args[i].value = data();
        args[i].bytes = below(5) ? 4 : size();
    }
    onebuf_grid grid = onebuf_grid_1d(1 + below(64));
    if (rarely()) grid.dims = below(5);
    if (rarely()) grid.global[below(3)] = size();
    if (rarely()) grid.local[below(3)] = size();
    if (rarely()) grid.offset[below(3)] = size();
    // Limits the size of launches: the library does not limit their duration.
    for (int i = 0; i < 3; i++) grid.global[i] = grid.global[i] > 4096 && grid.global[i] < SIZE_MAX / 2 ? 64 : grid.global[i];
    if (TRY(onebuf_queue_launch(PICK(onebuf_queue, QUEUE), PICK(onebuf_kernel, KERNEL), rarely() ? NULL : &grid,
                                rarely() ? NULL : args, rarely() ? below(5) : 2, below(2) ? NULL : &fence)))
        keep(FENCE, fence.id);
    fence.id = 0;
    if (rarely()) TRY(onebuf_queue_warm_up(PICK(onebuf_queue, QUEUE), PICK(onebuf_kernel, KERNEL), &grid, args, 2, NULL));
    if (TRY(onebuf_queue_launch_within(PICK(onebuf_queue, QUEUE), PICK(onebuf_kernel, KERNEL), rarely() ? NULL : &grid,
                                       rarely() ? NULL : args, rarely() ? below(5) : 2, below(3), below(2) ? NULL : &fence)))
        keep(FENCE, fence.id);
    if (rarely()) TRY(onebuf_kernel_free(PICK(onebuf_kernel, KERNEL)));
}

static void pools(void) {
    onebuf_pool pool = PICK(onebuf_pool, POOL), made = {0};
    onebuf_buffer buffer = {0};
    size_t bytes = room();
    uint64_t freed;
    switch (below(5)) {
    case 0:
        if (TRY(onebuf_pool_create(PICK(onebuf_hub, HUB), below(2) ? 0 : size(), &made))) keep(POOL, made.id);
        break;
    case 1: case 2:
        if (TRY(onebuf_pool_get(pool, bytes, buffer_options(bytes), below(3), &buffer))) keep(BUFFER, buffer.id);
        break;
    case 3: TRY(onebuf_pool_trim(pool, size(), rarely() ? NULL : &freed)); break;
    default:
        blank();
        size_options(sizeof options.statistics);
        TRY(onebuf_pool_get_statistics(pool, given()));
        if (rarely()) TRY(onebuf_pool_free(pool));
    }
}

// Native handles; all null without OpenCL.
enum { MEMS = 8 };
static struct {
    void *context, *queue, *event, *mems[MEMS];
} natives;

// Creates a context, a queue, an event and memory that are never released.
static void make_natives(onebuf_hub hub, onebuf_device device) {
    onebuf_context context;
    onebuf_queue queue;
    onebuf_user_event event;
    if (natives.context || onebuf_context_second(hub, device, &context) != ONEBUF_OK) return;
    OK(onebuf_context_native(context, &natives.context));
    OK(onebuf_context_device_at(context, 0, &device));
    OK(onebuf_queue_create(device, NULL, &queue));
    OK(onebuf_queue_native(queue, &natives.queue));
    if (onebuf_user_event_create(context, &event) == ONEBUF_OK) {
        OK(onebuf_user_event_complete(event)); // so that no work waits for it forever
        OK(onebuf_user_event_native(event, &natives.event));
    }
    onebuf_buffer_options builder = ONEBUF_OPTIONS(onebuf_buffer_options);
    builder.devices = &device;
    builder.device_count = 1;
    builder.memory_kind = ONEBUF_MEMORY_KIND_MAPPED_DEVICE;
    for (int i = 0; i < MEMS; i++) {
        onebuf_buffer buffer;
        OK(onebuf_buffer_create(hub, 4096, &builder, &buffer));
        OK(onebuf_buffer_into_cl_mem(buffer, device, &natives.mems[i]));
    }
}

static void *wrap_options(void) {
    static onebuf_device several[4];
    static onebuf_fence fences[4];
    blank();
    onebuf_wrap_options *builder = &options.wrap;
    for (int i = 0; i < 4; i++) several[i] = PICK(onebuf_device, DEVICE), fences[i] = PICK(onebuf_fence, FENCE);
    builder->devices = rarely() ? NULL : several;
    builder->device_count = below(2);
    builder->after = rarely() ? NULL : fences;
    builder->after_count = below(2);
    builder->bytes = below(3) ? 0 : below(2) ? 4096 : size();
    uint32_t *choices[] = {&builder->copies, &builder->route, &builder->trust_declared};
    if (rarely()) *choices[below(3)] = choice();
    size_options(sizeof *builder);
    return given();
}

// Handles of CUDA and HIP: the driver looks at pointers, and null is refused. No device here knows other handles.
static void pointers(void) {
    static const uint8_t handle[64];
    onebuf_device device = PICK(onebuf_device, DEVICE);
    onebuf_buffer made;
    onebuf_queue queue;
    onebuf_fence fence;
    void *pointer = rarely() ? NULL : (void *)handle;
    blank();
    size_options(sizeof options.pointer_info);
    TRY(onebuf_pointer_query(device, pointer, given()));
    if (TRY(onebuf_buffer_wrap_pointer(device, pointer, size(), wrap_options(), rarely() ? NULL : &made))) keep(BUFFER, made.id);
    if (TRY(onebuf_buffer_wrap_allocation(device, 0, size(), wrap_options(), &made))) keep(BUFFER, made.id);
    if (TRY(onebuf_buffer_open_ipc(device, rarely() ? NULL : handle, size(), size(), &made))) keep(BUFFER, made.id);
    if (TRY(onebuf_queue_wrap_stream(device, NULL, rarely() ? NULL : &queue))) keep(QUEUE, queue.id);
    if (TRY(onebuf_fence_wrap_stream_event(device, NULL, &fence))) keep(FENCE, fence.id);
}

static void foreigners(void) {
    onebuf_hub hub = PICK(onebuf_hub, HUB);
    onebuf_context context = PICK(onebuf_context, CONTEXT), made_context = {0};
    onebuf_buffer buffer = PICK(onebuf_buffer, BUFFER), made = {0};
    onebuf_queue queue = {0};
    onebuf_device device = {0};
    onebuf_string string = {0};
    void *mem = rarely() ? NULL : natives.mems[below(MEMS)], *native;
    size_t count;
    bool foreign;
    onebuf_sync_method sync_method;
    switch (below(18)) {
    case 0:
        if (TRY(onebuf_context_wrap(hub, rarely() ? NULL : natives.context, rarely() ? NULL : &made_context))) keep(CONTEXT, made_context.id);
        break;
    case 1:
        if (TRY(onebuf_context_second(hub, PICK(onebuf_device, DEVICE), &made_context))) keep(CONTEXT, made_context.id);
        break;
    case 2: TRY(onebuf_context_device_count(context, rarely() ? NULL : &count)); break;
    case 3:
        if (TRY(onebuf_context_device_at(context, below(4) ? 0 : size(), &device))) keep(DEVICE, device.id);
        break;
    case 4:
        if (TRY(onebuf_context_device_of(context, PICK(onebuf_queue, QUEUE), &device))) keep(DEVICE, device.id);
        break;
    case 5: TRY(onebuf_context_native(context, rarely() ? NULL : &native)); break;
    case 6: TRY(onebuf_context_free(context)); break;
    case 7: case 8: case 9:
        if (TRY(onebuf_buffer_wrap(hub, mem, wrap_options(), rarely() ? NULL : &made))) keep(BUFFER, made.id);
        break;
    case 10:
        if (TRY(onebuf_queue_wrap(hub, rarely() ? NULL : natives.queue, &queue))) keep(QUEUE, queue.id);
        break;
    case 11:
        if (TRY(onebuf_queue_for(buffer, rarely() ? NULL : &queue))) keep(QUEUE, queue.id);
        break;
    case 12: TRY(onebuf_buffer_is_foreign(buffer, rarely() ? NULL : &foreign)); break;
    case 13: TRY(below(2) ? onebuf_buffer_written_until(buffer, PICK(onebuf_fence, FENCE)) : onebuf_buffer_read_until(buffer, PICK(onebuf_fence, FENCE))); break;
    case 14: TRY(onebuf_buffer_hand_to(buffer, PICK(onebuf_queue, QUEUE), below(2) ? NULL : &sync_method)); break;
    case 15:
        if (rarely() && TRY(onebuf_buffer_into_cl_mem(buffer, PICK(onebuf_device, DEVICE), rarely() ? NULL : &native))) natives.mems[below(MEMS)] = native;
        break;
    case 16:
        blank();
        size_options(sizeof options.buffer_info);
        TRY(onebuf_foreign_buffer_query(hub, mem, given()));
        TRY(onebuf_foreign_buffer_at_rest(hub, mem, (uint32_t)below(9), below(2), given()));
        if (TRY(onebuf_foreign_buffer_describe(hub, mem, rarely() ? NULL : &string))) keep(STRING, string.id);
        break;
    default:
        blank();
        size_options(sizeof options.context_info);
        TRY(onebuf_foreign_context_query(hub, rarely() ? NULL : natives.context, given()));
        TRY(onebuf_foreign_context_at_rest(hub, rarely() ? NULL : natives.context, (uint32_t)below(9), below(2), given()));
        blank();
        size_options(sizeof options.queue_info);
        TRY(onebuf_foreign_queue_query(hub, rarely() ? NULL : natives.queue, given()));
        TRY(onebuf_foreign_queue_at_rest(hub, rarely() ? NULL : natives.queue, (uint32_t)below(9), below(2), given()));
        TRY(onebuf_buffer_wrap_svm(context, NULL, size(), wrap_options(), &made)); // null: any other pointer must be valid
        pointers();
    }
}

// References to a few events that are never released; the array keeps them reachable for leak checkers. Volatile, because nothing
// reads it.
static void *volatile held[8192];
static size_t held_count;

static void events(void) {
    onebuf_user_event event = PICK(onebuf_user_event, EVENT), made = {0};
    onebuf_fence fence = {0};
    void *raw[4] = {0}, *native;
    size_t count;
    switch (below(5)) {
    case 0:
        // Completed at once, so that no work waits for it.
        if (!TRY(onebuf_user_event_create(PICK(onebuf_context, CONTEXT), rarely() ? NULL : &made))) break;
        TRY(onebuf_user_event_complete(made));
        keep(EVENT, made.id);
        break;
    case 1:
        if (TRY(onebuf_user_event_fence(event, rarely() ? NULL : &fence))) keep(FENCE, fence.id);
        break;
    case 2: TRY(below(2) ? onebuf_user_event_complete(event) : onebuf_user_event_native(event, rarely() ? NULL : &native)); break;
    case 3:
        if (TRY(onebuf_fence_wrap(PICK(onebuf_hub, HUB), rarely() ? NULL : natives.event, &fence))) keep(FENCE, fence.id);
        break;
    default:
        TRY(onebuf_fence_cl_events(PICK(onebuf_fence, FENCE), rarely() ? NULL : raw, below(5), rarely() ? NULL : &count));
        for (int i = 0; i < 4; i++) {
            if (raw[i] && held_count < sizeof held / sizeof *held) held[held_count++] = raw[i];
        }
        if (below(3) == 0) TRY(onebuf_user_event_free(event));
    }
}

static void bridges(void) {
    onebuf_buffer from = PICK(onebuf_buffer, BUFFER), to = PICK(onebuf_buffer, BUFFER);
    onebuf_fence fence = {0};
    blank();
    size_options(sizeof options.crossing);
    switch (below(4)) {
    case 0: TRY(onebuf_bridge_copy(from, size(), to, size(), size(), given())); break;
    case 1:
        if (TRY(onebuf_bridge_copy_async(from, size(), to, size(), size(), given(), rarely() ? NULL : &fence))) keep(FENCE, fence.id);
        break;
    case 2: TRY(onebuf_bridge_from_host(data(), to, size(), size(), given())); break;
    default: TRY(onebuf_bridge_to_host(from, size(), data(), size(), given()));
    }
}

// What the thread at the other end of an offer needs.
typedef struct {
    onebuf_offer offer;
    onebuf_peer peer;
} door;

static void *open_door(void *user) {
    door *d = user;
    if (onebuf_offer_accept(d->offer, 60, &d->peer) != ONEBUF_OK) d->peer.id = 0;
    return NULL;
}

// Both ends of a visit, in this process. The offered buffer may not fit, or may be gone.
static void visit(onebuf_offer offer, const char *name) {
    door d = {offer, {0}};
    pthread_t thread;
    onebuf_peer peer = {0};
    onebuf_buffer buffer = {0};
    pthread_create(&thread, NULL, open_door, &d);
    blank();
    options.attach.name = name;
    options.attach.timeout_ms = 60;
    size_options(sizeof options.attach);
    if (TRY(onebuf_peer_attach(PICK(onebuf_hub, HUB), (void *)&options, NULL, &peer, rarely() ? NULL : &buffer))) {
        keep(PEER, peer.id);
        keep(BUFFER, buffer.id);
    }
    pthread_join(thread, NULL);
    keep(PEER, d.peer.id);
}

static void processes(void) {
    onebuf_offer offer = PICK(onebuf_offer, OFFER), made = {0};
    onebuf_peer peer = PICK(onebuf_peer, PEER), none = {0};
    onebuf_buffer buffer = {0};
    onebuf_string string = {0};
    char name[64];
    switch (below(9)) {
    case 0:
        if (below(2)) return;
        // Mostly a new buffer, because an offered buffer supports fewer calls.
        buffer = PICK(onebuf_buffer, BUFFER);
        if (!rarely() && TRY(onebuf_buffer_create(PICK(onebuf_hub, HUB), 4096, NULL, &buffer))) keep(BUFFER, buffer.id);
        blank();
        snprintf(name, sizeof name, "fuzz-%x-%x", (unsigned)state, below(1 << 20));
        options.offer.name = rarely() ? text() : name;
        options.offer.element_bytes = rarely() ? size() : below(2);
        options.offer.greeting_ms = below(20);
        size_options(sizeof options.offer);
        if (!TRY(onebuf_offer_open(buffer, given(), rarely() ? NULL : &made))) break;
        keep(OFFER, made.id);
        visit(made, name);
        break;
    case 1:
        if (TRY(onebuf_offer_path(offer, rarely() ? NULL : &string))) keep(STRING, string.id);
        break;
    case 2: TRY(onebuf_offer_accept(offer, below(3), rarely() ? NULL : &none)); break;
    case 3:
        blank();
        options.attach.name = text();
        options.attach.timeout_ms = 1;
        size_options(sizeof options.attach);
        TRY(onebuf_peer_attach(PICK(onebuf_hub, HUB), given(), NULL, &none, &buffer));
        break;
    case 4:
        blank();
        size_options(sizeof options.peer_info);
        TRY(onebuf_peer_query(peer, given()));
        break;
    case 5: TRY(onebuf_peer_hand_over(peer)); break;
    case 6: TRY(onebuf_peer_wait(peer, below(3))); break;
    case 7: TRY(onebuf_peer_check(peer)); break;
    default:
        if (below(3) == 0) TRY(below(2) ? onebuf_peer_free(peer) : onebuf_offer_free(offer));
    }
}

// Callbacks of pipelines run on other threads, so they use no random numbers.
static onebuf_status fill(void *user, const onebuf_frame *frame, onebuf_filled *filled) {
    (void)user;
    if (frame->number % 3 == 1) *filled = ONEBUF_FILLED_INCOMPLETE;
    if (frame->number >= 4) *filled = ONEBUF_FILLED_END;
    return ONEBUF_OK;
}

static onebuf_status work(void *user, const onebuf_frame *frame) {
    size_t bytes;
    (void)user;
    if (onebuf_buffer_size(frame->buffers[0], &bytes) != ONEBUF_OK || frame->number >= 6) {
        onebuf_set_error_message(frame->number % 2 ? "enough" : NULL);
        return ONEBUF_INVALID_ARGUMENT; // also ends sources that are endless
    }
    return ONEBUF_OK;
}

static const char *path(void) {
    static const char *const PATHS[] = {"/dev/null", "/dev/zero", "/no/such/folder/file", ""};
    return rarely() ? NULL : PATHS[below(4)];
}
static const char *element(void) {
    static const char *const ELEMENTS[] = {"<f4", "<c16", "|u1", "f4", ""};
    return rarely() ? NULL : ELEMENTS[below(5)];
}
static const char *address(void) {
    static const char *const ADDRESSES[] = {"127.0.0.1:0", "127.0.0.1:9", "nowhere", "127.0.0.1", ""};
    return rarely() ? NULL : ADDRESSES[below(5)];
}
static uint64_t times(void) { return below(3) ? below(3) : ONEBUF_FOREVER; }

static void sources(void) {
    onebuf_source source = PICK(onebuf_source, SOURCE), made = {0};
    onebuf_string string = {0};
    onebuf_wave wave = {1, 0.1, 10};
    onebuf_status status;
    blank();
    switch (below(9)) {
    case 0: status = onebuf_source_memory(data(), below(3) ? 4096 : below(AREA), times(), &made); break;
    case 1: status = onebuf_source_file(path(), times(), rarely() ? NULL : &made); break;
    case 2: status = onebuf_source_npy(path(), element(), times(), &made); break;
    case 3:
        options.synthetic.channels = below(5), options.synthetic.samples = below(200);
        options.synthetic.frames = below(4), options.synthetic.noise = below(3) - 1.0;
        options.synthetic.waves = &wave, options.synthetic.wave_count = below(2);
        size_options(sizeof options.synthetic);
        status = onebuf_source_synthetic(given(), &made);
        break;
    case 4:
        options.udp_source.address = address(), options.udp_source.window = size();
        options.udp_source.timeout_ms = 1 + below(20), options.udp_source.one_stream = below(2);
        options.udp_source.receive_buffer_bytes = size();
        options.udp_source.sockets = below(3) ? below(4) : size();
        options.udp_source.busy_poll_us = below(3);
        size_options(sizeof options.udp_source);
        status = onebuf_source_udp(given(), &made);
        break;
    case 5:
        options.tcp_source.address = address(), options.tcp_source.listen = below(2);
        options.tcp_source.timeout_ms = 1 + below(20);
        size_options(sizeof options.tcp_source);
        status = onebuf_source_tcp(given(), &made);
        break;
    case 6:
        if (TRY(onebuf_source_address(source, rarely() ? NULL : &string))) keep(STRING, string.id);
        return;
    case 7:
        size_options(sizeof options.udp_counts);
        TRY(onebuf_source_udp_counts(source, given()));
        size_options(sizeof options.udp_counts);
        TRY(onebuf_source_udp_socket_counts(source, below(3) ? below(4) : size(), given()));
        return;
    default:
        if (below(3) == 0) TRY(onebuf_source_free(source));
        return;
    }
    if (TRY(status)) keep(SOURCE, made.id);
}

static void sinks(void) {
    static _Alignas(4096) char taken[AREA]; // separate from the memory that sources read at the same time
    onebuf_sink sink = PICK(onebuf_sink, SINK), made = {0};
    size_t shape[] = {side(), side()};
    onebuf_status status;
    blank();
    switch (below(7)) {
    case 0: status = onebuf_sink_memory(rarely() ? NULL : taken, below(AREA), rarely() ? NULL : &made); break;
    case 1: status = onebuf_sink_file(path(), &made); break;
    case 2: status = onebuf_sink_npy(path(), element(), rarely() ? NULL : shape, below(3), &made); break;
    case 3:
        options.udp_sink.address = address(), options.udp_sink.payload_bytes = below(3) ? 0 : size();
        options.udp_sink.bytes_per_s = below(3) ? 0 : 1e9 * (below(3) - 1.0);
        options.udp_sink.lose = below(3) * 0.5, options.udp_sink.duplicate = below(3) * 0.5;
        options.udp_sink.reorder = below(3) ? below(9) : size();
        options.udp_sink.threads = below(3) ? below(4) : size();
        size_options(sizeof options.udp_sink);
        status = onebuf_sink_udp(given(), &made);
        break;
    case 4: TRY(onebuf_sink_finish(sink)); return;
    case 5:
        size_options(sizeof options.udp_sent);
        TRY(onebuf_sink_udp_sent(sink, given()));
        return;
    default:
        if (below(3) == 0) TRY(onebuf_sink_free(sink));
        return;
    }
    if (TRY(status)) keep(SINK, made.id);
}

static atomic_ulong messages;

static void take_message(void *user, onebuf_log_level level, const char *target, const char *message) {
    TRUE(user == &messages && level >= ONEBUF_LOG_ERROR && level <= ONEBUF_LOG_TRACE && *target);
    atomic_fetch_add(&messages, strlen(message));
}

static void pipelines(void) {
    onebuf_pipeline pipeline = PICK(onebuf_pipeline, PIPELINE), made = {0};
    onebuf_string string = {0};
    onebuf_slot_buffer buffers[] = {{4096, NULL}, {room(), NULL}};
    onebuf_kernel kernel = PICK(onebuf_kernel, KERNEL);
    onebuf_stage stages[] = {{rarely() ? NULL : "work", PICK(onebuf_device, DEVICE), rarely() ? NULL : work, NULL, NULL, 0},
                             {text(), PICK(onebuf_device, DEVICE), work, NULL, rarely() ? NULL : &kernel, below(2)}};
    blank();
    switch (below(8)) {
    case 0: case 1:
        options.pipeline.depth = rarely() ? (below(2) ? 0 : SIZE_MAX - below(3)) : 1 + below(3);
        options.pipeline.buffers = rarely() ? NULL : buffers;
        options.pipeline.buffer_count = 1 + below(2);
        options.pipeline.source = below(2) ? fill : NULL;
        options.pipeline.feed = below(4) && !options.pipeline.source ? PICK(onebuf_source, SOURCE) : (onebuf_source){0};
        options.pipeline.feed_buffer = rarely() ? size() : 0;
        options.pipeline.stages = stages;
        options.pipeline.stage_count = below(3);
        options.pipeline.sink = below(2) ? work : NULL;
        options.pipeline.drain = below(4) && !options.pipeline.sink ? PICK(onebuf_sink, SINK) : (onebuf_sink){0};
        options.pipeline.drain_buffer = rarely() ? size() : 0;
        options.pipeline.batch = rarely() ? size() : below(2);
        options.pipeline.when_full = choice();
        options.pipeline.one_thread = below(2);
        // An endless source ends by an error of the stages or the sink.
        if (options.pipeline.feed.id && !options.pipeline.sink) options.pipeline.stage_count = 2;
        size_options(sizeof options.pipeline);
        if (TRY(onebuf_pipeline_create(PICK(onebuf_hub, HUB), given(), rarely() ? NULL : &made))) keep(PIPELINE, made.id);
        break;
    case 2: case 3:
        size_options(sizeof options.report);
        TRY(onebuf_pipeline_run(pipeline, given()));
        break;
    case 4: TRY(onebuf_pipeline_stop(pipeline)); break;
    case 5:
        size_options(sizeof options.report);
        TRY(onebuf_pipeline_get_report(pipeline, given()));
        break;
    case 6:
        if (TRY(onebuf_pipeline_json(pipeline, rarely() ? NULL : &string))) keep(STRING, string.id);
        break;
    default:
        if (below(3) == 0) TRY(onebuf_pipeline_free(pipeline));
        TRUE(onebuf_version_number() > 0 && strchr(onebuf_version(), '.') != NULL);
        TRY(onebuf_log_to(rarely() ? (uint32_t)any() : 1 + below(5), below(2) ? take_message : NULL, &messages));
    }
}

static void begin(void) {
    onebuf_hub_options looks = ONEBUF_OPTIONS(onebuf_hub_options);
    looks.without_opencl = strcmp(selector, "host") == 0;
    looks.without_verdicts = 1;
    onebuf_hub hub;
    onebuf_device device;
    OK(onebuf_hub_discover(&looks, &hub));
    if (onebuf_hub_device(hub, selector, &device) != ONEBUF_OK) {
        printf("no %s here: %s\n", selector, onebuf_last_error_message());
        exit(0);
    }
    for (int i = 0; i < KEPT; i++) keep(HUB, hub.id), keep(DEVICE, device.id);
    make_natives(hub, device);
    // The stub driver has no compiler.
    onebuf_string platform;
    OK(onebuf_device_platform(device, &platform));
    bool compiles = !strstr(onebuf_string_data(platform), "stub");
    OK(onebuf_string_free(platform));
    onebuf_program program = build_add(device, NULL);
    for (int i = 0; i < 4; i++) {
        onebuf_queue queue;
        OK(onebuf_queue_create(device, NULL, &queue));
        keep(QUEUE, queue.id);
        if (compiles) keep(KERNEL, kernel_add(program).id);
    }
    keep(PROGRAM, program.id);
}

// Frees the objects whose handles were not overwritten in these lists; the library frees the others at exit.
static void end(void) {
    for (int i = 0; i < KEPT; i++) {
        TRY(onebuf_pipeline_free((onebuf_pipeline){kept[PIPELINE][i]}));
        TRY(onebuf_source_free((onebuf_source){kept[SOURCE][i]}));
        TRY(onebuf_sink_free((onebuf_sink){kept[SINK][i]}));
        TRY(onebuf_peer_free((onebuf_peer){kept[PEER][i]}));
        TRY(onebuf_offer_free((onebuf_offer){kept[OFFER][i]}));
        TRY(onebuf_view_free((onebuf_view){kept[VIEW][i]}));
        if (kept[MAPPING][i]) TRY(onebuf_mapping_unmap((onebuf_mapping){kept[MAPPING][i]}));
        TRY(onebuf_transfer_free((onebuf_transfer){kept[TRANSFER][i]}));
        TRY(onebuf_fence_free((onebuf_fence){kept[FENCE][i]}));
        TRY(onebuf_buffer_free((onebuf_buffer){kept[BUFFER][i]}));
        TRY(onebuf_pool_free((onebuf_pool){kept[POOL][i]}));
        TRY(onebuf_kernel_free((onebuf_kernel){kept[KERNEL][i]}));
        TRY(onebuf_program_free((onebuf_program){kept[PROGRAM][i]}));
        TRY(onebuf_queue_free((onebuf_queue){kept[QUEUE][i]}));
        TRY(onebuf_string_free((onebuf_string){kept[STRING][i]}));
        TRY(onebuf_lu_free((onebuf_lu){kept[LU][i]}));
        TRY(onebuf_user_event_free((onebuf_user_event){kept[EVENT][i]}));
        TRY(onebuf_context_free((onebuf_context){kept[CONTEXT][i]}));
        TRY(onebuf_hub_free((onebuf_hub){kept[HUB][i]}));
    }
}

static void extras(void) {
    onebuf_hub hub = PICK(onebuf_hub, HUB);
    onebuf_queue_pool pool = PICK(onebuf_queue_pool, QUEUES), made = {0};
    onebuf_published shown = {0};
    onebuf_queue queue = {0};
    onebuf_string string = {0};
    uint64_t number;
    size_t bytes = room();
    onebuf_write writes[2] = {{size(), data(), 4}, {4 * below(64), data(), 4 * below(8)}};
    onebuf_cl_range from = {rarely() ? NULL : natives.mems[below(MEMS)], rarely() ? NULL : natives.queue, below(2) ? 0 : size()};
    onebuf_cl_range to = {rarely() ? NULL : natives.mems[below(MEMS)], rarely() ? NULL : natives.queue, below(2) ? 0 : size()};
    switch (below(12)) {
    case 0:
        blank();
        size_options(sizeof options.queue);
        if (TRY(onebuf_queue_pool_create(PICK(onebuf_device, DEVICE), below(4), given(), rarely() ? NULL : &made))) keep(QUEUES, made.id);
        break;
    case 1: if (TRY(onebuf_queue_pool_next(pool, rarely() ? NULL : &queue))) keep(QUEUE, queue.id); break;
    case 2: if (TRY(onebuf_queue_pool_least_busy(pool, rarely() ? NULL : &queue))) keep(QUEUE, queue.id); break;
    case 3: TRY(below(2) ? onebuf_queue_pool_finish(pool) : onebuf_queue_pool_free(pool)); break;
    case 4: TRY(onebuf_buffer_write_batch(PICK(onebuf_buffer, BUFFER), rarely() ? NULL : writes, below(3))); break;
    case 5: TRY(onebuf_buffer_release_to(PICK(onebuf_buffer, BUFFER), PICK(onebuf_device, DEVICE), choice())); break;
    case 6:
        if (TRY(below(2) ? onebuf_buffer_plan(hub, bytes, buffer_options(bytes), &string) : onebuf_buffer_plan_json(hub, bytes, buffer_options(bytes), &string)))
            keep(STRING, string.id);
        break;
    case 7: TRY(onebuf_pool_prepare(PICK(onebuf_pool, POOL), bytes, buffer_options(bytes), below(3))); break;
    case 8:
        if (TRY(onebuf_trace_json(hub, rarely() ? NULL : &string))) keep(STRING, string.id);
        TRY(below(2) ? onebuf_trace_dropped(hub, &number) : onebuf_trace_clear(hub));
        TRY(onebuf_trace_save(hub, rarely() ? NULL : "/nowhere/at/all"));
        break;
    case 9: {
        onebuf_program moved = {0};
        bool grafted;
        if (rarely()) TRY(onebuf_foreign_program_graft(hub, NULL, PICK(onebuf_device, DEVICE), &moved));
        if (TRY(onebuf_program_graft(PICK(onebuf_program, PROGRAM), PICK(onebuf_device, DEVICE), below(2) ? NULL : &grafted, &moved))) keep(PROGRAM, moved.id);
        break;
    }
    case 10:
        TRY(onebuf_bridge_copy_cl(hub, rarely() ? NULL : &from, rarely() ? NULL : &to, size(), NULL));
        break;
    default:
        if (below(4) == 0 && TRY(onebuf_publish(hub, rarely() ? text() : "onebuf-fuzz", &shown))) keep(PUBLISHED, shown.id);
        shown = PICK(onebuf_published, PUBLISHED);
        TRY(onebuf_published_pipeline(shown, text(), PICK(onebuf_pipeline, PIPELINE)));
        if (TRY(onebuf_published_path(shown, &string))) keep(STRING, string.id);
        TRY(onebuf_published_free(shown));
    }
}

// Without a context of OpenGL, and without a device of Vulkan: every call is refused.
static void graphics(void) {
    onebuf_gl gl = PICK(onebuf_gl, GL), made_gl = {0};
    onebuf_vk vk = PICK(onebuf_vk, VK), made_vk = {0};
    onebuf_buffer buffer = {0};
    onebuf_queue queue = {0};
    onebuf_device device = {0};
    uint32_t name;
    uint64_t number, offset;
    switch (below(9)) {
    case 0: if (TRY(onebuf_gl_wrap(PICK(onebuf_hub, HUB), rarely() ? NULL : &made_gl))) keep(GL, made_gl.id); break;
    case 1: TRY(onebuf_gl_device(gl, rarely() ? NULL : &device)); break;
    case 2: TRY(onebuf_gl_queue(gl, rarely() ? NULL : &queue)); break;
    case 3:
        blank();
        size_options(sizeof options.gl_info);
        TRY(onebuf_gl_buffer_query(gl, (uint32_t)any(), given()));
        break;
    case 4: TRY(onebuf_buffer_wrap_gl(gl, (uint32_t)any(), wrap_options(), rarely() ? NULL : &buffer)); break;
    case 5: TRY(below(2) ? onebuf_gl_free(gl) : onebuf_vk_free(vk)); break;
    case 6:
        blank();
        options.vk_handles.queue_family = choice();
        size_options(sizeof options.vk_handles);
        if (TRY(onebuf_vk_wrap(PICK(onebuf_hub, HUB), given(), rarely() ? NULL : &made_vk))) keep(VK, made_vk.id);
        break;
    case 7:
        blank();
        size_options(sizeof options.vk_buffer);
        TRY(below(2) ? onebuf_vk_device(vk, &device) : onebuf_buffer_wrap_vk(vk, given(), NULL, rarely() ? NULL : &buffer));
        break;
    default:
        TRY(onebuf_view_gl_name(PICK(onebuf_view, VIEW), rarely() ? NULL : &name));
        TRY(onebuf_view_vk_buffer(PICK(onebuf_view, VIEW), rarely() ? NULL : &number, rarely() ? NULL : &offset));
    }
}

#include "fuzz_queries.h"

int main(int argc, char **argv) {
    if (argc != 4) fail("usage: fuzz SEED STEPS DEVICE", __LINE__);
    state = strtoull(argv[1], NULL, 10);
    selector = argv[3];
    void (*calls[])(void) = {hubs, devices, strings, queues, buffers, buffers, buffers, buffers, guards,
                             guards, fences, programs, launches, launches, pools, foreigners, foreigners, events, bridges, maths, descriptors,
                             processes, sources, sinks, pipelines, graphics, extras, queries, queries};
    for (unsigned long step = strtoul(argv[2], NULL, 10); step > 0; step--) {
        if (step % 400 == 0) begin(); // replaces objects that were freed
        calls[below(sizeof calls / sizeof *calls)]();
    }
    end();
    TRUE(outcomes[ONEBUF_OK] > 0 && outcomes[ONEBUF_INVALID_HANDLE] > 0 && outcomes[ONEBUF_NULL_POINTER] > 0);
    for (int status = 0; status < 104; status++)
        if (outcomes[status]) printf("%s %lu, ", onebuf_status_name(status), outcomes[status]);
    printf("seed %s on %s\n", argv[1], selector);
    return 0;
}
