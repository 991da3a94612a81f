#include "isosurface/cube_cases.hpp"

#include <cstdlib>
#include <utility>

namespace workload {

namespace {

constexpr int no_edge = -1;

using Polygon = std::vector<int>;  // edges of the cube

// Edge between two neighbouring corners.
int edge_between(int a, int b) {
    const int corner = std::min(a, b), step = a ^ b;
    const int axis = step == 1 ? 0 : step == 2 ? 1 : 2;
    const int low = corner & (step - 1), high = corner >> (axis + 1);
    return 4 * axis + (low | high << axis);
}

// The four corners of the face where coordinate `axis` is `side`, counter-clockwise from the outside.
std::array<int, 4> face_corners(int axis, int side) {
    const int u = 1 << (axis + 1) % 3, v = 1 << (axis + 2) % 3, base = side << axis;
    if (side == 1) {
        return {base, base | u, base | u | v, base | v};
    }
    return {base, base | v, base | u | v, base | u};
}

bool inside(int pattern, int corner) { return pattern >> corner & 1; }

// The lines on one face: from the edge where a walk around the face comes into the inside to the edge
// where it leaves it again. `next[e]` is the end of the line that starts on edge e.
void add_lines(int pattern, const std::array<int, 4>& corners, std::array<int, 12>& next) {
    for (int i = 0; i < 4; ++i) {
        if (inside(pattern, corners[i]) || !inside(pattern, corners[(i + 1) % 4])) {
            continue;
        }
        int last = i + 1;
        while (inside(pattern, corners[(last + 1) % 4])) {
            ++last;
        }
        const int comes_in = edge_between(corners[i], corners[(i + 1) % 4]);
        const int leaves = edge_between(corners[last % 4], corners[(last + 1) % 4]);
        next[comes_in] = leaves;
    }
}

// A neighbouring face walks along a shared edge the other way round, so that a line ends where one of
// the neighbour's begins: the lines close to polygons.
std::vector<Polygon> polygons(int pattern) {
    std::array<int, 12> next;
    next.fill(no_edge);
    for (int axis = 0; axis < 3; ++axis) {
        add_lines(pattern, face_corners(axis, 0), next);
        add_lines(pattern, face_corners(axis, 1), next);
    }
    std::vector<Polygon> found;
    for (int start = 0; start < 12; ++start) {
        Polygon polygon;
        for (int edge = start; next[edge] != no_edge; edge = std::exchange(next[edge], no_edge)) {
            polygon.push_back(edge);
        }
        if (!polygon.empty()) {
            found.push_back(polygon);
        }
    }
    return found;
}

bool on_one_face(int a, int b) {
    const CubeEdge one = cube_edge(a), other = cube_edge(b);
    for (int axis = 0; axis < 3; ++axis) {
        const bool flat = one.axis != axis && other.axis != axis;
        if (flat && ((one.corner ^ other.corner) >> axis & 1) == 0) {
            return true;
        }
    }
    return false;
}

// Cuts a polygon into a fan. A cut within a face of the cube could meet a line or a cut of the
// neighbouring cube there, and an edge would belong to four triangles: fans without such cuts are
// looked for first.
void add_fan(const Polygon& polygon, CubeTriangles& triangles) {
    const std::size_t n = polygon.size();
    std::size_t best = 0, fewest = n;
    for (std::size_t apex = 0; apex < n; ++apex) {
        std::size_t within_faces = 0;
        for (std::size_t i = 2; i + 1 < n; ++i) {
            within_faces += on_one_face(polygon[apex], polygon[(apex + i) % n]);
        }
        if (within_faces < fewest) {
            best = apex;
            fewest = within_faces;
        }
    }
    if (fewest > 0 && n > 3) {
        std::abort();  // no such polygon exists among the 256 patterns
    }
    for (std::size_t i = 1; i + 1 < n; ++i) {
        triangles.push_back({static_cast<std::uint8_t>(polygon[best]),
                             static_cast<std::uint8_t>(polygon[(best + i) % n]),
                             static_cast<std::uint8_t>(polygon[(best + i + 1) % n])});
    }
}

std::array<CubeTriangles, 256> make_cases() {
    std::array<CubeTriangles, 256> cases;
    for (int pattern = 0; pattern < 256; ++pattern) {
        for (const Polygon& polygon : polygons(pattern)) {
            add_fan(polygon, cases[pattern]);
        }
    }
    return cases;
}

}  // namespace

CubeEdge cube_edge(int edge) {
    const int axis = edge / 4, k = edge % 4;
    const int low = k & ((1 << axis) - 1), high = k >> axis;
    return {low | high << (axis + 1), axis};
}

const std::array<CubeTriangles, 256>& cube_cases() {
    static const std::array<CubeTriangles, 256> cases = make_cases();
    return cases;
}

}  // namespace workload
