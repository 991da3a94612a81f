// A square picture, and its way into a PNG file.
#pragma once

#include <cstdint>
#include <string>

#include "common/array.hpp"

namespace workload {

/// Colour multiplied by opacity, and opacity.
struct Rgba8 {
    std::uint8_t red, green, blue, alpha;
};
static_assert(sizeof(Rgba8) == 4);

struct Picture {
    int size = 0;  ///< pixels along each side
    Array<Rgba8> pixels;
};

/// Writes `picture` over a dark background. Throws Failure when the file cannot be written.
void write_png(const std::string& path, const Picture& picture);

}  // namespace workload
