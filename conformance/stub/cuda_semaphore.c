/* Semaphores of another API in CUDA's streams. CUDA only: HIP's calls of that name must not be made, and end the process.
 *
 * A successful import takes the descriptor and closes it immediately. Destroying a semaphore twice, or while a command uses
 * it, ends the process with status 99. Each call is recorded and can be made to fail: see cuda_share.c. */
#include "cuda_stub.h"
#include "semaphore_stub.h"
#include <stdlib.h>

struct semaphore_desc { int kind; union { int fd; void *words[2]; } handle; unsigned flags, reserved[16]; };
struct semaphore_params { uint64_t values[9]; unsigned flags, reserved[16]; };
_Static_assert(sizeof(struct semaphore_desc) == 96 && sizeof(struct semaphore_params) == 144, "as in the headers");
struct semaphore { int device, uses; struct semaphore_words *words; struct semaphore *next; };
static struct semaphore *semaphores;

static bool begins(const char *call, status *s)
{
    *s = initialised ? OK : NOT_INITIALIZED;
    return !*s && !chosen_to_fail(call, s);
}
static struct semaphore *semaphore(const void *handle)
{
    for (struct semaphore *s = semaphores; s; s = s->next) if (s == handle) return s;
    return NULL;
}

EXPORT status cuImportExternalSemaphore(void **semaphore, const struct semaphore_desc *desc)
{
    static const struct semaphore_desc zero;
    const char *call = "cuImportExternalSemaphore";
    status s;
    ENTER;
    if (!begins(call, &s)) return s;
    bool odd = desc->kind != 1 || desc->flags || memcmp(desc->reserved, zero.reserved, sizeof zero.reserved);
    struct semaphore_words *words = odd ? NULL : semaphore_open(desc->handle.fd);
    if (!words) return record(call, INVALID_VALUE, "kind=%d, fd=%d", desc->kind, desc->handle.fd);
    struct semaphore *made = malloc(sizeof *made);
    lock();
    *made = (struct semaphore){ device, 0, words, semaphores };
    semaphores = made;
    devices[device].objects++;
    unlock();
    *semaphore = made;
    close(desc->handle.fd);
    return record(call, OK, "kind=%d, fd=%d", desc->kind, desc->handle.fd);
}

EXPORT status cuDestroyExternalSemaphore(void *handle)
{
    const char *call = "cuDestroyExternalSemaphore";
    status s;
    ENTER_TO_FREE;
    if (!begins(call, &s)) return s;
    lock();
    struct semaphore *of = semaphore(handle), **link = &semaphores;
    if (!of) die("a semaphore was destroyed twice, or is none");
    if (of->uses) die("a semaphore was destroyed under work that uses it");
    while (*link != of) link = &(*link)->next;
    *link = of->next;
    devices[of->device].objects--;
    unlock();
    semaphore_close(of->words);
    free(of);
    return record(call, leave(OK, device), "semaphore=%p", handle);
}

static status enqueue(const char *call, bool signal, void *const *list, const struct semaphore_params *params,
                      unsigned count, void *stream)
{
    static const struct semaphore_params zero;
    status s;
    ENTER;
    struct stream *to = stream_of(stream);
    if (!begins(call, &s)) return s;
    s = belongs(device, to->device);
    lock();
    struct semaphore *of = count == 1 ? semaphore(list[0]) : NULL;
    if (!s && (!of || of->device != device)) s = INVALID_HANDLE;
    if (!s && memcmp(params, &zero, offsetof(struct semaphore_params, reserved) + sizeof zero.reserved)) s = INVALID_VALUE;
    if (!s) {
        of->uses++;
        semaphore_enqueue(of->words, signal);
        push(to, (struct command){ .kind = signal ? SIGNAL : WAIT_SIGNAL, .user = of });
    }
    unlock();
    return record(call, s, "semaphore=%p, stream=%p", count ? list[0] : NULL, stream);
}
EXPORT status cuSignalExternalSemaphoresAsync(void *const *list, const struct semaphore_params *params, unsigned count, void *stream)
{
    return enqueue("cuSignalExternalSemaphoresAsync", true, list, params, count, stream);
}
EXPORT status cuWaitExternalSemaphoresAsync(void *const *list, const struct semaphore_params *params, unsigned count, void *stream)
{
    return enqueue("cuWaitExternalSemaphoresAsync", false, list, params, count, stream);
}

EXPORT status hipImportExternalSemaphore(void **semaphore, const void *desc)
{
    (void)semaphore, (void)desc;
    die("HIP's semaphores do not work on Linux");
    return NOT_SUPPORTED;
}

/* On the stream's thread, without the lock. */
void execute_semaphore(const struct command *c)
{
    const struct semaphore *of = c->user;
    while (!semaphore_run(of->words, c->kind == SIGNAL)) nap(20);
}
/* Locked: called when the command has ended, executed or not. */
void semaphore_over(const struct command *c) { ((struct semaphore *)c->user)->uses--; }

/* Locked. */
int live_semaphores(void)
{
    int n = 0;
    for (struct semaphore *s = semaphores; s; s = s->next) n++;
    return n;
}
