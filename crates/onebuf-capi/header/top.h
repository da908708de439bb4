// onebuf: one buffer, every compute API. The C interface.
//
// Made by `./dev header` from crates/onebuf-capi/src; do not edit.
//
// Handles. Every object is named by a handle, a structure with a number. Zero names nothing. A handle that
// was freed, that is of another kind, or that was never made is ONEBUF_INVALID_HANDLE, and harmless. Objects
// keep what they need: a buffer may be freed while a view of it is held, a hub while its buffers live.
//
// Errors. Every function that can fail returns a onebuf_status and gives results through pointers, which are
// zero when it failed. onebuf_last_error_message() says what was wrong. Nothing throws, nothing aborts.
//
// Threads. Every function may be called from any thread, with any handle, at any time. Freeing an object that
// another thread is using is fine: it goes when that call ends. What may happen to a buffer at the same time
// is decided by views and mappings: whoever comes second gets ONEBUF_BUSY. Only messages are a thread's own.
//
// Promises. What cannot be checked is the caller's promise: a pointer is NULL or valid for what the function
// does with it; data pointers are valid for as many bytes as are named beside them; strings end with a zero;
// an options structure is as large as its `size` says; native handles and mapped data are used only as long
// as their view, queue or mapping is not freed, and only as it allows; native handles that onebuf is given are
// NULL or alive, and of the kind that is asked for; a kernel does what was declared of it.
//
// Options. Structures whose first field is `size` grow in later versions. Set everything to zero and `size`
// to the structure's sizeof, or begin with ONEBUF_OPTIONS(type); zeroes are the defaults.

#ifndef ONEBUF_H
#define ONEBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
