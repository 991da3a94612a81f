// Sort-last polygon renderer: every rank draws its share of the triangles, binary swap keeps what is
// nearest.

#include <limits>

#include "common/compositing.hpp"
#include "common/failure.hpp"
#include "common/frames.hpp"
#include "render/rasteriser.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "render draws a surface (a triangle mesh, from isosurface) with the ranks of an MPI program.\n"
    "Every rank draws an equal share of the triangles; the pictures are put together by depth with\n"
    "binary swap, in which rank r talks to r^1, r^2, r^4 ... only. Start it on 1, 2, 4, 8 or 16 ranks.\n"
    "A larger --size is sharper and costs its square in bytes sent.\n"
    "Prints `warmup I SECONDS`, `frame I SECONDS` and at the end `seconds_per_frame MEAN`.";

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

/// In mm.
struct Extent {
    Vec3 low, high;
};

Extent extent_of(const Surface& surface) {
    constexpr float far = std::numeric_limits<float>::max();
    Extent extent{{far, far, far}, {-far, -far, -far}};
    for (const Vertex& vertex : surface.vertices) {
        for (int axis = 0; axis < 3; ++axis) {
            extent.low[axis] = std::min(extent.low[axis], vertex.position[axis]);
            extent.high[axis] = std::max(extent.high[axis], vertex.position[axis]);
        }
    }
    return extent;
}

/// The `rank`-th of `ranks` equal runs of triangles, with only the vertices that they use. Runs are in
/// the order of ranks, so that "the first one drawn stays" means the same on any number of ranks.
Surface share_of(const Surface& whole, int rank, int ranks) {
    const std::size_t begin = whole.triangles.size() * rank / ranks;
    const std::size_t end = whole.triangles.size() * (rank + 1) / ranks;
    constexpr std::uint32_t unused = 0xffffffff;
    Array<std::uint32_t> place(whole.vertices.size(), unused);
    Surface share;
    for (std::size_t i = begin; i < end; ++i) {
        Triangle triangle = whole.triangles[i];
        for (std::uint32_t& corner : triangle) {
            if (place[corner] == unused) {
                place[corner] = static_cast<std::uint32_t>(share.vertices.size());
                share.vertices.push_back(whole.vertices[corner]);
            }
            corner = place[corner];
        }
        share.triangles.push_back(triangle);
    }
    return share;
}

void render(const Settings& settings) {
    const Surface whole = read_ply(settings.surface);
    if (whole.triangles.empty()) {
        throw error("--surface " + settings.surface + ": has no triangles");
    }
    Hypercube cube(settings.frames.waiting());
    const Extent extent = extent_of(whole);
    const Surface share = share_of(whole, cube.rank(), cube.ranks());
    const std::size_t pixels = static_cast<std::size_t>(settings.size) * settings.size;
    Array<DepthPixel> part(pixels);
    Picture picture{settings.size, Array<Rgba8>(pixels)};
    Rasteriser rasteriser(settings.size, part);
    BinarySwap<DepthPixel> binary_swap(cube);

    run_frames(settings.frames, cube, [&](int frame) {
        const Camera camera = Camera::around_box(extent.low, extent.high, frame);
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
