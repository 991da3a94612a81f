// A rank that breaks on purpose, as the fault tests want it.
#pragma once

#include <string>

#include "common/options.hpp"

namespace workload {

class Fault {
  public:
    /// `unit` is what the program counts: a frame, an iteration.
    void declare(Options& options, const std::string& unit);

    /// Whether a rank will break when `at` has started.
    bool strikes_at(int at) const { return kind_ != "none" && at == at_; }

    /// To be called by all ranks when `at` has started: breaks rank 1, or rank 0 when alone, if it is
    /// the one that was asked for.
    void strike(int rank, int ranks, int at) const;

  private:
    std::string kind_ = "none";
    int at_ = 0;
};

}  // namespace workload
