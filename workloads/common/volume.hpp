// A scalar volume in memory, and its way out of a NIfTI-1 file.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/array.hpp"
#include "common/vector.hpp"

namespace workload {

struct Volume {
    std::array<int, 3> size{};  ///< voxels along x (to the right), y (to the front), z (to the top)
    Vec3 spacing{1, 1, 1};      ///< of the voxels, in mm
    Array<std::uint8_t> voxels;  ///< x runs fastest

    std::size_t index(int x, int y, int z) const {
        return (static_cast<std::size_t>(z) * size[1] + y) * size[0] + x;
    }
    /// 0 outside.
    std::uint8_t at(int x, int y, int z) const {
        const bool inside = x >= 0 && y >= 0 && z >= 0 && x < size[0] && y < size[1] && z < size[2];
        return inside ? voxels[index(x, y, z)] : 0;
    }
};

/// Reads `.nii` or `.nii.gz`. Bytes are taken as they are; other types are scaled, least value to 0 and
/// greatest to 255. Throws Failure that says what is wrong with the file.
Volume read_nifti(const std::string& path);

}  // namespace workload
