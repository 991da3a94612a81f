// A rank's part of the volume, cut out by a kd-tree whose leaves are the ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/array.hpp"
#include "common/hypercube.hpp"
#include "common/volume.hpp"

namespace workload {

/// Voxel coordinates [low, high) along each axis.
struct Box {
    std::array<int, 3> low{}, high{};
    bool holds(Vec3 p) const {
        return p.x >= low[0] && p.x < high[0] && p.y >= low[1] && p.y < high[1] && p.z >= low[2] &&
               p.z < high[2];
    }
};

/// The plane between a rank's part of the kd-tree and that of its partner along one dimension.
struct SplitPlane {
    int axis = 0;
    int position = 0;
};

/// The least box around the voxels above 0 and the cells in which they are seen.
Box box_of_content(const Volume& volume);

/// How the volume is split. The plane of dimension 0 is the deepest of the tree, so that a binary swap,
/// which begins with dimension 0, merges ever larger boxes whose common plane says which is in front.
struct Partition {
    Box box;                         ///< of this rank
    std::vector<SplitPlane> planes;  ///< by dimension
};

/// Halves the box of the content along its longest axis, once for each dimension.
Partition split(const Volume& volume, const Hypercube& cube);

/// The box's voxels and a ghost layer around them: one below, two above, which is what trilinear samples
/// and their gradients reach.
class Brick {
  public:
    Brick(const Volume& volume, const Box& box, float visible_above);

    const Box& box() const { return box_; }

    /// Can a sample at `p` in the box be above the visible threshold? One look instead of eight.
    bool maybe_visible(Vec3 p) const { return visible_[cell(p)] != 0; }

    /// Trilinear; `p` at most one voxel outside of the box.
    float sample(Vec3 p) const;

    /// Central differences over two voxels: value per voxel.
    Vec3 gradient(Vec3 p) const;

  private:
    // Positions are made positive before they are cut to integers; the same number on all ranks, so
    // that rounding does not depend on the number of ranks.
    static constexpr float bias = 8;

    std::size_t index(int x, int y, int z) const {
        return (static_cast<std::size_t>(z) * size_[1] + y) * size_[0] + x;
    }
    std::size_t cell(Vec3 p) const {
        return index(static_cast<int>(p.x + bias) - origin_[0], static_cast<int>(p.y + bias) - origin_[1],
                     static_cast<int>(p.z + bias) - origin_[2]);
    }

    Box box_;
    std::array<int, 3> origin_{};  // of the ghost layer, plus bias
    std::array<int, 3> size_{};
    Array<std::uint8_t> voxels_;
    Array<std::uint8_t> visible_;
};

inline float Brick::sample(Vec3 p) const {
    const float x = p.x + bias, y = p.y + bias, z = p.z + bias;
    const int ix = static_cast<int>(x), iy = static_cast<int>(y), iz = static_cast<int>(z);
    const float fx = x - ix, fy = y - iy, fz = z - iz;
    const std::uint8_t* v = &voxels_[index(ix - origin_[0], iy - origin_[1], iz - origin_[2])];
    const std::size_t row = size_[0], layer = row * size_[1];
    const auto along_x = [&](const std::uint8_t* at) { return at[0] + fx * (at[1] - at[0]); };
    const float low = along_x(v) + fy * (along_x(v + row) - along_x(v));
    const float high = along_x(v + layer) + fy * (along_x(v + layer + row) - along_x(v + layer));
    return low + fz * (high - low);
}

inline Vec3 Brick::gradient(Vec3 p) const {
    return Vec3{sample({p.x + 1, p.y, p.z}) - sample({p.x - 1, p.y, p.z}),
                sample({p.x, p.y + 1, p.z}) - sample({p.x, p.y - 1, p.z}),
                sample({p.x, p.y, p.z + 1}) - sample({p.x, p.y, p.z - 1})} *
           0.5f;
}

}  // namespace workload
