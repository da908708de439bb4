/* The installed EGL and OpenGL, with GL_EXT_semaphore_fd added if the driver lacks it.
 *
 * Load this library through ONEBUF_EGL_LIB. All calls except those below go to the installed driver. The semaphores are those
 * of the other stubs: see semaphore_stub.h. A signal is given when all earlier work is done. A wait blocks the calling thread
 * for a limited time; afterwards the context counts as blocked, and none of its fences is reached, until the signal has come.
 *
 * ONEBUF_GL_STUB=lost    signals are enqueued and never come
 * ONEBUF_GL_STUB=plain   the extension is not added, and hidden if the driver has it */
#define _GNU_SOURCE
#include "semaphore_stub.h"
#include <dlfcn.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
enum {
    NUM_EXTENSIONS = 0x821D, EXTENSIONS = 0x1F03, OPAQUE_FD = 0x9586, INVALID_ENUM = 0x0500, INVALID_VALUE = 0x0501,
    INVALID_OPERATION = 0x0502, TIMEOUT_EXPIRED = 0x911B, MOST = 4096, PATIENCE_US = 300000
};
static const char *const ADDED[] = { "GL_EXT_semaphore", "GL_EXT_semaphore_fd" };
static struct semaphore_words *semaphores[MOST];
static struct semaphore_words *_Atomic held;
static _Thread_local unsigned failure;

static const char *part(void) { const char *part = getenv("ONEBUF_GL_STUB"); return part ? part : ""; }
static void *real(const char *name)
{
    static void *library;
    if (!library) library = dlopen("libEGL.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (found || !library) return found;
    void *(*by_name)(const char *) = (void *(*)(const char *))dlsym(library, "eglGetProcAddress");
    return by_name ? by_name(name) : NULL;
}
#define REAL(name, type) ((type)real(name))
static int installed(void)
{
    int count = 0;
    REAL("glGetIntegerv", void (*)(unsigned, int *))(NUM_EXTENSIONS, &count);
    return count;
}
static struct semaphore_words *named(unsigned name)
{
    return name > 0 && name < MOST ? semaphores[name] : NULL;
}

static unsigned get_error(void)
{
    unsigned mine = failure;
    failure = 0;
    return mine ? mine : REAL("glGetError", unsigned (*)(void))();
}
static void get_integer(unsigned name, int *into)
{
    REAL("glGetIntegerv", void (*)(unsigned, int *))(name, into);
    if (name == NUM_EXTENSIONS) *into += 2;
}
static const char *get_string(unsigned name, unsigned index)
{
    unsigned count = name == EXTENSIONS ? (unsigned)installed() : index + 1;
    if (index >= count && index < count + 2) return ADDED[index - count];
    return REAL("glGetStringi", const char *(*)(unsigned, unsigned))(name, index);
}
static const char *get_plain_string(unsigned name, unsigned index)
{
    const char *text = REAL("glGetStringi", const char *(*)(unsigned, unsigned))(name, index);
    bool hidden = text && name == EXTENSIONS && !strncmp(text, ADDED[0], strlen(ADDED[0]));
    return hidden ? "GL_STUB_hidden" : text;
}
static void generate(int count, unsigned *names)
{
    static unsigned next = 1;
    for (int i = 0; i < count; i++) names[i] = next < MOST ? next++ : 0;
}
static void import(unsigned name, unsigned kind, int fd)
{
    struct semaphore_words *words = kind == OPAQUE_FD ? semaphore_open(fd) : NULL;
    if (!name || name >= MOST || !words) { failure = kind == OPAQUE_FD ? INVALID_VALUE : INVALID_ENUM; return; }
    semaphores[name] = words;
    close(fd);
}
static void delete(int count, const unsigned *names)
{
    for (int i = 0; i < count; i++) {
        struct semaphore_words *words = named(names[i]);
        if (words && words != held) semaphore_close(words);
        if (words) semaphores[names[i]] = NULL;
    }
}
static bool odd(unsigned name, unsigned count, const unsigned *buffers, unsigned textures)
{
    unsigned char (*is_buffer)(unsigned) = REAL("glIsBuffer", unsigned char (*)(unsigned));
    bool odd = !named(name) || textures;
    for (unsigned i = 0; i < count; i++) odd |= !is_buffer(buffers[i]);
    if (odd) failure = INVALID_OPERATION;
    return odd;
}
static void give_signal(unsigned name, unsigned count, const unsigned *buffers, unsigned textures, const unsigned *t, const unsigned *l)
{
    (void)t, (void)l;
    if (odd(name, count, buffers, textures)) return;
    semaphore_enqueue(named(name), true);
    REAL("glFinish", void (*)(void))();
    if (strcmp(part(), "lost")) semaphore_run(named(name), true);
}
static void wait_signal(unsigned name, unsigned count, const unsigned *buffers, unsigned textures, const unsigned *t, const unsigned *l)
{
    (void)t, (void)l;
    if (odd(name, count, buffers, textures)) return;
    semaphore_enqueue(named(name), false);
    for (int us = 0; us < PATIENCE_US; us += 50) {
        if (semaphore_run(named(name), false)) return;
        usleep(50);
    }
    held = named(name);
}
static unsigned client_wait(void *sync, unsigned flags, uint64_t timeout_ns)
{
    struct semaphore_words *words = held;
    if (words && semaphore_run(words, false)) held = words = NULL;
    if (words) {
        usleep(timeout_ns < 1000000 ? (unsigned)(timeout_ns / 1000) : 1000);
        return TIMEOUT_EXPIRED;
    }
    return REAL("glClientWaitSync", unsigned (*)(void *, unsigned, uint64_t))(sync, flags, timeout_ns);
}

EXPORT void *eglGetProcAddress(const char *name)
{
    static const struct { const char *name; void *at; } own[] = {
        { "glGetError", (void *)get_error }, { "glGetIntegerv", (void *)get_integer },
        { "glGetStringi", (void *)get_string }, { "glGenSemaphoresEXT", (void *)generate },
        { "glDeleteSemaphoresEXT", (void *)delete }, { "glImportSemaphoreFdEXT", (void *)import },
        { "glSignalSemaphoreEXT", (void *)give_signal }, { "glWaitSemaphoreEXT", (void *)wait_signal },
        { "glClientWaitSync", (void *)client_wait },
    };
    bool plain = !strcmp(part(), "plain");
    if (plain && !strcmp(name, "glGetStringi")) return (void *)get_plain_string;
    for (unsigned i = 0; !plain && i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i].name)) return own[i].at;
    return real(name);
}
