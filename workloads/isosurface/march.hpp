// Marching cubes through the cells of a slab.
#pragma once

#include "common/surface.hpp"
#include "isosurface/slab.hpp"

namespace workload {

/// Where the value passes `level`: inside is at least `level`. Vertices are shared within the slab.
Surface march(const Slab& slab, const Volume& volume, Layers layers, float level);

}  // namespace workload
