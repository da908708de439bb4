// 3. Errors: a status for the program, and a message for people.
//
// cc -std=c11 03-errors.c $(pkg-config --cflags --libs onebuf) -o errors && ./errors

#include <onebuf.h>
#include <stdio.h>

// Expects a failure and prints it.
static int shows(const char *what, onebuf_status want, onebuf_status got) {
    printf("%s: %s\n  %s\n", what, onebuf_status_name(got), onebuf_last_error_message());
    return want == got ? 0 : 1;
}

int main(void) {
    int wrong = 0;
    onebuf_hub hub;
    if (onebuf_hub_discover(NULL, &hub) != ONEBUF_OK) return 1;

    // A device that does not exist. The message lists the available devices.
    onebuf_device device;
    wrong |= shows("no such device", ONEBUF_UNAVAILABLE, onebuf_hub_device(hub, "quantum:0", &device));

    // A failed call returns a null handle. Using it is an error, not a crash.
    onebuf_queue queue;
    wrong |= shows("null handle", ONEBUF_INVALID_HANDLE, onebuf_queue_create(device, NULL, &queue));

    // Freed handles and handles of another type are errors.
    onebuf_buffer buffer;
    if (onebuf_buffer_create(hub, 4096, NULL, &buffer) != ONEBUF_OK) return 1;
    onebuf_queue other = {buffer.id};
    wrong |= shows("wrong kind", ONEBUF_INVALID_HANDLE, onebuf_queue_flush(other));

    // Ranges are checked before any byte is copied.
    char byte = 1;
    wrong |= shows("past the end", ONEBUF_INVALID_ARGUMENT, onebuf_buffer_write(buffer, 4096, &byte, 1));

    // Two conflicting users of one buffer.
    void *data;
    onebuf_mapping mapping;
    if (onebuf_buffer_map(buffer, ONEBUF_READ_WRITE, &data, &mapping) != ONEBUF_OK) return 1;
    wrong |= shows("in use", ONEBUF_BUSY, onebuf_buffer_write(buffer, 0, &byte, 1));
    if (onebuf_mapping_unmap(mapping) != ONEBUF_OK) return 1;
    wrong |= shows("over", ONEBUF_INVALID_HANDLE, onebuf_mapping_unmap(mapping));

    // A compiler error.
    if (onebuf_hub_device(hub, "opencl", &device) == ONEBUF_OK) {
        onebuf_program_options source = ONEBUF_OPTIONS(onebuf_program_options);
        source.opencl_c = "kernel void f(global int *x) { x[0] = nonsense; }";
        onebuf_program program;
        wrong |= shows("bad program", ONEBUF_BUILD, onebuf_program_build(device, &source, &program));
    }

    // A null pointer where none is allowed.
    wrong |= shows("null pointer", ONEBUF_NULL_POINTER, onebuf_buffer_size(buffer, NULL));
    onebuf_buffer_free(buffer);
    wrong |= shows("freed", ONEBUF_INVALID_HANDLE, onebuf_buffer_free(buffer));
    onebuf_hub_free(hub);
    printf(wrong ? "not as expected\n" : "all as expected\n");
    return wrong;
}
