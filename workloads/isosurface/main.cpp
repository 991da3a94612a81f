// Extracts a surface of equal value from a volume: every rank marches through its slab, rank 0 collects.

#include <cstdio>

#include "common/failure.hpp"
#include "common/frames.hpp"
#include "isosurface/march.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "isosurface extracts the surface where a volume (an MRI scan of a head) passes a\n"
    "level, by marching cubes, with the ranks of an MPI program. Every rank works on\n"
    "a slab of the volume; rank 0 collects the triangles along the edges of a\n"
    "hypercube. Start it on 1, 2, 4, 8 or 16 ranks.\n"
    "A frame is one extraction. Vertices on the border of two slabs come twice,\n"
    "otherwise the surface does not depend on the number of ranks; it is closed.\n"
    "Prints `warmup I SECONDS`, `frame I SECONDS`, `seconds_per_frame MEAN`, then\n"
    "`vertices N` and `triangles N`.";

constexpr const char* examples =
    "Examples:\n"
    "  isosurface --volume mni152-t1.nii.gz --frames 1 --warmup 0 --out surface.ply\n"
    "  mpirun -n 4 isosurface --volume mni152-t1.nii.gz --level 190.3 --frames 20\n";

struct Settings {
    std::string volume;
    std::string out;
    // Within the cortex, where its folds stand apart, and no value that a smoothed voxel can have: a vertex never
    // falls onto a voxel, where triangles would shrink to nothing.
    double level = 140.3;
    int smoothings = 1;
    FrameOptions frames;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("isosurface", story, examples);
    options.file("--volume", &settings.volume, true, "the volume, .nii or .nii.gz");
    options.real("--level", &settings.level, 0.001, 255, "value of the surface; voxels are 0 to 255");
    options.number("--smooth", &settings.smoothings, 0, 16, "times the volume is smoothed before");
    options.file("--out", &settings.out, false, "PLY file for the surface");
    settings.frames.declare(options);
    return options.parse(argc, argv);
}

struct Counts {
    std::uint64_t vertices = 0;
    std::uint64_t triangles = 0;
};

void send_surface(Hypercube& cube, int dimension, const Surface& surface) {
    const Counts counts{surface.vertices.size(), surface.triangles.size()};
    cube.send(dimension, &counts, sizeof counts);
    cube.send(dimension, surface.vertices.data(), counts.vertices * sizeof(Vertex));
    cube.send(dimension, surface.triangles.data(), counts.triangles * sizeof(Triangle));
}

void append_surface(Hypercube& cube, int dimension, Surface& surface) {
    Counts counts;
    cube.receive(dimension, &counts, sizeof counts);
    const std::size_t vertices = surface.vertices.size(), triangles = surface.triangles.size();
    surface.vertices.resize(vertices + counts.vertices);
    surface.triangles.resize(triangles + counts.triangles);
    cube.receive(dimension, surface.vertices.data() + vertices, counts.vertices * sizeof(Vertex));
    cube.receive(dimension, surface.triangles.data() + triangles, counts.triangles * sizeof(Triangle));
    for (std::size_t i = triangles; i < surface.triangles.size(); ++i) {
        for (std::uint32_t& corner : surface.triangles[i]) {
            corner += static_cast<std::uint32_t>(vertices);
        }
    }
}

void extract(const Settings& settings) {
    const Volume volume = read_nifti(settings.volume);
    Hypercube cube(settings.frames.waiting());
    const Layers layers = share_of_layers(volume, cube.gather_place(), cube.ranks());
    Slab slab(layers, settings.smoothings);
    Surface surface;
    EdgeVertices known;

    run_frames(settings.frames, cube, [&](int) {
        slab.fill(volume);
        march(slab, volume, layers, static_cast<float>(settings.level), surface, known);
        cube.gather([&](int dimension) { send_surface(cube, dimension, surface); },
                    [&](int dimension) { append_surface(cube, dimension, surface); });
    });
    if (cube.rank() == 0) {
        std::printf("vertices %zu\ntriangles %zu\n", surface.vertices.size(), surface.triangles.size());
        if (!settings.out.empty()) {
            write_ply(settings.out, surface);
        }
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("isosurface", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::extract(settings);
        }
    });
}
