#include "common/frames.hpp"

#include <cstdio>

namespace workload {

namespace {

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
    fault.declare(options, "frame");
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
                options.fault.strike(cube.rank(), cube.ranks(), frame);
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
