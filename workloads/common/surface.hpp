// A triangle mesh with normals, and its way into and out of a PLY file.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/array.hpp"
#include "common/vector.hpp"

namespace workload {

struct Vertex {
    Vec3 position;  ///< in mm
    Vec3 normal;    ///< unit length, towards the outside
};
static_assert(sizeof(Vertex) == 24);

/// Indices of three vertices, counter-clockwise when seen from the outside.
using Triangle = std::array<std::uint32_t, 3>;

struct Surface {
    Array<Vertex> vertices;
    Array<Triangle> triangles;
};

/// Binary little-endian PLY: x y z nx ny nz as floats, triangles as lists of ints. Throws Failure.
void write_ply(const std::string& path, const Surface& surface);

/// A run of a surface's triangles, with only the vertices that they use. Runs are in the order of the file, so that "the
/// first one drawn stays" means the same however many there are.
struct SurfacePart {
    Surface surface;
    Extent whole;               ///< of all vertices of the file
    std::size_t triangles = 0;  ///< of the file
};

/// Reads the `part`-th of `parts` equal runs of what `write_ply` writes; all of the file is checked. Throws Failure that
/// says what is wrong with it. Holds little more than the part: fresh memory costs more than reading does.
SurfacePart read_ply(const std::string& path, int part, int parts);

}  // namespace workload
