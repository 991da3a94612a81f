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

constexpr int word_bytes = sizeof(int);

struct Settings {
    int bytes = 65536;
    int times = 20;
    std::string spoil = "none";
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("alltoall", story, examples);
    options.number("--bytes", &settings.bytes, word_bytes, 1 << 26,
                   "bytes from each rank to each other, rounded down to words of 4");
    options.number("--times", &settings.times, 1, 1'000'000, "calls that are timed");
    options.choice("--spoil", &settings.spoil, {"none", "block"},
                   "for the project's tests: rank 1 receives a block that was not sent");
    settings.qos.declare(options);
    if (!options.parse(argc, argv)) {
        return false;
    }
    // What is asked for and told is what is sent.
    settings.bytes -= settings.bytes % word_bytes;
    return true;
}

class Blocks {
  public:
    Blocks(const World& world, const Settings& settings)
        : world_(world), words_(settings.bytes / word_bytes), spoils_(settings.spoil == "block" && world.rank() == 1) {
        sent_.resize(static_cast<std::size_t>(words_) * world.ranks());
        received_.resize(sent_.size());
    }

    /// Remembers a block that is wrong.
    void exchange(int round) {
        for (int to = 0; to < world_.ranks(); ++to) {
            sent_[at(to)] = sent_[at(to + 1) - 1] = mark(world_.rank(), to, round);
        }
        MPI_Alltoall(sent_.data(), words_, MPI_INT, received_.data(), words_, MPI_INT, MPI_COMM_WORLD);
        if (spoils_) {
            ++received_.back();
        }
        for (int from = 0; from < world_.ranks(); ++from) {
            const int expected = mark(from, world_.rank(), round);
            if (received_[at(from)] != expected || received_[at(from + 1) - 1] != expected) {
                wrong_ = 1 + from * world_.ranks() + world_.rank();
            }
        }
    }

    /// Throws on every rank if one has met a wrong block: the others would wait for ever for one that leaves alone.
    void require_right() const {
        int wrong = 0;
        MPI_Allreduce(&wrong_, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (wrong != 0) {
            const int from = (wrong - 1) / world_.ranks(), to = (wrong - 1) % world_.ranks();
            throw error("a block from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
                        " is not what was sent");
        }
    }

  private:
    std::size_t at(int rank) const { return static_cast<std::size_t>(rank) * words_; }
    int mark(int from, int to, int round) const { return (from * world_.ranks() + to) * 131 + round; }

    const World& world_;
    int words_;
    bool spoils_;
    int wrong_ = 0;  // one more than the number of its pair of ranks
    std::vector<int> sent_;
    std::vector<int> received_;
};

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() > 1, "2 or more");
    settings.qos.ask(MPI_COMM_WORLD, settings.bytes);
    Blocks blocks(world, settings);
    Samples times;
    blocks.exchange(0);
    for (int round = 1; round <= settings.times; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        blocks.exchange(round);
        MPI_Barrier(MPI_COMM_WORLD);
        times.add(MPI_Wtime() - start);
    }
    // Only now, so that what is timed and what is sent meanwhile is MPI_Alltoall.
    blocks.require_right();
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
