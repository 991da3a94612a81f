// A partial differential equation solved by three-dimensional Fourier transforms, in the manner of the
// NAS kernel FT.

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"
#include "ft/bounds.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "ft lets heat spread in a cube: its values are transformed by Fourier once, and\n"
    "for each iteration damped and transformed back, in the manner of the NAS kernel\n"
    "FT. Every rank has a slab of the cube; each transform exchanges all of it by\n"
    "MPI_Alltoall. The number of ranks must be a power of two, at most --size.\n"
    "Prints `iteration I CHECKSUM_RE CHECKSUM_IM SECONDS`, then `round_trip_error E`\n"
    "(the greatest change of a value by a transform and back) and\n"
    "`seconds_per_iteration P50`. Checksums do not depend on the number of ranks but\n"
    "for rounding.\n"
    "Every iteration is checked, between those that are timed: its values and what\n"
    "they were transformed from have the same product with the first ones (Parseval).\n"
    "Exit code 1 if these differ by more than rounding can make, or if E is more.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 ft --size 64 --iterations 6\n";

using Value = std::complex<double>;

constexpr double alpha = 1e-6;
constexpr int checked_points = 1024;

// The whole cube is one rank's block if there is one rank only, and MPI counts the values of a block by an int.
constexpr int largest_size = 1024;
static_assert(std::int64_t{largest_size} * largest_size * largest_size <= std::numeric_limits<int>::max());

struct Settings {
    int size = 64;
    int iterations = 6;
    std::string spoil = "none";
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("ft", story, examples);
    options.number("--size", &settings.size, 4, largest_size, "values along each edge of the cube, a power of two");
    options.number("--iterations", &settings.iterations, 1, 100'000, "iterations");
    options.choice("--spoil", &settings.spoil, {"none", "round-trip", "iteration"},
                   "for the project's tests: two values in each other's place, after the way there and back or in "
                   "every iteration");
    settings.qos.declare(options);
    if (!options.parse(argc, argv)) {
        return false;
    }
    if (settings.size & (settings.size - 1)) {
        throw usage_error("--size " + std::to_string(settings.size) + ": not accepted; give a power of two");
    }
    return true;
}

/// Transforms lines of one length, a power of two, in place (Cooley and Tukey).
class Fourier {
  public:
    explicit Fourier(int size) : size_(size), roots_(size / 2) {
        for (int at = 0; at < size / 2; ++at) {
            roots_[at] = std::polar(1.0, -2 * M_PI * at / size);
        }
    }

    void transform(Value* line, bool back) const {
        for (int at = 1, reversed = 0; at < size_; ++at) {
            int bit = size_ >> 1;
            for (; reversed & bit; bit >>= 1) {
                reversed ^= bit;
            }
            reversed |= bit;
            if (at < reversed) {
                std::swap(line[at], line[reversed]);
            }
        }
        for (int half = 1; half < size_; half *= 2) {
            for (int start = 0; start < size_; start += 2 * half) {
                for (int at = 0; at < half; ++at) {
                    const Value root = roots_[at * (size_ / (2 * half))];
                    const Value odd = line[start + at + half] * (back ? std::conj(root) : root);
                    line[start + at + half] = line[start + at] - odd;
                    line[start + at] += odd;
                }
            }
        }
    }

  private:
    int size_;
    std::vector<Value> roots_;
};

/// The cube, in slabs: of z as [z][y][x], and transposed, of y, as [y][x][z].
class Cube {
  public:
    Cube(const World& world, int size)
        : ranks_(world.ranks()), size_(size), depth_(size / world.ranks()), first_(world.rank() * depth_), fourier_(size),
          line_(size), buffer_(static_cast<std::size_t>(depth_) * size * size) {}

    std::size_t count() const { return buffer_.size(); }

    /// From slabs of z to transposed, transformed along all three.
    void forward(std::vector<Value>& data) {
        along_x_and_y(data, false);
        transpose(data, true);
        along_last(data, false);
    }

    void backward(std::vector<Value>& data) {
        along_last(data, true);
        transpose(data, false);
        along_x_and_y(data, true);
        const double factor = scale();
        for (Value& value : data) {
            value *= factor;
        }
    }

    /// Values that look random, the same whatever rank has them.
    void fill(std::vector<Value>& data) const {
        std::uint64_t key = static_cast<std::uint64_t>(first_) * size_ * size_;
        for (Value& value : data) {
            std::uint64_t bits = (++key) * 0x9e3779b97f4a7c15u;
            bits = (bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9u;
            bits ^= bits >> 32;
            value = {static_cast<double>(bits >> 40) * 0x1p-24, static_cast<double>(bits & 0xffffff) * 0x1p-24};
        }
    }

    /// Heat after `time`, in transformed data.
    void damp(const std::vector<Value>& from, std::vector<Value>& to, double time) const {
        std::size_t at = 0;
        for (int y = first_; y < first_ + depth_; ++y) {
            for (int x = 0; x < size_; ++x) {
                for (int z = 0; z < size_; ++z, ++at) {
                    const double k = wave(x) * wave(x) + wave(y) * wave(y) + wave(z) * wave(z);
                    to[at] = from[at] * left_of(k, time);
                }
            }
        }
    }

    /// The product of `first` with `data`, which is what `transformed`, `first`'s transform, was damped for `time` and
    /// transformed back to, less the same product of their transforms; for each value of the cube. 0 but for rounding
    /// (Parseval), on all ranks. The first values look random: a value that is wrong, or elsewhere, changes it.
    Value parseval_error(const std::vector<Value>& first, const std::vector<Value>& transformed,
                         const std::vector<Value>& data, double time) const {
        const std::vector<double> left = left_along_edge(time);
        const std::size_t size = size_;
        const auto product = [&](std::size_t at) { return std::conj(first[at]) * data[at]; };
        const Value here = sum_in_halves(0, data.size(), product);
        // Lines of z, one after the other: x is the number of the line in its plane, and y the plane's.
        const double there = sum_in_halves(0, data.size() / size, [&](std::size_t line) {
            const double along_z = sum_in_halves(0, size, [&](std::size_t z) {
                return std::norm(transformed[line * size + z]) * left[z];
            });
            return along_z * left[line % size] * left[first_ + line / size];
        });
        const Value own = (here - there * scale()) * scale();
        Value sum = 0;
        MPI_Allreduce(&own, &sum, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        return sum;
    }

    /// The sum of some values, on rank 0.
    Value checksum(const std::vector<Value>& data) const {
        Value own = 0, sum = 0;
        for (int point = 1; point <= checked_points; ++point) {
            const int x = point % size_, y = 3 * point % size_, z = 5 * point % size_;
            if (z >= first_ && z < first_ + depth_) {
                own += data[(static_cast<std::size_t>(z - first_) * size_ + y) * size_ + x];
            }
        }
        MPI_Reduce(&own, &sum, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        return sum;
    }

  private:
    /// 1 over how many values there are: a power of two, so that nothing is rounded.
    double scale() const { return 1.0 / (static_cast<double>(size_) * size_ * size_); }
    double wave(int at) const { return at < size_ / 2 ? at : at - size_; }

    /// What is left of a wave after `time`; `k` is the square of its number.
    static double left_of(double k, double time) { return std::exp(-4 * alpha * M_PI * M_PI * k * time); }

    /// The same along one edge of the cube: that of a wave in space is the product of its three.
    std::vector<double> left_along_edge(double time) const {
        std::vector<double> left(size_);
        for (int at = 0; at < size_; ++at) {
            left[at] = left_of(wave(at) * wave(at), time);
        }
        return left;
    }

    void along_last(std::vector<Value>& data, bool back) const {
        for (std::size_t at = 0; at < data.size(); at += size_) {
            fourier_.transform(&data[at], back);
        }
    }

    void along_x_and_y(std::vector<Value>& data, bool back) {
        along_last(data, back);
        const std::size_t plane = static_cast<std::size_t>(size_) * size_;
        for (std::size_t start = 0; start < data.size(); start += plane) {
            for (int x = 0; x < size_; ++x) {
                for (int y = 0; y < size_; ++y) {
                    line_[y] = data[start + static_cast<std::size_t>(y) * size_ + x];
                }
                fourier_.transform(line_.data(), back);
                for (int y = 0; y < size_; ++y) {
                    data[start + static_cast<std::size_t>(y) * size_ + x] = line_[y];
                }
            }
        }
    }

    /// Between the two kinds of slabs. Blocks on their way, one for each rank, are [z][y][x].
    void transpose(std::vector<Value>& data, bool to_y) {
        const auto in_z = [this](int other, int z, int y, int x) {
            return (static_cast<std::size_t>(z) * size_ + other * depth_ + y) * size_ + x;
        };
        const auto in_y = [this](int other, int z, int y, int x) {
            return (static_cast<std::size_t>(y) * size_ + x) * size_ + other * depth_ + z;
        };
        to_y ? exchange(data, in_z, in_y) : exchange(data, in_y, in_z);
    }

    /// `from` and `to` tell the place of a block's value before and after.
    template <typename From, typename To>
    void exchange(std::vector<Value>& data, From from, To to) {
        for_each_in_blocks([&](std::size_t at, auto... place) { buffer_[at] = data[from(place...)]; });
        const int count = depth_ * depth_ * size_;
        MPI_Alltoall(buffer_.data(), count, MPI_C_DOUBLE_COMPLEX, data.data(), count, MPI_C_DOUBLE_COMPLEX,
                     MPI_COMM_WORLD);
        std::swap(data, buffer_);
        for_each_in_blocks([&](std::size_t at, auto... place) { data[to(place...)] = buffer_[at]; });
    }

    template <typename Action>
    void for_each_in_blocks(Action action) const {
        std::size_t at = 0;
        for (int other = 0; other < ranks_; ++other) {
            for (int z = 0; z < depth_; ++z) {
                for (int y = 0; y < depth_; ++y) {
                    for (int x = 0; x < size_; ++x, ++at) {
                        action(at, other, z, y, x);
                    }
                }
            }
        }
    }

    int ranks_, size_, depth_, first_;
    Fourier fourier_;
    std::vector<Value> line_, buffer_;
};

double greatest_difference(const std::vector<Value>& one, const std::vector<Value>& other) {
    double own = 0, most = 0;
    for (std::size_t at = 0; at < one.size(); ++at) {
        const double difference = std::abs(one[at] - other[at]);
        // std::max passes over what is no number.
        own = std::max(own, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
    }
    MPI_Allreduce(&own, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/// Throws if an error is not of rounding; one that is no number is not. All ranks have the same (MPI_Allreduce
/// guarantees it), so that all throw or none.
void require_at_most(double most, double error, const std::string& what) {
    if (!(error <= most)) {
        throw wrong_result(what + " by " + short_form(error) + ", and by at most " + short_form(most) +
                           " for rounding");
    }
}

/// The same values, but two in each other's place; on the last rank.
void spoil(const World& world, std::vector<Value>& data) {
    if (world.rank() == world.ranks() - 1) {
        std::swap(data.front(), data.back());
    }
}

void iterate(const Settings& settings) {
    const World world;
    world.require((world.ranks() & (world.ranks() - 1)) == 0 && world.ranks() <= settings.size,
                  "a power of two, at most --size");
    Cube cube(world, settings.size);
    settings.qos.ask(MPI_COMM_WORLD, cube.count() * sizeof(Value) / world.ranks());
    std::vector<Value> first(cube.count()), transformed, data(cube.count());
    cube.fill(first);
    transformed = first;
    cube.forward(transformed);
    data = transformed;
    cube.backward(data);
    if (settings.spoil == "round-trip") {
        spoil(world, data);
    }
    const double error = greatest_difference(first, data);
    require_at_most(round_trip_error_most(settings.size), error, "not transformed: there and back, a value is off");
    const double parseval_most = parseval_error_most(settings.size, world.ranks());
    Samples times;
    for (int iteration = 1; iteration <= settings.iterations; ++iteration) {
        const double start = MPI_Wtime();
        cube.damp(transformed, data, iteration);
        cube.backward(data);
        if (settings.spoil == "iteration") {
            spoil(world, data);
        }
        const Value sum = cube.checksum(data);
        times.add(MPI_Wtime() - start);
        if (world.tells()) {
            std::printf("iteration %d %.9f %.9f %.6f\n", iteration, sum.real(), sum.imag(), MPI_Wtime() - start);
            std::fflush(stdout);
        }
        require_at_most(parseval_most, std::abs(cube.parseval_error(first, transformed, data, iteration)),
                        "iteration " + std::to_string(iteration) + ": not transformed: Parseval's sums differ");
    }
    if (world.tells()) {
        std::printf("round_trip_error %.3e\nseconds_per_iteration %.6f\n", error, times.quantile(0.5));
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("ft", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::iterate(settings);
        }
    });
}
