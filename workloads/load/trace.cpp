#include "load/trace.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "common/failure.hpp"

namespace workload {

std::vector<Stretch> read_trace(const std::string& file) {
    std::ifstream in(file);
    if (!in) {
        throw error("--trace " + file + ": cannot be opened (" + std::strerror(errno) + ")");
    }
    std::vector<Stretch> trace;
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        std::istringstream words(line.substr(0, line.find('#')));
        if ((words >> std::ws).eof()) {
            continue;
        }
        Stretch stretch{};
        std::string rest;
        const bool read = static_cast<bool>(words >> stretch.from >> stretch.contention) && !(words >> rest);
        const bool later = trace.empty() || stretch.from > trace.back().from;
        if (!read || !later || !(stretch.from >= 0) ||
            !(stretch.contention >= 0 && stretch.contention <= contention_most)) {
            throw error("--trace " + file + ", line " + std::to_string(number) + ": \"" + line +
                        "\": not accepted; give seconds, more than in the line before, and a contention from 0 to 64");
        }
        trace.push_back(stretch);
    }
    return trace;
}

double contention_at(const std::vector<Stretch>& trace, double seconds) {
    double contention = 0;
    for (const Stretch& stretch : trace) {
        if (stretch.from <= seconds) {
            contention = stretch.contention;
        }
    }
    return contention;
}

}  // namespace workload
