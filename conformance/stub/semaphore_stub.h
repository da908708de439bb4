/* A binary semaphore shared by the stub drivers: two words in a separate file, which the party that plays Vulkan creates.
 * It is stricter than any driver: a signal before the previous one's wait has run, and a wait without an earlier signal,
 * end the process with status 99. */
#ifndef ONEBUF_SEMAPHORE_STUB_H
#define ONEBUF_SEMAPHORE_STUB_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum semaphore_use { UNUSED, SIGNAL_ENQUEUED, WAIT_ENQUEUED };
struct semaphore_words { _Atomic uint32_t set, use; };

/* NULL for a descriptor that is not open, or not a semaphore. */
static inline struct semaphore_words *semaphore_open(int fd)
{
    char link[64], name[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd < 0 || readlink(link, name, sizeof name - 1) <= 0 || !strstr(name, "memfd:onebuf-stub-semaphore")) return NULL;
    void *at = mmap(NULL, sizeof(struct semaphore_words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}
static inline void semaphore_close(struct semaphore_words *s) { munmap((void *)s, sizeof *s); }

static inline void semaphore_turn(struct semaphore_words *s, uint32_t from, uint32_t to, const char *wrong)
{
    if (atomic_compare_exchange_strong(&s->use, &from, to)) return;
    fprintf(stderr, "onebuf stub: %s\n", wrong);
    _exit(99);
}
static inline void semaphore_enqueue(struct semaphore_words *s, bool signal)
{
    if (signal) semaphore_turn(s, UNUSED, SIGNAL_ENQUEUED, "a semaphore was signalled before its last wait has run");
    else semaphore_turn(s, SIGNAL_ENQUEUED, WAIT_ENQUEUED, "a wait on a semaphore that no signal was enqueued for");
}
/* On the queue's thread; returns whether it is done. */
static inline bool semaphore_run(struct semaphore_words *s, bool signal)
{
    uint32_t set = 1;
    if (signal) { atomic_store(&s->set, 1); return true; }
    if (!atomic_compare_exchange_strong(&s->set, &set, 0)) return false;
    semaphore_turn(s, WAIT_ENQUEUED, UNUSED, "a wait on a semaphore ran that was not enqueued");
    return true;
}
#endif
