// pngdiff REFERENCE PICTURE: how far two pictures are apart, in steps of 1/255 of a colour channel.
// Exit code 0 within tolerance, 1 beyond, 2 unreadable.
//
// Tolerance: mean at most 0.5, and at most 0.1 % of the pixels more than 8 apart. Measured: 0 for render
// on any number of ranks; for raycast between 1 and 8 ranks mean 0.09 and largest 1 (16-bit rounding at
// each swap, and rays that one rank ends as opaque enough while several go on). Planted faults: bricks in
// the wrong order give a mean of 11 to 21 and 20 to 35 % of the pixels far apart; a ghost layer that is
// missing only 0.12, but 0.26 % of the pixels, which is why these are counted. Another compiler may round
// a sample to the other side of a threshold: hence 8 and 0.1 % rather than 1 and none.

#include <png.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr double most_mean = 0.5;
constexpr int far_apart = 8;
constexpr double most_far_apart = 0.001;

struct Image {
    unsigned width = 0, height = 0;
    std::vector<png_byte> bytes;
};

Image read(const char* path) {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_file(&image, path)) {
        image.format = PNG_FORMAT_RGB;
        std::vector<png_byte> bytes(PNG_IMAGE_SIZE(image));
        if (png_image_finish_read(&image, nullptr, bytes.data(), 0, nullptr)) {
            return {image.width, image.height, bytes};
        }
    }
    std::fprintf(stderr, "pngdiff: %s: %s\n", path, image.message);
    std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: pngdiff REFERENCE PICTURE\n");
        return 2;
    }
    const Image a = read(argv[1]), b = read(argv[2]);
    if (a.width != b.width || a.height != b.height) {
        std::printf("%ux%u instead of %ux%u pixels\n", b.width, b.height, a.width, a.height);
        return 1;
    }
    double sum = 0;
    int largest = 0;
    std::size_t far = 0;
    for (std::size_t pixel = 0; pixel < a.bytes.size(); pixel += 3) {
        int apart = 0;
        for (std::size_t i = pixel; i < pixel + 3; ++i) {
            const int difference = std::abs(a.bytes[i] - b.bytes[i]);
            sum += difference;
            apart = std::max(apart, difference);
        }
        largest = std::max(largest, apart);
        far += apart > far_apart;
    }
    const double mean = sum / static_cast<double>(a.bytes.size());
    const double far_part = 3.0 * static_cast<double>(far) / static_cast<double>(a.bytes.size());
    std::printf("mean difference %.4f, largest %d, %.4f %% of the pixels more than %d apart\n", mean, largest,
                100 * far_part, far_apart);
    return mean > most_mean || far_part > most_far_apart;
}
