#include "common/waiting.hpp"

#include <time.h>

#include <algorithm>

namespace workload {

namespace {

// A first sleep of the order of a message's way on a fast network; a last one that costs a waiting
// rank a few per cent of a core and delays a frame of tens of milliseconds by a few per mille.
constexpr long shortest_sleep_ns = 30'000;
constexpr long longest_sleep_ns = 200'000;

void wait_politely(std::vector<MPI_Request>& requests) {
    long sleep_ns = shortest_sleep_ns;
    for (;;) {
        int done = 0;
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
        if (done) {
            return;
        }
        const timespec pause{0, sleep_ns};
        nanosleep(&pause, nullptr);
        sleep_ns = std::min(sleep_ns * 3 / 2, longest_sleep_ns);
    }
}

}  // namespace

void wait_all(std::vector<MPI_Request>& requests, Waiting waiting) {
    if (waiting == Waiting::polite) {
        wait_politely(requests);
    } else {
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    }
}

}  // namespace workload
