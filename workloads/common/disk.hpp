// Writing that waits for the disk.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace workload {

/// A file that is written from its start again and again. It has no name once it is made: nothing of it is left,
/// whatever ends the program.
class Disk {
  public:
    /// No file if `bytes` is 0.
    Disk(const std::string& path, std::size_t bytes);
    ~Disk();
    Disk(const Disk&) = delete;
    Disk& operator=(const Disk&) = delete;

    /// Returns when all bytes are on the disk (fsync), or cannot be.
    void write();

    /// What went wrong; empty if nothing did. A rank must not leave the others alone with it.
    const std::string& problem() const { return problem_; }

  private:
    void cannot_be(const char* what);


    std::string path_;
    std::string problem_;
    std::vector<char> bytes_;
    int file_ = -1;
};

}  // namespace workload
