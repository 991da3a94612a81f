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

SplitPlane middle_of(const Box& box) {
    const int axis = longest_axis(box);
    return {axis, (box.low[axis] + box.high[axis]) / 2};
}

Box half_of(Box box, SplitPlane plane, bool upper) {
    (upper ? box.low : box.high)[plane.axis] = plane.position;
    return box;
}

// Whether every part has something of it when it is halved so often. Halves of odd boxes differ: a rank that looked at
// its own part alone would leave the others waiting for it.
bool can_be_halved(const Box& box, int times) {
    if (times == 0) {
        return true;
    }
    const SplitPlane plane = middle_of(box);
    return box.high[plane.axis] - box.low[plane.axis] > 1 && can_be_halved(half_of(box, plane, false), times - 1) &&
           can_be_halved(half_of(box, plane, true), times - 1);
}

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

}  // namespace

Partition split(const Volume& volume, const Hypercube& cube) {
    const Box content = box_of_content(volume);
    if (content.low[0] > content.high[0]) {
        throw error("--volume: the volume has no voxel above 0");
    }
    if (!can_be_halved(content, cube.dimensions())) {
        throw error("the volume is too small for " + std::to_string(cube.ranks()) + " ranks");
    }
    Partition partition{content, content, std::vector<SplitPlane>(cube.dimensions())};
    for (int dimension = cube.dimensions() - 1; dimension >= 0; --dimension) {
        partition.planes[dimension] = middle_of(partition.box);
        partition.box = half_of(partition.box, partition.planes[dimension], cube.upper(dimension));
    }
    return partition;
}

Brick::Brick(const Volume& volume, const Box& box) : box_(box) {
    for (int axis = 0; axis < 3; ++axis) {
        const int low = box.low[axis] - 1;
        size_[axis] = box.high[axis] + 3 - low;
        origin_[axis] = low + static_cast<int>(bias);
    }
    voxels_.resize(index(0, 0, size_[2]));
    emptiness_.resize(voxels_.size(), far_away);
    std::size_t i = 0;
    for (int z = 0; z < size_[2]; ++z) {
        for (int y = 0; y < size_[1]; ++y) {
            for (int x = 0; x < size_[0]; ++x) {
                voxels_[i++] = volume.at(low(0) + x, low(1) + y, low(2) + z);
            }
        }
    }
}

int Brick::greatest_of_cell(std::size_t at) const {
    const std::size_t row = size_[0], layer = row * size_[1];
    int greatest = 0;
    for (const std::size_t corner : {at, at + row, at + layer, at + layer + row}) {
        greatest = std::max<int>(greatest, std::max(voxels_[corner], voxels_[corner + 1]));
    }
    return greatest;
}

// A distance transform: neighbours in all 26 directions are one apart. Half of them are known on the
// way forth, the others on the way back (Rosenfeld and Pfaltz, 1968).
void Brick::spread_emptiness() {
    const int row = size_[0], layer = row * size_[1];
    const std::array<int, 13> earlier = {
        -layer - row - 1, -layer - row, -layer - row + 1, -layer - 1, -layer,   -layer + 1, -layer + row - 1,
        -layer + row,     -layer + row + 1, -row - 1,     -row,       -row + 1, -1};
    const auto relax = [&](std::size_t at, int direction) {
        for (const int offset : earlier) {
            const int next = emptiness_[at + direction * offset] + 1;
            emptiness_[at] = static_cast<std::uint8_t>(std::min<int>(emptiness_[at], next));
        }
    };
    // Cells of the outermost layers keep what they are: no sample of this brick is in them. That the
    // end of a row is taken for a neighbour of the next row's beginning can only shorten a distance.
    const std::size_t border = layer + row + 1;
    for (std::size_t at = border; at + border < emptiness_.size(); ++at) {
        relax(at, 1);
    }
    for (std::size_t at = emptiness_.size() - border; at-- > border;) {
        relax(at, -1);
    }
}

}  // namespace workload
