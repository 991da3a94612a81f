// MPI begun and ended, and the rank's place in it.
#pragma once

#include <mpi.h>

#include <string>

#include "common/failure.hpp"

namespace workload {

class World {
  public:
    World() {
        MPI_Init(nullptr, nullptr);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    }
    ~World() { MPI_Finalize(); }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    /// Throws a usage error on every rank unless `fits`.
    void require(bool fits, const std::string& accepted) const {
        if (!fits) {
            throw usage_error(std::to_string(ranks_) + " ranks: not accepted; start it on " + accepted);
        }
    }

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    bool tells() const { return rank_ == 0; }

  private:
    int rank_ = 0;
    int ranks_ = 1;
};

}  // namespace workload
