// How many processes compete for the processor, over time.
#pragma once

#include <string>
#include <vector>

namespace workload {

/// From `from` seconds on, `contention` processes want to run: 1.5 are one, and another half of the time.
struct Stretch {
    double from;
    double contention;
};

/// The stretches of a file with a line `SECONDS CONTENTION` each, `#` before remarks, in order. Throws
/// Failure with the line that is wrong.
std::vector<Stretch> read_trace(const std::string& file);

/// The contention at `seconds`; 0 before the first stretch.
double contention_at(const std::vector<Stretch>& trace, double seconds);

constexpr double contention_most = 64;

}  // namespace workload
