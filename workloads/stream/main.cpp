// Frames of a fixed size at a fixed rate from one rank to another (sections 5.3 to 5.5 of MPICH-GQ).

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/qos.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "stream sends frames from rank 0 to rank 1 at a fixed rate, as a program that\n"
    "computes pictures for a remote screen does: each is computed for a while, then\n"
    "sent. Start it on 2 ranks.\n"
    "A frame that is late puts off those behind it; it never catches up by sending\n"
    "faster than was asked for two frames' time, so that what is lost is seen.\n"
    "Rank 1 prints `frame I ARRIVED SECONDS`, when it was complete and how long that\n"
    "took since it was due, both since the start; at the end `mbit RATE` and\n"
    "`late_frames N` (later than one period).";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 2 stream --bytes 5000 --fps 10 --seconds 10\n"
    "  mpirun -n 2 stream --bytes 50000 --fps 1 --qos premium --kbps 400\n";

struct Settings {
    int bytes = 5000;
    double rate = 10;
    double seconds = 5;
    double work = 0;
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("stream", story, examples);
    options.number("--bytes", &settings.bytes, 1, 1 << 30, "bytes of a frame");
    options.real("--fps", &settings.rate, 0.01, 10'000, "frames a second");
    options.real("--seconds", &settings.seconds, 0.1, 3600, "how long it goes on");
    options.real("--work", &settings.work, 0, 1000, "milliseconds of CPU time that a frame is computed for");
    settings.qos.declare(options);
    return options.parse(argc, argv);
}

double cpu_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void compute(double seconds, std::vector<char>& frame) {
    const double start = cpu_time();
    for (std::size_t at = 0; cpu_time() - start < seconds; at = (at + 1) % frame.size()) {
        frame[at] = static_cast<char>(std::sqrt(static_cast<double>(at)));
    }
}

void sleep_until(double time) {
    const double left = time - MPI_Wtime();
    if (left > 0) {
        const timespec span{static_cast<time_t>(left), static_cast<long>((left - std::floor(left)) * 1e9)};
        nanosleep(&span, nullptr);
    }
}

void send(const Settings& settings, int frames) {
    std::vector<char> frame(settings.bytes);
    const double period = 1 / settings.rate;
    double due = MPI_Wtime();
    for (int number = 0; number < frames; ++number) {
        compute(settings.work * 1e-3, frame);
        sleep_until(due);
        MPI_Send(frame.data(), settings.bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        due = std::max(due + period, MPI_Wtime() - period);
    }
}

void receive(const Settings& settings, int frames) {
    std::vector<char> frame(settings.bytes);
    const double period = 1 / settings.rate, start = MPI_Wtime();
    double arrived = 0;
    int late = 0;
    for (int number = 0; number < frames; ++number) {
        MPI_Recv(frame.data(), settings.bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        arrived = MPI_Wtime() - start;
        const double after_due = arrived - number * period;
        late += after_due > period;
        std::printf("frame %d %.6f %.6f\n", number, arrived, after_due);
        std::fflush(stdout);
    }
    // Every frame has its period to arrive in.
    const double span = std::max(arrived, frames * period);
    std::printf("mbit %.4f\nlate_frames %d\n", frames * (settings.bytes * 8e-6) / span, late);
}

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() == 2, "2");
    settings.qos.ask(MPI_COMM_WORLD, settings.bytes);
    const int frames = std::max(1, static_cast<int>(std::lround(settings.seconds * settings.rate)));
    MPI_Barrier(MPI_COMM_WORLD);
    world.rank() == 0 ? send(settings, frames) : receive(settings, frames);
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("stream", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::play(settings);
        }
    });
}
