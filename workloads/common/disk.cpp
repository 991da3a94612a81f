#include "common/disk.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace workload {

Disk::Disk(const std::string& path, std::size_t bytes) : path_(path), bytes_(bytes, 'b') {
    if (bytes == 0) {
        return;
    }
    file_ = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file_ < 0) {
        cannot_be("made");
        return;
    }
    // Whoever is killed leaves nothing behind, and is not in the way of who comes next.
    unlink(path.c_str());
}

Disk::~Disk() {
    if (file_ >= 0) {
        close(file_);
    }
}

void Disk::write() {
    std::size_t written = 0;
    while (written < bytes_.size()) {
        const ssize_t some = pwrite(file_, bytes_.data() + written, bytes_.size() - written,
                                    static_cast<off_t>(written));
        if (some < 0 && errno != EINTR) {
            return cannot_be("written");
        }
        written += some > 0 ? static_cast<std::size_t>(some) : 0;
    }
    if (file_ >= 0 && fsync(file_) != 0) {
        cannot_be("written");
    }
}

void Disk::cannot_be(const char* what) {
    problem_ = path_ + ": cannot be " + what + " (" + std::strerror(errno) + ")";
}

}  // namespace workload
