// The loop over iterations of programs that run until they are told to stop: any number of ranks, all of
// which end together.
#pragma once

#include <functional>
#include <string>

#include "common/fault.hpp"
#include "common/options.hpp"
#include "common/waiting.hpp"
#include "common/world.hpp"

namespace workload {

/// Starts one non-blocking operation by `post` and waits for it as the user wants ranks to wait.
void wait_for(Waiting waiting, const std::function<void(MPI_Request*)>& post);

class IterationOptions {
  public:
    void declare(Options& options);

    Waiting waiting() const { return wait_ == "poll" ? Waiting::poll : Waiting::polite; }

    int iterations = 100;
    int at_least = 0;  ///< in seconds
    int warmup = 0;
    Fault fault;

  private:
    std::string wait_ = "polite";
};

/// Calls `iterate(i)` on all ranks, i from 0 on. Rank 0 prints `iteration I SECONDS` for each, from the end
/// of the one before (so that nothing of a rank's time is left out), and at the end `seconds_per_iteration
/// MEAN` and `iterations_per_second RATE`. Iterations to warm up come before and are printed as
/// `warmup I SECONDS`.
void run_iterations(const IterationOptions& options, const World& world,
                    const std::function<void(int)>& iterate);

}  // namespace workload
