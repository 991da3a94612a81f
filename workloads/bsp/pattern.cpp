#include "bsp/pattern.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <utility>

#include "common/failure.hpp"

namespace workload {

namespace {

using Sends = std::function<bool(int from, int to)>;

// Everything follows from who sends to whom, so that both ends agree.
Partners partners(int rank, int ranks, const Sends& sends) {
    Partners mine;
    for (int other = 0; other < ranks; ++other) {
        if (other != rank && sends(rank, other)) {
            mine.to.push_back(other);
        }
        if (other != rank && sends(other, rank)) {
            mine.from.push_back(other);
        }
    }
    return mine;
}

bool differ_in_one_bit(int a, int b) {
    const int bits = a ^ b;
    return (bits & (bits - 1)) == 0;
}

// Rank 0 is the root of a binary tree; parents and children talk both ways.
bool are_parent_and_child(int a, int b) { return (a - 1) / 2 == b || (b - 1) / 2 == a; }

const std::vector<std::pair<std::string, std::function<bool(int, int, int)>>>& patterns() {
    static const std::vector<std::pair<std::string, std::function<bool(int, int, int)>>> all = {
        {"all-to-all", [](int, int, int) { return true; }},
        {"ring", [](int from, int to, int ranks) { return to == (from + 1) % ranks; }},
        {"neighbours",
         [](int from, int to, int ranks) { return to == (from + 1) % ranks || from == (to + 1) % ranks; }},
        {"hypercube", [](int from, int to, int) { return differ_in_one_bit(from, to); }},
        {"pairs", [](int from, int to, int) { return to == (from ^ 1); }},
        {"tree", [](int from, int to, int) { return are_parent_and_child(from, to); }},
        {"gather", [](int, int to, int) { return to == 0; }},
        {"none", [](int, int, int) { return false; }},
    };
    return all;
}

}  // namespace

std::vector<std::string> pattern_names() {
    std::vector<std::string> names;
    for (const auto& [name, sends] : patterns()) {
        names.push_back(name);
    }
    return names;
}

Partners partners_in(const std::string& name, int rank, int ranks) {
    if (name == "pairs" && ranks % 2 != 0) {
        throw usage_error("--pattern pairs: not accepted with " + std::to_string(ranks) +
                          " ranks; start it on an even number");
    }
    if (name == "hypercube" && (ranks & (ranks - 1)) != 0) {
        throw usage_error("--pattern hypercube: not accepted with " + std::to_string(ranks) +
                          " ranks; start it on a power of two");
    }
    for (const auto& [known, sends] : patterns()) {
        if (known == name) {
            const auto& rule = sends;
            return partners(rank, ranks, [&](int from, int to) { return rule(from, to, ranks); });
        }
    }
    throw usage_error("--pattern " + name + ": not known");
}

Partners partners_by(const std::string& file, int rank, int ranks) {
    std::ifstream in(file);
    if (!in) {
        throw error("--flows " + file + ": cannot be opened (" + std::strerror(errno) + ")");
    }
    std::vector<std::vector<bool>> sends(ranks, std::vector<bool>(ranks));
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        std::istringstream words(line.substr(0, line.find('#')));
        int from = 0;
        int to = 0;
        std::string rest;
        if ((words >> std::ws).eof()) {
            continue;
        }
        const bool read = static_cast<bool>(words >> from >> to) && !(words >> rest);
        if (!read || from < 0 || to < 0 || from >= ranks || to >= ranks || from == to) {
            throw error("--flows " + file + ", line " + std::to_string(number) + ": \"" + line +
                        "\": not accepted; give two different ranks from 0 to " + std::to_string(ranks - 1));
        }
        sends[from][to] = true;
    }
    return partners(rank, ranks, [&](int from, int to) { return sends[from][to]; });
}

}  // namespace workload
