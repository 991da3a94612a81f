// Sort-last polygon renderer: every rank draws its share of the triangles, binary swap keeps what is
// nearest.

#include "common/compositing.hpp"
#include "common/failure.hpp"
#include "common/frames.hpp"
#include "render/rasteriser.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "render draws a surface (a triangle mesh, from isosurface) with the ranks of an\n"
    "MPI program. Every rank draws an equal share of the triangles; the pictures are\n"
    "put together by depth with binary swap, in which rank r talks to r^1, r^2, r^4\n"
    "... only. Start it on 1, 2, 4, 8 or 16 ranks.\n"
    "A larger --size is sharper and costs its square in bytes sent.\n"
    "Prints `warmup I SECONDS`, `frame I SECONDS` and at the end `seconds_per_frame\n"
    "MEAN`.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 render --surface surface.ply --out brain.png\n"
    "  mpirun -n 4 render --surface surface.ply --size 1024 --frames 20\n";

struct Settings {
    std::string surface;
    std::string out;
    int size = 512;
    FrameOptions frames;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("render", story, examples);
    options.file("--surface", &settings.surface, true, "the surface, a PLY file as isosurface writes it");
    options.number("--size", &settings.size, 16, 4096, "pixels along each side of the picture");
    options.file("--out", &settings.out, false, "PNG file for the last frame");
    settings.frames.declare(options);
    return options.parse(argc, argv);
}

void render(const Settings& settings) {
    SurfaceFile file(settings.surface);
    if (file.triangles() == 0) {
        throw error("--surface " + settings.surface + ": has no triangles");
    }
    Hypercube cube(settings.frames.waiting());
    const auto [share, extent] = file.part(cube.rank(), cube.ranks());
    const std::size_t pixels = static_cast<std::size_t>(settings.size) * settings.size;
    Array<DepthPixel> part(pixels);
    Picture picture{settings.size, Array<Rgba8>(pixels)};
    Rasteriser rasteriser(settings.size, part);
    BinarySwap<DepthPixel> binary_swap(cube);

    run_frames(settings.frames, cube, [&](int frame) {
        const Camera camera = Camera::around_box(extent, frame);
        rasteriser.draw(camera, share);
        const Piece mine = binary_swap(part, [&](int dimension, DepthPixel own, DepthPixel other) {
            return cube.upper(dimension) ? nearer(other, own) : nearer(own, other);
        });
        for (std::size_t i = mine.begin; i < mine.end; ++i) {
            picture.pixels[i] = part[i].colour;
        }
        gather_pieces(cube, picture.pixels);
    });
    if (cube.rank() == 0 && !settings.out.empty()) {
        write_png(settings.out, picture);
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("render", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::render(settings);
        }
    });
}
