// An integer sort in the manner of the NAS benchmark IS: keys with a bell-shaped distribution are sorted
// again and again, two of them changed each time, and every result is verified.

#include <algorithm>
#include <array>
#include <cstdio>

#include "common/failure.hpp"
#include "common/iterations.hpp"
#include "is/keys.hpp"
#include "is/sort.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "is sorts 2^keys integers below 2^bits with the ranks of an MPI program: a bucket\n"
    "sort in which every rank sends keys to every other. Two keys change from\n"
    "iteration to iteration. Every result is verified: in order on each rank and from\n"
    "rank to rank, and the same keys as before.\n"
    "Prints `iteration I SECONDS` for each, `keys RANK N` (what each rank got in the\n"
    "last), at the end `seconds_per_iteration MEAN`, `iterations_per_second RATE` and\n"
    "`verified N`; exit code 1 if a result is wrong.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 is --keys 20\n"
    "  mpirun -n 4 is --keys 20 --split range   # ranks in the middle have most to do\n";

struct Settings {
    int keys = 20;
    int bits = 16;
    std::string split = "even";
    std::string spoil = "none";
    IterationOptions iterations;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("is", story, examples);
    options.number("--keys", &settings.keys, 4, 30, "the binary logarithm of how many keys");
    options.number("--bits", &settings.bits, 4, 27, "bits of a key");
    options.choice("--split", &settings.split, {"even", "range"},
                   "how keys are divided among ranks: as many for each, or equal ranges of keys");
    options.choice("--spoil", &settings.spoil, {"none", "order", "keys"},
                   "for the project's tests: a wrong result, in order or in keys");
    settings.iterations.declare(options);
    return options.parse(argc, argv);
}

/// What a rank has, as the others need it to judge the whole.
struct Digest {
    std::uint64_t count;
    std::uint64_t fingerprint;
    std::uint64_t least;
    std::uint64_t most;
    std::uint64_t in_order;
};

Digest digest_of(const Array<Key>& keys) {
    const bool any = !keys.empty();
    return {keys.size(), fingerprint(keys), any ? keys.front() : 0, any ? keys.back() : 0,
            std::is_sorted(keys.begin(), keys.end())};
}

std::vector<Digest> all_digests(const Digest& mine, const World& world, Waiting waiting) {
    std::vector<Digest> all(world.ranks());
    constexpr int words = sizeof(Digest) / sizeof(std::uint64_t);
    wait_for(waiting, [&](MPI_Request* request) {
        MPI_Iallgather(&mine, words, MPI_UINT64_T, all.data(), words, MPI_UINT64_T, MPI_COMM_WORLD, request);
    });
    return all;
}

/// Known to every rank alike.
void verify(int iteration, const std::vector<Digest>& before, const std::vector<Digest>& after) {
    Digest sum{};
    std::uint64_t greatest = 0;
    bool in_order = true;
    for (const Digest& digest : after) {
        in_order = in_order && digest.in_order && (digest.count == 0 || digest.least >= greatest);
        greatest = std::max(greatest, digest.most);
        sum.count += digest.count;
        sum.fingerprint += digest.fingerprint;
    }
    for (const Digest& digest : before) {
        sum.count -= digest.count;
        sum.fingerprint -= digest.fingerprint;
    }
    if (!in_order || sum.count != 0 || sum.fingerprint != 0) {
        throw wrong_result("iteration " + std::to_string(iteration) + ": not verified: " +
                           (in_order ? "other keys than before" : "not in order"));
    }
}

void spoil(const std::string& how, Array<Key>& sorted) {
    if (sorted.size() < 2) {
        return;
    }
    if (how == "order") {
        std::swap(sorted.front(), sorted.back());
    } else if (how == "keys") {
        sorted.front() = sorted.back();
        std::sort(sorted.begin(), sorted.end());
    }
}

void sort_again_and_again(const Settings& settings) {
    const World world;
    const Waiting waiting = settings.iterations.waiting();
    const std::uint64_t count = std::uint64_t{1} << settings.keys;
    if (count < static_cast<std::uint64_t>(world.ranks())) {
        throw usage_error("--keys " + std::to_string(settings.keys) + ": not accepted with " +
                          std::to_string(world.ranks()) + " ranks; give a key for each at least");
    }
    const std::uint64_t begin = count * world.rank() / world.ranks();
    const std::uint64_t end = count * (world.rank() + 1) / world.ranks();
    Array<Key> keys = make_keys(begin, end, settings.bits);
    Sorter sorter(world, settings.bits, settings.split == "even" ? Split::even : Split::range, waiting);
    int verified = 0;
    std::vector<Digest> after;
    run_iterations(settings.iterations, world, [&](int iteration) {
        // As IS does: one small and one large key that were not there before.
        const Key greatest = (Key{1} << settings.bits) - 1;
        keys[iteration % keys.size()] = static_cast<Key>(iteration) & greatest;
        keys[(iteration + keys.size() / 2) % keys.size()] = greatest - (static_cast<Key>(iteration) & greatest);
        Array<Key>& sorted = sorter.sort(keys);
        spoil(settings.spoil, sorted);
        after = all_digests(digest_of(sorted), world, waiting);
        verify(iteration, all_digests(digest_of(keys), world, waiting), after);
        ++verified;
    });
    if (world.rank() == 0) {
        for (int rank = 0; rank < world.ranks(); ++rank) {
            std::printf("keys %d %llu\n", rank, static_cast<unsigned long long>(after[rank].count));
        }
        std::printf("verified %d\n", verified);
        std::fflush(stdout);
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("is", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::sort_again_and_again(settings);
        }
    });
}
