#include "isosurface/march.hpp"

#include "isosurface/cube_cases.hpp"

namespace workload {

namespace {

constexpr std::uint32_t none = 0xffffffff;

struct Voxel {
    int x, y, z;
    Voxel beside(int corner) const { return {x + (corner & 1), y + (corner >> 1 & 1), z + (corner >> 2)}; }
};

/// Makes the vertices and remembers them for the cells that share an edge of the grid: three edges
/// begin at each voxel, and two layers of voxels are in use at a time.
class Vertices {
  public:
    Vertices(const Slab& slab, const Volume& volume, float level, Array<Vertex>& vertices, EdgeVertices& known)
        : slab_(slab), spacing_(volume.spacing), level_(level), vertices_(vertices), known_(known),
          row_(volume.size[0] + 2), layer_(static_cast<std::size_t>(row_) * (volume.size[1] + 2)) {
        centre_ = Vec3{volume.size[0] - 1.0f, volume.size[1] - 1.0f, volume.size[2] - 1.0f} * 0.5f;
        known_[0].assign(3 * layer_, none);
        known_[1].assign(3 * layer_, none);
    }

    void next_layer() {
        known_[0].swap(known_[1]);
        known_[1].assign(3 * layer_, none);
    }

    std::uint32_t on(Voxel cell, CubeEdge edge) {
        const Voxel at = cell.beside(edge.corner);
        std::uint32_t& known = known_[edge.corner >> 2][3 * ((at.y + 1) * row_ + at.x + 1) + edge.axis];
        if (known == none) {
            known = static_cast<std::uint32_t>(vertices_.size());
            vertices_.push_back(between(at, at.beside(1 << edge.axis), edge.axis));
        }
        return known;
    }

  private:
    Vertex between(Voxel a, Voxel b, int axis) const {
        const float at_a = slab_.at(a.x, a.y, a.z), at_b = slab_.at(b.x, b.y, b.z);
        const float part = (level_ - at_a) / (at_b - at_a);
        Vec3 position{static_cast<float>(a.x), static_cast<float>(a.y), static_cast<float>(a.z)};
        position[axis] += part;
        const Vec3 fall_a = slab_.downhill(a.x, a.y, a.z), fall_b = slab_.downhill(b.x, b.y, b.z);
        return {(position - centre_) * spacing_, normalised(fall_a + (fall_b - fall_a) * part)};
    }

    const Slab& slab_;
    Vec3 spacing_, centre_;
    float level_;
    Array<Vertex>& vertices_;
    EdgeVertices& known_;
    std::size_t row_, layer_;
};

int pattern_of(const Slab& slab, Voxel cell, float level) {
    int pattern = 0;
    for (int corner = 0; corner < 8; ++corner) {
        const Voxel at = cell.beside(corner);
        pattern |= (slab.at(at.x, at.y, at.z) >= level) << corner;
    }
    return pattern;
}

}  // namespace

void march(const Slab& slab, const Volume& volume, Layers layers, float level, Surface& surface,
           EdgeVertices& known) {
    surface.vertices.clear();
    surface.triangles.clear();
    Vertices vertices(slab, volume, level, surface.vertices, known);
    const auto& cases = cube_cases();
    for (int z = layers.begin; z < layers.end; ++z) {
        for (int y = -1; y < volume.size[1]; ++y) {
            for (int x = -1; x < volume.size[0]; ++x) {
                const Voxel cell{x, y, z};
                for (const auto& edges : cases[pattern_of(slab, cell, level)]) {
                    surface.triangles.push_back({vertices.on(cell, cube_edge(edges[0])),
                                                 vertices.on(cell, cube_edge(edges[1])),
                                                 vertices.on(cell, cube_edge(edges[2]))});
                }
            }
        }
        vertices.next_layer();
    }
}

}  // namespace workload
