// Marching cubes: which triangles each of the 256 patterns of corners inside and outside makes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace workload {

/// Corner c of a cube is at (c & 1, c >> 1 & 1, c >> 2): its bits are its coordinates.
struct CubeEdge {
    int corner = 0;  ///< the lower of its two corners
    int axis = 0;    ///< the direction to the other one
};

/// Edge 4 * axis + k is the k-th along an axis.
CubeEdge cube_edge(int edge);

/// Triangles as edges of the cube on which their corners lie, counter-clockwise from the outside.
using CubeTriangles = std::vector<std::array<std::uint8_t, 3>>;

/// For each pattern; bit c is set if corner c is inside. The cases are not typed in but made by a rule,
/// at the start: on each face of the cube, lines part the inside corners from the outside corners, and
/// where two inside corners lie diagonally each gets a line of its own. The lines of all faces close to
/// polygons, which are cut into triangles. Because the lines on a face depend on its four corners only,
/// two cubes that share the face agree and the surface has no holes. The choice for diagonal corners is
/// a convention: the classical ambiguity of marching cubes, where the true surface may join them.
const std::array<CubeTriangles, 256>& cube_cases();

}  // namespace workload
