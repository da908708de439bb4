/* Tests cuda_share.c, cuda_managed.c and hsa_stub.c: each call sequence as intended, then what must be refused, then what must
 * end the process.
 *
 *   cc -std=c11 -Wall -Wextra -Werror -O1 -g -pthread -o share_selftest share_selftest.c -ldl
 *   ./share_selftest ./libcuda_stub.so */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int I;
typedef unsigned U;
typedef uint64_t L;
typedef size_t S;
typedef void *P;
struct ipc { char bytes[64]; };
struct prop { I kind, handles, where, id; P metadata; char flags[8]; };
struct access { I where, id, flags; };
struct handle { I kind; union { I fd; P words[2]; } u; L bytes; U flags, reserved[16]; };
struct buffer { L offset, bytes; U flags, reserved[16]; };
struct location { I kind, id; };
struct info { U size, type; L agent, host; S bytes; L user, owner; U flags; bool registered; };

#define SHARED(F, api) \
    F(I, api##Init, U) F(I, api##MemCreate, P *, S, const struct prop *, L) F(I, api##MemRelease, P) \
    F(I, api##MemExportToShareableHandle, P, P, I, L) F(I, api##MemImportFromShareableHandle, P *, P, I) \
    F(I, api##MemAddressReserve, L *, S, S, L, L) F(I, api##MemAddressFree, L, S) F(I, api##MemMap, L, S, S, P, L) \
    F(I, api##MemUnmap, L, S) F(I, api##MemSetAccess, L, S, const struct access *, S) \
    F(I, api##MemGetAllocationGranularity, S *, const struct prop *, I) \
    F(I, api##ImportExternalMemory, P *, const struct handle *) F(I, api##DestroyExternalMemory, P) \
    F(I, api##ExternalMemoryGetMappedBuffer, L *, P, const struct buffer *) F(I, api##StreamQuery, P) \
    F(I, api##LaunchHostFunc, P, void (*)(P), P) F(I, api##StreamWriteValue32, P, L, U, U) \
    F(I, api##MemsetD32Async, L, U, S, P) F(I, api##IpcGetMemHandle, struct ipc *, L) F(I, api##IpcCloseMemHandle, L) \
    F(I, api##DeviceCanAccessPeer, I *, I, I)
#define FUNCTIONS(F) SHARED(F, cu) SHARED(F, hip) \
    F(I, cuDevicePrimaryCtxRetain, P *, I) F(I, cuCtxPushCurrent_v2, P) F(I, cuCtxPopCurrent_v2, P *) \
    F(I, cuStreamCreate, P *, U) F(I, hipStreamCreateWithFlags, P *, U) F(I, cuMemAlloc_v2, L *, S) F(I, cuMemFree_v2, L) \
    F(I, hipMalloc, L *, S) F(I, hipFree, L) F(I, hipSetDevice, I) F(I, cuStreamWaitValue32_v2, P, L, U, U) \
    F(I, hipStreamWaitValue32, P, L, U, U, U) F(I, hipStreamWaitValue64, P, L, L, U, L) F(I, cuMemcpyDtoHAsync_v2, P, L, S, P) \
    F(I, hipMemcpyDtoHAsync, P, L, S, P) F(I, cuIpcOpenMemHandle_v2, L *, struct ipc, U) F(I, cuCtxEnablePeerAccess, P, U) \
    F(I, hipIpcOpenMemHandle, L *, struct ipc, U) F(I, hipDeviceEnablePeerAccess, I, U) \
    F(I, cuMemcpyPeerAsync, L, P, L, P, S, P) F(I, hipMemcpyPeerAsync, L, I, L, I, S, P) F(I, hipHostMalloc, P *, S, U) \
    F(I, hsa_init, void) F(I, hsa_shut_down, void) F(I, hsa_amd_pointer_info, const void *, struct info *, P, U *, P) \
    F(I, hsa_amd_portable_export_dmabuf, L, S, I *, L *) F(I, hsa_amd_portable_close_dmabuf, I) \
    F(S, onebuf_stub_record, char *, S) F(void, onebuf_stub_forget, void) F(void, onebuf_stub_fail, const char *, I, I) \
    F(I, cuMemAllocManaged, L *, S, U) F(I, cuMemPrefetchAsync_v2, L, S, struct location, U, P) F(I, cuMemPrefetchAsync, L, S, I, P) \
    F(I, onebuf_stub_live, void) F(I, cuMemGetAddressRange_v2, L *, S *, L) F(I, cuStreamDestroy_v2, P)
#define DECLARE(R, name, ...) static R (*name)(__VA_ARGS__);
FUNCTIONS(DECLARE)
#define LOAD(R, name, ...) if (!(*(P *)&name = dlsym(library, #name))) { printf("no %s\n", #name); return 2; }

static int failures;
#define CHECK(x) do { if (!(x)) failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #x); } while (0)
enum { MIB2 = 2 << 20, PAGE = 4096 };
static P context[2], stream;

static bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }
static void drain(bool hip) { while (hip ? hipStreamQuery(stream) : cuStreamQuery(stream)) usleep(100); }

/* How a child process ends. A fork also copies the locks that the stub's threads hold at that moment, and such a child waits for one
 * forever: it is killed, and there is another. */
static int child_ends(void (*what)(P), P with)
{
    int how = 0;
    for (int tries = 0; tries < 5; tries++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            alarm(10);
            what(with);
            _exit(0);
        }
        waitpid(child, &how, 0);
        if (!WIFSIGNALED(how) || WTERMSIG(how) != SIGALRM) break;
    }
    return how;
}

struct work { void (*what)(P); P with; };

static void quietly(P of)
{
    struct work *work = of;
    if (!freopen("/dev/null", "w", stderr)) _exit(3);
    work->what(work->with);
}

/* Whether the stub ends a child process that does this. */
static bool dies(void (*what)(P), P with)
{
    struct work work = { what, with };
    int how = child_ends(quietly, &work);
    return WIFEXITED(how) && WEXITSTATUS(how) == 99;
}

static struct prop prop(I device) { return (struct prop){ .kind = 1, .handles = 1, .where = 1, .id = device }; }

static void release_twice(P handle) { cuMemRelease(handle); cuMemRelease(handle); }
static void free_mapped(P at) { cuMemAddressFree((L)(uintptr_t)at, 2 * MIB2); }
static void fill_unasked(P at) { cuMemsetD32Async((L)(uintptr_t)at, 1, 1, stream); }
static void unmap_half(P at) { cuMemUnmap((L)(uintptr_t)at, MIB2); }

/* Virtual memory, exported: a mapping of the descriptor has what the device stored. */
static void virtual_memory(void)
{
    struct prop p = prop(0), wrong = p;
    struct access device = { 1, 0, 3 }, other = { 1, 1, 3 };
    S unit = 0;
    P handle, again;
    L at;
    I fd = -1;
    CHECK(cuMemGetAllocationGranularity(&unit, &p, 1) == 0 && unit == MIB2);
    CHECK(cuMemCreate(&handle, MIB2 + PAGE, &p, 0) == 1 && cuMemCreate(&handle, 0, &p, 0) == 1);
    CHECK(cuMemCreate(&handle, 1ull << 40, &p, 0) == 2);
    wrong.id = 7;
    CHECK(cuMemCreate(&handle, MIB2, &wrong, 0) == 101);
    CHECK(cuMemCreate(&handle, 2 * MIB2, &p, 0) == 0);
    CHECK(cuMemAddressReserve(&at, PAGE, 0, 0, 0) == 1 && cuMemAddressReserve(&at, 2 * MIB2, 0, 0, 0) == 0);
    CHECK(at >> 62 == 1 && at % MIB2 == 0);
    CHECK(cuMemMap(at, 2 * MIB2, PAGE, handle, 0) == 1 && cuMemMap(at + PAGE, MIB2, 0, handle, 0) == 1);
    CHECK(cuMemSetAccess(at, 2 * MIB2, &device, 1) == 1); /* not mapped yet */
    CHECK(cuMemMap(at, 2 * MIB2, 0, handle, 0) == 0 && cuMemMap(at, 2 * MIB2, 0, handle, 0) == 1);
    CHECK(cuMemsetD32Async(at, 7, 10, stream) == 1); /* no access yet */
    CHECK(cuMemSetAccess(at, 2 * MIB2, &other, 1) == 0 && dies(fill_unasked, (P)(uintptr_t)at));
    CHECK(cuMemSetAccess(at, 2 * MIB2, &device, 1) == 0 && cuMemsetD32Async(at, 7, MIB2 / 2, stream) == 0);
    drain(false);
    CHECK(cuMemExportToShareableHandle(&fd, handle, 2, 0) == 1 && cuMemExportToShareableHandle(&fd, handle, 1, 0) == 0);
    U *seen = mmap(NULL, 2 * MIB2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(seen[0] == 7 && seen[MIB2 / 2 - 1] == 7);
    seen[1] = 8;
    U back[2];
    CHECK(cuMemcpyDtoHAsync_v2(back, at, 8, stream) == 0 && back[0] == 7 && back[1] == 8);
    munmap(seen, 2 * MIB2);
    CHECK(dies(free_mapped, (P)(uintptr_t)at));
    CHECK(dies(unmap_half, (P)(uintptr_t)at));
    CHECK(dies(release_twice, handle));
    CHECK(cuMemImportFromShareableHandle(&again, (P)(intptr_t)fd, 1) == 0 && is_open(fd));
    CHECK(cuMemImportFromShareableHandle(&again, (P)(intptr_t)1, 1) == 1); /* not from a stub */
    CHECK(cuMemRelease(again) == 0 && cuMemRelease(handle) == 0);
    CHECK(cuMemExportToShareableHandle(&fd, handle, 1, 0) == 400); /* still mapped, but the handle is released */
    CHECK(cuMemUnmap(at, 2 * MIB2) == 0 && cuMemAddressFree(at, 2 * MIB2) == 0 && close(fd) == 0);
    CHECK(onebuf_stub_live() == 0);
}

static void destroy_under_buffer(P memory) { cuDestroyExternalMemory(memory); }
static void destroy_twice(P memory) { hipDestroyExternalMemory(memory); hipDestroyExternalMemory(memory); }

/* CUDA takes ownership of the descriptor. */
static void external_memory(void)
{
    struct prop p = prop(0);
    P handle, memory;
    L at;
    I fd = -1;
    CHECK(cuMemCreate(&handle, MIB2, &p, 0) == 0 && cuMemExportToShareableHandle(&fd, handle, 1, 0) == 0);
    struct handle from = { .kind = 1, .u.fd = fd, .bytes = 2 * MIB2 };
    CHECK(cuImportExternalMemory(&memory, &from) == 1 && is_open(fd)); /* larger than the memory */
    from.bytes = MIB2;
    from.reserved[3] = 1;
    CHECK(cuImportExternalMemory(&memory, &from) == 1);
    from.reserved[3] = 0;
    CHECK(cuImportExternalMemory(&memory, &from) == 0 && !is_open(fd));
    CHECK(cuImportExternalMemory(&memory, &from) == 1); /* it is closed now */
    struct buffer part = { .offset = MIB2 - PAGE, .bytes = 2 * PAGE };
    CHECK(cuExternalMemoryGetMappedBuffer(&at, memory, &part) == 1);
    part = (struct buffer){ .offset = PAGE + 8, .bytes = PAGE };
    CHECK(cuExternalMemoryGetMappedBuffer(&at, memory, &part) == 0 && cuMemsetD32Async(at, 5, PAGE / 4, stream) == 0);
    CHECK(cuMemsetD32Async(at, 5, PAGE / 4 + 1, stream) == 1);
    drain(false);
    CHECK(dies(destroy_under_buffer, memory));
    CHECK(cuMemFree_v2(at) == 0 && cuDestroyExternalMemory(memory) == 0 && cuMemRelease(handle) == 0);
    CHECK(onebuf_stub_live() == 0);
}

static _Atomic U called;
static void call(P user) { called += (U)(uintptr_t)user; }
static void call_api(P with) { (void)with; hipMalloc(&(L){ 0 }, 4); }
static void misbehave(P with) /* in a child, which has none of its parent's threads */
{
    hipStreamCreateWithFlags(&with, 1);
    hipLaunchHostFunc(with, call_api, NULL);
    usleep(1000000);
}

static void values(void)
{
    L at;
    U back[2];
    CHECK(cuMemAlloc_v2(&at, 64) == 0 && cuMemsetD32Async(at, 0, 16, stream) == 0);
    CHECK(cuStreamWaitValue32_v2(stream, at + 2, 1, 0) == 1 && cuStreamWaitValue32_v2(stream, at, 1, 9) == 1);
    CHECK(cuStreamWaitValue32_v2(stream, 0x1000, 1, 0) == 1);
    drain(false);
    P writer = stream;
    CHECK(cuStreamWaitValue32_v2(stream, at, 3, 0) == 0 && cuLaunchHostFunc(stream, call, (P)1) == 0);
    usleep(5000);
    CHECK(cuStreamQuery(stream) == 600 && called == 0);
    CHECK(cuStreamCreate(&writer, 1) == 0 && cuStreamWriteValue32(writer, at, 2, 0) == 0);
    usleep(5000);
    CHECK(cuStreamQuery(stream) == 600 && called == 0);
    CHECK(cuStreamWriteValue32(writer, at, 3, 0) == 0);
    drain(false);
    CHECK(called == 1 && cuMemcpyDtoHAsync_v2(back, at, 8, stream) == 0 && back[0] == 3);
    CHECK(cuStreamWaitValue32_v2(stream, at, 0xfffffff0u, 0) == 0); /* 3 comes after that, by distance */
    drain(false);
    CHECK(cuMemFree_v2(at) == 0);
}

struct opened { struct ipc handle; bool hip; };

static void open_there(P of)
{
    struct opened *opened = of;
    L there = 0;
    int s = (opened->hip ? hipIpcOpenMemHandle : cuIpcOpenMemHandle_v2)(&there, opened->handle, 1);
    if (s) _exit(1);
    *(U *)(uintptr_t)(there & ~(1ull << 62)) = 77;
    _exit((opened->hip ? hipIpcCloseMemHandle : cuIpcCloseMemHandle)(there));
}

static void processes(L at, bool hip)
{
    struct ipc handle;
    L own;
    CHECK((hip ? hipIpcGetMemHandle : cuIpcGetMemHandle)(&handle, at) == 0);
    CHECK((hip ? hipIpcOpenMemHandle : cuIpcOpenMemHandle_v2)(&own, handle, 1) == 201);
    struct opened opened = { handle, hip };
    int how = child_ends(open_there, &opened);
    U back;
    CHECK(how == 0 && (hip ? hipMemcpyDtoHAsync : cuMemcpyDtoHAsync_v2)(&back, at, 4, stream) == 0 && back == 77);
}

static void peers(void)
{
    I can = 0;
    L a = 0, b = 0;
    U back = 0;
    CHECK(cuDeviceCanAccessPeer(&can, 0, 1) == 0 && can == 1 && cuDeviceCanAccessPeer(&can, 0, 0) == 0 && can == 0);
    CHECK(cuCtxEnablePeerAccess(context[1], 0) == 0 && cuCtxEnablePeerAccess(context[1], 0) == 704);
    CHECK(cuCtxEnablePeerAccess(context[0], 0) == 101);
    CHECK(cuMemAlloc_v2(&a, 64) == 0 && cuCtxPushCurrent_v2(context[1]) == 0 && cuMemAlloc_v2(&b, 64) == 0);
    CHECK(cuCtxPopCurrent_v2(&(P){ 0 }) == 0 && cuMemsetD32Async(a, 9, 16, stream) == 0);
    CHECK(cuMemcpyPeerAsync(b, context[0], a, context[0], 64, stream) == 1);
    CHECK(cuMemsetD32Async(b, 9, 1, stream) == 0); /* the first may access the second's memory, but not the other way round */
    drain(false);
    P others = NULL;
    CHECK(cuCtxPushCurrent_v2(context[1]) == 0 && cuStreamCreate(&others, 1) == 0);
    P first = stream;
    stream = others;
    CHECK(dies(fill_unasked, (P)(uintptr_t)a));
    stream = first;
    CHECK(cuStreamDestroy_v2(others) == 0 && cuCtxPopCurrent_v2(&(P){ 0 }) == 0);
    L base = 0;
    S whole = 0;
    CHECK(cuMemGetAddressRange_v2(&base, &whole, a + 8) == 0 && base == a && whole == 64);
    CHECK(cuMemGetAddressRange_v2(&base, &whole, a + 64) == 1);
    CHECK(cuMemcpyPeerAsync(b, context[1], a, context[0], 64, stream) == 0);
    drain(false);
    CHECK(cuMemcpyDtoHAsync_v2(&back, b, 4, stream) == 0 && back == 9);
    processes(a, false);
    CHECK(cuMemFree_v2(a) == 0 && cuCtxPushCurrent_v2(context[1]) == 0 && cuMemFree_v2(b) == 0);
    CHECK(cuCtxPopCurrent_v2(&(P){ 0 }) == 0);
}

/* As on AMD: hipMalloc, HSA's export with its offset, an alias of the same bytes; the caller owns the descriptor. */
static void dma_bufs(void)
{
    L at = 0, alias = 0, offset = 0;
    I fd = -1;
    P memory, pinned;
    struct info info = { .size = sizeof info };
    CHECK(hipInit(0) == 0 && hipSetDevice(1) == 0 && hipStreamCreateWithFlags(&stream, 1) == 0 && hipMalloc(&at, 3 * PAGE) == 0);
    CHECK(hsa_amd_pointer_info((P)(uintptr_t)at, &info, NULL, NULL, NULL) == 0x100B && hsa_init() == 0);
    CHECK(hsa_amd_pointer_info((P)(uintptr_t)(at + 100), &info, NULL, NULL, NULL) == 0);
    CHECK(info.type == 1 && info.agent == at && info.bytes == 3 * PAGE && info.owner == 2 && info.flags == 4);
    CHECK(hsa_amd_pointer_info(&info, &info, NULL, NULL, NULL) == 0 && info.type == 0 && info.size == sizeof info);
    CHECK(hipHostMalloc(&pinned, PAGE, 3) == 0);
    CHECK(hsa_amd_portable_export_dmabuf((L)(uintptr_t)pinned, PAGE, &fd, &offset) == 0x1003);
    CHECK(hsa_amd_portable_export_dmabuf(at, 4 * PAGE, &fd, &offset) == 0x1003);
    CHECK(hsa_amd_portable_export_dmabuf(at + PAGE, 2 * PAGE, &fd, &offset) == 0 && offset > PAGE && offset % PAGE == 0);
    struct handle from = { .kind = 1, .u.fd = fd, .bytes = offset + 2 * PAGE };
    CHECK(hipImportExternalMemory(&memory, &from) == 0 && is_open(fd) && hsa_amd_portable_close_dmabuf(fd) == 0 && !is_open(fd));
    CHECK(hipExternalMemoryGetMappedBuffer(&alias, memory, &(struct buffer){ .offset = offset, .bytes = 2 * PAGE }) == 0);
    CHECK(alias != at + PAGE && hipMemsetD32Async(at, 1, 3 * PAGE / 4, stream) == 0 && hipMemsetD32Async(alias, 2, 2 * PAGE / 4, stream) == 0);
    U back[2];
    CHECK(hipMemcpyDtoHAsync(back, at + PAGE - 4, 8, stream) == 0 && back[0] == 1 && back[1] == 2);
    CHECK(hipFree(alias) == 0);
    CHECK(dies(destroy_twice, memory));
    CHECK(hipDestroyExternalMemory(memory) == 0);
    CHECK(hipStreamWaitValue32(stream, at, 1, 0, ~0u) == 0 && hipStreamWaitValue64(stream, at, 1, 3, 2) == 0);
    drain(true);
    CHECK(dies(misbehave, NULL));
    processes(at, true);
    CHECK(hipFree(at) == 0 && hsa_shut_down() == 0 && hsa_shut_down() == 0x100B && onebuf_stub_live() == 0);
}

/* Managed memory in a separate process, because a forked child has no streams: used alternately; then accessed by the host, or
 * by the device, while its pages are on the other side. */
static int touch(const char *who)
{
    const struct location host = { 2, 0 }, device = { 1, 0 }, nowhere = { 3, 0 };
    L at;
    CHECK(cuMemAllocManaged(&at, 2 * PAGE, 1) == 0 && at >> 62 == 0 && cuMemAllocManaged(&at, 2 * PAGE, 2) == 1);
    U *seen = (U *)(uintptr_t)at;
    CHECK(cuMemPrefetchAsync_v2(at, PAGE, nowhere, 0, stream) == 1 && cuMemPrefetchAsync_v2(at, PAGE, host, 1, stream) == 1);
    CHECK(cuMemPrefetchAsync(at, 2 * PAGE + 1, -1, stream) == 1 && cuMemPrefetchAsync(at, PAGE, 7, stream) == 101);
    CHECK(cuMemsetD32Async(at, 7, 2 * PAGE / 4, stream) == 0);
    drain(false);
    if (!strcmp(who, "host")) seen[0] = 1;
    CHECK(cuMemPrefetchAsync_v2(at + PAGE, 4, host, 0, stream) == 0);
    drain(false);
    CHECK(seen[PAGE / 4] == 7 && seen[2 * PAGE / 4 - 1] == 7);
    seen[PAGE / 4] = 8;
    if (!strcmp(who, "device")) CHECK(cuMemsetD32Async(at + PAGE, 9, 1, stream) == 0);
    drain(false);
    U back[2];
    CHECK(cuMemPrefetchAsync_v2(at, 2 * PAGE, device, 0, stream) == 0 && cuMemcpyDtoHAsync_v2(back, at + PAGE - 4, 8, stream) == 0);
    CHECK(back[0] == 7 && back[1] == 8);
    if (!strcmp(who, "late")) seen[PAGE / 4] = 9;
    CHECK(cuMemFree_v2(at) == 0);
    return failures != 0;
}

static int ends(char *self, char *library, char *who)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        execv(self, (char *[]){ self, library, who, NULL });
        _exit(4);
    }
    int how = 0;
    waitpid(child, &how, 0);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

static void managed(char *self, char *library)
{
    CHECK(ends(self, library, "nobody") == 0 && ends(self, library, "device") == 99);
    CHECK(ends(self, library, "host") == -SIGSEGV && ends(self, library, "late") == -SIGSEGV);
}

static void records(void)
{
    char text[4096];
    struct prop p = prop(0);
    P handle;
    onebuf_stub_forget();
    onebuf_stub_fail("cuMemCreate", 2, 1);
    CHECK(cuMemCreate(&handle, MIB2, &p, 0) == 2 && cuMemCreate(&handle, MIB2, &p, 0) == 0 && cuMemRelease(handle) == 0);
    S len = onebuf_stub_record(text, sizeof text);
    CHECK(len == strlen(text) && !strncmp(text, "cuMemCreate(chosen to fail) = 2\ncuMemCreate(bytes=2097152, device=0", 66));
}

int main(int argc, char **argv)
{
    P library = dlopen(argc > 1 ? argv[1] : "./libcuda_stub.so", RTLD_NOW);
    if (!library) { printf("%s\n", dlerror()); return 2; }
    FUNCTIONS(LOAD)
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context[0], 0) == 0 && cuDevicePrimaryCtxRetain(&context[1], 1) == 0);
    CHECK(cuCtxPushCurrent_v2(context[0]) == 0 && cuStreamCreate(&stream, 1) == 0);
    if (argc > 2) return touch(argv[2]);
    virtual_memory();
    external_memory();
    values();
    peers();
    managed(argv[0], argv[1]);
    records();
    dma_bufs();
    printf("%s\n", failures ? "failed" : "fine");
    return failures != 0;
}
