#include "is/keys.hpp"

namespace workload {

namespace {

// SplitMix64 (Steele, Lea and Flood): any index gives its number at once, so that every rank makes its own.
std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

}  // namespace

Array<Key> make_keys(std::uint64_t begin, std::uint64_t end, int bits) {
    Array<Key> keys;
    keys.reserve(end - begin);
    for (std::uint64_t i = begin; i < end; ++i) {
        std::uint64_t sum = 0;
        for (std::uint64_t part = 0; part < 4; ++part) {
            sum += mixed(4 * i + part) >> (64 - bits);
        }
        keys.push_back(static_cast<Key>(sum / 4));
    }
    return keys;
}

std::uint64_t fingerprint(const Array<Key>& keys) {
    std::uint64_t sum = 0;
    for (const Key key : keys) {
        sum += mixed(key);
    }
    return sum;
}

}  // namespace workload
