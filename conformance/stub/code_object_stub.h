/* AMD code objects as HIP's runtime loads them, as a part of cuda_stub.c.
 *
 * A module that starts like an ELF file has the kernels that its metadata describes. A launch fills the argument memory as
 * the runtime does, by the metadata alone: arguments that are not hidden come from the launch, in order; an argument in
 * local memory gets four bytes, whatever was intended; offsets are zero and the number of dimensions is three. A kernel
 * stores the length of the argument memory, the group's bytes of local memory, and then the argument memory in its first
 * buffer. An argument with an unknown field makes the object unusable, as with the real runtime.
 *
 * ONEBUF_CUDA_STUB_IMAGE=path  stores the last such module, to the byte
 * ONEBUF_CUDA_STUB_ARCH=x      the devices' architecture, instead of gfx90a:sramecc+:xnack- */
enum { OBJECT_ARGUMENTS = 32, OBJECT_KERNELS = 8, NUMBER = 0, WORDS, LIST, MAP };
struct argument { char kind[40]; bool in_local; unsigned offset, size, align; };
struct object_kernel { char name[64]; unsigned bytes, own_local; int n; struct argument arguments[OBJECT_ARGUMENTS]; };
struct object { int n; struct object_kernel kernels[OBJECT_KERNELS]; };

/* ---- MessagePack ----------------------------------------------------------------------------------------------- */
struct reader { const unsigned char *at, *end; bool bad; };
struct item { int kind; uint64_t number; const char *text; }; /* `number` of lists, maps and texts: their length */

static uint64_t big(struct reader *r, int bytes)
{
    uint64_t n = 0;
    if (r->end - r->at < bytes) { r->bad = true; return 0; }
    while (bytes--) n = n << 8 | *r->at++;
    return n;
}

static struct item next_item(struct reader *r)
{
    struct item it = { NUMBER, big(r, 1), NULL };
    unsigned head = (unsigned)it.number;
    if (head >= 0x80 && head < 0x90) it.kind = MAP, it.number = head & 15;
    else if (head >= 0x90 && head < 0xa0) it.kind = LIST, it.number = head & 15;
    else if (head >= 0xa0 && head < 0xc0) it.kind = WORDS, it.number = head & 31;
    else if (head == 0xc2 || head == 0xc3) it.number = head & 1;
    else if (head >= 0xcc && head <= 0xcf) it.number = big(r, 1 << (head - 0xcc));
    else if (head >= 0xd9 && head <= 0xdb) it.kind = WORDS, it.number = big(r, 1 << (head - 0xd9));
    else if (head == 0xdc || head == 0xdd) it.kind = LIST, it.number = big(r, 2 << (head - 0xdc));
    else if (head == 0xde || head == 0xdf) it.kind = MAP, it.number = big(r, 2 << (head - 0xde));
    else if (head >= 0x80) r->bad = true;
    if (it.kind == WORDS) {
        it.text = (const char *)r->at;
        if ((uint64_t)(r->end - r->at) < it.number) r->bad = true; else r->at += it.number;
    }
    return it;
}

static void skip_item(struct reader *r)
{
    struct item it = next_item(r);
    uint64_t inside = it.kind == MAP ? 2 * it.number : it.kind == LIST ? it.number : 0;
    while (inside-- && !r->bad) skip_item(r);
}
static bool reads(struct item it, const char *word)
{
    return it.kind == WORDS && it.number == strlen(word) && !memcmp(it.text, word, it.number);
}
static void keep(char *to, size_t room, struct item it)
{
    if (it.kind == WORDS) snprintf(to, room, "%.*s", (int)it.number, it.text);
}

/* ---- Metadata -------------------------------------------------------------------------------------------------- */
static void read_argument(struct reader *r, struct argument *a)
{
    static const char *const others[] = { ".name", ".type_name", ".access", ".actual_access", ".is_const", ".is_restrict",
                                          ".is_volatile", ".is_pipe" };
    for (uint64_t n = next_item(r).number; n-- && !r->bad;) {
        struct item key = next_item(r), value = next_item(r);
        bool known = false;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) known |= reads(key, others[i]);
        if (reads(key, ".value_kind")) keep(a->kind, sizeof a->kind, value);
        else if (reads(key, ".address_space")) a->in_local = reads(value, "local");
        else if (reads(key, ".offset")) a->offset = (unsigned)value.number;
        else if (reads(key, ".size")) a->size = (unsigned)value.number;
        else if (reads(key, ".pointee_align")) a->align = (unsigned)value.number;
        else if (!known) r->bad = true;
    }
}

static void read_object_kernel(struct reader *r, struct object_kernel *k)
{
    for (uint64_t n = next_item(r).number; n-- && !r->bad;) {
        struct item key = next_item(r);
        if (reads(key, ".name")) keep(k->name, sizeof k->name, next_item(r));
        else if (reads(key, ".kernarg_segment_size")) k->bytes = (unsigned)next_item(r).number;
        else if (reads(key, ".group_segment_fixed_size")) k->own_local = (unsigned)next_item(r).number;
        else if (reads(key, ".args")) {
            for (uint64_t i = next_item(r).number; i-- && !r->bad && k->n < OBJECT_ARGUMENTS;)
                read_argument(r, &k->arguments[k->n++]);
        } else skip_item(r);
    }
}

static struct object *read_metadata(const unsigned char *at, size_t bytes)
{
    struct reader r = { at, at + bytes, false };
    struct object *o = calloc(1, sizeof *o);
    for (uint64_t n = next_item(&r).number; n-- && !r.bad;) {
        if (!reads(next_item(&r), "amdhsa.kernels")) skip_item(&r);
        else for (uint64_t i = next_item(&r).number; i-- && !r.bad && o->n < OBJECT_KERNELS;)
            read_object_kernel(&r, &o->kernels[o->n++]);
    }
    if (!r.bad && o->n) return o;
    free(o);
    return NULL;
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t n = 0;
    memcpy(&n, at, (size_t)bytes);
    return n;
}

/* The object's kernels, from the first note of its first note segment; the length from its sections, as in the runtime. */
static struct object *read_object(const void *image)
{
    const unsigned char *file = image;
    size_t bytes = little(file + 40, 8) + little(file + 58, 2) * little(file + 60, 2);
    const char *path = getenv("ONEBUF_CUDA_STUB_IMAGE");
    FILE *copy = path ? fopen(path, "wb") : NULL;
    if (copy) fwrite(file, 1, bytes, copy), fclose(copy);
    for (uint64_t i = 0; i < little(file + 56, 2); i++) {
        const unsigned char *segment = file + little(file + 32, 8) + 56 * i;
        if (little(segment, 4) != 4) continue;
        const unsigned char *note = file + little(segment + 8, 8);
        return read_metadata(note + 12 + (little(note, 4) + 3) / 4 * 4, little(note + 4, 4));
    }
    return NULL;
}

static const struct object_kernel *find_in_object(const struct object *o, const char *name)
{
    for (int i = 0; i < o->n; i++) if (!strcmp(o->kernels[i].name, name)) return &o->kernels[i];
    return NULL;
}

/* ---- Launches -------------------------------------------------------------------------------------------------- */
/* The value of a hidden argument; the last letter names the dimension. */
static uint64_t told_by_runtime(const char *kind, const unsigned *groups, const unsigned *group)
{
    int dimension = kind[strlen(kind) - 1] - 'x';
    if (!strncmp(kind, "hidden_block_count_", 19)) return groups[dimension];
    if (!strncmp(kind, "hidden_group_size_", 18)) return group[dimension];
    return !strcmp(kind, "hidden_grid_dims") ? 3 : 0; /* also for offsets and remainders */
}

static status launch_object(const struct object_kernel *k, struct stream *s, struct command c, void **parameters)
{
    uint64_t first = 0;
    unsigned local = k->own_local;
    char *all = calloc(1, 8 + k->bytes), *arguments = all + 8;
    for (int i = 0, next = 0; i < k->n; i++) {
        const struct argument *a = &k->arguments[i];
        char *to = arguments + a->offset;
        bool buffer = !strcmp(a->kind, "global_buffer");
        if (!strncmp(a->kind, "hidden_", 7)) {
            uint64_t told = told_by_runtime(a->kind, c.groups, c.group);
            memcpy(to, &told, a->size);
        } else if (!strcmp(a->kind, "dynamic_shared_pointer")) {
            local = (local + a->align - 1) / a->align * a->align;
            memcpy(to, &local, 4);
            local += a->size, next++;
        } else if (a->in_local && !buffer) {
            memcpy(to, &a->size, 4), next++;
        } else {
            memcpy(to, parameters[next++], a->size);
            if (buffer && !first) memcpy(&first, to, 8);
        }
    }
    memcpy(all, &k->bytes, 4);
    local += c.shared;
    memcpy(all + 4, &local, 4);
    c.kind = COPY, c.to = real(first), c.from = c.owned = all, c.bytes = 8 + k->bytes;
    lock();
    bool there = use(&c, 0, first, c.bytes);
    if (there) c.module->uses++, push(s, c);
    unlock();
    if (!there) free(all);
    return there ? OK : INVALID_VALUE;
}

EXPORT status hipGetDevicePropertiesR0600(char *to, int device)
{
    const char *name = getenv("ONEBUF_CUDA_STUB_ARCH");
    memset(to, 0, 1472);
    snprintf(to + 1160, 256, "%s", name ? name : "gfx90a:sramecc+:xnack-");
    return known(device);
}
