// Every rank sends to every other, again and again.

#include <cstdint>
#include <cstdio>

#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "alltoall calls MPI_Alltoall again and again, with a fixed number of bytes from\n"
    "each rank to each other. Start it on 2 ranks or more.\n"
    "Every word of every block is checked, between the calls: that is not part of\n"
    "the times that are told. Exit code 1 if one is not what was sent.\n"
    "Prints `seconds P50 P99` of one call and `pair_mbit RATE`, what each pair had of\n"
    "the network.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 alltoall --bytes 65536 --times 50\n"
    "  mpirun -n 4 alltoall --bytes 65536 --qos premium --kbps 20000\n";

using Word = std::uint32_t;
constexpr int word_bytes = sizeof(Word);
/// From a word of a block to the next: odd, so that all of them are different.
constexpr Word word_step = 0x9e3779b9u;

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
                   "for the project's tests: a word in the middle of a block that rank 1 receives was not sent");
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

    /// What is sent in `round`: something else in every round, so that a block that did not come is seen.
    void fill(int round) {
        for (int to = 0; to < world_.ranks(); ++to) {
            const std::size_t end = begin_of(to + 1);
            Word word = first_word(world_.rank(), to, round);
            for (std::size_t at = begin_of(to); at < end; ++at, word += word_step) {
                sent_[at] = word;
            }
        }
    }

    void exchange() {
        MPI_Alltoall(sent_.data(), words_, MPI_UINT32_T, received_.data(), words_, MPI_UINT32_T, MPI_COMM_WORLD);
    }

    /// Looks at every word that was received in `round`, and remembers a block that is wrong.
    void check(int round) {
        if (spoils_) {
            ++received_[begin_of(world_.ranks() - 1) + words_ / 2];
        }
        for (int from = 0; from < world_.ranks(); ++from) {
            const std::size_t end = begin_of(from + 1);
            Word word = first_word(from, world_.rank(), round), difference = 0;
            for (std::size_t at = begin_of(from); at < end; ++at, word += word_step) {
                difference |= received_[at] ^ word;
            }
            if (difference != 0) {
                wrong_ = 1 + pair(from, world_.rank());
            }
        }
    }

    /// Throws on every rank if one has met a wrong block: the others would wait for ever for one that leaves alone.
    void require_right() const {
        std::int64_t wrong = 0;
        MPI_Allreduce(&wrong_, &wrong, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
        if (wrong != 0) {
            const std::int64_t from = (wrong - 1) / world_.ranks(), to = (wrong - 1) % world_.ranks();
            throw wrong_result("a block from rank " + std::to_string(from) + " to rank " + std::to_string(to) +
                               " is not what was sent");
        }
    }

  private:
    std::size_t begin_of(int rank) const { return static_cast<std::size_t>(rank) * words_; }
    /// Of thousands of ranks there are more than an int counts.
    std::int64_t pair(int from, int to) const { return std::int64_t{from} * world_.ranks() + to; }
    /// What a block begins with: some bits of its pair and its round.
    Word first_word(int from, int to, int round) const { return static_cast<Word>(pair(from, to) * 131 + round); }

    const World& world_;
    int words_;
    bool spoils_;
    std::int64_t wrong_ = 0;  // one more than the number of its pair of ranks
    std::vector<Word> sent_;
    std::vector<Word> received_;
};

/// Seconds of one call, from when all begin to when all have ended.
double timed_exchange(Blocks& blocks, int round) {
    blocks.fill(round);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    blocks.exchange();
    MPI_Barrier(MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - start;
    blocks.check(round);
    return seconds;
}

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() > 1, "2 or more");
    settings.qos.ask(MPI_COMM_WORLD, settings.bytes);
    Blocks blocks(world, settings);
    Samples times;
    timed_exchange(blocks, 0);  // the first makes connections
    for (int round = 1; round <= settings.times; ++round) {
        times.add(timed_exchange(blocks, round));
    }
    // Only now, so that what is sent meanwhile is MPI_Alltoall.
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
