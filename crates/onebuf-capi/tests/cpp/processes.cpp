// `processes FOLDER`: two processes take turns, and a program is its own helper for the doctor. The child is forked before any
// thread is started.

#include "check.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

onebuf::Hub discover() {
    onebuf::HubOptions options;
    options.only = "host", options.without_verdicts = 1;
    return onebuf::Hub::discover(options);
}

std::string name() { return "onebuf-cpp-" + std::to_string(getppid()); }

void guest(int go) {
    char byte;
    TRUE(read(go, &byte, 1) == 1);
    auto hub = discover();
    auto attached = hub.attach<unsigned>(name().c_str());
    attached.peer.wait(60s);
    attached.peer.check();
    TRUE(attached.buffer.size() == 8 && attached.buffer.to_vector()[7] == 1);
    attached.buffer.fill(2);
    attached.peer.hand_over();
}

void turns() {
    int ends[2];
    TRUE(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        guest(ends[0]);
        _exit(0);
    }
    auto hub = discover();
    auto buffer = hub.buffer<unsigned>(8, {hub.host()});
    buffer.fill(1);
    const std::string mine = "onebuf-cpp-" + std::to_string(getpid());
    auto offer = onebuf::Offer::open(buffer, mine.c_str());
    TRUE(has(offer.path(), mine.c_str()) && write(ends[1], "", 1) == 1);
    auto peer = offer.accept(60s);
    TRUE(peer.info().our_turn && peer.info().pid == static_cast<std::uint32_t>(child));
    peer.hand_over();
    peer.wait(60s);
    TRUE(buffer.to_vector()[7] == 2);
    int status = 0;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    TRUE(onebuf::socket_path(mine.c_str()) == offer.path() && access(offer.path().c_str(), F_OK) == 0);
    onebuf::remove_sockets();
    TRUE(access(offer.path().c_str(), F_OK) != 0);
    onebuf::remove_sockets_on_signals();
}

void is_its_own_helper(const char *folder) {
    onebuf::HubOptions options;
    options.cache_folder = folder;
    auto hub = onebuf::Hub::discover(options);
    onebuf::DoctorOptions how;
    static std::size_t told = 0;
    how.helper = "/proc/self/exe", how.cache_folder = folder, how.silence_ms = 60000, how.reach_bytes = 1 << 20;
    how.progress = [](void *, const char *route, std::size_t done, std::size_t total) { told += *route && done < total; };
    how.grafts = 1;
    // Between the host and itself there is nothing to test.
    auto host = hub.host().handle();
    how.devices = &host, how.device_count = 1;
    TRUE(has(hub.doctor(how), "\"experiments\":0") && told == 0 && has(hub.doctor(how), "\"grafts\":[]"));
    how.devices = nullptr, how.device_count = 0;
    auto found = hub.doctor(how);
    TRUE(has(found, "\"state\":\"proven\"") && told > 0);
    TRUE(status_of([&] { hub.doctor("/no/such/helper"); }) != ONEBUF_PANIC);
}

} // namespace

int main(int argc, char **argv) {
    onebuf::doctor_helper_main(); // must come first: a helper process does not return from it
    TRUE(argc == 2);
    turns();
    is_its_own_helper(argv[1]);
    std::printf("processes work in C++\n");
}
