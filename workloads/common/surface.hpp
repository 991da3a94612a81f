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

/// Reads what `write_ply` writes. Throws Failure that says what is wrong with the file.
Surface read_ply(const std::string& path);

}  // namespace workload
