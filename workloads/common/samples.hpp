// Times of single operations, told as median and tail.
#pragma once

#include <algorithm>
#include <vector>

namespace workload {

class Samples {
  public:
    void add(double value) { values_.push_back(value); }
    std::size_t count() const { return values_.size(); }
    bool empty() const { return values_.empty(); }

    /// The least value that `share` of all do not exceed; there must be one at least.
    double quantile(double share) {
        std::sort(values_.begin(), values_.end());
        const auto at = static_cast<std::size_t>(share * static_cast<double>(values_.size()));
        return values_[std::min(at, values_.size() - 1)];
    }

  private:
    std::vector<double> values_;
};

}  // namespace workload
