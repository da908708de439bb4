// `graft`: programs that OpenCL compiled run in the queues of the CUDA or HIP device of the same chip: a program, a kernel, a `cl_program`
// of the application, and text by hand. Needs such a chip; prints a skip elsewhere.

#include "check.h"
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <string.h>

enum { N = 4096, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_device cl, other;

#define CL(call) TRUE((call) == CL_SUCCESS)

// The first pair of devices that could graft.
static bool found_pair(void) {
    onebuf_device from[16], to[16];
    size_t froms, tos;
    OK(onebuf_hub_select(hub, "opencl", from, 16, &froms));
    const char *apis[] = {"cuda", "hip"};
    for (int api = 0; api < 2; api++) {
        OK(onebuf_hub_select(hub, apis[api], to, 16, &tos));
        for (size_t i = 0; i < froms && i < 16; i++) {
            for (size_t j = 0; j < tos && j < 16; j++) {
                onebuf_verdict verdict = ONEBUF_OPTIONS(onebuf_verdict);
                bool possible = false;
                OK(onebuf_graft_query(from[i], to[j], &verdict, NULL, &possible));
                if (!possible) continue;
                cl = from[i], other = to[j];
                return true;
            }
        }
    }
    return false;
}

static onebuf_buffer shared_with(const onebuf_device *devices, size_t count) {
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = devices, options.device_count = count;
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    return buffer;
}

static void add(onebuf_queue queue, onebuf_kernel kernel, onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
}

static void holds(onebuf_buffer buffer, uint32_t want, int line) {
    static uint32_t seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    for (int i = 0; i < N; i++)
        if (seen[i] != want) fail("another sum", line);
}

// The same program, for a `cl_program` that the application has built in the device's context.
static cl_program built(void) {
    void *context, *device;
    OK(onebuf_device_native(cl, "cl_context", &context));
    OK(onebuf_device_native(cl, "cl_device_id", &device));
    const char *text = TEXT_OF_ADD;
    cl_device_id id = device;
    cl_int status;
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
    CL(status);
    CL(clBuildProgram(program, 1, &id, "", NULL, NULL));
    return program;
}

int main(void) {
    OK(onebuf_hub_discover(NULL, &hub));
    if (!found_pair()) {
        printf("skip: no chip with OpenCL and CUDA or HIP\n");
        return 0;
    }
    onebuf_queue queue, cl_queue;
    OK(onebuf_queue_create(other, NULL, &queue));
    OK(onebuf_queue_create(cl, NULL, &cl_queue));
    onebuf_program program = build_add(cl, NULL), moved;
    onebuf_buffer buffer = shared_with(&other, 1);

    OK(onebuf_program_graft(program, other, NULL, &moved));
    onebuf_kernel kernel = kernel_add(moved);
    add(queue, kernel, buffer, 3);
    holds(buffer, 3, __LINE__);

    // One kernel in the queues of both.
    const onebuf_device both[] = {cl, other};
    onebuf_buffer shared = shared_with(both, 2);
    onebuf_kernel everywhere = kernel_add(program);
    OK(onebuf_kernel_graft(everywhere, other, NULL));
    add(queue, everywhere, shared, 4);
    add(cl_queue, everywhere, shared, 5);
    add(queue, everywhere, shared, 6);
    holds(shared, 15, __LINE__);
    ENDS(ONEBUF_UNSUPPORTED, onebuf_kernel_graft(kernel, other, NULL)); // OpenCL has not compiled that one

    // A program of the application.
    cl_program theirs = built();
    onebuf_program taken;
    OK(onebuf_foreign_program_graft(hub, theirs, other, &taken));
    onebuf_kernel foreign = kernel_add(taken);
    add(queue, foreign, buffer, 7);
    holds(buffer, 10, __LINE__);
    CL(clReleaseProgram(theirs));

    // By hand: the driver's PTX, rewritten for CUDA.
    onebuf_string api, binary, text;
    OK(onebuf_device_api(other, &api));
    if (strcmp(onebuf_string_data(api), "cuda") == 0) {
        OK(onebuf_program_binary(program, &binary));
        OK(onebuf_graft_ptx(onebuf_string_data(binary), &text));
        onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
        source.ptx = onebuf_string_data(text);
        onebuf_program by_hand;
        OK(onebuf_program_build(other, &source, &by_hand));
        OK(onebuf_program_free(by_hand)), OK(onebuf_string_free(binary)), OK(onebuf_string_free(text));
    }
    OK(onebuf_string_free(api));
    OK(onebuf_kernel_free(foreign)), OK(onebuf_kernel_free(everywhere)), OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(taken)), OK(onebuf_program_free(moved)), OK(onebuf_program_free(program));
    OK(onebuf_buffer_free(shared)), OK(onebuf_buffer_free(buffer));
    OK(onebuf_queue_free(cl_queue)), OK(onebuf_queue_free(queue)), OK(onebuf_hub_free(hub));
    printf("grafted programs compute\n");
    return 0;
}
