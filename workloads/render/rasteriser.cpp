#include "render/rasteriser.hpp"

namespace workload {

namespace {

constexpr Vec3 cortex{0.86f, 0.66f, 0.58f};

// Nearer to the eye than this (mm) is not drawn.
constexpr float nearest_mm = 1;

struct Range {
    int first, last;
};

Rgba8 colour_of(const Lighting& lighting, Vec3 normal) {
    const Vec3 lit = lighting.shade(cortex, normalised(normal));
    const auto byte = [](float value) { return static_cast<std::uint8_t>(std::min(value, 1.0f) * 255 + 0.5f); };
    return {byte(lit.x), byte(lit.y), byte(lit.z), 255};
}

// The pixels whose centres lie between the least and the greatest of three coordinates.
Range pixels_between(float a, float b, float c, int size) {
    const float least = std::max(std::min({a, b, c}), 0.0f);
    const float most = std::min(std::max({a, b, c}), static_cast<float>(size - 1));
    return {static_cast<int>(std::ceil(least)), static_cast<int>(std::floor(most))};
}

}  // namespace

void Rasteriser::draw(const Camera& camera, const Surface& surface) {
    const Lighting lighting(camera);
    std::fill(picture_.begin(), picture_.end(), DepthPixel{});
    corners_.clear();
    corners_.reserve(surface.vertices.size());
    for (const Vertex& vertex : surface.vertices) {
        corners_.push_back(project(camera, vertex));
    }
    for (const Triangle& triangle : surface.triangles) {
        draw_triangle(lighting, corners_[triangle[0]], corners_[triangle[1]], corners_[triangle[2]]);
    }
}

Rasteriser::Corner Rasteriser::project(const Camera& camera, const Vertex& vertex) const {
    const Vec3 to = vertex.position - camera.eye;
    const float distance = dot(to, camera.forward);
    if (distance < nearest_mm) {
        return {};
    }
    const float nearness = 1 / distance;
    const float scale = nearness / camera.half_width * 0.5f * static_cast<float>(size_);
    const float middle = 0.5f * static_cast<float>(size_) - 0.5f;
    return {middle + dot(to, camera.right) * scale, middle - dot(to, camera.up) * scale, nearness,
            vertex.normal * nearness};
}

// Pixels whose centres are on an edge belong to both of its triangles; the first one drawn stays.
void Rasteriser::draw_triangle(const Lighting& lighting, const Corner& a, const Corner& b,
                               const Corner& c) {
    const float area = (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
    if (area == 0 || a.nearness == 0 || b.nearness == 0 || c.nearness == 0) {
        return;
    }
    const Range rows = pixels_between(a.y, b.y, c.y, size_);
    const Range columns = pixels_between(a.x, b.x, c.x, size_);
    for (int row = rows.first; row <= rows.last; ++row) {
        const float y = static_cast<float>(row);
        for (int column = columns.first; column <= columns.last; ++column) {
            const float x = static_cast<float>(column);
            const float of_b = ((x - a.x) * (c.y - a.y) - (y - a.y) * (c.x - a.x)) / area;
            const float of_c = ((b.x - a.x) * (y - a.y) - (b.y - a.y) * (x - a.x)) / area;
            const float of_a = 1 - of_b - of_c;
            const float nearness = of_a * a.nearness + of_b * b.nearness + of_c * c.nearness;
            DepthPixel& pixel = picture_[static_cast<std::size_t>(row) * size_ + column];
            if (of_a >= 0 && of_b >= 0 && of_c >= 0 && nearness > pixel.nearness) {
                const Vec3 normal = a.normal * of_a + b.normal * of_b + c.normal * of_c;
                pixel = {colour_of(lighting, normal), nearness};
            }
        }
    }
}

}  // namespace workload
