// What travels while pictures are put together: 8 bytes a pixel.
#pragma once

#include <cstdint>

#include "common/picture.hpp"

namespace workload {

/// Colour multiplied by opacity, and opacity: 65535 is 1.
struct Rgba16 {
    std::uint16_t red = 0, green = 0, blue = 0, alpha = 0;
};
static_assert(sizeof(Rgba16) == 8);

inline std::uint16_t through(std::uint16_t behind, std::uint32_t clear) {
    return static_cast<std::uint16_t>((behind * clear + 32767) / 65535);
}

/// `front` before `back`.
inline Rgba16 over(Rgba16 front, Rgba16 back) {
    const std::uint32_t clear = 65535u - front.alpha;
    const auto both = [&](std::uint16_t f, std::uint16_t b) {
        return static_cast<std::uint16_t>(std::min(65535, f + through(b, clear)));
    };
    return {both(front.red, back.red), both(front.green, back.green), both(front.blue, back.blue),
            both(front.alpha, back.alpha)};
}

inline Rgba8 to_bytes(Rgba16 pixel) {
    const auto byte = [](std::uint32_t value) { return static_cast<std::uint8_t>((value * 255 + 32767) / 65535); };
    return {byte(pixel.red), byte(pixel.green), byte(pixel.blue), byte(pixel.alpha)};
}

}  // namespace workload
