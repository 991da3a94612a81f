#include "common/frames.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace workload {

namespace {

// Breaks rank 1, or rank 0 when alone, as the fault tests want it.
void break_down(const FrameOptions& options, const Hypercube& cube, int frame) {
    if (frame != options.fault_frame || cube.rank() != std::min(1, cube.ranks() - 1)) {
        return;
    }
    if (options.fault == "crash") {
        std::abort();
    }
    while (options.fault == "hang") {
        pause();
    }
}

double timed_frame(Hypercube& cube, const std::function<void()>& draw) {
    cube.synchronise();
    const double start = MPI_Wtime();
    draw();
    return MPI_Wtime() - start;
}

// At once, so that a reader at the other end of a pipe sees the frame when it is done.
void tell(const char* what, int frame, double seconds) {
    std::printf("%s %d %.6f\n", what, frame, seconds);
    std::fflush(stdout);
}

}  // namespace

void FrameOptions::declare(Options& options) {
    options.number("--frames", &frames, 1, 1'000'000, "frames that are timed");
    options.number("--at-least", &at_least, 0, 3'600,
                   "seconds to go on for, in whole rounds of --frames frames: what is short is timed often");
    options.number("--warmup", &warmup, 0, 1'000, "frames before, not counted");
    options.choice("--wait", &wait_, {"polite", "poll"},
                   "how a rank waits: sleeping between looks, or looking without pause");
    options.choice("--fault", &fault, {"none", "crash", "hang"},
                   "for the project's fault tests: rank 1 (0 when alone) aborts or sleeps for ever");
    options.number("--fault-frame", &fault_frame, 0, 1'000'000, "the frame at whose start it does so");
}

void run_frames(const FrameOptions& options, Hypercube& cube, const std::function<void(int)>& draw) {
    const bool tells = cube.rank() == 0;
    for (int frame = 0; frame < options.warmup; ++frame) {
        const double seconds = timed_frame(cube, [&] { draw(0); });
        if (tells) {
            tell("warmup", frame, seconds);
        }
    }
    double sum = 0;
    int rounds = 0;
    do {
        for (int frame = 0; frame < options.frames; ++frame) {
            // After the ranks have started together: rank 0 has told all frames before.
            const double seconds = timed_frame(cube, [&] {
                break_down(options, cube, frame);
                draw(frame);
            });
            sum += seconds;
            if (tells) {
                tell("frame", frame, seconds);
            }
        }
        ++rounds;
        // Without a time to reach nothing is asked, so that nothing but pictures is sent.
    } while (options.at_least > 0 && cube.any(tells && sum < options.at_least));
    if (tells) {
        std::printf("seconds_per_frame %.6f\n", sum / options.frames / rounds);
        std::fflush(stdout);
    }
}

}  // namespace workload
