// What travels while pictures are put together: 8 bytes a pixel.
#pragma once

#include "common/picture.hpp"

namespace workload {

struct DepthPixel {
    Rgba8 colour{};
    float nearness = 0;  ///< 1 / distance along the viewing direction; 0: nothing there
};
static_assert(sizeof(DepthPixel) == 8);

/// What is nearer wins; of two at the same distance, `first`.
inline DepthPixel nearer(DepthPixel first, DepthPixel second) {
    return second.nearness > first.nearness ? second : first;
}

}  // namespace workload
