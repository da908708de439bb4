/* The math libraries, as a part of cuda_stub.c: cuBLAS, cuFFT, cuSOLVER and rocBLAS, rocFFT, rocSOLVER.
 *
 * They compute slowly, after earlier work in the stream, and late, so that a missing wait reads old contents. A call without
 * the right current context or device, or on memory that does not exist, is refused. Destroying a handle twice, in another
 * context or while work uses it ends the process with status 99. Each call is logged, one line each: `onebuf_stub_log`. */
#include <complex.h>

typedef double complex number;
enum { BAD_HANDLE = 1, BAD_VALUE = 7, HANDLES = 1 << 16 };

static char journal[1 << 16];
static size_t journal_length;

static void note(const char *line)
{
    lock();
    size_t length = strlen(line);
    if (journal_length + length + 2 > sizeof journal) die("the stub's log is full");
    memcpy(journal + journal_length, line, length);
    journal_length += length;
    journal[journal_length++] = '\n';
    journal[journal_length] = 0;
    unlock();
}
#define NOTE(...) do { char line[256]; snprintf(line, sizeof line, __VA_ARGS__); note(line); } while (0)

/* Copies the lines since the last call into a buffer of `bytes` bytes, and clears them. */
EXPORT void onebuf_stub_log(char *to, size_t bytes)
{
    lock();
    snprintf(to, bytes, "%s", journal);
    journal_length = 0;
    journal[0] = 0;
    unlock();
}

/* ---- Handles -------------------------------------------------------------------------------------------------- */
struct handle { const char *of; int device; bool alive; struct stream *stream; };
static struct handle handles[HANDLES]; /* never reused, so that a dead one is recognised */
static int handle_count;

static status make_handle(void **to, const char *of)
{
    int device = current();
    if (device < 0) return BAD_HANDLE;
    lock();
    if (handle_count == HANDLES) die("too many handles");
    struct handle *h = &handles[handle_count++];
    *h = (struct handle){ of, device, true, NULL };
    devices[device].objects++;
    unlock();
    *to = h;
    NOTE("%s create", of);
    return OK;
}

/* The handle, if it belongs to that library, is alive, and its device is current. */
static struct handle *known_handle(void *at, const char *of)
{
    struct handle *h = at;
    bool is = h >= handles && h < handles + HANDLES && h->alive && !strcmp(h->of, of) && h->device == current();
    return is ? h : NULL;
}

static status destroy_handle(void *at, const char *of)
{
    struct handle *h = known_handle(at, of);
    if (!h) die("a handle was destroyed that is dead, of another library, or of another device");
    lock();
    if (h->stream && h->stream->first) die("a handle was destroyed under work");
    h->alive = false;
    devices[h->device].objects--;
    unlock();
    NOTE("%s destroy", of);
    return OK;
}

static status set_stream(void *at, const char *of, void *stream)
{
    struct handle *h = known_handle(at, of);
    if (!h || !stream) return BAD_HANDLE;
    h->stream = stream_of(stream);
    NOTE("%s stream", of);
    return OK;
}

/* ---- Numbers -------------------------------------------------------------------------------------------------- */
static size_t width(char kind) { return kind == 's' ? 4 : kind == 'z' ? 16 : 8; }

static number get(char kind, const void *at, size_t i)
{
    switch (kind) {
    case 's': return ((const float *)at)[i];
    case 'd': return ((const double *)at)[i];
    case 'c': return ((const float complex *)at)[i];
    default: return ((const double complex *)at)[i];
    }
}

static void put(char kind, void *at, size_t i, number value)
{
    switch (kind) {
    case 's': ((float *)at)[i] = (float)creal(value); break;
    case 'd': ((double *)at)[i] = creal(value); break;
    case 'c': ((float complex *)at)[i] = (float complex)value; break;
    default: ((double complex *)at)[i] = value;
    }
}

/* Element of op(x), with cuBLAS's numbers for op. */
static number element(char kind, const void *x, int ld, int op, int row, int column)
{
    if (!op) return get(kind, x, (size_t)row + (size_t)column * (size_t)ld);
    number value = get(kind, x, (size_t)column + (size_t)row * (size_t)ld);
    return op == 2 ? conj(value) : value;
}

static size_t extent(int rows, int columns, int ld) { return (size_t)ld * (size_t)(columns - 1) + (size_t)rows; }

/* An operation in cuBLAS's numbers; -1 if it is invalid. */
static int operation(int op, bool hip)
{
    op -= hip ? 111 : 0;
    return op >= 0 && op <= 2 ? op : -1;
}

/* ---- Work ----------------------------------------------------------------------------------------------------- */
struct work {
    char kind;
    int op[2], m, n, k, ld[3], direction;
    number alpha, beta;
    char *at[4];
};
struct span { uint64_t at; size_t bytes; };

/* Enqueues a call on memory that must exist. */
static status enqueue(struct handle *h, void (*call)(void *), struct work w, const struct span *spans, int count)
{
    struct command c = { .kind = CALL, .call = call };
    bool there = h->stream != NULL;
    lock();
    for (int i = 0; i < count && there; i++) {
        there = use(&c, i, spans[i].at, spans[i].bytes);
        w.at[i] = real(spans[i].at);
    }
    if (there) {
        c.owned = malloc(sizeof w);
        memcpy(c.owned, &w, sizeof w);
        push(h->stream, c);
    } else {
        for (int i = 0; i < MAX_PARAMETERS; i++) if (c.uses[i]) c.uses[i]->uses--;
    }
    unlock();
    return there ? OK : BAD_VALUE;
}

static void run_gemm(void *argument)
{
    const struct work *w = argument;
    for (int j = 0; j < w->n; j++)
        for (int i = 0; i < w->m; i++) {
            number sum = 0;
            for (int l = 0; l < w->k; l++)
                sum += element(w->kind, w->at[0], w->ld[0], w->op[0], i, l)
                     * element(w->kind, w->at[1], w->ld[1], w->op[1], l, j);
            size_t at = (size_t)i + (size_t)j * (size_t)w->ld[2];
            number old = w->beta == 0 ? 0 : w->beta * get(w->kind, w->at[2], at);
            put(w->kind, w->at[2], at, w->alpha * sum + old);
        }
}

static status gemm(const char *name, char kind, bool hip, void *handle, int op_a, int op_b, int m, int n, int k,
                   const void *alpha, uint64_t a, int lda, uint64_t b, int ldb, const void *beta, uint64_t c, int ldc)
{
    struct handle *h = known_handle(handle, "blas");
    struct work w = { .kind = kind, .op = { operation(op_a, hip), operation(op_b, hip) }, .m = m, .n = n, .k = k,
                      .ld = { lda, ldb, ldc }, .alpha = get(kind, alpha, 0), .beta = get(kind, beta, 0) };
    if (!h) return BAD_HANDLE;
    if (w.op[0] < 0 || w.op[1] < 0 || m <= 0 || n <= 0 || k <= 0) return BAD_VALUE;
    NOTE("%s op %d %d size %d %d %d ld %d %d %d alpha %g%+gi beta %g%+gi", name, op_a, op_b, m, n, k, lda, ldb, ldc,
         creal(w.alpha), cimag(w.alpha), creal(w.beta), cimag(w.beta));
    size_t of[3] = { w.op[0] ? extent(k, m, lda) : extent(m, k, lda), w.op[1] ? extent(n, k, ldb) : extent(k, n, ldb),
                     extent(m, n, ldc) };
    struct span spans[3] = { { a, of[0] * width(kind) }, { b, of[1] * width(kind) }, { c, of[2] * width(kind) } };
    return enqueue(h, run_gemm, w, spans, 3);
}

static void run_copy(void *argument)
{
    const struct work *w = argument;
    for (int i = 0; i < w->n; i++)
        put(w->kind, w->at[1], (size_t)i * (size_t)w->ld[1], get(w->kind, w->at[0], (size_t)i * (size_t)w->ld[0]));
}

static status copy_vector(const char *name, char kind, void *handle, int n, uint64_t x, int step_x, uint64_t y, int step_y)
{
    struct handle *h = known_handle(handle, "blas");
    if (!h) return BAD_HANDLE;
    NOTE("%s %d step %d %d", name, n, step_x, step_y);
    struct work w = { .kind = kind, .n = n, .ld = { step_x, step_y } };
    struct span spans[2] = { { x, extent(1, n, step_x) * width(kind) }, { y, extent(1, n, step_y) * width(kind) } };
    return enqueue(h, run_copy, w, spans, 2);
}

#define BLAS(name, gemm_name, copy_name, letter, hip)                                                               \
    EXPORT status gemm_name(void *h, int op_a, int op_b, int m, int n, int k, const void *alpha, uint64_t a, int lda, \
                            uint64_t b, int ldb, const void *beta, uint64_t c, int ldc)                               \
    { return gemm(#gemm_name, letter, hip, h, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); }            \
    EXPORT status copy_name(void *h, int n, uint64_t x, int step_x, uint64_t y, int step_y)                           \
    { return copy_vector(#copy_name, letter, h, n, x, step_x, y, step_y); }
BLAS(s, cublasSgemm_v2, cublasScopy_v2, 's', false)
BLAS(d, cublasDgemm_v2, cublasDcopy_v2, 'd', false)
BLAS(c, cublasCgemm_v2, cublasCcopy_v2, 'c', false)
BLAS(z, cublasZgemm_v2, cublasZcopy_v2, 'z', false)
BLAS(s, rocblas_sgemm, rocblas_scopy, 's', true)
BLAS(d, rocblas_dgemm, rocblas_dcopy, 'd', true)
BLAS(c, rocblas_cgemm, rocblas_ccopy, 'c', true)
BLAS(z, rocblas_zgemm, rocblas_zcopy, 'z', true)

EXPORT status cublasCreate_v2(void **h) { return make_handle(h, "blas"); }
EXPORT status cublasDestroy_v2(void *h) { return destroy_handle(h, "blas"); }
EXPORT status cublasSetStream_v2(void *h, void *stream) { return set_stream(h, "blas", stream); }
EXPORT const char *cublasGetStatusName(status s) { return s == BAD_VALUE ? "STUB_BAD_VALUE" : "STUB_BLAS_STATUS"; }
status rocblas_create_handle(void **h) HIP(rocblas_create_handle, cublasCreate_v2);
status rocblas_destroy_handle(void *h) HIP(rocblas_destroy_handle, cublasDestroy_v2);
status rocblas_set_stream(void *h, void *stream) HIP(rocblas_set_stream, cublasSetStream_v2);
const char *rocblas_status_to_string(status s) HIP(rocblas_status_to_string, cublasGetStatusName);

/* ---- Systems -------------------------------------------------------------------------------------------------- */
/* at: matrix, pivots (counted from one), information, workspace. */
static void run_getrf(void *argument)
{
    const struct work *w = argument;
    char *a = w->at[0];
    int n = w->n, ld = w->ld[0], *pivots = (int *)(void *)w->at[1], *info = (int *)(void *)w->at[2];
#define AT(i, j) ((size_t)(i) + (size_t)(j) * (size_t)ld)
    *info = 0;
    for (int j = 0; j < n; j++) {
        int best = j;
        for (int i = j; i < n; i++)
            if (cabs(get(w->kind, a, AT(i, j))) > cabs(get(w->kind, a, AT(best, j)))) best = i;
        pivots[j] = best + 1;
        for (int l = 0; l < n && best != j; l++) {
            number swap = get(w->kind, a, AT(j, l));
            put(w->kind, a, AT(j, l), get(w->kind, a, AT(best, l)));
            put(w->kind, a, AT(best, l), swap);
        }
        number pivot = get(w->kind, a, AT(j, j));
        if (pivot == 0) { if (!*info) *info = j + 1; continue; }
        for (int i = j + 1; i < n; i++) {
            number factor = get(w->kind, a, AT(i, j)) / pivot;
            put(w->kind, a, AT(i, j), factor);
            for (int l = j + 1; l < n; l++)
                put(w->kind, a, AT(i, l), get(w->kind, a, AT(i, l)) - factor * get(w->kind, a, AT(j, l)));
        }
    }
    if (w->at[3]) memset(w->at[3], 0x5A, (size_t)n * (size_t)n * width(w->kind));
}

static void swap_rows(const struct work *w, int row, int with)
{
    for (int j = 0; j < w->m && row != with; j++) {
        size_t x = (size_t)row + (size_t)j * (size_t)w->ld[1], y = (size_t)with + (size_t)j * (size_t)w->ld[1];
        number swap = get(w->kind, w->at[2], x);
        put(w->kind, w->at[2], x, get(w->kind, w->at[2], y));
        put(w->kind, w->at[2], y, swap);
    }
}

/* Solves with one triangle of op(a), from the top if it is the lower one. */
static void triangle(const struct work *w, bool lower, bool unit)
{
    for (int j = 0; j < w->m; j++)
        for (int step = 0; step < w->n; step++) {
            int i = lower ? step : w->n - 1 - step;
            size_t at = (size_t)i + (size_t)j * (size_t)w->ld[1];
            number x = get(w->kind, w->at[2], at);
            for (int l = lower ? 0 : i + 1; l < (lower ? i : w->n); l++)
                x -= element(w->kind, w->at[0], w->ld[0], w->op[0], i, l)
                   * get(w->kind, w->at[2], (size_t)l + (size_t)j * (size_t)w->ld[1]);
            if (!unit) x /= element(w->kind, w->at[0], w->ld[0], w->op[0], i, i);
            put(w->kind, w->at[2], at, x);
        }
}

/* at: factors, pivots, right-hand sides. */
static void run_getrs(void *argument)
{
    const struct work *w = argument;
    const int *pivots = (const int *)(void *)w->at[1];
    bool turned = w->op[0];
    for (int i = 0; i < w->n && !turned; i++) swap_rows(w, i, pivots[i] - 1);
    triangle(w, true, !turned);
    triangle(w, false, turned);
    for (int i = w->n - 1; i >= 0 && turned; i--) swap_rows(w, i, pivots[i] - 1);
}

static status getrf(const char *name, char kind, const char *of, void *handle, int m, int n, uint64_t a, int ld,
                    uint64_t work, uint64_t pivots, uint64_t info)
{
    struct handle *h = known_handle(handle, of);
    if (!h) return BAD_HANDLE;
    if (m != n || n <= 0 || ld < n) return BAD_VALUE;
    NOTE("%s %d ld %d", name, n, ld);
    struct work w = { .kind = kind, .n = n, .ld = { ld } };
    struct span spans[4] = { { a, extent(n, n, ld) * width(kind) }, { pivots, (size_t)n * 4 }, { info, 4 },
                             { work, (size_t)n * (size_t)n * width(kind) } };
    return enqueue(h, run_getrf, w, spans, work ? 4 : 3);
}

static status getrs(const char *name, char kind, const char *of, void *handle, int op, bool hip, int n, int columns,
                    uint64_t a, int ld, uint64_t pivots, uint64_t b, int ldb)
{
    struct handle *h = known_handle(handle, of);
    if (!h) return BAD_HANDLE;
    struct work w = { .kind = kind, .op = { operation(op, hip) }, .n = n, .m = columns, .ld = { ld, ldb } };
    if (w.op[0] < 0 || n <= 0 || columns <= 0) return BAD_VALUE;
    NOTE("%s op %d %d columns %d ld %d %d", name, op, n, columns, ld, ldb);
    struct span spans[3] = { { a, extent(n, n, ld) * width(kind) }, { pivots, (size_t)n * 4 },
                             { b, extent(n, columns, ldb) * width(kind) } };
    return enqueue(h, run_getrs, w, spans, 3);
}

#define SOLVER(size_name, f_name, s_name, roc_f, roc_s, letter)                                                     \
    EXPORT status size_name(void *h, int m, int n, uint64_t a, int ld, int *elements)                                 \
    { (void)a; (void)ld; *elements = m * n; return known_handle(h, "solver") ? OK : BAD_HANDLE; }                      \
    EXPORT status f_name(void *h, int m, int n, uint64_t a, int ld, uint64_t work, uint64_t pivots, uint64_t info)     \
    { return work ? getrf(#f_name, letter, "solver", h, m, n, a, ld, work, pivots, info) : BAD_VALUE; }                \
    EXPORT status s_name(void *h, int op, int n, int columns, uint64_t a, int ld, uint64_t pivots, uint64_t b,         \
                         int ldb, uint64_t info)                                                                       \
    { return info ? getrs(#s_name, letter, "solver", h, op, false, n, columns, a, ld, pivots, b, ldb) : BAD_VALUE; }   \
    EXPORT status roc_f(void *h, int m, int n, uint64_t a, int ld, uint64_t pivots, uint64_t info)                     \
    { return getrf(#roc_f, letter, "blas", h, m, n, a, ld, 0, pivots, info); }                                         \
    EXPORT status roc_s(void *h, int op, int n, int columns, uint64_t a, int ld, uint64_t pivots, uint64_t b, int ldb) \
    { return getrs(#roc_s, letter, "blas", h, op, true, n, columns, a, ld, pivots, b, ldb); }
SOLVER(cusolverDnSgetrf_bufferSize, cusolverDnSgetrf, cusolverDnSgetrs, rocsolver_sgetrf, rocsolver_sgetrs, 's')
SOLVER(cusolverDnDgetrf_bufferSize, cusolverDnDgetrf, cusolverDnDgetrs, rocsolver_dgetrf, rocsolver_dgetrs, 'd')
SOLVER(cusolverDnCgetrf_bufferSize, cusolverDnCgetrf, cusolverDnCgetrs, rocsolver_cgetrf, rocsolver_cgetrs, 'c')
SOLVER(cusolverDnZgetrf_bufferSize, cusolverDnZgetrf, cusolverDnZgetrs, rocsolver_zgetrf, rocsolver_zgetrs, 'z')

EXPORT status cusolverDnCreate(void **h) { return make_handle(h, "solver"); }
EXPORT status cusolverDnDestroy(void *h) { return destroy_handle(h, "solver"); }
EXPORT status cusolverDnSetStream(void *h, void *stream) { return set_stream(h, "solver", stream); }

/* ---- Transforms ----------------------------------------------------------------------------------------------- */
struct plan { char kind; int n, batch, direction; uint64_t work; size_t work_bytes; };
static struct plan plans[HANDLES]; /* indexed by the handle's number */

static int plan_number(struct handle *h) { return (int)(h - handles); }
static struct handle *plan_handle(int plan) { return plan >= 0 && plan < HANDLES ? &handles[plan] : NULL; }

/* at: from, to. */
static void run_fft(void *argument)
{
    const struct work *w = argument;
    size_t n = (size_t)w->n;
    number *line = malloc(n * sizeof *line);
    for (int b = 0; b < w->m; b++) {
        for (size_t k = 0; k < n; k++) {
            number sum = 0;
            for (size_t j = 0; j < n; j++)
                sum += get(w->kind, w->at[0], (size_t)b * n + j)
                     * cexp(w->direction * 2 * 3.14159265358979323846 * I * (double)(j * k % n) / (double)n);
            line[k] = sum;
        }
        for (size_t k = 0; k < n; k++) put(w->kind, w->at[1], (size_t)b * n + k, line[k]);
    }
    free(line);
    if (w->at[2]) memset(w->at[2], 0x5A, 8);
}

EXPORT status cufftCreate(int *plan)
{
    void *h;
    status s = make_handle(&h, "fft");
    if (!s) *plan = plan_number(h);
    return s;
}
EXPORT status cufftDestroy(int plan) { return destroy_handle(plan_handle(plan), "fft"); }
EXPORT status cufftSetStream(int plan, void *stream) { return set_stream(plan_handle(plan), "fft", stream); }

EXPORT status cufftMakePlanMany(int plan, int rank, int *n, int *in, int in_stride, int in_distance, int *out,
                                int out_stride, int out_distance, int kind, int batch, size_t *work)
{
    (void)in_stride; (void)in_distance; (void)out_stride; (void)out_distance;
    if (!known_handle(plan_handle(plan), "fft")) return BAD_HANDLE;
    if (rank != 1 || in || out || *n <= 0 || batch <= 0 || (kind != 0x29 && kind != 0x69)) return 4;
    plans[plan] = (struct plan){ .kind = kind == 0x29 ? 'c' : 'z', .n = *n, .batch = batch };
    *work = 0;
    NOTE("cufftMakePlanMany %d batch %d kind %#x", *n, batch, (unsigned)kind);
    return OK;
}

static status execute_plan(const char *name, char kind, int plan, uint64_t from, uint64_t to, int direction)
{
    struct handle *h = known_handle(plan_handle(plan), "fft");
    if (!h) return BAD_HANDLE;
    struct plan *p = &plans[plan];
    if (p->kind != kind || (direction != 1 && direction != -1)) return 4;
    NOTE("%s %s direction %d", name, from == to ? "in place" : "elsewhere", direction);
    struct work w = { .kind = kind, .n = p->n, .m = p->batch, .direction = direction };
    size_t bytes = (size_t)p->n * (size_t)p->batch * width(kind);
    struct span spans[3] = { { from, bytes }, { to, bytes }, { p->work, p->work_bytes } };
    return enqueue(h, run_fft, w, spans, p->work ? 3 : 2);
}
EXPORT status cufftExecC2C(int plan, uint64_t from, uint64_t to, int direction)
{ return execute_plan("cufftExecC2C", 'c', plan, from, to, direction); }
EXPORT status cufftExecZ2Z(int plan, uint64_t from, uint64_t to, int direction)
{ return execute_plan("cufftExecZ2Z", 'z', plan, from, to, direction); }

static bool rocfft_is_up;
EXPORT status rocfft_setup(void) { rocfft_is_up = true; NOTE("rocfft_setup"); return OK; }

EXPORT status rocfft_plan_create(void **plan, int placement, int kind, int precision, size_t dimensions,
                                 const size_t *lengths, size_t batch, const void *description)
{
    if (!rocfft_is_up) return 1;
    if (placement || (kind != 0 && kind != 1) || (precision != 0 && precision != 1) || description) return 2;
    if (dimensions != 1 || !*lengths || !batch) return 3;
    status s = make_handle(plan, "fft");
    if (s) return s;
    plans[plan_number(*plan)] = (struct plan){ .kind = precision ? 'z' : 'c', .n = (int)*lengths, .batch = (int)batch,
                                               .direction = kind ? 1 : -1 };
    NOTE("rocfft_plan_create %zu batch %zu kind %d precision %d", *lengths, batch, kind, precision);
    return OK;
}
EXPORT status rocfft_plan_destroy(void *plan) { return destroy_handle(plan, "fft"); }
/* Short transforms need no work buffer. */
EXPORT status rocfft_plan_get_work_buffer_size(void *plan, size_t *bytes)
{
    *bytes = plans[plan_number(plan)].n > 16 ? 64 : 0;
    return known_handle(plan, "fft") ? OK : BAD_HANDLE;
}
EXPORT status rocfft_execution_info_create(void **info) { return make_handle(info, "info"); }
EXPORT status rocfft_execution_info_destroy(void *info) { return destroy_handle(info, "info"); }
EXPORT status rocfft_execution_info_set_stream(void *info, void *stream) { return set_stream(info, "info", stream); }
EXPORT status rocfft_execution_info_set_work_buffer(void *info, uint64_t at, size_t bytes)
{
    if (!known_handle(info, "info") || !at || bytes < 64) return 8;
    plans[plan_number(info)].work = at;
    plans[plan_number(info)].work_bytes = bytes;
    return OK;
}

EXPORT status rocfft_execute(void *plan, void **in, void **out, void *info)
{
    struct handle *p = known_handle(plan, "fft"), *i = known_handle(info, "info");
    if (!p || !i || !i->stream || *in != *out) return 2;
    struct plan *shape = &plans[plan_number(plan)], *with = &plans[plan_number(info)];
    if (shape->n > 16 && !with->work) return 8;
    shape->work = with->work;
    shape->work_bytes = with->work_bytes;
    p->stream = i->stream;
    uint64_t data = (uint64_t)(uintptr_t)*in;
    return execute_plan("rocfft_execute", shape->kind, plan_number(plan), data, data, shape->direction);
}
