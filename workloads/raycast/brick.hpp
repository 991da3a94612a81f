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

/// How the volume is split. The plane of dimension 0 is the deepest of the tree, so that a binary swap,
/// which begins with dimension 0, merges ever larger boxes whose common plane says which is in front.
struct Partition {
    Box content;                     ///< of the volume: what is halved
    Box box;                         ///< of this rank
    std::vector<SplitPlane> planes;  ///< by dimension
};

/// Halves the least box around the voxels above 0 and the cells in which they are seen along its longest axis, once
/// for each dimension. Looks at every voxel.
Partition split(const Volume& volume, const Hypercube& cube);

/// The box's voxels and a ghost layer around them: one below, two above, which is what trilinear samples
/// and their gradients reach.
class Brick {
  public:
    /// `is_seen(x, y, z, value)` tells of a cell of voxels, at its low corner, whether any point of it
    /// can be seen, given its greatest value.
    template <class IsSeen>
    Brick(const Volume& volume, const Box& box, IsSeen is_seen) : Brick(volume, box) {
        for_each_cell([&](std::size_t at, int x, int y, int z) {
            emptiness_[at] = is_seen(x, y, z, greatest_of_cell(at)) ? 0 : far_away;
        });
        spread_emptiness();
    }

    const Box& box() const { return box_; }

    /// How far from `p` in the box, along the axis along which it is farthest, nothing is seen: in
    /// voxels; 0 if something may be seen at `p` itself. One look instead of eight.
    int emptiness(Vec3 p) const { return emptiness_[cell(p)]; }

    /// Trilinear; `p` at most one voxel outside of the box.
    float sample(Vec3 p) const;

    /// Central differences over two voxels: value per voxel.
    Vec3 gradient(Vec3 p) const;

  private:
    static constexpr std::uint8_t far_away = 255;

    // Where a position is among the voxels: the low corner of its cell, and the shares of the others.
    struct Place {
        const std::uint8_t* voxel;
        Vec3 share;
    };

    Brick(const Volume& volume, const Box& box);

    template <class Visit>
    void for_each_cell(Visit visit) const {
        for (int z = 0; z + 1 < size_[2]; ++z) {
            for (int y = 0; y + 1 < size_[1]; ++y) {
                for (int x = 0; x + 1 < size_[0]; ++x) {
                    visit(index(x, y, z), x + low(0), y + low(1), z + low(2));
                }
            }
        }
    }
    int greatest_of_cell(std::size_t at) const;
    void spread_emptiness();

    // Positions are made positive before they are cut to integers; the same number on all ranks, so
    // that rounding does not depend on the number of ranks.
    static constexpr float bias = 8;

    std::size_t index(int x, int y, int z) const {
        return (static_cast<std::size_t>(z) * size_[1] + y) * size_[0] + x;
    }
    Place place(Vec3 p) const;
    int low(int axis) const { return origin_[axis] - static_cast<int>(bias); }
    std::size_t cell(Vec3 p) const {
        return index(static_cast<int>(p.x + bias) - origin_[0], static_cast<int>(p.y + bias) - origin_[1],
                     static_cast<int>(p.z + bias) - origin_[2]);
    }

    Box box_;
    std::array<int, 3> origin_{};  // of the ghost layer, plus bias
    std::array<int, 3> size_{};
    Array<std::uint8_t> voxels_;
    Array<std::uint8_t> emptiness_;  // of cells: the distance to the next one with something to see
};

inline float mix(float a, float b, float share) { return a + share * (b - a); }

inline Brick::Place Brick::place(Vec3 p) const {
    const float x = p.x + bias, y = p.y + bias, z = p.z + bias;
    const int ix = static_cast<int>(x), iy = static_cast<int>(y), iz = static_cast<int>(z);
    const std::uint8_t* voxel = &voxels_[index(ix - origin_[0], iy - origin_[1], iz - origin_[2])];
    return {voxel, {x - ix, y - iy, z - iz}};
}

inline float Brick::sample(Vec3 p) const {
    const Place at = place(p);
    const std::size_t row = size_[0], layer = row * size_[1];
    const auto along_x = [&](const std::uint8_t* v) { return mix(v[0], v[1], at.share.x); };
    const float low = mix(along_x(at.voxel), along_x(at.voxel + row), at.share.y);
    const float high = mix(along_x(at.voxel + layer), along_x(at.voxel + layer + row), at.share.y);
    return mix(low, high, at.share.z);
}

// The difference of two samples one voxel to either side: of the 32 voxels that these twelve samples
// interpolate, each row along x is interpolated once.
inline Vec3 Brick::gradient(Vec3 p) const {
    const Place at = place(p);
    const std::ptrdiff_t row = size_[0], layer = row * size_[1];
    const auto along_x = [&](int y, int z) {
        const std::uint8_t* v = at.voxel + y * row + z * layer;
        return mix(v[0], v[1], at.share.x);
    };
    const auto slope = [&](int y, int z) {
        const std::uint8_t* v = at.voxel + y * row + z * layer;
        return mix(v[1] - v[-1], v[2] - v[0], at.share.x);
    };
    const auto over_yz = [&](float a, float b, float c, float d) {
        return mix(mix(a, b, at.share.y), mix(c, d, at.share.y), at.share.z);
    };
    const float v00 = along_x(0, 0), v10 = along_x(1, 0), v01 = along_x(0, 1), v11 = along_x(1, 1);
    const Vec3 difference = {
        over_yz(slope(0, 0), slope(1, 0), slope(0, 1), slope(1, 1)),
        over_yz(v10 - along_x(-1, 0), along_x(2, 0) - v00, v11 - along_x(-1, 1), along_x(2, 1) - v01),
        over_yz(v01 - along_x(0, -1), v11 - along_x(1, -1), along_x(0, 2) - v00, along_x(1, 2) - v10)};
    return difference * 0.5f;
}

}  // namespace workload
