// One lamp above the viewer; Phong's model.
#pragma once

#include "common/camera.hpp"

namespace workload {

class Lighting {
  public:
    explicit Lighting(const Camera& camera)
        : lamp_(normalised(camera.up * 0.4f - camera.forward)),
          half_(normalised(lamp_ - camera.forward)) {}

    /// The colour of a surface with this `normal` (unit length, towards the outside). The viewer is
    /// taken to be far away, which saves a square root for each call.
    Vec3 shade(Vec3 colour, Vec3 normal) const {
        const float facing = dot(normal, lamp_);
        const float diffuse = 0.28f + 0.78f * std::max(facing, 0.0f);
        const float gleam = 0.16f * power_32(std::max(dot(normal, half_), 0.0f));
        return colour * diffuse + Vec3{gleam, gleam, gleam};
    }

  private:
    static float power_32(float x) {
        for (int doubling = 0; doubling < 5; ++doubling) {
            x *= x;
        }
        return x;
    }

    Vec3 lamp_;
    Vec3 half_;
};

}  // namespace workload
