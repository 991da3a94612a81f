// The corner that is cut out of the head: front, right and top, so that the inside shows.
#pragma once

#include "raycast/brick.hpp"

namespace workload {

class Cutaway {
  public:
    explicit Cutaway(const Volume& volume)
        : corner_{0.52f * volume.size[0], 0.50f * volume.size[1], 0.47f * volume.size[2]},
          spacing_(volume.spacing) {}

    bool removes(Vec3 p) const { return p.x > corner_.x && p.y > corner_.y && p.z > corner_.z; }

    /// Tissue just below a cut is lit as the flat face that it is; deeper, by its own `normal`.
    Vec3 normal_near_cut(Vec3 p, Vec3 normal) const {
        const Vec3 depth = (corner_ - p) * spacing_;
        const int axis = depth.x > depth.y && depth.x > depth.z ? 0 : depth.y > depth.z ? 1 : 2;
        if (depth[axis] > 2 * skin_mm) {
            return normal;
        }
        Vec3 face;
        face[axis] = 1;
        const float own = std::max(0.0f, depth[axis] / skin_mm - 1);
        return normalised(normal * own + face * (1 - own));
    }

  private:
    static constexpr float skin_mm = 1.5f;
    Vec3 corner_;
    Vec3 spacing_;
};

}  // namespace workload
