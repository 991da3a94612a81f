#include "isosurface/slab.hpp"

namespace workload {

Layers share_of_layers(const Volume& volume, int place, int parts) {
    const long layers = volume.size[2] + 1;
    return {static_cast<int>(layers * place / parts) - 1, static_cast<int>(layers * (place + 1) / parts) - 1};
}

// Smoothing spoils one more layer at each end each time, for lack of neighbours: so many are kept beyond
// those that are needed, and all ranks agree on the values that they share.
void Slab::fill(const Volume& volume) {
    first_ = layers_.begin - 1 - smoothings_;
    size_ = {volume.size[0] + 2 * border, volume.size[1] + 2 * border,
             layers_.end - layers_.begin + 3 + 2 * smoothings_};
    spacing_ = volume.spacing;
    values_.clear();
    values_.reserve(index(0, 0, size_[2]));
    for (int z = 0; z < size_[2]; ++z) {
        for (int y = -border; y < size_[1] - border; ++y) {
            for (int x = -border; x < size_[0] - border; ++x) {
                values_.push_back(volume.at(x, y, first_ + z));
            }
        }
    }
    for (int i = 0; i < smoothings_; ++i) {
        smooth(0);
        smooth(1);
        smooth(2);
    }
}

void Slab::smooth(int axis) {
    const std::size_t step = axis == 0 ? 1 : index(0, axis == 1, axis == 2);
    // What has no neighbours stays.
    smoothed_ = values_;
    for (std::size_t i = step; i + step < values_.size(); ++i) {
        smoothed_[i] = 0.25f * values_[i - step] + 0.5f * values_[i] + 0.25f * values_[i + step];
    }
    values_.swap(smoothed_);
}

}  // namespace workload
