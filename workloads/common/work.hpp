// Computing: so many steps of arithmetic over so much memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/array.hpp"

namespace workload {

class Work {
  public:
    /// `working_set` bytes are touched again and again, page by page.
    explicit Work(std::size_t working_set);

    /// A chain of `steps` dependent operations; every 64th touches another cache line.
    void compute(std::uint64_t steps);

    /// Steps that take a second of this processor, by its CPU clock: the median of a few short runs.
    std::uint64_t steps_per_second();

  private:
    Array<std::uint64_t> memory_;
    std::size_t at_ = 0;
    std::uint64_t state_ = 1;
};

}  // namespace workload
