// Draws triangles into a picture with depth.
#pragma once

#include "common/array.hpp"
#include "common/lighting.hpp"
#include "common/surface.hpp"
#include "render/pixel.hpp"

namespace workload {

class Rasteriser {
  public:
    Rasteriser(const Camera& camera, int size, Array<DepthPixel>& picture)
        : camera_(camera), lighting_(camera), size_(size), picture_(picture) {}

    /// Clears the picture and draws `surface` into it.
    void draw(const Surface& surface);

  private:
    // A vertex as the picture has it. Over a triangle, 1/distance and everything multiplied by it are
    // linear in x and y: perspective comes out right.
    struct Corner {
        float x = 0, y = 0;  // in pixels, centres at whole numbers
        float nearness = 0;
        Vec3 normal;  // multiplied by nearness
    };

    Corner project(const Vertex& vertex) const;
    void draw_triangle(const Corner& a, const Corner& b, const Corner& c);
    Rgba8 colour_of(Vec3 normal) const;

    Camera camera_;
    Lighting lighting_;
    int size_;
    Array<DepthPixel>& picture_;
    Array<Corner> corners_;
};

}  // namespace workload
