/* Tests the stub: loads it once per mode and checks that each mode misbehaves as documented, and only so.
 *
 *   cc -std=c11 -Wall -Wextra -Werror -O1 -g -pthread -o selftest selftest.c -ldl
 *   ./selftest ./libstub.so              everything
 *   valgrind --leak-check=full --error-exitcode=9 ./selftest ./libstub.so nofork     without crash and hang modes */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int32_t I;
typedef uint32_t U;
typedef uint64_t L;
typedef size_t S;
typedef void *P; /* any handle */

#define FUNCTIONS(F) \
    F(I, clGetPlatformIDs, U, P *, U *) F(I, clGetPlatformInfo, P, U, S, P, S *) F(I, clGetDeviceIDs, P, L, U, P *, U *) \
    F(I, clGetDeviceInfo, P, U, S, P, S *) F(P, clCreateContext, P, U, P *, P, P, I *) F(I, clReleaseContext, P) \
    F(P, clCreateCommandQueue, P, P, L, I *) F(I, clReleaseCommandQueue, P) F(I, clFinish, P) F(I, clFlush, P) \
    F(P, clCreateBuffer, P, L, S, P, I *) F(P, clCreateBufferWithProperties, P, const L *, L, S, P, I *) \
    F(P, clCreateSubBuffer, P, L, U, S *, I *) F(I, clRetainMemObject, P) F(I, clReleaseMemObject, P) \
    F(I, clSetMemObjectDestructorCallback, P, void (*)(P, P), P) \
    F(I, clEnqueueReadBuffer, P, P, U, S, S, P, U, P *, P *) F(I, clEnqueueWriteBuffer, P, P, U, S, S, const void *, U, P *, P *) \
    F(I, clEnqueueCopyBuffer, P, P, P, S, S, S, U, P *, P *) F(I, clEnqueueFillBuffer, P, P, const void *, S, S, S, U, P *, P *) \
    F(P, clEnqueueMapBuffer, P, P, U, L, S, S, U, P *, P *, I *) F(I, clEnqueueUnmapMemObject, P, P, P, U, P *, P *) \
    F(P, clCreateProgramWithSource, P, U, const char **, S *, I *) \
    F(P, clCreateProgramWithBinary, P, U, P *, S *, const unsigned char **, I *, I *) F(I, clGetProgramInfo, P, U, S, P, S *) \
    F(I, clBuildProgram, P, U, P *, const char *, P, P) \
    F(I, clGetProgramBuildInfo, P, P, U, S, P, S *) F(I, clReleaseProgram, P) F(P, clCreateKernel, P, const char *, I *) \
    F(I, clReleaseKernel, P) F(I, clSetKernelArg, P, U, S, const void *) F(I, clSetKernelArgSVMPointer, P, U, const void *) \
    F(I, clEnqueueNDRangeKernel, P, P, U, S *, S *, S *, U, P *, P *) F(I, clEnqueueMarkerWithWaitList, P, U, P *, P *) \
    F(P, clCreateUserEvent, P, I *) F(I, clSetUserEventStatus, P, I) F(I, clWaitForEvents, U, P *) \
    F(I, clGetEventInfo, P, U, S, P, S *) F(I, clGetEventProfilingInfo, P, U, S, P, S *) \
    F(I, clSetEventCallback, P, I, void (*)(P, I, P), P) F(I, clReleaseEvent, P) F(P, clSVMAlloc, P, L, S, U) \
    F(void, clSVMFree, P, P) F(I, clEnqueueSVMMap, P, U, L, P, S, U, P *, P *) F(I, clEnqueueSVMUnmap, P, P, U, P *, P *) \
    F(I, clEnqueueSVMMemcpy, P, U, P, const void *, S, U, P *, P *) F(I, clEnqueueSVMMemFill, P, P, const void *, S, S, U, P *, P *) \
    F(I, clEnqueueSVMFree, P, U, P *, P, P, U, P *, P *) F(P, clGetExtensionFunctionAddressForPlatform, P, const char *) \
    F(int, onebuf_stub_live, void)
#define DECLARE(R, name, ...) static R (*name)(__VA_ARGS__);
FUNCTIONS(DECLARE)

static int failures;
static const char *mode, *library;
#define CHECK(x) do { if (!(x)) failures++, printf("%s:%d: %s: %s\n", __FILE__, __LINE__, mode, #x); } while (0)
enum { USE = 8, ALLOC = 16, COPY = 32, READ = 1, WRITE = 2, N = 3 * 1024 + 10, BYTES = 4 * N /* four pages, the last partial */ };
static const char *source = "kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {}\n";

static P handle, platform, device, context, queue, program, kernel;
static I err;
static uint32_t *host, back[N];

static bool open_library(const char *name)
{
    mode = name;
    setenv("ONEBUF_STUB", name, 1);
    if (!(handle = dlopen(library, RTLD_NOW | RTLD_LOCAL))) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
#define LOAD(R, name, ...) *(P *)&name = dlsym(handle, #name); CHECK(name);
    FUNCTIONS(LOAD)
    return clGetPlatformIDs(1, &platform, NULL) == 0;
}
static void close_library(void)
{
    dlclose(handle);
    CHECK(!dlopen(library, RTLD_NOW | RTLD_NOLOAD)); /* otherwise the next mode would not be read */
}
static void start(const char *name)
{
    CHECK(open_library(name));
    U count = 0;
    P list[2];
    CHECK(clGetPlatformIDs(2, list, &count) == 0);
    platform = list[count - 1];
    CHECK(clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL) == 0);
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
    queue = clCreateCommandQueue(context, device, 2, &err);
    program = clCreateProgramWithSource(context, 1, &source, NULL, &err);
    CHECK(clBuildProgram(program, 0, NULL, NULL, NULL, NULL) == 0);
    kernel = clCreateKernel(program, "onebuf_step", &err);
    CHECK(err == 0 && kernel);
    host = aligned_alloc(4096, 4 * 4096);
    memset(host, 0, 4 * 4096);
}
static void stop(void)
{
    CHECK(clReleaseKernel(kernel) == 0 && clReleaseProgram(program) == 0);
    CHECK(clReleaseCommandQueue(queue) == 0 && clReleaseContext(context) == 0);
    CHECK(onebuf_stub_live() == 0);
    close_library();
    free(host);
}
static I launch(P mem, U first, U n, U mul, U add, U waits, P *list, P *event)
{
    S global = n;
    CHECK(clSetKernelArg(kernel, 0, sizeof mem, &mem) == 0);
    U values[] = { first, n, mul, add };
    for (U i = 0; i < 4; i++) CHECK(clSetKernelArg(kernel, i + 1, 4, &values[i]) == 0);
    return clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, waits, list, event);
}
static void read_back(P mem) { CHECK(clEnqueueReadBuffer(queue, mem, 1, 0, BYTES, back, 0, NULL, NULL) == 0); }
static uint32_t *map(P mem, L flags)
{
    uint32_t *p = clEnqueueMapBuffer(queue, mem, 1, flags, 0, BYTES, 0, NULL, NULL, &err);
    CHECK(p && err == 0);
    return p;
}
static void unmap(P mem, P at) { CHECK(clEnqueueUnmapMemObject(queue, mem, at, 0, NULL, NULL) == 0 && clFinish(queue) == 0); }

/* The map protocol, in both directions, on one buffer: how many words arrive on the device, and how many on the host? */
struct seen { int device, host; bool stable; };
static struct seen exchange(L flags)
{
    struct seen s = { 0, 0, true };
    P mem = clCreateBuffer(context, flags, BYTES, flags & USE ? host : NULL, &err);
    CHECK(mem);
    uint32_t *first = map(mem, READ | WRITE);
    for (U i = 0; i < N; i++) first[i] = 7 * i + 1;
    unmap(mem, first);
    read_back(mem);
    for (U i = 0; i < N; i++) s.device += back[i] == 7 * i + 1;
    CHECK(launch(mem, 0, N, 0, 1000, 0, NULL, NULL) == 0);
    uint32_t *again = map(mem, READ);
    s.stable = again == first;
    for (U i = 0; i < N; i++) s.host += again[i] == 1000 + i;
    unmap(mem, again);
    CHECK(clEnqueueUnmapMemObject(queue, mem, again, 0, NULL, NULL) == -30); /* not mapped any more */
    CHECK(clReleaseMemObject(mem) == 0);
    return s;
}
static void memory_modes(void)
{
    static const struct { const char *mode; int use_device, use_host, alloc_device, alloc_host; bool alloc_stable; } table[] = {
        { "good", N, N, N, N, true }, { "shadow", N, N, N, N, true }, { "moving", N, N, N, N, false },
        { "last_page", 3072, 3072, N, N, true }, { "separate", 0, 0, N, N, true }, { "stale_read", 0, N, 0, N, true },
        { "liar", N, N, N, N, true } };
    for (U i = 0; i < sizeof table / sizeof *table; i++) {
        start(table[i].mode);
        struct seen use = exchange(USE), alloc = exchange(ALLOC), plain = exchange(0);
        CHECK(use.device == table[i].use_device && use.host == table[i].use_host && use.stable);
        CHECK(alloc.device == table[i].alloc_device && alloc.host == table[i].alloc_host);
        CHECK(alloc.stable == table[i].alloc_stable);
        CHECK(plain.device == N && plain.host == N); /* plain buffers are correct in every mode */
        stop();
    }
    /* Without map and unmap, only really shared memory works. */
    start("good");
    P mem = clCreateBuffer(context, USE, BYTES, host, &err);
    host[5] = 42;
    read_back(mem);
    CHECK(back[5] == 42);
    CHECK(launch(mem, 5, 1, 2, 3, 0, NULL, NULL) == 0 && clFinish(queue) == 0 && host[5] == 87);
    clReleaseMemObject(mem);
    stop();
    start("shadow");
    mem = clCreateBuffer(context, USE, BYTES, host, &err);
    host[5] = 42;
    read_back(mem);
    CHECK(back[5] == 0 && map(mem, READ) == host && host[5] == 0);
    unmap(mem, host);
    U unified = 9;
    L svm = 9;
    CHECK(clGetDeviceInfo(device, 0x1035, 4, &unified, NULL) == 0 && unified == 0);
    CHECK(clGetDeviceInfo(device, 0x1053, 8, &svm, NULL) == 0 && svm == 0 && !clSVMAlloc(context, 1, 64, 0));
    clReleaseMemObject(mem);
    stop();
}

static _Atomic int called, called_status, order;
static void on_destroy(P mem, P user) { (void)mem; order = order * 10 + (int)(intptr_t)user; }
static I status_of(P event)
{
    I status = 99;
    CHECK(clGetEventInfo(event, 0x11D3, sizeof status, &status, NULL) == 0);
    return status;
}
static void on_event(P event, I status, P user)
{
    (void)user;
    CHECK(status_of(event) == status); /* even if the client has released the event */
    called_status = status;
    called++;
}
static void until(_Atomic int *what, int value) { for (int i = 0; i < 5000 && *what != value; i++) usleep(1000); CHECK(*what == value); }

static void events(void)
{
    start("good");
    P mem = clCreateBuffer(context, 0, BYTES, NULL, &err), gate = clCreateUserEvent(context, &err), done[2], late;
    P other = clCreateCommandQueue(context, device, 0, &err);
    U one = 1;
    CHECK(clEnqueueFillBuffer(queue, mem, &one, 4, 0, BYTES, 0, NULL, NULL) == 0);
    CHECK(launch(mem, 0, N, 3, 0, 1, &gate, &done[0]) == 0);
    CHECK(clEnqueueReadBuffer(other, mem, 0, 0, BYTES, back, 1, done, &done[1]) == 0); /* across queues */
    called = order = 0;
    CHECK(clSetEventCallback(done[1], 0, on_event, NULL) == 0);
    clSetMemObjectDestructorCallback(mem, on_destroy, (P)1), clSetMemObjectDestructorCallback(mem, on_destroy, (P)2);
    CHECK(clReleaseMemObject(mem) == 0); /* two commands still hold it */
    usleep(20000);
    CHECK(status_of(done[0]) > 0 && status_of(done[1]) > 0 && called == 0 && order == 0);
    CHECK(clReleaseCommandQueue(other) == 0); /* with work pending, which it finishes */
    CHECK(clSetUserEventStatus(gate, 0) == 0 && clSetUserEventStatus(gate, 0) == -59);
    CHECK(clWaitForEvents(2, done) == 0 && status_of(done[0]) == 0);
    CHECK(order == 21 && back[0] == 3 && back[N - 1] == 3 + N - 1);
    until(&called, 1);
    CHECK(called_status == 0);
    CHECK(clSetEventCallback(done[0], 0, on_event, NULL) == 0 && called == 2); /* complete: called immediately */
    L t[4];
    for (U i = 0; i < 4; i++) CHECK(clGetEventProfilingInfo(done[0], 0x1280 + i, 8, &t[i], NULL) == 0);
    CHECK(t[0] && t[0] <= t[1] && t[1] <= t[2] && t[2] <= t[3]);
    for (int i = 0; i < 2; i++) CHECK(clReleaseEvent(done[i]) == 0);
    CHECK(clReleaseEvent(gate) == 0);
    /* A failed event fails the commands that wait for it. */
    gate = clCreateUserEvent(context, &err);
    called = 0;
    CHECK(clEnqueueMarkerWithWaitList(queue, 1, &gate, &late) == 0 && clSetEventCallback(late, 0, on_event, NULL) == 0);
    CHECK(clSetUserEventStatus(gate, -7) == 0 && clWaitForEvents(1, &late) == -14 && status_of(late) == -14);
    until(&called, 1);
    CHECK(called_status == -14);
    CHECK(clReleaseEvent(gate) == 0 && clReleaseEvent(late) == 0);
    called = 0;
    gate = clCreateUserEvent(context, &err);
    CHECK(clEnqueueMarkerWithWaitList(queue, 1, &gate, &late) == 0 && clSetEventCallback(late, 0, on_event, NULL) == 0);
    CHECK(clReleaseEvent(late) == 0 && clSetUserEventStatus(gate, 0) == 0 && clReleaseEvent(gate) == 0);
    until(&called, 1);
    stop();

    setenv("ONEBUF_STUB_LAZY", "1", 1);
    start("good");
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, &late) == 0);
    usleep(20000);
    CHECK(status_of(late) == 3 && clFlush(queue) == 0);
    for (int i = 0; i < 5000 && status_of(late); i++) usleep(1000);
    CHECK(status_of(late) == 0 && clReleaseEvent(late) == 0);
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, NULL) == 0); /* the release flushes */
    stop();
    unsetenv("ONEBUF_STUB_LAZY");
}

static void calls(void)
{
    start("good,shadow,moving"); /* words combine */
    uint32_t *a = NULL, *b = NULL;
    P mem = clCreateBuffer(context, ALLOC | COPY, BYTES, host, &err);
    a = map(mem, READ), b = map(mem, READ); /* two maps at once */
    CHECK(a != b);
    CHECK(clReleaseMemObject(mem) == 0); /* still mapped */
    stop();

    start("good");
    char text[256];
    CHECK(clGetDeviceInfo(device, 0x102B, 256, text, NULL) == 0 && !strcmp(text, "stub device"));
    CHECK(clGetDeviceInfo(device, 0x102D, 256, text, NULL) == 0 && !strcmp(text, "1.0"));
    CHECK(clGetDeviceInfo(device, 0x102B, 2, text, NULL) == -30 && clGetDeviceInfo(device, 0x106A, 16, text, NULL) == -30);
    CHECK(clGetDeviceInfo(queue, 0x102B, 2, text, NULL) == -33 && clFinish(context) == -36 && clReleaseMemObject(queue) == -38);
    CHECK(!clCreateBuffer(context, 0, 0, NULL, &err) && err == -61 && !clCreateBuffer(context, USE, 8, NULL, &err) && err == -37);
    CHECK(!clCreateBuffer(context, 1 << 20, 8, NULL, &err) && err == -30);
    CHECK(!clCreateCommandQueue(context, device, 1, &err) && err == -35);
    /* sub-buffers */
    mem = clCreateBuffer(context, 4, BYTES, NULL, &err);
    S region[] = { 128, 256 }, odd[] = { 64, 64 }, big[] = { 128, BYTES };
    CHECK(!clCreateSubBuffer(mem, 2, 0x1220, region, &err) && err == -30);
    CHECK(!clCreateSubBuffer(mem, 0, 0x1220, odd, &err) && err == -13 && !clCreateSubBuffer(mem, 0, 0x1220, big, &err) && err == -30);
    P sub = clCreateSubBuffer(mem, 0, 0x1220, region, &err);
    CHECK(sub && !clCreateSubBuffer(sub, 0, 0x1220, region, &err) && err == -38);
    CHECK(clReleaseMemObject(mem) == 0); /* the sub-buffer keeps it alive */
    U value = 5, got = 0, zero = 0;
    CHECK(clEnqueueFillBuffer(queue, sub, &value, 4, 0, 256, 0, NULL, NULL) == 0);
    CHECK(clEnqueueReadBuffer(queue, sub, 1, 252, 4, &got, 0, NULL, NULL) == 0 && got == 5);
    CHECK(clEnqueueReadBuffer(queue, sub, 1, 252, 8, back, 0, NULL, NULL) == -30);
    CHECK(clEnqueueCopyBuffer(queue, sub, sub, 0, 2, 8, 0, NULL, NULL) == -8);
    CHECK(clEnqueueWriteBuffer(queue, sub, 1, 0, 4, &zero, 0, NULL, NULL) == 0);
    CHECK(clEnqueueCopyBuffer(queue, sub, sub, 0, 128, 64, 0, NULL, NULL) == 0);
    CHECK(clEnqueueReadBuffer(queue, sub, 1, 128, 4, &got, 0, NULL, NULL) == 0 && got == 0);
    /* kernels */
    S global = 4, wrong = 3;
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL) == -52);
    CHECK(clSetKernelArg(kernel, 5, 4, &value) == -49 && clSetKernelArg(kernel, 1, 8, back) == -51);
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &wrong, 0, NULL, NULL) == -54);
    CHECK(launch(sub, 62, 2, 1, 1, 0, NULL, NULL) == 0 && clFinish(queue) == 0);
    CHECK(clEnqueueReadBuffer(queue, sub, 1, 248, 8, back, 0, NULL, NULL) == 0 && back[0] == 6 && back[1] == 7);
    P event;
    CHECK(launch(sub, 63, 2, 1, 1, 0, NULL, &event) == 0 && clWaitForEvents(1, &event) == -14); /* out of bounds */
    CHECK(clReleaseEvent(event) == 0 && clReleaseMemObject(sub) == 0);
    CHECK(!clCreateKernel(program, "onebuf_step_bytes", &err) && err == -46);
    const char *bad = "kernel void onebuf_step()\n{\n syntax_error\n}\n", *bytes = "kernel void onebuf_step_bytes(global uchar *p)";
    P broken = clCreateProgramWithSource(context, 1, &bad, NULL, &err);
    CHECK(clBuildProgram(broken, 1, &device, "-w", NULL, NULL) == -11);
    CHECK(clGetProgramBuildInfo(broken, device, 0x1183, 256, text, NULL) == 0 && strstr(text, "<source>:3:2: error: syntax_error"));
    CHECK(!clCreateKernel(broken, "onebuf_step", &err) && err == -45 && clReleaseProgram(broken) == 0);
    P text_program = clCreateProgramWithSource(context, 1, &bytes, NULL, &err);
    unsigned char binary[256], *at = binary;
    S size = 0, length;
    CHECK(clBuildProgram(text_program, 0, NULL, "", NULL, NULL) == 0);
    CHECK(clGetProgramInfo(text_program, 0x1165, sizeof size, &size, NULL) == 0 && size && size < sizeof binary);
    CHECK(clGetProgramInfo(text_program, 0x1166, sizeof at, &at, &length) == 0);
    const unsigned char *again = binary;
    P loaded = clCreateProgramWithBinary(context, 1, &device, &size, &again, NULL, &err);
    CHECK(loaded && clBuildProgram(loaded, 0, NULL, NULL, NULL, NULL) == 0);
    P step_bytes = clCreateKernel(loaded, "onebuf_step_bytes", &err), swap = kernel;
    CHECK(step_bytes && clReleaseProgram(loaded) == 0 && clReleaseProgram(text_program) == 0);
    unsigned char data[5] = { 1, 2, 3, 4, 250 };
    mem = clCreateBuffer(context, USE, 5, data, &err);
    kernel = step_bytes;
    CHECK(launch(mem, 1, 4, 1, 10, 0, NULL, NULL) == 0 && clFinish(queue) == 0);
    CHECK(data[0] == 1 && data[1] == 12 && data[2] == 14 && data[4] == (unsigned char)(250 + 10 + 3));
    kernel = swap;
    CHECK(clReleaseKernel(step_bytes) == 0 && clReleaseMemObject(mem) == 0);
    /* SVM */
    uint32_t *svm = clSVMAlloc(context, 1 | 1024, BYTES, 0);
    CHECK(svm && clEnqueueSVMMemFill(queue, svm, &value, 4, BYTES, 0, NULL, NULL) == 0);
    mem = clCreateBuffer(context, 0, BYTES, NULL, &err);
    CHECK(launch(mem, 0, 1, 1, 1, 0, NULL, NULL) == 0 && clSetKernelArgSVMPointer(kernel, 0, svm + 1) == 0);
    CHECK(clSetKernelArgSVMPointer(kernel, 0, host) == -50);
    U count = 4;
    clSetKernelArg(kernel, 2, 4, &count);
    CHECK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL) == 0);
    CHECK(clEnqueueSVMMap(queue, 1, READ, svm, BYTES, 0, NULL, NULL) == 0 && svm[0] == 5 && svm[1] == 6 && svm[4] == 9 && svm[5] == 5);
    CHECK(clEnqueueSVMUnmap(queue, svm, 0, NULL, NULL) == 0);
    CHECK(clEnqueueSVMMemcpy(queue, 1, host, svm, BYTES, 0, NULL, NULL) == 0 && host[4] == 9);
    CHECK(clEnqueueSVMFree(queue, 1, (P[]){ svm }, NULL, NULL, 0, NULL, NULL) == 0 && clReleaseMemObject(mem) == 0);
    svm = clSVMAlloc(context, 1, 64, 0);
    clSVMFree(context, svm);
    stop();
}

static void other_modes(void)
{
    CHECK(!open_library("no_platforms") && clGetPlatformIDs(1, &platform, NULL) == -1001);
    close_library();
    CHECK(open_library("no_devices") && clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL) == -1);
    close_library();
    start("oom");
    P mem = clCreateBuffer(context, 0, 1 << 20, NULL, &err);
    CHECK(mem && clReleaseMemObject(mem) == 0 && !clCreateBuffer(context, 0, (1 << 20) + 1, NULL, &err) && err == -4);
    stop();
    for (int ti = 0; ti < 2; ti++) { /* bit 20: TI's on-chip memory, refused by all others */
        start(ti ? "ti" : "good");
        mem = clCreateBuffer(context, 1 << 20, 64, NULL, &err);
        CHECK(ti ? mem && clReleaseMemObject(mem) == 0 : !mem && err == -30);
        stop();
    }
    start("lost");
    mem = clCreateBuffer(context, 0, BYTES, NULL, &err);
    P event = NULL;
    for (int i = 0; i < 3; i++) CHECK(launch(mem, 0, N, 1, 1, 0, NULL, NULL) == 0);
    CHECK(clFinish(queue) == 0 && launch(mem, 0, N, 1, 1, 0, NULL, &event) == 0 && clWaitForEvents(1, &event) == -14);
    CHECK(status_of(event) == -5 && clFinish(queue) == -5 && clEnqueueReadBuffer(queue, mem, 1, 0, 4, back, 0, NULL, NULL) == -5);
    CHECK(!clEnqueueMapBuffer(queue, mem, 1, READ, 0, 4, 0, NULL, NULL, &err) && err == -5);
    CHECK(clReleaseEvent(event) == 0 && clReleaseMemObject(mem) == 0);
    stop();
    setenv("ONEBUF_STUB_PLATFORMS", "2", 1), setenv("ONEBUF_STUB_VERSION", "2.5", 1), setenv("ONEBUF_STUB_DELAY_US", "2000", 1);
    start("liar");
    char text[512];
    L svm = 0, fd[] = { 0x2060, 3, 0 };
    P list[2];
    CHECK(clGetPlatformIDs(2, list, NULL) == 0 && list[1] == platform);
    CHECK(clGetPlatformInfo(platform, 0x0904, 512, text, NULL) == 0 && strstr(text, "cl_khr_external_memory_opaque_fd"));
    CHECK(clGetPlatformInfo(list[0], 0x0904, 512, text, NULL) == 0 && !strstr(text, "external"));
    CHECK(clGetDeviceInfo(device, 0x102D, 512, text, NULL) == 0 && !strcmp(text, "2.5"));
    CHECK(clGetDeviceInfo(device, 0x1053, 8, &svm, NULL) == 0 && svm == 15 && !clSVMAlloc(context, 1, 64, 0));
    CHECK(clGetDeviceInfo(device, 0x106A, 16, text, NULL) == -30);
    CHECK(!clCreateBufferWithProperties(context, fd, 1, 64, NULL, &err) && err == -64);
    CHECK(clGetExtensionFunctionAddressForPlatform(platform, "clAny") && !clGetExtensionFunctionAddressForPlatform(list[0], "clAny"));
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    CHECK(clEnqueueMarkerWithWaitList(queue, 0, NULL, NULL) == 0 && clFinish(queue) == 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 2000000);
    stop();
    unsetenv("ONEBUF_STUB_PLATFORMS"), unsetenv("ONEBUF_STUB_VERSION"), unsetenv("ONEBUF_STUB_DELAY_US");
}

static I (*hand[2])(P, U, P *, U, P *, P *); /* release, acquire */
static P import(L kind, int fd, S size)
{
    L list[] = { kind, (L)fd, 0 };
    return clCreateBufferWithProperties(context, list, 1, size, NULL, &err);
}
static int file_of(S size)
{
    int fd = memfd_create("selftest", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    return fd;
}
static bool is_open(int fd) { return lseek(fd, 0, SEEK_CUR) >= 0; }
static void start_imports(const char *name)
{
    start(name);
    *(P *)&hand[0] = clGetExtensionFunctionAddressForPlatform(platform, "clEnqueueReleaseExternalMemObjectsKHR");
    *(P *)&hand[1] = clGetExtensionFunctionAddressForPlatform(platform, "clEnqueueAcquireExternalMemObjectsKHR");
    CHECK(hand[0] && hand[1] && !clGetExtensionFunctionAddressForPlatform(platform, "clAny"));
}
static I give(P mem, bool acquire) { return hand[acquire](queue, 1, &mem, 0, NULL, NULL); }

static void imports(void)
{
    static const struct { const char *mode; L kind, other; bool cached; } table[] = {
        { "imports", 0x2060, 0x2067, false }, { "dma_buf", 0x2067, 0x2060, false }, { "imports,cached", 0x2060, 0x2067, true } };
    for (U i = 0; i < sizeof table / sizeof *table; i++) {
        start_imports(table[i].mode);
        U kind = 0, unified = 9;
        L type = 0;
        unsigned char uuid[16];
        CHECK(clGetDeviceInfo(device, 0x204F, 4, &kind, NULL) == 0 && kind == table[i].kind);
        CHECK(clGetDeviceInfo(device, 0x1000, 8, &type, NULL) == 0 && type == 4 && clGetDeviceIDs(platform, 4, 1, &device, NULL) == 0);
        CHECK(clGetDeviceInfo(device, 0x1035, 4, &unified, NULL) == 0 && !unified);
        CHECK(clGetDeviceInfo(device, 0x106A, 16, uuid, NULL) == 0 && uuid[0] == 1 && uuid[1] == 17 && uuid[15] == 241);
        int fd = file_of(BYTES), kept = dup(fd), wire[2];
        uint32_t *seen = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0);
        for (U j = 0; j < N; j++) seen[j] = j;
        CHECK(pipe(wire) == 0 && !import(table[i].kind, wire[0], BYTES) && err == -30); /* not memory */
        CHECK(!import(table[i].kind, -1, BYTES) && err == -30 && !import(table[i].other, fd, BYTES) && err == -64);
        CHECK(!import(table[i].kind, fd, BYTES + 1) && err == -61 && is_open(fd)); /* the caller still owns it */
        P mem = import(table[i].kind, fd, BYTES), part, plain = clCreateBuffer(context, 0, BYTES, NULL, &err);
        S region[] = { 1024, 512 };
        part = clCreateSubBuffer(mem, 1, 0x1220, region, &err);
        CHECK(mem && part && give(mem, false) == -59 && give(part, true) == -38 && give(plain, true) == -38);
        CHECK(give(mem, true) == 0 && give(mem, true) == -59);
        read_back(mem);
        CHECK(back[7] == 7 && launch(mem, 0, N, 2, 1, 0, NULL, NULL) == 0 && launch(part, 0, 128, 0, 9, 0, NULL, NULL) == 0);
        CHECK(!clEnqueueMapBuffer(queue, mem, 1, READ, 0, 4, 0, NULL, NULL, &err) && err == -59);
        CHECK(clFinish(queue) == 0 && (seen[7] == 7) == table[i].cached); /* with a cache, not before the release */
        CHECK(give(mem, false) == 0 && give(mem, false) == -59 && clFinish(queue) == 0);
        CHECK(seen[7] == 22 && seen[256] == 9 && seen[N - 1] == 3 * (N - 1) + 1);
        seen[7] = 5;
        CHECK(give(mem, true) == 0);
        read_back(mem);
        CHECK(back[7] == 5 && clEnqueueCopyBuffer(queue, mem, plain, 0, 0, BYTES, 0, NULL, NULL) == 0);
        read_back(plain);
        CHECK(back[7] == 5 && give(mem, false) == 0 && clFinish(queue) == 0);
        clReleaseMemObject(mem);
        CHECK(is_open(fd)); /* the part keeps it alive */
        clReleaseMemObject(part), clReleaseMemObject(plain);
        CHECK(!is_open(fd) && is_open(kept)); /* the driver owns it since the import */
        munmap(seen, BYTES), close(kept), close(wire[0]), close(wire[1]);
        stop();
    }
    setenv("ONEBUF_STUB_UUID", "00ff0000000000000000000000000007", 1);
    start_imports("imports,dma_buf,refuses");
    U kinds[2];
    unsigned char uuid[16];
    CHECK(clGetDeviceInfo(device, 0x204F, 8, kinds, NULL) == 0 && kinds[0] == 0x2060 && kinds[1] == 0x2067);
    CHECK(clGetDeviceInfo(device, 0x106A, 16, uuid, NULL) == 0 && uuid[1] == 255 && uuid[15] == 7);
    int fd = file_of(BYTES);
    CHECK(!import(0x2060, fd, BYTES) && err == -5 && is_open(fd) && close(fd) == 0);
    stop();
    unsetenv("ONEBUF_STUB_UUID");
}
/* In a child, which must end: uses memory that was not acquired, or releases it while in use, or closes its descriptor. */
static int misuse(int how)
{
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        fclose(stderr);
        start_imports("imports");
        int fd = file_of(BYTES);
        P mem = import(0x2060, fd, BYTES), gate = clCreateUserEvent(context, &err);
        P other = clCreateCommandQueue(context, device, 0, &err);
        if (how == 0) launch(mem, 0, N, 1, 1, 0, NULL, NULL);
        if (how == 1) clEnqueueReadBuffer(queue, mem, 1, 0, 4, back, 0, NULL, NULL);
        give(mem, true), clFinish(queue);
        if (how == 2) launch(mem, 0, N, 1, 1, 1, &gate, NULL), hand[0](other, 1, &mem, 0, NULL, NULL), clFinish(other);
        if (how == 2) clSetUserEventStatus(gate, 0), clFinish(queue);
        if (how == 3) close(fd), give(mem, false), clFinish(queue), clReleaseMemObject(mem);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In a child: `crash*` must kill it, `hang*` must still run when the alarm comes, a leak must be reported. */
static int in_child(const char *name, bool kernel_too, bool leak)
{
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        if (leak) setenv("ONEBUF_STUB_LEAKS", "1", 1), fclose(stderr);
        start(name);
        P mem = clCreateBuffer(context, 0, BYTES, NULL, &err), event;
        if (leak) exit(0);
        if (kernel_too) {
            CHECK(launch(mem, 0, N, 1, 1, 0, NULL, &event) == 0);
            usleep(50000);
            if (status_of(event) != 1) _exit(3);
            alarm(1);
            clFinish(queue);
        }
        alarm(1);
        map(mem, READ);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    if (argc < 2) return fprintf(stderr, "usage: selftest path/to/libstub.so [nofork]\n"), 2;
    library = argv[1];
    memory_modes();
    events();
    calls();
    other_modes();
    imports();
    if (argc < 3) {
        mode = "children";
        CHECK(in_child("crash", false, false) == -SIGSEGV);
        CHECK(in_child("crash_kernel", true, false) == -SIGSEGV);
        CHECK(in_child("hang_map", false, false) == -SIGALRM);
        CHECK(in_child("hang", true, false) == -SIGALRM);
        CHECK(in_child("good", false, true) == 97);
        CHECK(in_child("godo", false, true) == 98);
        for (int how = 0; how < 4; how++) CHECK(misuse(how) == 99);
        CHECK(misuse(4) == 0); /* the control */
    }
    printf("stub selftest: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
