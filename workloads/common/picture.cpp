#include "common/picture.hpp"

#include <png.h>

#include <cerrno>
#include <cstring>

#include "common/failure.hpp"

namespace workload {

namespace {

// A night blue that darkens towards the edges, so that the head stands out.
std::uint8_t background(int channel, int x, int y, int size) {
    static constexpr int centre[3] = {44, 52, 68};
    const double dx = (2.0 * x - size) / size;
    const double dy = (2.0 * y - size) / size;
    return static_cast<std::uint8_t>(centre[channel] * (1.0 - 0.35 * (dx * dx + dy * dy)));
}

std::vector<png_byte> opaque_rows(const Picture& picture) {
    std::vector<png_byte> rows;
    rows.reserve(picture.pixels.size() * 3);
    for (int y = 0; y < picture.size; ++y) {
        for (int x = 0; x < picture.size; ++x) {
            const Rgba8& pixel = picture.pixels[static_cast<std::size_t>(y) * picture.size + x];
            const std::uint8_t colour[3] = {pixel.red, pixel.green, pixel.blue};
            for (int c = 0; c < 3; ++c) {
                const int behind = background(c, x, y, picture.size) * (255 - pixel.alpha) / 255;
                rows.push_back(static_cast<png_byte>(std::min(255, colour[c] + behind)));
            }
        }
    }
    return rows;
}

}  // namespace

void write_png(const std::string& path, const Picture& picture) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = picture.size;
    image.height = picture.size;
    image.format = PNG_FORMAT_RGB;
    errno = 0;
    if (!png_image_write_to_file(&image, path.c_str(), 0, opaque_rows(picture).data(), 0, nullptr)) {
        const std::string reason = errno ? std::strerror(errno) : image.message;
        throw error("--out " + path + ": cannot be written (" + reason + ")");
    }
}

}  // namespace workload
