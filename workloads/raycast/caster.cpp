#include "raycast/caster.hpp"

namespace workload {

namespace {

// What is behind this much opacity changes no byte of the picture by more than one.
constexpr float opaque_enough = 0.997f;

// Rays are cast tile by tile: the voxels around a tile's rays stay in a core's own cache, where a row
// of the whole picture would fetch most of the volume anew. In pixels.
constexpr int tile = 16;

struct Steps {
    int first = 0, last = -1;
};

// The samples of a ray that can be in `box`, one more at each end: whether a sample belongs to a box is
// decided by its position alone, so that each sample of a ray is taken by exactly one rank.
Steps steps_through(const Box& box, Vec3 eye, Vec3 direction, float step) {
    float near = 0, far = 1e30f;
    for (int axis = 0; axis < 3; ++axis) {
        const float slope = std::abs(direction[axis]) > 1e-9f ? direction[axis] : 1e-9f;
        const float a = (static_cast<float>(box.low[axis]) - eye[axis]) / slope;
        const float b = (static_cast<float>(box.high[axis]) - eye[axis]) / slope;
        near = std::max(near, std::min(a, b));
        far = std::min(far, std::max(a, b));
    }
    if (near > far + step) {
        return {};
    }
    return {static_cast<int>(near / step) - 1, static_cast<int>(far / step) + 2};
}

Rgba16 to_pixel(Vec3 colour, float alpha) {
    const auto part = [](float value) {
        return static_cast<std::uint16_t>(std::min(std::max(value, 0.0f), 1.0f) * 65535 + 0.5f);
    };
    return {part(colour.x), part(colour.y), part(colour.z), part(alpha)};
}

}  // namespace

void Caster::cast(const Camera& camera, const SampleGrid& grid, Array<Rgba16>& picture) const {
    const Lighting lighting(camera);
    const Vec3 eye = camera.eye / spacing_;
    const int side = grid.side();
    for (int top = 0; top < side; top += tile) {
        for (int left = 0; left < side; left += tile) {
            for (int y = top; y < std::min(top + tile, side); ++y) {
                for (int x = left; x < std::min(left + tile, side); ++x) {
                    const Vec3 direction = normalised(camera.direction(
                        static_cast<float>(x * grid.stride()), static_cast<float>(y * grid.stride()), grid.size));
                    picture[static_cast<std::size_t>(y) * side + x] = cast_ray(eye, direction / spacing_, lighting);
                }
            }
        }
    }
}

Rgba16 Caster::cast_ray(Vec3 eye, Vec3 direction, const Lighting& lighting) const {
    const Steps steps = steps_through(brick_.box(), eye, direction, step_mm);
    const Vec3 stride = direction * step_mm;
    const float steps_per_voxel = 0.999f / std::max({std::abs(stride.x), std::abs(stride.y), std::abs(stride.z)});
    Vec3 colour;
    float alpha = 0;
    for (int k = steps.first; k <= steps.last && alpha < opaque_enough; ++k) {
        const Vec3 p = eye + direction * (static_cast<float>(k) * step_mm);
        if (!brick_.box().holds(p)) {
            continue;
        }
        if (const int emptiness = brick_.emptiness(p)) {
            // To the first sample that is not within the empty cells around this one.
            k += static_cast<int>(static_cast<float>(emptiness - 1) * steps_per_voxel);
            continue;
        }
        if (cutaway_.removes(p)) {
            continue;
        }
        const Tissue& tissue = transfer_(brick_.sample(p));
        if (tissue.opacity == 0) {
            continue;
        }
        const Vec3 outwards = normalised(brick_.gradient(p) / spacing_) * -1;
        const Vec3 lit = lighting.shade(tissue.colour, cutaway_.normal_near_cut(p, outwards));
        const float part = (1 - alpha) * tissue.opacity;
        colour = colour + lit * part;
        alpha += part;
    }
    return to_pixel(colour, alpha);
}

}  // namespace workload
