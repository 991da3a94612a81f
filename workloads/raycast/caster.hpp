// Casts rays through a brick.
#pragma once

#include "common/array.hpp"
#include "common/lighting.hpp"
#include "raycast/brick.hpp"
#include "raycast/cutaway.hpp"
#include "raycast/pixel.hpp"
#include "raycast/transfer.hpp"

namespace workload {

/// Every (interleave + 1)-th pixel of a picture in each direction.
struct SampleGrid {
    int size = 0;
    int interleave = 0;
    int stride() const { return interleave + 1; }
    int side() const { return (size + interleave) / stride(); }
};

class Caster {
  public:
    Caster(const Volume& volume, const Box& box)
        : cutaway_(volume), brick_(volume, box, Seen{cutaway_}), transfer_(step_mm), spacing_(volume.spacing) {}

    /// The part of the picture that this brick makes, row by row. `camera` is in mm.
    void cast(const Camera& camera, const SampleGrid& grid, Array<Rgba16>& picture) const;

    /// Between samples along a ray.
    static constexpr float step_mm = 0.35f;

  private:
    struct Seen {
        const Cutaway& cutaway;
        // What is removed is all that is beyond a corner: a cell is removed whole if its low corner is.
        bool operator()(int x, int y, int z, int greatest) const {
            const Vec3 low{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)};
            return static_cast<float>(greatest) > TransferFunction::visible_above && !cutaway.removes(low);
        }
    };

    Rgba16 cast_ray(Vec3 eye, Vec3 direction, const Lighting& lighting) const;

    Cutaway cutaway_;
    Brick brick_;
    TransferFunction transfer_;
    Vec3 spacing_;
};

}  // namespace workload
