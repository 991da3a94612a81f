// Sort-last volume renderer: every rank casts rays through its brick of the volume, the partial
// pictures are put together by binary swap.
// SPDX-License-Identifier: MIT OR Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/camera.hpp"
#include "common/cube.hpp"
#include "common/frames.hpp"
#include "common/nifti.hpp"
#include "common/options.hpp"
#include "common/png.hpp"
#include "common/swap.hpp"

using namespace keeptime;

namespace {

const char* const HELP =
    "raycast - volume renderer (MPI; ranks: a power of two)\n\n"
    "  --volume FILE       NIfTI-1 volume of bytes, .nii or .nii.gz\n"
    "  --size N            picture of N x N pixels, 16 to 4096 [512]\n"
    "  --interleave K      cast every (K+1)-th ray in each direction and fill in the rest [0]\n"
    "  --frames N          counted frames; the head turns a little from one to the next [1]\n"
    "  --warmup N          frames before them that are not counted [1]\n"
    "  --out FILE          write the last frame as PNG\n"
    "  --fault crash|hang  misbehave at --fault-frame, to test whoever runs this\n\n"
    "Each rank sends, for P = ceil(size / (K+1)): 8 P^2 (1 - 1/N) bytes while swapping and 4 P^2 / N\n"
    "or more while gathering, to partners rank ^ 1, rank ^ 2, rank ^ 4, … only.\n";

// Premultiplied colour and opacity, 65535 = 1.
struct Rgba16 {
    std::uint16_t r, g, b, a;
};

struct Colour {
    float r = 0;
    float g = 0;
    float b = 0;
    float a = 0;
};

// The part of the volume that a rank casts rays through, and the planes that its partners lie behind:
// `axis[d]` is the direction in which the group of dimension d was split.
struct Brick {
    std::array<float, 3> low;
    std::array<float, 3> high;
    std::array<int, 32> axis{};
};

// Splits the volume in halves, the greatest dimension of the cube first, so that the partners of each
// swap lie side by side and what is merged is always one convex piece.
Brick brick_of(const Volume& volume, const Cube& cube) {
    Brick brick{{0, 0, 0},
                {static_cast<float>(volume.nx - 1), static_cast<float>(volume.ny - 1),
                 static_cast<float>(volume.nz - 1)},
                {}};
    for (int dimension = cube.dimensions() - 1, depth = 0; dimension >= 0; --dimension, ++depth) {
        const auto axis = static_cast<std::size_t>((depth + 1) % 3);
        const float middle = std::floor((brick.low[axis] + brick.high[axis]) / 2);
        (cube.upper(dimension) ? brick.low : brick.high)[axis] = middle;
        brick.axis[static_cast<std::size_t>(dimension)] = static_cast<int>(axis);
    }
    return brick;
}

class Caster {
public:
    Caster(const Volume& volume, const Brick& brick, const Camera& camera)
        : volume_(volume), brick_(brick), camera_(camera) {}

    // The light that reaches the pixel at (u, v) in [-1, 1] through this brick.
    Rgba16 cast(float u, float v) const {
        const Vec start = camera_.origin(u, v);
        float enter = 0;
        float leave = camera_.depth();
        for (std::size_t axis = 0; axis < 3; ++axis) {
            clip(start[axis], camera_.forward()[axis], brick_.low[axis], brick_.high[axis], enter, leave);
        }
        Colour light;
        // Samples stand at whole steps from the eye, the same for every brick: at a border one of the
        // two has the sample, never both or none.
        for (float at = std::ceil(enter); at < leave && light.a < OPAQUE; at += 1) {
            const Vec p = start + camera_.forward() * at;
            if (!cut_away(p)) {
                // The step before may lie in another brick: only its place counts.
                shade(p, cut_away(p - camera_.forward()), light);
            }
        }
        const auto level = [](float value) { return static_cast<std::uint16_t>(std::min(value, 1.0F) * 65535.0F + 0.5F); };
        return {level(light.r), level(light.g), level(light.b), level(light.a)};
    }

private:
    static constexpr float OPAQUE = 0.985F;
    // Intensities of the volume: below the first is fluid and air, the others tell grey from white matter.
    static constexpr float SKIN = 62.0F;
    static constexpr float GREY = 135.0F;
    static constexpr float WHITE = 200.0F;

    static void clip(float start, float direction, float low, float high, float& enter, float& leave) {
        if (std::fabs(direction) < 1e-6F) {
            if (start < low || start >= high) {
                leave = -1;
            }
            return;
        }
        const float a = (low - start) / direction;
        const float b = (high - start) / direction;
        enter = std::max(enter, std::min(a, b));
        leave = std::min(leave, std::max(a, b));
    }

    // A corner of the head is left out, so that the inside can be seen.
    bool cut_away(const Vec& p) const {
        return p[0] > 0.52F * static_cast<float>(volume_.nx) && p[1] > 0.5F * static_cast<float>(volume_.ny) &&
               p[2] > 0.47F * static_cast<float>(volume_.nz);
    }

    float sample(const Vec& p) const {
        const int x = std::clamp(static_cast<int>(p[0]), 0, volume_.nx - 2);
        const int y = std::clamp(static_cast<int>(p[1]), 0, volume_.ny - 2);
        const int z = std::clamp(static_cast<int>(p[2]), 0, volume_.nz - 2);
        const float fx = p[0] - static_cast<float>(x);
        const float fy = p[1] - static_cast<float>(y);
        const float fz = p[2] - static_cast<float>(z);
        const std::size_t row = static_cast<std::size_t>(volume_.nx);
        const std::size_t slice = row * static_cast<std::size_t>(volume_.ny);
        const std::uint8_t* c = volume_.voxels.data() + static_cast<std::size_t>(z) * slice +
                                static_cast<std::size_t>(y) * row + static_cast<std::size_t>(x);
        const auto mix = [fx](const std::uint8_t* pair) {
            return static_cast<float>(pair[0]) + fx * static_cast<float>(pair[1] - pair[0]);
        };
        const float near = mix(c) + fy * (mix(c + row) - mix(c));
        const float far = mix(c + slice) + fy * (mix(c + slice + row) - mix(c + slice));
        return near + fz * (far - near);
    }

    // Adds what the sample at `p` scatters. On a cut, where the ray comes out of what is left out, the
    // tissue is opaque and evenly lit: its gradient says nothing about that plane.
    void shade(const Vec& p, bool on_cut, Colour& light) const {
        const float value = sample(p);
        if (value < SKIN) {
            return;
        }
        const float t = std::clamp((value - GREY) / (WHITE - GREY), 0.0F, 1.0F);
        if (on_cut) {
            add(t, 0.9F, 0, 1 - light.a, light);
            return;
        }
        const float opacity = std::min((value - SKIN) / (GREY - SKIN), 1.0F) * 0.42F;
        const Vec slope{sample({p[0] + 1, p[1], p[2]}) - sample({p[0] - 1, p[1], p[2]}),
                        sample({p[0], p[1] + 1, p[2]}) - sample({p[0], p[1] - 1, p[2]}),
                        sample({p[0], p[1], p[2] + 1}) - sample({p[0], p[1], p[2] - 1})};
        const float steep = slope.length();
        const Vec normal = steep > 4 ? slope * (-1 / steep) : camera_.forward() * -1;
        const float facing = std::max(dot(normal, camera_.light()), 0.0F);
        const float gloss = std::pow(std::max(dot(normal, camera_.halfway()), 0.0F), 24.0F);
        add(t, 0.28F + 0.72F * facing, 0.18F * gloss, (1 - light.a) * opacity, light);
    }

    // From rosy grey matter (t = 0) to pale white matter (1).
    static void add(float t, float bright, float gloss, float weight, Colour& light) {
        light.r += weight * ((0.80F + 0.17F * t) * bright + gloss);
        light.g += weight * ((0.56F + 0.34F * t) * bright + gloss);
        light.b += weight * ((0.50F + 0.32F * t) * bright + gloss);
        light.a += weight;
    }

    const Volume& volume_;
    const Brick& brick_;
    const Camera& camera_;
};

// `front` over `back`, both premultiplied.
Rgba16 over(const Rgba16& front, const Rgba16& back) {
    const std::uint32_t left = 65535U - front.a;
    const auto mix = [left](std::uint32_t f, std::uint32_t b) {
        return static_cast<std::uint16_t>(std::min(f + (b * left + 32767U) / 65535U, 65535U));
    };
    return {mix(front.r, back.r), mix(front.g, back.g), mix(front.b, back.b), mix(front.a, back.a)};
}

// On a dark ground, opaque.
Rgba8 finish(const Rgba16& pixel) {
    const std::uint32_t left = 65535U - pixel.a;
    const auto level = [left](std::uint32_t value, std::uint32_t ground) {
        return static_cast<std::uint8_t>(std::min(value + ground * left / 65535U, 65535U) / 257U);
    };
    return {level(pixel.r, 4600), level(pixel.g, 5200), level(pixel.b, 6800), 255};
}

// Fills the pixels whose rays were left out, linearly between those that were cast.
std::vector<Rgba8> fill_in(const std::vector<Rgba8>& cast, int cast_size, int size, int stride) {
    std::vector<Rgba8> whole(static_cast<std::size_t>(size) * static_cast<std::size_t>(size));
    const auto at = [&](int x, int y) {
        return cast[static_cast<std::size_t>(std::min(y, cast_size - 1)) * static_cast<std::size_t>(cast_size) +
                    static_cast<std::size_t>(std::min(x, cast_size - 1))];
    };
    for (int y = 0; y < size; ++y) {
        for (int x = 0; x < size; ++x) {
            const int cx = x / stride;
            const int cy = y / stride;
            const int fx = x % stride;
            const int fy = y % stride;
            const Rgba8 a = at(cx, cy);
            const Rgba8 b = at(cx + 1, cy);
            const Rgba8 c = at(cx, cy + 1);
            const Rgba8 d = at(cx + 1, cy + 1);
            const auto mix = [&](int p, int q, int r, int s) {
                const int top = p * (stride - fx) + q * fx;
                const int bottom = r * (stride - fx) + s * fx;
                return static_cast<std::uint8_t>((top * (stride - fy) + bottom * fy) / (stride * stride));
            };
            whole[static_cast<std::size_t>(y) * static_cast<std::size_t>(size) + static_cast<std::size_t>(x)] = {
                mix(a.r, b.r, c.r, d.r), mix(a.g, b.g, c.g, d.g), mix(a.b, b.b, c.b, d.b), 255};
        }
    }
    return whole;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options(argc, argv,
                          {{"volume", ""}, {"size", "512"}, {"interleave", "0"}, {"frames", "1"}, {"warmup", "1"},
                           {"out", ""}, {"fault", ""}, {"fault-frame", "0"}},
                          HELP);
    const int size = options.number("size", 16, 4096);
    const int stride = options.number("interleave", 0, 15) + 1;
    const FrameOptions frame_options(options);
    const Volume volume = read_nifti(options.required("volume"));
    MPI_Init(&argc, &argv);
    const Cube cube(MPI_COMM_WORLD);
    require_complete(cube);
    const Brick brick = brick_of(volume, cube);
    const int cast_size = (size + stride - 1) / stride;
    std::vector<Rgba8> picture;
    std::vector<Rgba16> partial(static_cast<std::size_t>(cast_size) * static_cast<std::size_t>(cast_size));
    run_frames(cube, frame_options, [&](int number) {
        const Camera camera(volume.nx, volume.ny, volume.nz, number);
        const Caster caster(volume, brick, camera);
        for (int y = 0; y < cast_size; ++y) {
            for (int x = 0; x < cast_size; ++x) {
                const auto place = [&](int pixel) { return (2.0F * static_cast<float>(pixel * stride) + 1.0F) / static_cast<float>(size) - 1.0F; };
                partial[static_cast<std::size_t>(y) * static_cast<std::size_t>(cast_size) + static_cast<std::size_t>(x)] =
                    caster.cast(place(x), -place(y));
            }
        }
        const auto merge = [&](int dimension, Rgba16* mine, const Rgba16* theirs, std::size_t count) {
            const auto axis = static_cast<std::size_t>(brick.axis[static_cast<std::size_t>(dimension)]);
            const bool lower_in_front = camera.forward()[axis] > 0;
            const bool in_front = cube.upper(dimension) != lower_in_front;
            for (std::size_t at = 0; at < count; ++at) {
                mine[at] = in_front ? over(mine[at], theirs[at]) : over(theirs[at], mine[at]);
            }
        };
        picture = composite(cube, partial, cast_size, merge, finish);
        if (cube.rank() == 0 && stride > 1) {
            picture = fill_in(picture, cast_size, size, stride);
        }
    });
    if (cube.rank() == 0 && !options.text("out").empty()) {
        write_png(options.text("out"), size, picture.data());
    }
    MPI_Finalize();
}
