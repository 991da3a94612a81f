#include "common/surface.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

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

class Reader {
  public:
    explicit Reader(const std::string& path) : path_(path), in_(path, std::ios::binary) {
        if (!in_) {
            throw failure(std::string("cannot be opened (") + std::strerror(errno) + ")");
        }
        in_.seekg(0, std::ios::end);
        left_ = static_cast<std::size_t>(in_.tellg());
        in_.seekg(0);
    }

    // Comments may stand anywhere; the rest must be the header that write_ply writes.
    void read_header(std::size_t* vertices, std::size_t* triangles) {
        std::string text, line;
        while (text.size() < 4096 && std::getline(in_, line) && line != "end_header") {
            left_ -= line.size() + 1;
            if (line.rfind("comment", 0) != 0) {
                text += line + '\n';
            }
            std::sscanf(line.c_str(), "element vertex %zu", vertices);
            std::sscanf(line.c_str(), "element face %zu", triangles);
        }
        left_ -= std::min(left_, line.size() + 1);
        if (text + "end_header\n" != header(*vertices, *triangles)) {
            throw failure("not a binary little-endian PLY with x y z nx ny nz and triangles, as isosurface"
                          " writes it");
        }
        if (*vertices > most_elements || *triangles > most_elements) {
            throw failure("too large");
        }
    }

    template <class Elements>
    void read(Elements& to, std::size_t count) {
        const std::size_t bytes = count * sizeof(to[0]);
        if (left_ < bytes) {
            throw failure("cut off: " + std::to_string(bytes - left_) + " bytes are missing");
        }
        to.resize(count);
        in_.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(bytes));
        if (!in_) {
            throw failure("cannot be read");
        }
        left_ -= bytes;
    }

    Failure failure(const std::string& what) const { return error("--surface " + path_ + ": " + what); }

  private:
    std::string path_;
    std::ifstream in_;
    std::size_t left_ = 0;
};

void check(const Reader& reader, const Surface& surface, const std::vector<Face>& faces) {
    for (const Face& face : faces) {
        for (const std::uint32_t corner : face.triangle()) {
            if (face.corners != 3 || corner >= surface.vertices.size()) {
                throw reader.failure("damaged: a face is not a triangle of its vertices");
            }
        }
    }
    for (const Vertex& vertex : surface.vertices) {
        if (!std::isfinite(dot(vertex.position, vertex.position) + dot(vertex.normal, vertex.normal))) {
            throw reader.failure("damaged: a vertex is not finite");
        }
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

Surface read_ply(const std::string& path) {
    Reader reader(path);
    std::size_t vertices = 0, triangles = 0;
    reader.read_header(&vertices, &triangles);
    Surface surface;
    std::vector<Face> faces;
    reader.read(surface.vertices, vertices);
    reader.read(faces, triangles);
    check(reader, surface, faces);
    surface.triangles.reserve(triangles);
    for (const Face& face : faces) {
        surface.triangles.push_back(face.triangle());
    }
    return surface;
}

}  // namespace workload
