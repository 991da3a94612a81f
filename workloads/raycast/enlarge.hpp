// Makes a full picture of a picture of every (interleave + 1)-th pixel.
#pragma once

#include "common/array.hpp"
#include "raycast/caster.hpp"

namespace workload {

/// Bilinear between the pixels that were cast; beyond the last ones, their colour goes on.
inline void enlarge(const SampleGrid& grid, const Array<Rgba8>& cast, Array<Rgba8>& full) {
    const int stride = grid.stride(), side = grid.side(), area = stride * stride;
    const auto next = [&](int i) { return std::min(i + 1, side - 1); };
    std::size_t i = 0;
    for (int y = 0; y < grid.size; ++y) {
        const Rgba8* above = &cast[static_cast<std::size_t>(y / stride) * side];
        const Rgba8* below = &cast[static_cast<std::size_t>(next(y / stride)) * side];
        const int down = y % stride;
        for (int x = 0; x < grid.size; ++x) {
            const int left = x / stride, right = next(left), across = x % stride;
            const auto mix = [&](std::uint8_t Rgba8::*c) {
                const int top = above[left].*c * (stride - across) + above[right].*c * across;
                const int bottom = below[left].*c * (stride - across) + below[right].*c * across;
                return static_cast<std::uint8_t>((top * (stride - down) + bottom * down + area / 2) / area);
            };
            full[i++] = {mix(&Rgba8::red), mix(&Rgba8::green), mix(&Rgba8::blue), mix(&Rgba8::alpha)};
        }
    }
}

}  // namespace workload
