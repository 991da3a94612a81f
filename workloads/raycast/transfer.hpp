// What tissue looks like: MRI value to colour and opacity.
#pragma once

#include <array>

#include "common/vector.hpp"

namespace workload {

struct Tissue {
    Vec3 colour;
    float opacity = 0;  ///< of one ray step
};

/// T1 MRI of a brain: fluid is clear, the cortex a rosy veil that thickens, white matter is ivory.
class TransferFunction {
  public:
    explicit TransferFunction(float step_mm);

    const Tissue& operator()(float value) const { return table_[static_cast<int>(value * resolution)]; }

    /// Values up to this are invisible.
    static constexpr float visible_above = 98;

  private:
    static constexpr int resolution = 4;
    std::array<Tissue, 255 * resolution + 1> table_;
};

}  // namespace workload
