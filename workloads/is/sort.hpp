// A parallel bucket sort: keys go to the rank that has their range, which counts them.
#pragma once

#include <vector>

#include "common/iterations.hpp"
#include "is/keys.hpp"

namespace workload {

/// How ranges of keys are divided among the ranks.
enum class Split {
    even,   ///< so that every rank gets about as many keys
    range,  ///< equal ranges: ranks in the middle get most keys
};

class Sorter {
  public:
    Sorter(const World& world, int bits, Split split, Waiting waiting)
        : world_(world), bits_(bits), split_(split), waiting_(waiting) {}

    /// All ranks' `keys` in order: rank 0 gets the smallest, each the next ones. They are there until the next call,
    /// which uses the memory again: fresh memory (380 pages an iteration) is a fifth of the time.
    Array<Key>& sort(const Array<Key>& keys);

  private:
    static constexpr int bucket_bits_most = 10;

    int bucket_bits() const { return bits_ < bucket_bits_most ? bits_ : bucket_bits_most; }
    std::size_t buckets() const { return std::size_t{1} << bucket_bits(); }
    std::size_t bucket_of(Key key) const { return key >> (bits_ - bucket_bits()); }

    /// For each bucket, the rank that gets it.
    std::vector<int> owners(const std::vector<std::int64_t>& mine) const;
    /// Puts what was received in order.
    void count_sorted();

    const World& world_;
    int bits_;
    Split split_;
    Waiting waiting_;
    Array<Key> given_, received_, sorted_;
    Array<std::uint32_t> counts_;
};

}  // namespace workload
