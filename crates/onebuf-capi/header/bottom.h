// Shorthands =======================================================================================

#ifndef __cplusplus
// Initialises a structure that begins with its size.
#define ONEBUF_OPTIONS(type) {.size = sizeof(type)}
#endif

// Passes a variable by value; it must live until the launch returns. The macro derives from its type whether it is an
// integer or a floating-point number, which is checked against the kernel's parameter.
#define ONEBUF_VALUE(variable) onebuf_arg_number(ONEBUF_KIND_OF(variable), &(variable), sizeof(variable))

// The argument kind of a variable: ONEBUF_ARG_INTEGER, ONEBUF_ARG_FLOAT, or ONEBUF_ARG_VALUE for structures and
// vectors. An enumeration is an integer in C and a value in C++.
#ifdef __cplusplus
extern "C++" {
inline onebuf_arg_kind onebuf_kind_of(const volatile void *) { return ONEBUF_ARG_VALUE; }
#define ONEBUF_KIND(type, kind) inline onebuf_arg_kind onebuf_kind_of(const volatile type *) { return kind; }
ONEBUF_KIND(float, ONEBUF_ARG_FLOAT)
ONEBUF_KIND(double, ONEBUF_ARG_FLOAT)
ONEBUF_KIND(bool, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(signed char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned char, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(short, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned short, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(int, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned int, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(long long, ONEBUF_ARG_INTEGER)
ONEBUF_KIND(unsigned long long, ONEBUF_ARG_INTEGER)
#undef ONEBUF_KIND
}
#define ONEBUF_KIND_OF(variable) onebuf_kind_of(&(variable))
#elif defined __STDC_VERSION__ && __STDC_VERSION__ >= 201112L
#define ONEBUF_KIND_OF(variable) _Generic((variable), \
    float: ONEBUF_ARG_FLOAT, double: ONEBUF_ARG_FLOAT, _Bool: ONEBUF_ARG_INTEGER, \
    char: ONEBUF_ARG_INTEGER, signed char: ONEBUF_ARG_INTEGER, unsigned char: ONEBUF_ARG_INTEGER, \
    short: ONEBUF_ARG_INTEGER, unsigned short: ONEBUF_ARG_INTEGER, int: ONEBUF_ARG_INTEGER, \
    unsigned int: ONEBUF_ARG_INTEGER, long: ONEBUF_ARG_INTEGER, unsigned long: ONEBUF_ARG_INTEGER, \
    long long: ONEBUF_ARG_INTEGER, unsigned long long: ONEBUF_ARG_INTEGER, default: ONEBUF_ARG_VALUE)
#else
#define ONEBUF_KIND_OF(variable) ONEBUF_ARG_VALUE
#endif

// A buffer as an argument: a view of it is taken for the launch.
static inline onebuf_arg onebuf_arg_buffer(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_BUFFER, access, buffer, {0}, NULL, 0};
    return arg;
}

// A buffer as an argument; its persistent map is ended first.
static inline onebuf_arg onebuf_arg_turn(onebuf_buffer buffer, onebuf_access access) {
    onebuf_arg arg = {ONEBUF_ARG_TURN, access, buffer, {0}, NULL, 0};
    return arg;
}

// A buffer as an argument whose earlier contents are discarded; the kernel writes every byte.
static inline onebuf_arg onebuf_arg_overwrite(onebuf_buffer buffer) {
    onebuf_arg arg = {ONEBUF_ARG_OVERWRITE, ONEBUF_WRITE, buffer, {0}, NULL, 0};
    return arg;
}

// A view that the caller holds, as an argument.
static inline onebuf_arg onebuf_arg_view(onebuf_view view) {
    onebuf_arg arg = {ONEBUF_ARG_VIEW, 0, {0}, view, NULL, 0};
    return arg;
}

// A value of the given kind as an argument; `bytes` bytes are copied.
static inline onebuf_arg onebuf_arg_number(onebuf_arg_kind kind, const void *value, size_t bytes) {
    onebuf_arg arg = {kind, 0, {0}, {0}, value, bytes};
    return arg;
}

// A value as an argument; only its size is checked.
static inline onebuf_arg onebuf_arg_value(const void *value, size_t bytes) {
    return onebuf_arg_number(ONEBUF_ARG_VALUE, value, bytes);
}

// Local memory of each work-group as an argument.
static inline onebuf_arg onebuf_arg_local(size_t bytes) {
    onebuf_arg arg = {ONEBUF_ARG_LOCAL, 0, {0}, {0}, NULL, bytes};
    return arg;
}

// A grid of `items` work-items in one dimension.
static inline onebuf_grid onebuf_grid_1d(size_t items) {
    onebuf_grid grid = {1, {items, 1, 1}, {0, 0, 0}, {0, 0, 0}};
    return grid;
}

#ifdef __cplusplus
}
#endif

#endif
