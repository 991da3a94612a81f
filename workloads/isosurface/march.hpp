// Marching cubes through the cells of a slab.
#pragma once

#include "common/surface.hpp"
#include "isosurface/slab.hpp"

namespace workload {

/// Memory that one march leaves for the next: the vertex on each edge that begins in the lower and the upper of two
/// layers of voxels.
using EdgeVertices = std::array<Array<std::uint32_t>, 2>;

/// Makes `surface` where the value passes `level`: inside is at least `level`. Vertices are shared within the slab.
void march(const Slab& slab, const Volume& volume, Layers layers, float level, Surface& surface,
           EdgeVertices& known);

}  // namespace workload
