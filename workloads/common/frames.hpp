// The loop over frames that all programs share: start together, draw, tell the time.
#pragma once

#include <functional>
#include <string>

#include "common/fault.hpp"
#include "common/hypercube.hpp"
#include "common/options.hpp"

namespace workload {

class FrameOptions {
  public:
    void declare(Options& options);

    Waiting waiting() const { return wait_ == "poll" ? Waiting::poll : Waiting::polite; }

    int frames = 10;
    int at_least = 0;  ///< in seconds
    int warmup = 1;
    Fault fault;

  private:
    std::string wait_ = "polite";
};

/// Calls `draw(frame)` on all ranks together; it must return on rank 0 only when rank 0 has the complete
/// result. Rank 0 prints `frame I SECONDS` for each, I from 0 on in every round, and `seconds_per_frame MEAN` at the end. Warm-up
/// frames come before, look like frame 0 and are printed as `warmup I SECONDS`.
void run_frames(const FrameOptions& options, Hypercube& cube, const std::function<void(int)>& draw);

}  // namespace workload
