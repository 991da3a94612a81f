#include "common/work.hpp"

#include <time.h>

#include <algorithm>
#include <array>

namespace workload {

namespace {

constexpr std::size_t line_words = 8;
// Half a page and a line further: neighbours in time are on different pages, and all lines come in turn.
constexpr std::size_t stride_words = 256 + line_words;
constexpr std::uint64_t steps_a_touch = 64;
constexpr std::uint64_t trial_steps = 2'000'000;

double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

Work::Work(std::size_t working_set)
    : memory_(std::max(working_set / sizeof(std::uint64_t), line_words), 1) {}

void Work::compute(std::uint64_t steps) {
    std::uint64_t state = state_;
    for (std::uint64_t done = 0; done < steps;) {
        const std::uint64_t until = std::min(steps, done + steps_a_touch);
        for (; done < until; ++done) {
            // Each step needs the one before: a compiler can neither leave it out nor do several at once.
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        }
        at_ = (at_ + stride_words) % memory_.size();
        memory_[at_] ^= state;
    }
    state_ = state ^ memory_[at_];
}

std::uint64_t Work::steps_per_second() {
    std::array<double, 7> trials{};
    compute(trial_steps);
    for (double& trial : trials) {
        const double start = cpu_seconds();
        compute(trial_steps);
        trial = cpu_seconds() - start;
    }
    std::sort(trials.begin(), trials.end());
    return static_cast<std::uint64_t>(static_cast<double>(trial_steps) / trials[trials.size() / 2]);
}

}  // namespace workload
