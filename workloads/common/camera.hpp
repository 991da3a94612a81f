// Where the viewer stands: looks at the centre of a ball from its front right and above, and walks a
// little around the vertical (head to foot) axis with each frame.
#pragma once

#include "common/vector.hpp"

namespace workload {

struct Camera {
    Vec3 eye, right, up, forward;
    float half_width = 0;  ///< of the picture plane at distance 1

    /// Direction through the centre of pixel (x, y) of a picture of `size` pixels squared, y downwards;
    /// not normalised: its length along `forward` is 1.
    Vec3 direction(float x, float y, int size) const {
        const float u = ((x + 0.5f) * 2 / size - 1) * half_width;
        const float v = (1 - (y + 0.5f) * 2 / size) * half_width;
        return forward + right * u + up * v;
    }

    /// The picture just holds the ball within `box` (in mm). What is of interest is
    /// round enough to stay within the picture while the camera turns.
    static Camera around_box(const Extent& box, int frame) {
        const auto& [low, high] = box;
        const Vec3 centre = (low + high) * 0.5f;
        const float radius = 0.5f * std::max({high.x - low.x, high.y - low.y, high.z - low.z});
        const float azimuth = (52.0f + 3.0f * static_cast<float>(frame % 120)) * degree;
        const float elevation = 27.0f * degree;
        const float distance = 3.2f * radius;
        Camera camera;
        camera.forward = Vec3{-std::cos(elevation) * std::cos(azimuth),
                              -std::cos(elevation) * std::sin(azimuth), -std::sin(elevation)};
        camera.eye = centre - camera.forward * distance;
        camera.right = normalised(cross(camera.forward, {0, 0, 1}));
        camera.up = cross(camera.right, camera.forward);
        camera.half_width = radius / std::sqrt(distance * distance - radius * radius);
        return camera;
    }

    static constexpr float degree = 3.14159265f / 180;
};

}  // namespace workload
