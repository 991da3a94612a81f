// What a program asks of the network, by the attribute of a communicator (../mpi/keeptime_mpi.h).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>

#include "common/options.hpp"

namespace workload {

class QosOptions {
  public:
    void declare(Options& options);

    /// Asks for messages of at most `bytes` among the ranks of `comm`, all of which call this. Rank 0
    /// prints `qos STATE RESERVED_KBPS` and, if it is not granted, the reason on stderr.
    void ask(MPI_Comm comm, std::uint64_t bytes) const;

  private:
    std::string class_ = "none";
    double kbps_ = 0;
    std::string shaping_ = "on";
};

}  // namespace workload
