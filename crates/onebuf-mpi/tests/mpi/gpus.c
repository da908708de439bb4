/* Libraries below a real Open MPI that say that they take device memory, as SHIM says.
 *
 * A device pointer of the stub driver is an address of the host with one bit set, which no MPI can use. These take the bit away, and
 * some of them do something wrong. Messages from the host's memory are slow, so that a bandwidth can be judged on a busy machine. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TAG ((uintptr_t)1 << 62)

int PMPI_Isend(const void *, int, void *, int, int, void *, void **);
int PMPI_Irecv(void *, int, void *, int, int, void *, void **);

static int is(const char *mode) {
    const char *set = getenv("SHIM");
    return set && !strcmp(set, mode);
}

static char *real(const void *at) { return (char *)((uintptr_t)at & ~TAG); }

static int tagged(const void *at) { return ((uintptr_t)at & TAG) != 0; }

static void *kept(const void *at, int bytes) { return memcpy(malloc((size_t)bytes + 1), real(at), (size_t)bytes); }

int MPIX_Query_cuda_support(void) { return 1; }

int MPI_Isend(const void *at, int bytes, void *type, int to, int tag, void *comm, void **request) {
    static char *first;
    static int first_bytes;
    if (tagged(at) == is("slow") && bytes > 200000) usleep(20000);
    if (tagged(at) && is("corrupt") && bytes > 9000) {
        char *other = kept(at, bytes);
        other[9000] ^= 1;
        return PMPI_Isend(other, bytes, type, to, tag, comm, request);
    }
    /* The second message of one size has the bytes of the first. */
    if (tagged(at) && is("stale")) {
        if (!first || first_bytes != bytes) first = kept(at, bytes), first_bytes = bytes;
        else return PMPI_Isend(first, bytes, type, to, tag, comm, request);
    }
    if (tagged(at) && is("crash")) abort();
    return PMPI_Isend(is("none") ? at : real(at), bytes, type, to, tag, comm, request);
}

int MPI_Irecv(void *at, int bytes, void *type, int from, int tag, void *comm, void **request) {
    /* Nothing of a longer message arrives. */
    if (tagged(at) && is("short") && bytes > 4096) {
        char *scratch = malloc((size_t)bytes);
        return PMPI_Irecv(scratch, bytes, type, from, tag, comm, request);
    }
    return PMPI_Irecv(real(at), bytes, type, from, tag, comm, request);
}
