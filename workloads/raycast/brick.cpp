#include "raycast/brick.hpp"

#include "common/failure.hpp"

namespace workload {

namespace {

int longest_axis(const Box& box) {
    int longest = 0;
    for (int axis = 1; axis < 3; ++axis) {
        if (box.high[axis] - box.low[axis] > box.high[longest] - box.low[longest]) {
            longest = axis;
        }
    }
    return longest;
}

}  // namespace

// A voxel above 0 is seen in the cells on both of its sides.
Box box_of_content(const Volume& volume) {
    Box box;
    box.low = volume.size;
    std::size_t i = 0;
    for (int z = 0; z < volume.size[2]; ++z) {
        for (int y = 0; y < volume.size[1]; ++y) {
            for (int x = 0; x < volume.size[0]; ++x) {
                if (volume.voxels[i++] == 0) {
                    continue;
                }
                const std::array<int, 3> at = {x, y, z};
                for (int axis = 0; axis < 3; ++axis) {
                    box.low[axis] = std::min(box.low[axis], at[axis] - 1);
                    box.high[axis] = std::max(box.high[axis], at[axis] + 1);
                }
            }
        }
    }
    return box;
}

Partition split(const Volume& volume, const Hypercube& cube) {
    Partition partition{box_of_content(volume), std::vector<SplitPlane>(cube.dimensions())};
    Box& box = partition.box;
    for (int dimension = cube.dimensions() - 1; dimension >= 0; --dimension) {
        const int axis = longest_axis(box);
        const int middle = (box.low[axis] + box.high[axis]) / 2;
        if (box.high[axis] - box.low[axis] < 2) {
            throw error("the volume is too small for " + std::to_string(cube.ranks()) + " ranks");
        }
        partition.planes[dimension] = {axis, middle};
        (cube.upper(dimension) ? box.low : box.high)[axis] = middle;
    }
    return partition;
}

Brick::Brick(const Volume& volume, const Box& box, float visible_above) : box_(box) {
    std::array<int, 3> low{};
    for (int axis = 0; axis < 3; ++axis) {
        low[axis] = box.low[axis] - 1;
        size_[axis] = box.high[axis] + 3 - low[axis];
        origin_[axis] = low[axis] + static_cast<int>(bias);
    }
    voxels_.resize(index(0, 0, size_[2]));
    visible_.resize(voxels_.size());
    std::size_t i = 0;
    for (int z = 0; z < size_[2]; ++z) {
        for (int y = 0; y < size_[1]; ++y) {
            for (int x = 0; x < size_[0]; ++x) {
                voxels_[i++] = volume.at(low[0] + x, low[1] + y, low[2] + z);
            }
        }
    }
    const std::size_t row = size_[0], layer = row * size_[1];
    for (std::size_t at = 0; at + layer + row + 1 < voxels_.size(); ++at) {
        for (const std::size_t corner : {std::size_t{0}, row, layer, layer + row}) {
            const int most = std::max(voxels_[at + corner], voxels_[at + corner + 1]);
            visible_[at] = visible_[at] || static_cast<float>(most) > visible_above;
        }
    }
}

}  // namespace workload
