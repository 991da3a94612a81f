// A rank's layers of the volume as smoothed numbers.
#pragma once

#include "common/array.hpp"
#include "common/volume.hpp"

namespace workload {

/// Layers of cells [begin, end); cell layer k lies between voxel layers k and k + 1. There is one layer
/// before the first voxels and one after the last: the surface is closed where content touches a border.
struct Layers {
    int begin = 0;
    int end = 0;
};

/// The `place`-th of `parts` equal shares of the volume's cell layers.
Layers share_of_layers(const Volume& volume, int place, int parts);

class Slab {
  public:
    /// `smoothings`: how often each value is mixed with its neighbours (1 2 1 along each axis).
    Slab(Layers layers, int smoothings) : layers_(layers), smoothings_(smoothings) {}

    /// Takes its layers of `volume`, and smooths them; in the memory of the last time, if there was one.
    void fill(const Volume& volume);

    /// Value at a voxel, x and y from -2 to two after the last, z from one layer before the slab's first
    /// voxels to one after its last.
    float at(int x, int y, int z) const { return values_[index(x + border, y + border, z - first_)]; }

    /// Direction in which values fall, at a voxel; per mm.
    Vec3 downhill(int x, int y, int z) const {
        return Vec3{at(x - 1, y, z) - at(x + 1, y, z), at(x, y - 1, z) - at(x, y + 1, z),
                    at(x, y, z - 1) - at(x, y, z + 1)} /
               spacing_;
    }

  private:
    void smooth(int axis);
    std::size_t index(int x, int y, int z) const {
        return (static_cast<std::size_t>(z) * size_[1] + y) * size_[0] + x;
    }

    static constexpr int border = 2;  // a cell outside, and its gradient
    Layers layers_;
    int smoothings_;
    int first_ = 0;  // z of the first layer that is kept
    std::array<int, 3> size_{};
    Vec3 spacing_;
    Array<float> values_, smoothed_;
};

}  // namespace workload
