// An OpenGL program without a window: its context, its functions, and a compute shader of its own.

#ifndef EGL_PROGRAM_H
#define EGL_PROGRAM_H

#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GL/glcorearb.h>
#include <stdio.h>

#define GL_FUNCTIONS(F) \
    F(PFNGLGENBUFFERSPROC, GenBuffers) F(PFNGLDELETEBUFFERSPROC, DeleteBuffers) F(PFNGLBINDBUFFERPROC, BindBuffer) \
    F(PFNGLBUFFERDATAPROC, BufferData) F(PFNGLGETBUFFERSUBDATAPROC, GetBufferSubData) \
    F(PFNGLBINDBUFFERBASEPROC, BindBufferBase) F(PFNGLCREATESHADERPROC, CreateShader) \
    F(PFNGLSHADERSOURCEPROC, ShaderSource) F(PFNGLCOMPILESHADERPROC, CompileShader) \
    F(PFNGLCREATEPROGRAMPROC, CreateProgram) F(PFNGLATTACHSHADERPROC, AttachShader) F(PFNGLLINKPROGRAMPROC, LinkProgram) \
    F(PFNGLGETPROGRAMIVPROC, GetProgramiv) F(PFNGLDELETEPROGRAMPROC, DeleteProgram) F(PFNGLDELETESHADERPROC, DeleteShader) \
    F(PFNGLUSEPROGRAMPROC, UseProgram) F(PFNGLDISPATCHCOMPUTEPROC, DispatchCompute) \
    F(PFNGLMEMORYBARRIERPROC, MemoryBarrier) F(PFNGLGETERRORPROC, GetError) F(PFNGLFINISHPROC, Finish)
#define DECLARE(type, name) static type gl##name;
GL_FUNCTIONS(DECLARE)
#undef DECLARE

static EGLDisplay egl_display;
static EGLContext egl_context;
static GLuint egl_shader;

static const EGLint EGL_ATTRIBUTES[] = {EGL_CONTEXT_MAJOR_VERSION, 4, EGL_CONTEXT_MINOR_VERSION, 3,
                                        EGL_CONTEXT_OPENGL_PROFILE_MASK, EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT, EGL_NONE};

// Makes a context current on this thread; NULL, or what is missing.
static inline const char *egl_open(void) {
    PFNEGLGETPLATFORMDISPLAYEXTPROC platform;
    *(void (**)(void)) & platform = eglGetProcAddress("eglGetPlatformDisplayEXT");
    if (!platform) return "eglGetPlatformDisplayEXT";
    egl_display = platform(EGL_PLATFORM_SURFACELESS_MESA, NULL, NULL);
    if (!eglInitialize(egl_display, NULL, NULL)) return "a display without a window";
    eglBindAPI(EGL_OPENGL_API);
    egl_context = eglCreateContext(egl_display, (EGLConfig)0, EGL_NO_CONTEXT, EGL_ATTRIBUTES);
    if (!egl_context || !eglMakeCurrent(egl_display, EGL_NO_SURFACE, EGL_NO_SURFACE, egl_context)) return "OpenGL 4.3";
#define LOAD(type, name) \
    *(void (**)(void)) & gl##name = eglGetProcAddress("gl" #name); \
    if (!gl##name) return "gl" #name;
    GL_FUNCTIONS(LOAD)
#undef LOAD
    return NULL;
}

// Builds the program's own shader: x[i] = 2 x[i] + 1.
static inline int egl_build(void) {
    static const char *TEXT = "#version 430\n"
                              "layout(local_size_x = 64) in;\n"
                              "layout(std430, binding = 3) buffer Data { uint x[]; };\n"
                              "void main() { x[gl_GlobalInvocationID.x] = 2u * x[gl_GlobalInvocationID.x] + 1u; }\n";
    GLuint shader = glCreateShader(GL_COMPUTE_SHADER);
    glShaderSource(shader, 1, &TEXT, NULL);
    glCompileShader(shader);
    egl_shader = glCreateProgram();
    glAttachShader(egl_shader, shader);
    glLinkProgram(egl_shader);
    glDeleteShader(shader);
    GLint linked = 0;
    glGetProgramiv(egl_shader, GL_LINK_STATUS, &linked);
    return linked;
}

// Runs the program's own shader on a buffer.
static inline void egl_run(GLuint name, GLuint items) {
    glUseProgram(egl_shader);
    glBindBufferBase(GL_SHADER_STORAGE_BUFFER, 3, name);
    glDispatchCompute(items / 64, 1, 1);
    glMemoryBarrier(GL_ALL_BARRIER_BITS);
    glBindBufferBase(GL_SHADER_STORAGE_BUFFER, 3, 0);
}

static inline GLuint egl_buffer(const GLuint *words, size_t bytes) {
    GLuint name;
    glGenBuffers(1, &name);
    glBindBuffer(GL_COPY_WRITE_BUFFER, name);
    glBufferData(GL_COPY_WRITE_BUFFER, (GLsizeiptr)bytes, words, GL_DYNAMIC_COPY);
    return name;
}

static inline void egl_read(GLuint name, GLuint *words, size_t bytes) {
    glBindBuffer(GL_COPY_READ_BUFFER, name);
    glGetBufferSubData(GL_COPY_READ_BUFFER, 0, (GLsizeiptr)bytes, words);
}

static inline void egl_close(void) {
    glDeleteProgram(egl_shader);
    eglMakeCurrent(egl_display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
    eglDestroyContext(egl_display, egl_context);
}

#endif
