// Two processes share one buffer. The children are forked before any thread is started; each waits for a byte from its parent.

#include "check.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 5 * 1024 + 3, BYTES = N * 4, ROUNDS = 3 };
static const uint64_t SOON = 60000;

static char name[64];

static onebuf_hub discover(void) {
    onebuf_hub hub;
    onebuf_hub_options options = ONEBUF_OPTIONS(onebuf_hub_options);
    options.without_opencl = 1;
    options.without_verdicts = 1;
    options.timeout_ms = 120000; // valgrind is slow
    OK(onebuf_hub_discover(&options, &hub));
    return hub;
}

static void write_all(onebuf_buffer buffer, uint32_t from) {
    static uint32_t data[N];
    for (uint32_t i = 0; i < N; i++) data[i] = from + i;
    OK(onebuf_buffer_write(buffer, 0, data, BYTES));
}

static bool all_are(onebuf_buffer buffer, uint32_t from) {
    static uint32_t data[N];
    OK(onebuf_buffer_read(buffer, 0, data, BYTES));
    for (uint32_t i = 0; i < N; i++)
        if (data[i] != from + i) return false;
    return true;
}

static onebuf_peer_info info_of(onebuf_peer peer) {
    onebuf_peer_info info = ONEBUF_OPTIONS(onebuf_peer_info);
    OK(onebuf_peer_query(peer, &info));
    return info;
}

static onebuf_attach_options attach_options(void) {
    onebuf_attach_options options = ONEBUF_OPTIONS(onebuf_attach_options);
    options.name = name;
    options.element_bytes = 4;
    options.timeout_ms = SOON;
    return options;
}

static onebuf_buffer attach(onebuf_hub hub, onebuf_peer *peer) {
    onebuf_attach_options options = attach_options();
    onebuf_buffer buffer;
    OK(onebuf_peer_attach(hub, &options, NULL, peer, &buffer));
    return buffer;
}

// Takes its turns and detaches normally.
static void guest(void) {
    onebuf_hub hub = discover();
    onebuf_peer peer;
    onebuf_buffer buffer = attach(hub, &peer);
    size_t bytes;
    OK(onebuf_buffer_size(buffer, &bytes));
    TRUE(bytes == BYTES && info_of(peer).our_turn == 0);
    uint32_t word;
    ENDS(ONEBUF_BUSY, onebuf_buffer_read(buffer, 0, &word, 4)); // it is the owner's turn
    for (uint32_t round = 0; round < ROUNDS; round++) {
        OK(onebuf_peer_wait(peer, SOON));
        OK(onebuf_peer_check(peer));
        TRUE(all_are(buffer, 100 * round) && !all_are(buffer, 100 * round + 1));
        write_all(buffer, 100 * round + 50);
        OK(onebuf_peer_hand_over(peer));
        ENDS(ONEBUF_BUSY, onebuf_peer_hand_over(peer));
    }
    TRUE(info_of(peer).round == 2 * ROUNDS && info_of(peer).uid == getuid());
    OK(onebuf_peer_wait(peer, SOON));
    void *data;
    onebuf_mapping mapping;
    ENDS(ONEBUF_UNSUPPORTED, onebuf_buffer_map(buffer, ONEBUF_READ, &data, &mapping));
    OK(onebuf_peer_free(peer));
    ENDS(ONEBUF_PEER_LOST, onebuf_buffer_read(buffer, 0, &word, 4));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_peer_wait(peer, 1));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_hub_free(hub));
}

// Attaches with another element size.
static void stranger(void) {
    onebuf_hub hub = discover();
    onebuf_attach_options options = attach_options();
    onebuf_peer peer = {1};
    onebuf_buffer buffer = {1};
    options.element_bytes = 12;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_peer_attach(hub, &options, NULL, &peer, &buffer));
    TRUE(peer.id == 0 && buffer.id == 0);
    OK(onebuf_hub_free(hub));
}

// Dies during its turn.
static void victim(void) {
    onebuf_hub hub = discover();
    onebuf_peer peer;
    onebuf_buffer buffer = attach(hub, &peer);
    OK(onebuf_peer_wait(peer, SOON));
    write_all(buffer, 7);
    raise(SIGKILL);
}

typedef struct {
    pid_t pid;
    int go;
} child;

static child born(void (*life)(void)) {
    int ends[2];
    char byte;
    TRUE(pipe(ends) == 0);
    child made = {fork(), ends[1]};
    TRUE(made.pid >= 0);
    if (made.pid > 0) return close(ends[0]), made;
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1) exit(3); // the parent failed
    life();
    exit(0);
}

static void let_go(child c) { TRUE(write(c.go, "!", 1) == 1 && close(c.go) == 0); }

static int ended(child c) {
    int status;
    TRUE(waitpid(c.pid, &status, 0) == c.pid);
    return status;
}

static void wrong(onebuf_hub hub, onebuf_buffer buffer, onebuf_offer offer) {
    onebuf_offer_options options = ONEBUF_OPTIONS(onebuf_offer_options);
    onebuf_offer second = {1};
    onebuf_peer peer = {1};
    onebuf_buffer region, none;
    ENDS(ONEBUF_NULL_POINTER, onebuf_offer_open(buffer, &options, &second));
    options.name = name;
    ENDS(ONEBUF_BUSY, onebuf_offer_open(buffer, &options, &second));
    OK(onebuf_buffer_region(buffer, 0, 4096, ONEBUF_READ, &region));
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_offer_open(region, &options, &second));
    TRUE(second.id == 0);
    OK(onebuf_buffer_free(region));
    ENDS(ONEBUF_TIMEOUT, onebuf_offer_accept(offer, 1, &peer));
    TRUE(peer.id == 0);
    onebuf_attach_options attach = attach_options();
    onebuf_buffer_options shape = ONEBUF_OPTIONS(onebuf_buffer_options);
    shape.contents = &shape;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_peer_attach(hub, &attach, &shape, &peer, &none));
    attach.name = "/nowhere/at-all";
    onebuf_status status = onebuf_peer_attach(hub, &attach, NULL, &peer, &none);
    TRUE(status == ONEBUF_UNAVAILABLE || status == ONEBUF_CACHE);
}

int main(void) {
    char folder[] = "/tmp/onebuf-peer-XXXXXX";
    TRUE(mkdtemp(folder) != NULL);
    snprintf(name, sizeof name, "%s/buffer", folder);
    child good = born(guest), other = born(stranger), dying = born(victim);

    onebuf_hub hub = discover();
    onebuf_buffer buffer;
    OK(onebuf_buffer_create(hub, BYTES, NULL, &buffer));
    onebuf_offer_options options = ONEBUF_OPTIONS(onebuf_offer_options);
    onebuf_offer offer;
    options.name = name;
    options.element_bytes = 7;
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_offer_open(buffer, &options, &offer));
    options.element_bytes = 4;
    OK(onebuf_offer_open(buffer, &options, &offer));
    onebuf_string path;
    OK(onebuf_offer_path(offer, &path));
    TRUE(strcmp(onebuf_string_data(path), name) == 0);
    OK(onebuf_string_free(path));
    wrong(hub, buffer, offer);

    onebuf_peer peer, second;
    let_go(other);
    ENDS(ONEBUF_INVALID_ARGUMENT, onebuf_offer_accept(offer, SOON, &peer));
    TRUE(ended(other) == 0);

    let_go(good);
    OK(onebuf_offer_accept(offer, SOON, &peer));
    ENDS(ONEBUF_BUSY, onebuf_offer_accept(offer, 1, &second)); // one peer at a time
    TRUE(info_of(peer).our_turn && info_of(peer).pid == (uint32_t)good.pid);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        write_all(buffer, 100 * round);
        OK(onebuf_peer_hand_over(peer));
        uint32_t word;
        ENDS(ONEBUF_BUSY, onebuf_buffer_read(buffer, 0, &word, 4)); // it is the guest's turn
        OK(onebuf_peer_wait(peer, SOON));
        TRUE(all_are(buffer, 100 * round + 50) && !all_are(buffer, 100 * round));
    }
    OK(onebuf_peer_hand_over(peer));
    ENDS(ONEBUF_PEER_LOST, onebuf_peer_wait(peer, SOON));
    TRUE(info_of(peer).left && info_of(peer).our_turn); // it detached normally
    OK(onebuf_peer_free(peer));
    TRUE(ended(good) == 0);

    let_go(dying);
    OK(onebuf_offer_accept(offer, SOON, &peer));
    write_all(buffer, 1);
    OK(onebuf_peer_hand_over(peer));
    ENDS(ONEBUF_PEER_LOST, onebuf_peer_wait(peer, SOON));
    TRUE(!info_of(peer).left); // it died
    TRUE(all_are(buffer, 7));  // what it had written before
    write_all(buffer, 9);
    TRUE(all_are(buffer, 9));
    int status = ended(dying);
    TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    OK(onebuf_offer_free(offer)); // the visit lasts until its own handle is freed
    ENDS(ONEBUF_PEER_LOST, onebuf_peer_check(peer));
    OK(onebuf_peer_free(peer));
    ENDS(ONEBUF_INVALID_HANDLE, onebuf_offer_accept(offer, 1, &peer));
    OK(onebuf_buffer_free(buffer));
    OK(onebuf_hub_free(hub));
    unlink(name);
    char lock[80];
    snprintf(lock, sizeof lock, "%s.lock", name);
    unlink(lock);
    rmdir(folder);
    printf("processes take turns\n");
    return 0;
}
