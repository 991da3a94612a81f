#include "common/surface.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "common/failure.hpp"

namespace workload {

namespace {

// As long as every machine that runs this stores numbers little endian, memory is what the file holds.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// A triangle in the file follows a single byte, where no number may lie in memory.
struct Face {
    std::uint8_t corners = 3;
    std::array<std::uint8_t, sizeof(Triangle)> bytes{};

    Triangle triangle() const {
        Triangle triangle;
        std::memcpy(triangle.data(), bytes.data(), bytes.size());
        return triangle;
    }
};
static_assert(sizeof(Face) == 13);

// A bound for what a damaged header can make us allocate: 5 GB, a hundred times a brain's surface.
constexpr std::size_t most_elements = 200'000'000;

std::string header(std::size_t vertices, std::size_t triangles) {
    std::ostringstream text;
    text << "ply\nformat binary_little_endian 1.0\nelement vertex " << vertices << '\n';
    for (const char* name : {"x", "y", "z", "nx", "ny", "nz"}) {
        text << "property float " << name << '\n';
    }
    text << "element face " << triangles << "\nproperty list uchar int vertex_indices\nend_header\n";
    return text.str();
}

void include(Extent& box, Vec3 place) {
    for (int axis = 0; axis < 3; ++axis) {
        box.low[axis] = std::min(box.low[axis], place[axis]);
        box.high[axis] = std::max(box.high[axis], place[axis]);
    }
}

}  // namespace

void write_ply(const std::string& path, const Surface& surface) {
    std::ofstream out(path, std::ios::binary);
    out << header(surface.vertices.size(), surface.triangles.size());
    out.write(reinterpret_cast<const char*>(surface.vertices.data()),
              static_cast<std::streamsize>(surface.vertices.size() * sizeof(Vertex)));
    for (const Triangle& triangle : surface.triangles) {
        Face face;
        std::memcpy(face.bytes.data(), triangle.data(), face.bytes.size());
        out.write(reinterpret_cast<const char*>(&face), sizeof face);
    }
    out.close();
    if (!out) {
        throw error("--out " + path + ": cannot be written (" + std::strerror(errno) + ")");
    }
}

SurfaceFile::SurfaceFile(const std::string& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) {
        throw failure(std::string("cannot be opened (") + std::strerror(errno) + ")");
    }
    in_.seekg(0, std::ios::end);
    std::size_t left = static_cast<std::size_t>(in_.tellg());
    in_.seekg(0);
    // Comments may stand anywhere; the rest must be the header that write_ply writes.
    std::string text, line;
    while (text.size() < 4096 && std::getline(in_, line) && line != "end_header") {
        left -= line.size() + 1;
        if (line.rfind("comment", 0) != 0) {
            text += line + '\n';
        }
        std::sscanf(line.c_str(), "element vertex %zu", &vertices_);
        std::sscanf(line.c_str(), "element face %zu", &triangles_);
    }
    left -= std::min(left, line.size() + 1);
    if (text + "end_header\n" != header(vertices_, triangles_)) {
        throw failure("not a binary little-endian PLY with x y z nx ny nz and triangles, as isosurface"
                      " writes it");
    }
    if (vertices_ > most_elements || triangles_ > most_elements) {
        throw failure("too large");
    }
    const std::size_t bytes = vertices_ * sizeof(Vertex) + triangles_ * sizeof(Face);
    if (left < bytes) {
        throw failure("cut off: " + std::to_string(bytes - left) + " bytes are missing");
    }
    elements_ = in_.tellg();
}

Failure SurfaceFile::failure(const std::string& what) const { return error("--surface " + path_ + ": " + what); }

template <class Element, class Take>
void SurfaceFile::each(std::streamoff place, std::size_t count, Take take) {
    std::vector<Element> some(std::min<std::size_t>(count, 4096));
    in_.seekg(place);
    for (std::size_t first = 0; first < count; first += some.size()) {
        const std::size_t here = std::min(count - first, some.size());
        in_.read(reinterpret_cast<char*>(some.data()), static_cast<std::streamsize>(here * sizeof(Element)));
        if (!in_) {
            throw failure("cannot be read");
        }
        for (std::size_t i = 0; i < here; ++i) {
            take(first + i, some[i]);
        }
    }
}

SurfacePart SurfaceFile::part(int part, int parts) {
    constexpr std::uint32_t unused = 0xffffffff;
    constexpr float far = std::numeric_limits<float>::max();
    const std::size_t begin = triangles_ * part / parts, end = triangles_ * (part + 1) / parts;

    SurfacePart read{{}, {{far, far, far}, {-far, -far, -far}}};
    auto& [own_vertices, own_triangles] = read.surface;
    Array<std::uint32_t> renumbered(vertices_, unused);
    own_triangles.reserve(end - begin);
    std::size_t used = 0;
    const auto faces = elements_ + static_cast<std::streamoff>(vertices_ * sizeof(Vertex));
    each<Face>(faces, triangles_, [&](std::size_t at, const Face& face) {
        const Triangle triangle = face.triangle();
        const bool is_own = at >= begin && at < end;
        for (const std::uint32_t corner : triangle) {
            if (face.corners != 3 || corner >= vertices_) {
                throw failure("damaged: a face is not a triangle of its vertices");
            }
            if (is_own && renumbered[corner] == unused) {
                renumbered[corner] = 0;
                ++used;
            }
        }
        if (is_own) {
            own_triangles.push_back(triangle);
        }
    });
    own_vertices.reserve(used);
    each<Vertex>(elements_, vertices_, [&](std::size_t at, const Vertex& vertex) {
        if (!std::isfinite(dot(vertex.position, vertex.position) + dot(vertex.normal, vertex.normal))) {
            throw failure("damaged: a vertex is not finite");
        }
        include(read.whole, vertex.position);
        if (renumbered[at] != unused) {
            renumbered[at] = static_cast<std::uint32_t>(own_vertices.size());
            own_vertices.push_back(vertex);
        }
    });
    for (Triangle& triangle : own_triangles) {
        for (std::uint32_t& corner : triangle) {
            corner = renumbered[corner];
        }
    }
    return read;
}

}  // namespace workload
