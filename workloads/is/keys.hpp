// Keys to sort, the same on any number of ranks.
#pragma once

#include <cstdint>

#include "common/array.hpp"

namespace workload {

using Key = std::uint32_t;

/// Keys `begin` to `end` (not included) of the whole input: each the mean of four even random numbers
/// below 2^bits, so that keys in the middle are many, as in the particle codes that NAS IS stands for.
Array<Key> make_keys(std::uint64_t begin, std::uint64_t end, int bits);

/// A number that is the same for the same keys in any order, and hardly for others.
std::uint64_t fingerprint(const Array<Key>& keys);

}  // namespace workload
