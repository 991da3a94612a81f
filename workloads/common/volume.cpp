#include <zlib.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "common/failure.hpp"
#include "common/volume.hpp"

namespace workload {

namespace {

// The fields of the 348-byte NIfTI-1 header that matter here: nifti1.h of the NIfTI-1.1 standard.
constexpr std::size_t header_bytes = 348;
constexpr std::size_t dim_at = 40, datatype_at = 70, pixdim_at = 76, vox_offset_at = 108, magic_at = 344;

// Brains are a few hundred voxels wide; beyond this the header is more likely damaged than large.
constexpr int largest_side = 2048;
constexpr std::size_t most_voxels = std::size_t{1} << 30;

/// Reads plain and compressed files alike.
class File {
  public:
    explicit File(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
        if (!file_) {
            throw failure(std::string("cannot be opened (") + std::strerror(errno) + ")");
        }
    }

    void read(void* to, std::size_t bytes) {
        auto* place = static_cast<char*>(to);
        while (bytes > 0) {
            const int got = gzread(file_.get(), place, static_cast<unsigned>(std::min(bytes, largest_read)));
            check_intact();
            if (got <= 0) {
                throw failure("ends " + std::to_string(bytes) + " bytes too early");
            }
            place += got;
            bytes -= got;
        }
    }

    /// Reads what is left, which makes zlib compare the checksum.
    void finish() {
        char rest[4096];
        while (gzread(file_.get(), rest, sizeof rest) > 0) {
        }
        check_intact();
    }

    Failure failure(const std::string& what) const { return error("--volume " + path_ + ": " + what); }

  private:
    void check_intact() {
        int code = Z_OK;
        const char* what = gzerror(file_.get(), &code);
        if (code != Z_OK && code != Z_STREAM_END) {
            throw failure(std::string("damaged or cut off (") + what + ")");
        }
    }

    static constexpr std::size_t largest_read = 1 << 24;
    std::string path_;
    std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

template <class T>
T field(const char* header, std::size_t at) {
    T value;
    std::memcpy(&value, header + at, sizeof value);
    return value;
}

std::size_t read_header(File& file, Volume& volume, int* datatype) {
    char header[header_bytes];
    file.read(header, sizeof header);
    if (field<std::int32_t>(header, 0) != static_cast<int>(header_bytes) ||
        std::memcmp(header + magic_at, "n+1", 4) != 0) {
        throw file.failure("not a little-endian NIfTI-1 file with its data inside (.nii or .nii.gz)");
    }
    const int dimensions = field<std::int16_t>(header, dim_at);
    for (int axis = 0; axis < 3; ++axis) {
        volume.size[axis] = field<std::int16_t>(header, dim_at + 2 * (axis + 1));
        const float spacing = field<float>(header, pixdim_at + 4 * (axis + 1));
        volume.spacing[axis] = spacing > 0 && std::isfinite(spacing) ? spacing : 1.0f;
        if (dimensions < 3 || volume.size[axis] < 2 || volume.size[axis] > largest_side) {
            throw file.failure("not a volume of 2 to 2048 voxels along each of 3 axes");
        }
    }
    *datatype = field<std::int16_t>(header, datatype_at);
    const float offset = field<float>(header, vox_offset_at);
    if (!(offset >= header_bytes && offset < 1e6f)) {
        throw file.failure("says that its voxels begin at an impossible place");
    }
    return static_cast<std::size_t>(offset);
}

template <class T>
Array<std::uint8_t> read_scaled(File& file, std::size_t count) {
    std::vector<T> raw(count);
    file.read(raw.data(), count * sizeof(T));
    double least = std::numeric_limits<double>::infinity();
    double most = -least;
    for (const T value : raw) {
        if (std::isfinite(static_cast<double>(value))) {
            least = std::min(least, static_cast<double>(value));
            most = std::max(most, static_cast<double>(value));
        }
    }
    const double scale = most > least ? 255 / (most - least) : 0;
    Array<std::uint8_t> bytes(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
        const double value = static_cast<double>(raw[i]);
        bytes[i] = std::isfinite(value) ? static_cast<std::uint8_t>((value - least) * scale + 0.5) : 0;
    }
    return bytes;
}

Array<std::uint8_t> read_voxels(File& file, int datatype, std::size_t count) {
    Array<std::uint8_t> bytes;
    switch (datatype) {
        case 2:
            bytes.resize(count);
            file.read(bytes.data(), count);
            return bytes;
        case 4: return read_scaled<std::int16_t>(file, count);
        case 8: return read_scaled<std::int32_t>(file, count);
        case 16: return read_scaled<float>(file, count);
        case 512: return read_scaled<std::uint16_t>(file, count);
        default:
            throw file.failure("voxels of NIfTI type " + std::to_string(datatype) +
                               " are not read; convert them to uint8 (2), int16 (4), int32 (8),"
                               " float32 (16) or uint16 (512)");
    }
}

}  // namespace

Volume read_nifti(const std::string& path) {
    File file(path);
    Volume volume;
    int datatype = 0;
    const std::size_t begin = read_header(file, volume, &datatype);
    std::vector<char> extensions(begin - header_bytes);
    file.read(extensions.data(), extensions.size());
    const std::size_t count = static_cast<std::size_t>(volume.size[0]) * volume.size[1] * volume.size[2];
    if (count > most_voxels) {
        throw file.failure("more than 2^30 voxels");
    }
    volume.voxels = read_voxels(file, datatype, count);
    file.finish();
    return volume;
}

}  // namespace workload
