/* OpenGL for the OpenCL stub: the context that was current when an OpenCL context was created with it, and a second one that
 * shares its objects, so that queues can access OpenGL's buffers from their own threads.
 *
 * OpenGL is the libEGL.so.1 that this process has loaded, or is emulated by a test:
 *
 *   void onebuf_stub_gl_buffer(unsigned name, void *memory, size_t bytes)   a buffer with that memory; NULL removes it
 *   void onebuf_stub_gl_current(uintptr_t context)                          the context that is current on this thread, or 0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    EGL_OPENGL_API = 0x30A2, EGL_MAJOR = 0x3098, EGL_MINOR = 0x30FB, EGL_END = 0x3038,
    GL_COPY_READ_BUFFER = 0x8F36, GL_BUFFER_SIZE = 0x8764
};
struct graphics { void *display, *theirs, *own; };
struct played { unsigned name; char *memory; size_t bytes; };
static struct played played[8];
static pthread_mutex_t played_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local uintptr_t plays_current;

void onebuf_stub_gl_current(uintptr_t context) { plays_current = context; }
void onebuf_stub_gl_buffer(unsigned name, void *memory, size_t bytes)
{
    pthread_mutex_lock(&played_mutex);
    for (int i = 0; i < 8; i++)
        if (played[i].name == name || (memory && !played[i].memory)) {
            played[i] = (struct played){ memory ? name : 0, memory, bytes };
            break;
        }
    pthread_mutex_unlock(&played_mutex);
}
static struct played play(unsigned name)
{
    struct played found = { 0 };
    pthread_mutex_lock(&played_mutex);
    for (int i = 0; i < 8; i++) if (played[i].memory && played[i].name == name) found = played[i];
    pthread_mutex_unlock(&played_mutex);
    return found;
}

static void *egl(const char *name)
{
    void *library = dlopen("libEGL.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    return found;
}
static void *gl(const char *name)
{
    return ((void *(*)(const char *))egl("eglGetProcAddress"))(name);
}
static void *current_context(void)
{
    void *(*current)(void) = (void *(*)(void))egl("eglGetCurrentContext");
    return current ? current() : NULL;
}
/* Whether that context is current on this thread. */
static bool graphics_current(intptr_t context)
{
    if (plays_current) return plays_current == (uintptr_t)context;
    return context && current_context() == (void *)context;
}
static bool make_current(void *display, void *context)
{
    ((unsigned (*)(unsigned))egl("eglBindAPI"))(EGL_OPENGL_API);
    return ((unsigned (*)(void *, void *, void *, void *))egl("eglMakeCurrent"))(display, NULL, NULL, context);
}

/* For a context that is current on this thread. */
static struct graphics *graphics_open(intptr_t context, intptr_t display)
{
    static const int attributes[] = { EGL_MAJOR, 4, EGL_MINOR, 3, EGL_END };
    struct graphics *g = calloc(1, sizeof *g);
    g->theirs = (void *)context, g->display = (void *)display;
    if (plays_current) return g;
    g->own = ((void *(*)(void *, void *, void *, const int *))egl("eglCreateContext"))(g->display, NULL, g->theirs, attributes);
    if (g->own) return g;
    free(g);
    return NULL;
}
static void graphics_close(struct graphics *g)
{
    if (g && g->own) ((unsigned (*)(void *, void *))egl("eglDestroyContext"))(g->display, g->own);
    free(g);
}
/* OpenGL calls from any thread, one at a time, in the stub's own context; afterwards the previous context is current again. */
static pthread_mutex_t graphics_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *graphics_enter(const struct graphics *g)
{
    pthread_mutex_lock(&graphics_mutex);
    void *before = current_context();
    if (!make_current(g->display, g->own)) abort();
    return before;
}
static void graphics_leave(const struct graphics *g, void *before)
{
    ((void (*)(void))gl("glFinish"))();
    make_current(g->display, before);
    if (!before) ((unsigned (*)(void))egl("eglReleaseThread"))();
    pthread_mutex_unlock(&graphics_mutex);
}
/* The size of a buffer; 0 if it does not exist. */
static size_t graphics_size(const struct graphics *g, unsigned name)
{
    if (!g->own) return play(name).bytes;
    long long bytes = 0;
    void *before = graphics_enter(g);
    if (((unsigned char (*)(unsigned))gl("glIsBuffer"))(name)) {
        ((void (*)(unsigned, unsigned))gl("glBindBuffer"))(GL_COPY_READ_BUFFER, name);
        ((void (*)(unsigned, unsigned, long long *))gl("glGetBufferParameteri64v"))(GL_COPY_READ_BUFFER, GL_BUFFER_SIZE, &bytes);
    }
    graphics_leave(g, before);
    return (size_t)bytes;
}
/* Reads OpenGL's bytes, or writes them back. */
static void graphics_copy(const struct graphics *g, unsigned name, void *bytes, size_t size, bool gives)
{
    if (!g->own) {
        memcpy(gives ? play(name).memory : bytes, gives ? bytes : play(name).memory, size);
        return;
    }
    void *before = graphics_enter(g);
    ((void (*)(unsigned, unsigned))gl("glBindBuffer"))(GL_COPY_READ_BUFFER, name);
    void (*copy)(unsigned, long, long, void *) =
        (void (*)(unsigned, long, long, void *))gl(gives ? "glBufferSubData" : "glGetBufferSubData");
    copy(GL_COPY_READ_BUFFER, 0, (long)size, bytes);
    graphics_leave(g, before);
}
