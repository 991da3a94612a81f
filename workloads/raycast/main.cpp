// Sort-last volume renderer: every rank casts rays through its brick of the volume, binary swap puts the
// pictures together.

#include "common/compositing.hpp"
#include "common/failure.hpp"
#include "common/frames.hpp"
#include "raycast/enlarge.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "raycast draws a volume (an MRI scan of a head) with the ranks of an MPI program.\n"
    "Every rank casts rays through its own brick of the volume; the pictures are put\n"
    "together by binary swap, in which rank r talks to r^1, r^2, r^4 ... only. Start\n"
    "it on 1, 2, 4, 8 or 16 ranks.\n"
    "A larger --size is sharper and costs its square in computing and in bytes sent;\n"
    "--interleave K divides both by (K+1)^2 and blurs.\n"
    "Prints `warmup I SECONDS`, `frame I SECONDS` and at the end `seconds_per_frame\n"
    "MEAN`.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 raycast --volume mni152-t1.nii.gz --out head.png\n"
    "  mpirun -n 4 raycast --volume mni152-t1.nii.gz --size 1024 --interleave 1\n";

struct Settings {
    std::string volume;
    std::string out;
    SampleGrid grid{512, 0};
    FrameOptions frames;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("raycast", story, examples);
    options.file("--volume", &settings.volume, true, "the volume, .nii or .nii.gz");
    options.number("--size", &settings.grid.size, 16, 4096, "pixels along each side of the picture");
    options.number("--interleave", &settings.grid.interleave, 0, 15,
                   "pixels left out between two rays, filled in by interpolation");
    options.file("--out", &settings.out, false, "PNG file for the last frame");
    settings.frames.declare(options);
    return options.parse(argc, argv);
}

/// In mm, of a box in voxels.
Extent extent_of(const Box& box, Vec3 spacing) {
    const auto corner = [&](const std::array<int, 3>& at) {
        return Vec3{static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2])} * spacing;
    };
    return {corner(box.low), corner(box.high)};
}

void render(const Settings& settings) {
    const Volume volume = read_nifti(settings.volume);
    Hypercube cube(settings.frames.waiting());
    const Partition partition = split(volume, cube);
    const Caster caster(volume, partition.box);
    const Extent extent = extent_of(partition.content, volume.spacing);
    const SampleGrid grid = settings.grid;
    const std::size_t rays = static_cast<std::size_t>(grid.side()) * grid.side();
    Array<Rgba16> part(rays);
    Array<Rgba8> cast(rays);
    Picture picture{grid.size, Array<Rgba8>(static_cast<std::size_t>(grid.size) * grid.size)};
    BinarySwap<Rgba16> binary_swap(cube);

    run_frames(settings.frames, cube, [&](int frame) {
        const Camera camera = Camera::around_box(extent, frame);
        caster.cast(camera, grid, part);
        const Vec3 eye = camera.eye / volume.spacing;
        const Piece mine = binary_swap(part, [&](int dimension, Rgba16 own, Rgba16 other) {
            const SplitPlane plane = partition.planes[dimension];
            const bool viewer_above = eye[plane.axis] > static_cast<float>(plane.position);
            return viewer_above == cube.upper(dimension) ? over(own, other) : over(other, own);
        });
        std::transform(part.data() + mine.begin, part.data() + mine.end, cast.data() + mine.begin, to_bytes);
        gather_pieces(cube, cast);
        if (cube.rank() == 0) {
            enlarge(grid, cast, picture.pixels);
        }
    });
    if (cube.rank() == 0 && !settings.out.empty()) {
        write_png(settings.out, picture);
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("raycast", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::render(settings);
        }
    });
}
