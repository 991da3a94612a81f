// A triangle mesh with normals, and its way into and out of a PLY file.
#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <string>

#include "common/array.hpp"
#include "common/failure.hpp"
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

/// A run of a surface's triangles, with only the vertices that they use. Runs are in the order of the file, so that "the
/// first one drawn stays" means the same however many there are.
struct SurfacePart {
    Surface surface;
    Extent whole;  ///< of all vertices of the file
};

/// What `write_ply` has written. All that can be wrong with it is thrown as a Failure that says so.
class SurfaceFile {
  public:
    /// Checks header and length: before MPI_Init, so that a rank whose file is another ends the job.
    explicit SurfaceFile(const std::string& path);

    std::size_t triangles() const { return triangles_; }

    /// Reads the `part`-th of `parts` equal runs; all of the file is checked. Holds little more than the part: fresh
    /// memory costs more than reading does.
    SurfacePart part(int part, int parts);

  private:
    Failure failure(const std::string& what) const;
    /// Calls `take(index, element)` for `count` elements from `place` on, read a few at a time.
    template <class Element, class Take>
    void each(std::streamoff place, std::size_t count, Take take);

    std::string path_;
    std::ifstream in_;
    std::size_t vertices_ = 0, triangles_ = 0;
    std::streamoff elements_ = 0;  // where they begin
};

}  // namespace workload
