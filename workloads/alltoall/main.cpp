// Every rank sends to every other, again and again.

#include <cstdio>

#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "alltoall calls MPI_Alltoall again and again, with a fixed number of bytes from each rank to each other.\n"
    "Start it on 2 ranks or more. Every block is checked.\n"
    "Prints `seconds P50 P99` of one call and `pair_mbit RATE`, what each pair had of the network.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 alltoall --bytes 65536 --times 50\n"
    "  mpirun -n 4 alltoall --bytes 65536 --qos premium --kbps 20000\n";

struct Settings {
    int bytes = 65536;
    int times = 20;
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("alltoall", story, examples);
    options.number("--bytes", &settings.bytes, 4, 1 << 26, "bytes from each rank to each other");
    options.number("--times", &settings.times, 1, 1'000'000, "calls that are timed");
    settings.qos.declare(options);
    return options.parse(argc, argv);
}

class Blocks {
  public:
    Blocks(const World& world, int bytes) : world_(world), words_(bytes / 4) {
        sent_.resize(static_cast<std::size_t>(words_) * world.ranks());
        received_.resize(sent_.size());
    }

    void exchange(int round) {
        for (int to = 0; to < world_.ranks(); ++to) {
            sent_[at(to)] = sent_[at(to + 1) - 1] = mark(world_.rank(), to, round);
        }
        MPI_Alltoall(sent_.data(), words_, MPI_INT, received_.data(), words_, MPI_INT, MPI_COMM_WORLD);
        for (int from = 0; from < world_.ranks(); ++from) {
            const int expected = mark(from, world_.rank(), round);
            if (received_[at(from)] != expected || received_[at(from + 1) - 1] != expected) {
                throw error("a block from rank " + std::to_string(from) + " is not what it sent");
            }
        }
    }

  private:
    std::size_t at(int rank) const { return static_cast<std::size_t>(rank) * words_; }
    int mark(int from, int to, int round) const { return (from * world_.ranks() + to) * 131 + round; }

    const World& world_;
    int words_;
    std::vector<int> sent_;
    std::vector<int> received_;
};

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() > 1, "2 or more");
    settings.qos.ask(MPI_COMM_WORLD, settings.bytes);
    Blocks blocks(world, settings.bytes);
    Samples times;
    blocks.exchange(0);
    for (int round = 1; round <= settings.times; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        blocks.exchange(round);
        MPI_Barrier(MPI_COMM_WORLD);
        times.add(MPI_Wtime() - start);
    }
    if (world.tells()) {
        const double median = times.quantile(0.5);
        std::printf("seconds %.6f %.6f\n", median, times.quantile(0.99));
        std::printf("pair_mbit %.3f\n", settings.bytes * 8e-6 / median);
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("alltoall", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::play(settings);
        }
    });
}
