// What a right iteration obeys: from the method and from what is known of the matrix, whatever the number of ranks.
#pragma once

#include <cmath>
#include <string>

#include "common/failure.hpp"

namespace workload {

/// Steps of conjugate gradients in an iteration.
constexpr int inner_steps = 25;
/// Neighbours of a row of the matrix on either side; each has a weight below 1.
constexpr int diagonals = 6;
/// By what a row's diagonal exceeds the sum of its weights, as the constant vector shows the smallest eigenvalue.
constexpr double shift = 1;

/// No eigenvalue is farther from a row's diagonal than its weights' sum (Gershgorin).
constexpr double greatest_eigenvalue = shift + 2 * (2 * diagonals);

/// What `inner_steps` leave of the residual at most, where what is solved for has length 1. Conjugate gradients
/// shorten the error in the norm of the matrix by 2 q^steps, q = (sqrt(c) - 1) / (sqrt(c) + 1), where c is the
/// greatest eigenvalue over the smallest; from that norm to the residual's and back is another sqrt(c). Real weights
/// leave ten thousand times less; rounding adds some 1e-13.
inline double residual_most() {
    const double root = std::sqrt(greatest_eigenvalue / shift);
    return 2 * root * std::pow((root - 1) / (root + 1), inner_steps);
}

/// Follows the iterations of a run.
///
/// 1 / zeta is x.z, where z solves Az = x but for the residual r: as x has length 1 and the smallest eigenvalue is 1,
/// it is within r of the Rayleigh quotient of x and the inverse of A. That quotient is between 1 / greatest_eigenvalue
/// and 1, and inverse iteration never lets it fall: z, the next x, is exactly the solution for an x that is changed by
/// r, and such a change makes the quotient less by 4 r at most. So 1 / zeta may fall by these 4 r, by the r that it was
/// above its quotient before, and by the r that it is below now.
class Bounds {
  public:
    /// Throws if an iteration's result cannot be right; numbers that are none are not. All ranks have the same sums
    /// (MPI_Allreduce guarantees it), so that all throw or none.
    void require(int iteration, double residual, double zeta) {
        const std::string where = "iteration " + std::to_string(iteration) + ": not solved: ";
        if (!(residual <= residual_most())) {
            throw wrong_result(where + "the residual is " + short_form(residual) + ", and at most " +
                               short_form(residual_most()) + " after " + std::to_string(inner_steps) + " steps");
        }
        const double inverse = 1 / zeta;
        if (!(inverse <= 1 + residual + rounding)) {
            throw wrong_result(where + "zeta is " + short_form(zeta) + ", and cannot be below 1");
        }
        if (!(inverse >= inverse_before_ - 5 * residual_before_ - residual - rounding)) {
            throw wrong_result(where + "zeta is " + short_form(zeta) + ", and cannot be above " +
                               short_form(1 / inverse_before_));
        }
        inverse_before_ = inverse;
        residual_before_ = residual;
    }

  private:
    static_assert(shift == 1, "what is said of 1 / zeta takes the smallest eigenvalue to be 1");

    /// A sum of ten million products, the most that there are rows, is off by 1e-9 at the worst; each zeta has a few.
    static constexpr double rounding = 1e-8;

    double inverse_before_ = 1 / greatest_eigenvalue;
    double residual_before_ = 0;
};

}  // namespace workload
