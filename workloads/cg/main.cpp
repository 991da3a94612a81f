// Conjugate gradients on a large sparse matrix, in the manner of the NAS kernel CG.

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "cg/bounds.hpp"
#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "cg estimates the smallest eigenvalue of a large sparse symmetric matrix by\n"
    "inverse iteration; each iteration solves a system by 25 steps of conjugate\n"
    "gradients, in the manner of the NAS kernel CG. Every rank has a block of rows; a\n"
    "step gathers the vector of all ranks and sums twice. Any number of ranks.\n"
    "Prints `iteration I ZETA RESIDUAL SECONDS`, then `zeta VALUE` and\n"
    "`seconds_per_iteration P50`. ZETA does not depend on the number of ranks but for\n"
    "rounding, and goes down to 1, the eigenvalue of the constant vector. Exit code 1\n"
    "if RESIDUAL is more than 25 steps can leave, or ZETA goes up or below 1.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 cg --rows 14000 --iterations 15\n"
    "  LD_PRELOAD=libkeeptime_mpi.so mpirun -n 4 cg --qos premium --kbps 20000\n";

/// Beyond every key of the matrix.
constexpr std::uint64_t start_key = 1u << 31;

struct Settings {
    int rows = 14000;
    int iterations = 15;
    std::string spoil = "none";
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("cg", story, examples);
    options.number("--rows", &settings.rows, 1000, 10'000'000, "rows of the matrix");
    options.number("--iterations", &settings.iterations, 1, 100'000, "iterations");
    options.choice("--spoil", &settings.spoil, {"none", "solution", "low", "high"},
                   "for the project's tests: a value of a solution that is wrong, or a zeta that is too low or, from "
                   "iteration 1 on, too high");
    settings.qos.declare(options);
    return options.parse(argc, argv);
}

/// Bits of a number, thrown about (splitmix64): the same matrix on every machine.
double hashed(std::uint64_t key) {
    key += 0x9e3779b97f4a7c15u;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((key ^ (key >> 31)) >> 11) * 0x1p-53;
}

/// This rank's rows of a symmetric matrix with `diagonals` off-diagonals on either side, at distances
/// that are far apart; its diagonal exceeds the sum of the rest by `shift`, which is its smallest eigenvalue.
class Matrix {
  public:
    Matrix(int rows, int first, int count) : rows_(rows), first_(first), count_(count) {
        const int columns = 2 * diagonals + 1;
        column_.reserve(static_cast<std::size_t>(count) * columns);
        value_.reserve(column_.capacity());
        for (int row = first; row < first + count; ++row) {
            double sum = shift;
            for (int d = 0; d < diagonals; ++d) {
                const int after = (row + distance(d)) % rows, before = (row + rows - distance(d)) % rows;
                sum += add(after, weight(row, d)) + add(before, weight(before, d));
            }
            add(row, -sum);
        }
    }

    void multiply(const std::vector<double>& whole, std::vector<double>& part) const {
        constexpr int columns = 2 * diagonals + 1;
        for (int row = 0; row < count_; ++row) {
            double sum = 0;
            for (int at = row * columns; at < (row + 1) * columns; ++at) {
                sum += value_[at] * whole[column_[at]];
            }
            part[row] = sum;
        }
    }

  private:
    /// 1, then about a third of the rows times powers of 0.6: some neighbours are on other ranks.
    int distance(int d) const {
        return d == 0 ? 1 : 1 + d + static_cast<int>(rows_ / 3 * std::pow(0.6, d));
    }

    double weight(int row, int d) const { return hashed(static_cast<std::uint64_t>(row) * diagonals + d); }

    double add(int column, double weight) {
        column_.push_back(column);
        value_.push_back(-weight);
        return weight;
    }

    int rows_, first_, count_;
    std::vector<int> column_;
    std::vector<double> value_;
};

class Solver {
  public:
    /// `spoils`: whether this rank gets a value wrong.
    Solver(const World& world, int rows, bool spoils)
        : spoils_(spoils), starts_(world.ranks() + 1), counts_(world.ranks()), whole_(rows),
          matrix_(deal(world, rows)) {
        first_ = starts_[world.rank()];
        count_ = counts_[world.rank()];
    }

    /// Where iteration starts: as random as the matrix, of length 1, and far from every eigenvector.
    std::vector<double> start() const {
        std::vector<double> x(count_);
        for (int row = 0; row < count_; ++row) {
            x[row] = hashed(start_key + static_cast<std::uint64_t>(first_ + row)) - 0.5;
        }
        return scaled(x, 1 / std::sqrt(dot(x, x)));
    }

    static std::vector<double> scaled(std::vector<double> vector, double factor) {
        for (double& value : vector) {
            value *= factor;
        }
        return vector;
    }

    double dot(const std::vector<double>& one, const std::vector<double>& other) const {
        double own = 0, sum = 0;
        for (int row = 0; row < count_; ++row) {
            own += one[row] * other[row];
        }
        MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return sum;
    }

    void multiply(const std::vector<double>& part, std::vector<double>& product) {
        MPI_Allgatherv(part.data(), count_, MPI_DOUBLE, whole_.data(), counts_.data(), starts_.data(), MPI_DOUBLE,
                       MPI_COMM_WORLD);
        matrix_.multiply(whole_, product);
    }

    /// Solves for `z`; the norm of what is left.
    double solve(const std::vector<double>& x, std::vector<double>& z) {
        std::vector<double> left = x, direction = x, product(count_);
        z.assign(count_, 0);
        double rho = dot(left, left);
        for (int step = 0; step < inner_steps; ++step) {
            multiply(direction, product);
            const double alpha = rho / dot(direction, product);
            for (int row = 0; row < count_; ++row) {
                z[row] += alpha * direction[row];
                left[row] -= alpha * product[row];
            }
            const double before = rho;
            rho = dot(left, left);
            for (int row = 0; row < count_; ++row) {
                direction[row] = left[row] + rho / before * direction[row];
            }
        }
        if (spoils_) {
            z.front() += 1;
        }
        multiply(z, product);
        for (int row = 0; row < count_; ++row) {
            product[row] -= x[row];
        }
        return std::sqrt(dot(product, product));
    }

  private:
    Matrix deal(const World& world, int rows) {
        for (int rank = 0; rank <= world.ranks(); ++rank) {
            starts_[rank] = static_cast<int>(static_cast<long>(rows) * rank / world.ranks());
        }
        for (int rank = 0; rank < world.ranks(); ++rank) {
            counts_[rank] = starts_[rank + 1] - starts_[rank];
        }
        return {rows, starts_[world.rank()], counts_[world.rank()]};
    }

    bool spoils_;
    std::vector<int> starts_, counts_;
    std::vector<double> whole_;
    Matrix matrix_;
    int first_ = 0, count_ = 0;
};

/// As --spoil wants it: by more than the spectrum of the matrix is wide.
double spoiled(double zeta, const std::string& how, int iteration) {
    if (how == "low") {
        return zeta / 100;
    }
    return how == "high" && iteration > 0 ? zeta * 100 : zeta;
}

void iterate(const Settings& settings) {
    const World world;
    world.require(world.ranks() <= settings.rows, "at most as many as there are rows");
    settings.qos.ask(MPI_COMM_WORLD, static_cast<std::uint64_t>(settings.rows) * 8 / world.ranks());
    Solver solver(world, settings.rows, settings.spoil == "solution" && world.rank() == world.ranks() - 1);
    Bounds bounds;
    std::vector<double> x = solver.start(), z;
    Samples times;
    double zeta = 0;
    for (int iteration = 0; iteration < settings.iterations; ++iteration) {
        const double start = MPI_Wtime();
        const double residual = solver.solve(x, z);
        zeta = spoiled(1 / solver.dot(x, z), settings.spoil, iteration);
        x = Solver::scaled(z, 1 / std::sqrt(solver.dot(z, z)));
        times.add(MPI_Wtime() - start);
        if (world.tells()) {
            std::printf("iteration %d %.10f %.3e %.6f\n", iteration, zeta, residual, MPI_Wtime() - start);
            std::fflush(stdout);
        }
        bounds.require(iteration, residual, zeta);
    }
    if (world.tells()) {
        std::printf("zeta %.8f\nseconds_per_iteration %.6f\n", zeta, times.quantile(0.5));
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("cg", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::iterate(settings);
        }
    });
}
