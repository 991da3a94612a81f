// How far rounding may take what ft computes from what is right: from the method and the precision, whatever the
// number of ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

namespace workload {

/// Half of what is between 1 and the next number: by what part of itself the result of an operation is off at most.
constexpr double unit_roundoff = std::numeric_limits<double>::epsilon() / 2;

/// Numbers of a sum that are added one after the other.
constexpr std::size_t summed_in_turn = 64;

/// The sum of `term(at)`, begin <= at < end, in halves, so that it is not off by as many roundings as there are terms:
/// by `summed_in_turn`, and one for each time that they are halved.
template <typename Term>
auto sum_in_halves(std::size_t begin, std::size_t end, const Term& term) -> decltype(term(begin)) {
    if (end - begin > summed_in_turn) {
        const std::size_t middle = begin + (end - begin) / 2;
        return sum_in_halves(begin, middle, term) + sum_in_halves(middle, end, term);
    }
    decltype(term(begin)) sum{};
    for (std::size_t at = begin; at < end; ++at) {
        sum += term(at);
    }
    return sum;
}

/// By what part of its length a cube with edges of `size` values is off after it was transformed and transformed
/// back: each of the log2(size) stages along each of three edges, there and back, adds 16 roundings. (Higham, Accuracy
/// and Stability of Numerical Algorithms, 24.1: 4 sqrt(2) for a stage's arithmetic, and what its roots are off by: 4.3
/// for their angle, up to pi, and 2.8 for a sine and a cosine of two units in the last place.)
inline double transforms_off_most(int size) { return 2 * 3 * std::log2(size) * 16 * unit_roundoff; }

/// What a value can change by at most when a cube is transformed and back: no value of a difference is longer than all
/// of it, and the length of a cube of values below sqrt(2) is sqrt(2 size^3) at most.
inline double round_trip_error_most(int size) {
    return transforms_off_most(size) * std::sqrt(2.0 * size * size * size);
}

/// How far the two sides of Parseval's equation may be apart at most, each divided by how many values there are, for
/// values below sqrt(2). Beside the transforms, damping and its factors are off by 16 roundings; each side's sum by 160
/// on each rank (those of lines and of a plane of lines, and of their terms), and by one for each of `ranks`.
inline double parseval_error_most(int size, int ranks) {
    return 2 * (transforms_off_most(size) + (16 + 2 * (160.0 + ranks)) * unit_roundoff);
}

}  // namespace workload
