// The OpenGL calls of a program, for opengl.f90: a context, a buffer and a shader of its own (x = 2 x + 1).

#include "egl.h"
#include <stdint.h>

// Returns zero for success, else prints what is missing.
int gl_open(void) {
    const char *missing = egl_open();
    if (missing) printf("skip: no %s\n", missing);
    return missing || !egl_build();
}

int32_t gl_make(const int32_t *words, size_t bytes) { return (int32_t)egl_buffer((const GLuint *)words, bytes); }

void gl_run(int32_t name, int32_t items) { egl_run((GLuint)name, (GLuint)items); }

void gl_read(int32_t name, int32_t *words, size_t bytes) { egl_read((GLuint)name, (GLuint *)words, bytes); }

void gl_close(void) { egl_close(); }
