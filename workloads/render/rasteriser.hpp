// Draws triangles into a picture with depth.
#pragma once

#include "common/array.hpp"
#include "common/lighting.hpp"
#include "common/surface.hpp"
#include "render/pixel.hpp"

namespace workload {

class Rasteriser {
  public:
    /// For pictures of `size` pixels squared. It keeps what a frame needs for the next: fresh memory costs more
    /// than drawing into it.
    Rasteriser(int size, Array<DepthPixel>& picture) : size_(size), picture_(picture) {}

    /// Clears the picture and draws `surface` into it, as `camera` sees it.
    void draw(const Camera& camera, const Surface& surface);

  private:
    // A vertex as the picture has it. Over a triangle, 1/distance and everything multiplied by it are
    // linear in x and y: perspective comes out right.
    struct Corner {
        float x = 0, y = 0;  // in pixels, centres at whole numbers
        float nearness = 0;
        Vec3 normal;  // multiplied by nearness
    };

    Corner project(const Camera& camera, const Vertex& vertex) const;
    void draw_triangle(const Lighting& lighting, const Corner& a, const Corner& b, const Corner& c);

    int size_;
    Array<DepthPixel>& picture_;
    Array<Corner> corners_;
};

}  // namespace workload
