// Latency and bandwidth of two ranks over message sizes, in the manner of the OSU micro-benchmarks.

#include <algorithm>
#include <cstdio>

#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "osu measures what two ranks have of the network, message size by message size,\n"
    "in the manner of the OSU micro-benchmarks: latency is half of a round trip; for\n"
    "bandwidth a window of messages is sent at once and acknowledged by one. Start it\n"
    "on 2 ranks.\n"
    "Prints for each size, doubled from --least to --most, `latency BYTES US_P50\n"
    "US_P99` or `bandwidth BYTES MBIT_P50`.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 2 osu --test latency --least 8 --most 8 --times 10000\n"
    "  mpirun -n 2 osu --test bandwidth --least 1048576 --most 1048576\n";

struct Settings {
    std::string test = "latency";
    int least = 1;
    int most = 1 << 20;
    int times = 200;
    int window = 64;
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("osu", story, examples);
    options.choice("--test", &settings.test, {"latency", "bandwidth"}, "what is measured");
    options.number("--least", &settings.least, 1, 1 << 26, "the smallest message");
    options.number("--most", &settings.most, 1, 1 << 26, "the greatest message");
    options.number("--times", &settings.times, 1, 10'000'000, "round trips, or windows, of each size");
    options.number("--window", &settings.window, 1, 1024, "messages of a window");
    settings.qos.declare(options);
    if (!options.parse(argc, argv)) {
        return false;
    }
    if (settings.least > settings.most) {
        throw usage_error("--least " + std::to_string(settings.least) + ": not accepted; give at most --most, " +
                          std::to_string(settings.most));
    }
    return true;
}

/// Seconds of one round trip of a message.
double round_trip(const World& world, std::vector<char>& data, int bytes) {
    const double start = MPI_Wtime();
    for (int turn = 0; turn < 2; ++turn) {
        if (world.rank() == turn) {
            MPI_Send(data.data(), bytes, MPI_BYTE, 1 - turn, 0, MPI_COMM_WORLD);
        } else {
            MPI_Recv(data.data(), bytes, MPI_BYTE, turn, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    return MPI_Wtime() - start;
}

/// Seconds until a window of messages was sent and acknowledged.
double window(const World& world, std::vector<char>& data, int bytes, std::vector<MPI_Request>& requests) {
    const double start = MPI_Wtime();
    for (MPI_Request& request : requests) {
        if (world.rank() == 0) {
            MPI_Isend(data.data(), bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &request);
        } else {
            // All into one place: nobody looks at what arrives.
            MPI_Irecv(data.data(), bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &request);
        }
    }
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    char token = 0;
    if (world.rank() == 0) {
        MPI_Recv(&token, 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(&token, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - start;
}

void measure(const Settings& settings, const World& world, std::vector<char>& data, int bytes) {
    std::vector<MPI_Request> requests(settings.window);
    const bool is_latency = settings.test == "latency";
    const auto once = [&] {
        return is_latency ? round_trip(world, data, bytes) : window(world, data, bytes, requests);
    };
    for (int warmup = 0; warmup < std::min(settings.times, 10); ++warmup) {
        once();
    }
    Samples times;
    for (int time = 0; time < settings.times; ++time) {
        times.add(once());
    }
    if (!world.tells()) {
        return;
    }
    const double median = times.quantile(0.5);
    if (is_latency) {
        std::printf("latency %d %.2f %.2f\n", bytes, median * 5e5, times.quantile(0.99) * 5e5);
    } else {
        std::printf("bandwidth %d %.3f\n", bytes, 8e-6 * bytes * settings.window / median);
    }
    std::fflush(stdout);
}

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() == 2, "2");
    settings.qos.ask(MPI_COMM_WORLD, settings.most);
    std::vector<char> data(settings.most);
    for (long bytes = settings.least; bytes <= settings.most; bytes *= 2) {
        measure(settings, world, data, static_cast<int>(bytes));
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("osu", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::play(settings);
        }
    });
}
