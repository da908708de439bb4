// Short hands ======================================================================================

#ifndef __cplusplus
// Initialises a structure that begins with its size.
#define ONEBUF_OPTIONS(type) {.size = sizeof(type)}
#endif

// A value as an argument, from a variable that lives until the launch returns.
#define ONEBUF_VALUE(variable) onebuf_arg_value(&(variable), sizeof(variable))

// A buffer as an argument: a view of it is taken for the launch.
static inline onebuf_arg onebuf_arg_buffer(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_BUFFER, access, buffer, {0}, NULL, 0};
    return arg;
}

// A buffer as an argument, whose standing map ends first.
static inline onebuf_arg onebuf_arg_turn(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_TURN, access, buffer, {0}, NULL, 0};
    return arg;
}

// A view that the caller holds as an argument.
static inline onebuf_arg onebuf_arg_view(onebuf_view view) {
    onebuf_arg arg = {ONEBUF_ARG_VIEW, 0, {0}, view, NULL, 0};
    return arg;
}

// A value as an argument: so many bytes, which are copied.
static inline onebuf_arg onebuf_arg_value(const void *value, size_t bytes) {
    onebuf_arg arg = {ONEBUF_ARG_VALUE, 0, {0}, {0}, value, bytes};
    return arg;
}

// Memory of each work-group as an argument.
static inline onebuf_arg onebuf_arg_local(size_t bytes) {
    onebuf_arg arg = {ONEBUF_ARG_LOCAL, 0, {0}, {0}, NULL, bytes};
    return arg;
}

// So many work-items in one dimension.
static inline onebuf_grid onebuf_grid_1d(size_t items) {
    onebuf_grid grid = {1, {items, 1, 1}, {0, 0, 0}, {0, 0, 0}};
    return grid;
}

#ifdef __cplusplus
}
#endif

#endif
