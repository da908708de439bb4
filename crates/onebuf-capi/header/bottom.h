// Short hands ======================================================================================

#ifndef __cplusplus
// Initialises a structure that begins with its size.
#define ONEBUF_OPTIONS(type) {.size = sizeof(type)}
#endif

// A value as an argument, from a variable that lives until the launch returns. Whether it is an integer or a
// floating-point number is seen from its type, and checked against the kernel's parameter.
#define ONEBUF_VALUE(variable) onebuf_arg_number(ONEBUF_KIND_OF(variable), &(variable), sizeof(variable))

// What a variable is as a value: ONEBUF_ARG_INTEGER, ONEBUF_ARG_FLOAT, or ONEBUF_ARG_VALUE for structures and
// vectors. Of an enumeration: an integer in C, a value in C++.
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

// A value as an argument: so many bytes, which are copied, of a kind that is said.
static inline onebuf_arg onebuf_arg_number(onebuf_arg_kind kind, const void *value, size_t bytes) {
    onebuf_arg arg = {kind, 0, {0}, {0}, value, bytes};
    return arg;
}

// A value as an argument, of which only the number of bytes is checked.
static inline onebuf_arg onebuf_arg_value(const void *value, size_t bytes) {
    return onebuf_arg_number(ONEBUF_ARG_VALUE, value, bytes);
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
