// plycheck FILE: says what can be said of a surface without knowing how it was made.
//   vertices, places (different positions), triangles
//   open_edges        edges that do not belong to exactly two triangles, once in each direction
//   open_seams        the same, with vertices at the same place taken as one: slabs must fit together
//   volume_ml         by the divergence theorem: positive if triangles are seen counter-clockwise from
//                     the outside
//   inward_normals    vertices whose normal points away from the normals of their triangles
//   torn_normals      vertices whose normal is not that of the first vertex at the same place

#include <cstdio>
#include <map>
#include <tuple>
#include <unordered_map>

#include "common/failure.hpp"
#include "common/surface.hpp"

namespace workload {

namespace {

using Places = std::vector<std::uint32_t>;

Places places_of(const Surface& surface, std::size_t* different) {
    std::map<std::tuple<float, float, float>, std::uint32_t> seen;
    Places places;
    for (const Vertex& v : surface.vertices) {
        const auto key = std::make_tuple(v.position.x, v.position.y, v.position.z);
        places.push_back(seen.emplace(key, seen.size()).first->second);
    }
    *different = seen.size();
    return places;
}

Places own_places(const Surface& surface) {
    Places places(surface.vertices.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
        places[i] = static_cast<std::uint32_t>(i);
    }
    return places;
}

std::size_t open_edges(const Surface& surface, const Places& places) {
    struct Uses {
        int there = 0, back = 0;
    };
    std::unordered_map<std::uint64_t, Uses> edges;
    for (const Triangle& triangle : surface.triangles) {
        for (int i = 0; i < 3; ++i) {
            const std::uint64_t a = places[triangle[i]], b = places[triangle[(i + 1) % 3]];
            Uses& uses = edges[a < b ? a << 32 | b : b << 32 | a];
            ++(a < b ? uses.there : uses.back);
        }
    }
    std::size_t open = 0;
    for (const auto& [edge, uses] : edges) {
        open += uses.there != 1 || uses.back != 1;
    }
    return open;
}

double volume_ml(const Surface& surface) {
    double sum = 0;
    for (const Triangle& triangle : surface.triangles) {
        const Vec3 a = surface.vertices[triangle[0]].position;
        const Vec3 b = surface.vertices[triangle[1]].position;
        const Vec3 c = surface.vertices[triangle[2]].position;
        sum += dot(a, cross(b, c)) / 6.0;
    }
    return sum / 1000;
}

std::size_t inward_normals(const Surface& surface) {
    std::vector<Vec3> faces(surface.vertices.size());
    for (const Triangle& t : surface.triangles) {
        const Vec3 a = surface.vertices[t[0]].position;
        const Vec3 face = cross(surface.vertices[t[1]].position - a, surface.vertices[t[2]].position - a);
        for (const std::uint32_t corner : t) {
            faces[corner] = faces[corner] + face;
        }
    }
    std::size_t inward = 0;
    for (std::size_t i = 0; i < faces.size(); ++i) {
        inward += dot(faces[i], surface.vertices[i].normal) < 0;
    }
    return inward;
}

std::size_t torn_normals(const Surface& surface, const Places& places) {
    std::vector<const Vec3*> firsts(surface.vertices.size(), nullptr);
    std::size_t torn = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const Vec3& normal = surface.vertices[i].normal;
        const Vec3*& first = firsts[places[i]];
        first = first ? first : &normal;
        torn += length(normal - *first) > 0;
    }
    return torn;
}

void tell(const std::string& path) {
    const Surface surface = SurfaceFile(path).part(0, 1).surface;
    std::size_t different = 0;
    const Places places = places_of(surface, &different);
    std::printf("vertices %zu\nplaces %zu\ntriangles %zu\nopen_edges %zu\nopen_seams %zu\nvolume_ml %.3f\n"
                "inward_normals %zu\ntorn_normals %zu\n",
                surface.vertices.size(), different, surface.triangles.size(),
                open_edges(surface, own_places(surface)), open_edges(surface, places), volume_ml(surface),
                inward_normals(surface), torn_normals(surface, places));
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("plycheck", [&] {
        if (argc != 2) {
            throw workload::usage_error("give one PLY file");
        }
        workload::tell(argv[1]);
    });
}
