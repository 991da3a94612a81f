#include "common/hypercube.hpp"

#include <algorithm>
#include <string>

#include "common/failure.hpp"

namespace workload {

namespace {

// A little below the limit (64 KiB in Open MPI over TCP) up to which a message is sent without asking the
// receiver first: asking needs both ends to look at the same time, and polite ranks look seldom.
// Measured with render, 4 ranks, a link of 400 Mbit/s for all, polite, milliseconds per frame, best of 3,
// Open MPI and MPICH: 32 kB 182, 194; 60 kB 176, 190; 250 kB 196, 188; 1 MB 183, 188; whole 192, 196.
constexpr std::size_t least_chunk_bytes = 60'000;

// Bounds the requests of one exchange; MPI_Testall looks at each.
constexpr std::size_t most_chunks = 256;

constexpr int tag = 1;

// Calls `post(first byte, bytes)` for each chunk of a message; both ends cut alike.
template <class Post>
void in_chunks(std::size_t bytes, Post post) {
    const std::size_t chunk_bytes = std::max(least_chunk_bytes, bytes / most_chunks + 1);
    for (std::size_t begin = 0; begin < bytes; begin += chunk_bytes) {
        post(begin, static_cast<int>(std::min(chunk_bytes, bytes - begin)));
    }
}

}  // namespace

Hypercube::Hypercube(Waiting waiting) : waiting_(waiting) {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    if ((ranks_ & (ranks_ - 1)) != 0) {
        throw usage_error(std::to_string(ranks_) +
                          " ranks: not accepted; start it on a power of two (1, 2, 4, 8, 16 ...)");
    }
    while (1 << dimensions_ < ranks_) {
        ++dimensions_;
    }
}

Hypercube::~Hypercube() { MPI_Finalize(); }

void Hypercube::exchange(int dimension, const void* out, std::size_t out_bytes, void* in,
                         std::size_t in_bytes) {
    const int partner = rank_ ^ (1 << dimension);
    std::vector<MPI_Request> requests;
    in_chunks(in_bytes, [&](std::size_t begin, int bytes) {
        requests.emplace_back();
        MPI_Irecv(static_cast<char*>(in) + begin, bytes, MPI_BYTE, partner, tag, MPI_COMM_WORLD,
                  &requests.back());
    });
    in_chunks(out_bytes, [&](std::size_t begin, int bytes) {
        requests.emplace_back();
        MPI_Isend(static_cast<const char*>(out) + begin, bytes, MPI_BYTE, partner, tag, MPI_COMM_WORLD,
                  &requests.back());
    });
    wait_all(requests, waiting_);
}

int Hypercube::gather_place() const {
    int place = 0;
    for (int dimension = 0; dimension < dimensions_; ++dimension) {
        place = place << 1 | upper(dimension);
    }
    return place;
}

bool Hypercube::any(bool mine) {
    for (int dimension = 0; dimension < dimensions_; ++dimension) {
        const char known = mine;
        char told = 0;
        exchange(dimension, &known, 1, &told, 1);
        mine = mine || told;
    }
    return mine;
}

}  // namespace workload
