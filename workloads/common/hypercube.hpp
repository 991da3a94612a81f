// The ranks as corners of a hypercube: rank r talks to r^1, r^2, r^4 ... and to nobody else.
#pragma once

#include <cstddef>

#include "common/waiting.hpp"

namespace workload {

/// MPI_Init to MPI_Finalize; throws Failure unless the number of ranks is a power of two.
class Hypercube {
  public:
    explicit Hypercube(Waiting waiting);
    ~Hypercube();
    Hypercube(const Hypercube&) = delete;
    Hypercube& operator=(const Hypercube&) = delete;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    int dimensions() const { return dimensions_; }
    bool upper(int dimension) const { return (rank_ >> dimension) & 1; }

    /// Both ends of the edge along `dimension` send and receive; returns when both are done.
    void exchange(int dimension, const void* out, std::size_t out_bytes, void* in, std::size_t in_bytes);
    void send(int dimension, const void* out, std::size_t bytes) { exchange(dimension, out, bytes, nullptr, 0); }
    void receive(int dimension, void* in, std::size_t bytes) { exchange(dimension, nullptr, 0, in, bytes); }

    /// Is it true on any rank? Returns when all ranks have called it (an exchange of one byte along
    /// each dimension; MPI_Allreduce would use other pairs).
    bool any(bool mine);
    void synchronise() { any(false); }

    /// Brings what every rank has to rank 0 along a binomial tree, reverse to the order of a binary
    /// swap: at each dimension the upper end calls `give(dimension)` and is done, the lower `take`.
    template <class Give, class Take>
    void gather(Give give, Take take) const {
        for (int dimension = dimensions_ - 1; dimension >= 0; --dimension) {
            if (has_given_before(dimension)) {
                return;
            }
            upper(dimension) ? give(dimension) : take(dimension);
        }
    }

    /// The place of this rank's part if parts are to lie in order after `gather`: the rank with the order
    /// of its bits reversed.
    int gather_place() const;

  private:
    // Has this rank given already, at a greater dimension?
    bool has_given_before(int dimension) const { return (rank_ >> (dimension + 1)) != 0; }

    Waiting waiting_;
    int rank_ = 0;
    int ranks_ = 1;
    int dimensions_ = 0;
};

}  // namespace workload
