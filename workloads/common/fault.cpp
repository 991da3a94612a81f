#include "common/fault.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace workload {

void Fault::declare(Options& options, const std::string& unit) {
    options.choice("--fault", &kind_, {"none", "crash", "hang"},
                   "for the project's fault tests: rank 1 (0 when alone) aborts or sleeps for ever");
    options.number("--fault-" + unit, &at_, 0, 1'000'000, "the " + unit + " at whose start it does so");
}

void Fault::strike(int rank, int ranks, int at) const {
    if (!strikes_at(at) || rank != std::min(1, ranks - 1)) {
        return;
    }
    if (kind_ == "crash") {
        std::abort();
    }
    while (kind_ == "hang") {
        pause();
    }
}

}  // namespace workload
