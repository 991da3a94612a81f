// Binary-swap compositing: every rank has a whole picture of its part of the scene; afterwards every
// rank has a piece of the picture of the whole scene; then rank 0 collects the pieces.
#pragma once

#include <cstddef>
#include <vector>

#include "common/array.hpp"
#include "common/hypercube.hpp"
#include "common/picture.hpp"

namespace workload {

/// Pixels [begin, end) of a picture.
struct Piece {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t size() const { return end - begin; }
    Piece half(bool upper) const {
        const std::size_t middle = begin + size() / 2;
        return upper ? Piece{middle, end} : Piece{begin, middle};
    }
};

/// At dimension b every rank sends half of its piece to rank^(1<<b) and merges the half it gets into the
/// half it keeps. What is received stays for the next picture: fresh memory costs more than merging it.
template <class Pixel>
class BinarySwap {
  public:
    explicit BinarySwap(Hypercube& cube) : cube_(cube) {}

    /// `merge(dimension, own pixel, other's pixel)` gives the pixel of both. The piece that is this rank's.
    template <class Merge>
    Piece operator()(Array<Pixel>& picture, Merge merge) {
        Piece mine{0, picture.size()};
        received_.resize(picture.size() - picture.size() / 2);
        for (int dimension = 0; dimension < cube_.dimensions(); ++dimension) {
            const bool upper = cube_.upper(dimension);
            const Piece given = mine.half(!upper);
            mine = mine.half(upper);
            cube_.exchange(dimension, &picture[given.begin], given.size() * sizeof(Pixel), received_.data(),
                           mine.size() * sizeof(Pixel));
            for (std::size_t i = 0; i < mine.size(); ++i) {
                Pixel& own = picture[mine.begin + i];
                own = merge(dimension, own, received_[i]);
            }
        }
        return mine;
    }

  private:
    Hypercube& cube_;
    Array<Pixel> received_;
};

/// Completes rank 0's picture from the pieces that a binary swap left on the ranks.
inline void gather_pieces(Hypercube& cube, Array<Rgba8>& picture) {
    std::vector<Piece> pieces = {{0, picture.size()}};  // this rank's piece before each dimension's swap
    for (int dimension = 0; dimension < cube.dimensions(); ++dimension) {
        pieces.push_back(pieces.back().half(cube.upper(dimension)));
    }
    const auto give = [&](int dimension) {
        const Piece mine = pieces[dimension + 1];
        cube.send(dimension, &picture[mine.begin], mine.size() * sizeof(Rgba8));
    };
    const auto take = [&](int dimension) {
        const Piece other = pieces[dimension].half(true);
        cube.receive(dimension, &picture[other.begin], other.size() * sizeof(Rgba8));
    };
    cube.gather(give, take);
}

}  // namespace workload
