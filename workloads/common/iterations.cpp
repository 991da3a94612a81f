#include "common/iterations.hpp"

#include <cstdio>
#include <vector>

namespace workload {

namespace {

// At once, so that a reader at the other end of a pipe knows the rate while the program runs.
void tell(const char* what, int iteration, double seconds) {
    std::printf("%s %d %.6f\n", what, iteration, seconds);
    std::fflush(stdout);
}

// Rank 0's clock decides for all.
bool goes_on(bool mine, Waiting waiting) {
    char told = mine;
    wait_for(waiting, [&](MPI_Request* request) {
        MPI_Ibcast(&told, 1, MPI_CHAR, 0, MPI_COMM_WORLD, request);
    });
    return told;
}

}  // namespace

void wait_for(Waiting waiting, const std::function<void(MPI_Request*)>& post) {
    std::vector<MPI_Request> requests(1);
    post(requests.data());
    wait_all(requests, waiting);
}

void IterationOptions::declare(Options& options) {
    options.number("--iterations", &iterations, 1, 100'000'000, "iterations that are timed");
    options.number("--at-least", &at_least, 0, 86'400, "seconds to go on for, if those are done before");
    options.number("--warmup", &warmup, 0, 1'000, "iterations before, not counted");
    options.choice("--wait", &wait_, {"polite", "poll"},
                   "how a rank waits: sleeping between looks, or looking without pause");
    fault.declare(options, "iteration");
}

void run_iterations(const IterationOptions& options, const World& world,
                    const std::function<void(int)>& iterate) {
    const bool tells = world.rank() == 0;
    double before = MPI_Wtime();
    const auto timed = [&](const char* what, int number) {
        iterate(number);
        const double now = MPI_Wtime();
        const double seconds = now - before;
        before = now;
        if (tells) {
            tell(what, number, seconds);
        }
        return seconds;
    };
    for (int i = 0; i < options.warmup; ++i) {
        timed("warmup", i);
    }
    double sum = 0;
    int done = 0;
    const auto more = [&] {
        return done < options.iterations ||
               (options.at_least > 0 && goes_on(sum < options.at_least, options.waiting()));
    };
    while (more()) {
        if (options.fault.strikes_at(done)) {
            // Rank 0 has told all iterations before it loses the others, and with them its own end.
            MPI_Barrier(MPI_COMM_WORLD);
        }
        options.fault.strike(world.rank(), world.ranks(), done);
        sum += timed("iteration", done);
        ++done;
    }
    if (tells) {
        std::printf("seconds_per_iteration %.6f\niterations_per_second %.6f\n", sum / done, done / sum);
        std::fflush(stdout);
    }
}

}  // namespace workload
