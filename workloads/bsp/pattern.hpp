// Who talks to whom in a superstep.
#pragma once

#include <string>
#include <vector>

namespace workload {

/// What one rank does in a superstep: a message to each of `to`, one from each of `from`.
struct Partners {
    std::vector<int> to;
    std::vector<int> from;
};

/// The names that partners_in knows.
std::vector<std::string> pattern_names();

/// Rank `rank`'s partners in the pattern called `name`. Throws Failure if it cannot be had with so many
/// ranks.
Partners partners_in(const std::string& name, int rank, int ranks);

/// Rank `rank`'s partners by a file with a line `FROM TO` for each message, `#` before remarks. Throws
/// Failure with the line that is wrong.
Partners partners_by(const std::string& file, int rank, int ranks);

}  // namespace workload
