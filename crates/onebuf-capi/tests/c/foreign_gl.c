// An OpenGL program with a context, a buffer and a compute shader of its own: it binds what another device wrote.

#include "check.h"
#include "egl.h"
#include <pthread.h>
#include <string.h>

enum { N = 1024, BYTES = N * 4 };

static onebuf_hub hub;
static onebuf_gl gl;
static onebuf_device device, gl_device;
static onebuf_queue queue, here;
static onebuf_kernel kernel;
static GLuint first[N];

static void add(onebuf_buffer buffer, uint32_t n) {
    onebuf_arg args[] = {onebuf_arg_buffer(buffer, ONEBUF_READ_WRITE), ONEBUF_VALUE(n)};
    onebuf_grid grid = onebuf_grid_1d(N);
    OK(onebuf_queue_launch(queue, kernel, &grid, args, 2, NULL));
}

// The program's own buffer: another device writes it, the program's shader reads that.
static void their_buffer(void) {
    GLuint name = egl_buffer(first, BYTES), seen[N];
    onebuf_gl_buffer_info info = ONEBUF_OPTIONS(onebuf_gl_buffer_info);
    OK(onebuf_gl_buffer_query(gl, name, &info));
    TRUE(info.bytes == BYTES && info.usage == GL_DYNAMIC_COPY && !info.is_immutable && !info.is_mapped);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gl_buffer_query(gl, name + 1000, &info));
    onebuf_fence before;
    onebuf_buffer buffer, none;
    OK(onebuf_queue_fence(here, &before));
    onebuf_wrap_options options = ONEBUF_OPTIONS(onebuf_wrap_options);
    options.devices = &device, options.device_count = 1;
    options.after = &before, options.after_count = 1;
    options.bytes = BYTES + 4;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_gl(gl, name, &options, &none));
    options.bytes = BYTES;
    OK(onebuf_buffer_wrap_gl(gl, name, &options, &buffer));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_buffer_wrap_gl(gl, name + 1000, NULL, &none));
    bool foreign = false;
    OK(onebuf_buffer_is_foreign(buffer, &foreign));
    TRUE(foreign);
    add(buffer, 5);
    onebuf_sync_method sync_method;
    OK(onebuf_buffer_hand_to(buffer, here, &sync_method));
    egl_run(name, N); // the program's own work, in its own context
    onebuf_fence after;
    OK(onebuf_queue_fence(here, &after));
    OK(onebuf_buffer_written_until(buffer, after));
    add(buffer, 100);
    OK(onebuf_buffer_free(buffer)); // the newest contents are in the program's buffer now
    egl_read(name, seen, BYTES);
    for (GLuint i = 0; i < N; i++) TRUE(seen[i] == 2 * (i + 5) + 1 + 100);
    OK(onebuf_fence_free(before));
    OK(onebuf_fence_free(after));
    glDeleteBuffers(1, &name);
    TRUE(glGetError() == GL_NO_ERROR);
}

// A buffer of onebuf: the program binds it by its name.
static void our_buffer(void) {
    onebuf_device both[] = {gl_device, device};
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = both, options.device_count = 2;
    options.allocate_on = gl_device;
    options.contents = first;
    options.name = "ours";
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    add(buffer, 7);
    onebuf_view view;
    uint32_t name = 0;
    uint64_t number, offset;
    OK(onebuf_view_take(buffer, queue, ONEBUF_READ, &view));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_view_gl_name(view, &name)); // not OpenGL's queue
    TRUE(name == 0);
    OK(onebuf_view_free(view));
    OK(onebuf_view_take(buffer, here, ONEBUF_READ_WRITE, &view));
    OK(onebuf_view_gl_name(view, &name));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_view_vk_buffer(view, &number, &offset));
    ENDS(ONEBUF_BUSY, onebuf_view_take(buffer, queue, ONEBUF_READ, &(onebuf_view){0}));
    egl_run(name, N);
    OK(onebuf_view_free(view));
    add(buffer, 1000);
    GLuint seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    for (GLuint i = 0; i < N; i++) TRUE(seen[i] == 2 * (i + 7) + 1 + 1000);
    OK(onebuf_buffer_free(buffer));
    TRUE(glGetError() == GL_NO_ERROR);
}

// A context of the program that shares objects with onebuf's own: without a registration.
static void by_the_native_context(void) {
    onebuf_device ours;
    if (onebuf_hub_device(hub, "gl:0", &ours) != ONEBUF_OK) fail("no gl:0", __LINE__);
    void *display = NULL, *context = NULL, *wrong = &wrong;
    OK(onebuf_device_native(ours, "EGLDisplay", &display));
    OK(onebuf_device_native(ours, "EGLContext", &context));
    ENDS(ONEBUF_UNSUPPORTED, onebuf_device_native(ours, "cl_context", &wrong));
    TRUE(wrong == NULL && strstr(onebuf_last_error_message(), "EGLDisplay, EGLContext"));
    onebuf_device_info info = ONEBUF_OPTIONS(onebuf_device_info);
    OK(onebuf_device_query(ours, &info));
    TRUE(info.max_group_size > 0 && info.max_buffer_bytes > BYTES);
    EGLContext second = eglCreateContext(display, (EGLConfig)0, context, EGL_ATTRIBUTES);
    TRUE(second != EGL_NO_CONTEXT && eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, second));
    TRUE(egl_build());
    onebuf_buffer_options options = ONEBUF_OPTIONS(onebuf_buffer_options);
    options.devices = &ours, options.device_count = 1;
    options.contents = first;
    onebuf_buffer buffer;
    onebuf_queue on;
    onebuf_view view;
    uint32_t name;
    OK(onebuf_buffer_create(hub, BYTES, &options, &buffer));
    OK(onebuf_queue_create(ours, NULL, &on));
    OK(onebuf_view_take(buffer, on, ONEBUF_READ_WRITE, &view));
    OK(onebuf_view_gl_name(view, &name));
    OK(onebuf_queue_finish(on, 60000));
    egl_run(name, N);
    glFinish();
    OK(onebuf_view_free(view));
    GLuint seen[N];
    OK(onebuf_buffer_read(buffer, 0, seen, BYTES));
    for (GLuint i = 0; i < N; i++) TRUE(seen[i] == 2 * i + 1);
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_queue_free(on));
    glDeleteProgram(egl_shader);
    eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
    eglDestroyContext(display, second);
}

static void *elsewhere(void *none) {
    onebuf_queue refused;
    onebuf_gl nothing;
    ENDS(ONEBUF_FOREIGN_CONTEXT, onebuf_gl_queue(gl, &refused));         // the context is not current here
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_gl_wrap(hub, &nothing));        // nor is any other
    TRUE(nothing.id == 0);
    return none;
}

int main(int argc, char **argv) {
    const char *id = argc > 1 ? argv[1] : "host";
    for (GLuint i = 0; i < N; i++) first[i] = i;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.egl_library = "libEGL.so.1";
    options.only = "opencl, gl";
    OK(onebuf_hub_discover(&options, &hub));
    OK(onebuf_hub_device(hub, id, &device));
    onebuf_hub without;
    options.only = NULL, options.without_gl = options.without_vulkan = options.without_opencl = 1;
    OK(onebuf_hub_discover(&options, &without));
    const char *missing = egl_open();
    if (missing) return printf("skip: OpenGL for C programs: no %s\n", missing), 0;
    TRUE(egl_build());
    onebuf_gl none;
    ENDS(ONEBUF_UNAVAILABLE, onebuf_gl_wrap(without, &none));
    OK(onebuf_hub_free(without));
    OK(onebuf_gl_wrap(hub, &gl));
    OK(onebuf_gl_device(gl, &gl_device));
    onebuf_string text;
    OK(onebuf_device_id(gl_device, &text));
    TRUE(strcmp(onebuf_string_data(text), "gl:0@1") == 0);
    OK(onebuf_string_free(text));
    OK(onebuf_gl_queue(gl, &here));
    OK(onebuf_queue_create(device, NULL, &queue));
    onebuf_program program = build_add(device, NULL);
    kernel = kernel_add(program);
    their_buffer();
    our_buffer();
    pthread_t thread;
    TRUE(pthread_create(&thread, NULL, elsewhere, NULL) == 0);
    pthread_join(thread, NULL);
    OK(onebuf_kernel_free(kernel));
    OK(onebuf_program_free(program));
    OK(onebuf_queue_free(queue));
    OK(onebuf_queue_free(here));
    OK(onebuf_gl_free(gl));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_gl_device(gl, &gl_device));
    egl_close();
    by_the_native_context();
    OK(onebuf_hub_free(hub));
    printf("foreign OpenGL works with %s\n", id);
    return 0;
}
