// External load: what is not part of any measured program and competes with it for the processor, the
// memory or the disk. It ends by itself. (For the network: `keeptime traffic`.)

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "common/array.hpp"
#include "common/disk.hpp"
#include "common/failure.hpp"
#include "common/options.hpp"
#include "common/work.hpp"
#include "load/trace.hpp"

namespace workload {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* story =
    "load keeps the processor, the memory or the disk busy for a while, as other\n"
    "users would. Contention is how many processes want to run: 1.5 are one, and\n"
    "another one half of the time; it can follow a trace, as in load trace playback.\n"
    "All kinds of load run beside each other.\n"
    "Prints at the end `competed_seconds N` (processes wanted the processor for so\n"
    "long, in all), `cpu_seconds N`, `memory_passes N` and `disk_mib N`: what it\n"
    "really did.";

constexpr const char* examples =
    "Examples:\n"
    "  load --cpu 1.5 --seconds 30\n"
    "  load --trace morning.txt --seconds 600\n"
    "  load --disk-mib 8 --disk-rate 20 --disk-file /tmp/load --memory-mib 500\n";

// A second process half of the time runs in turns of so long: many within what anybody averages over.
constexpr double cycle_seconds = 0.02;

struct Settings {
    int seconds = 10;
    double cpu = 0;
    std::string trace;
    int memory_mib = 0;
    int disk_mib = 0;
    int disk_rate = 0;
    std::string disk_file = "load.tmp";
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("load", story, examples);
    options.number("--seconds", &settings.seconds, 1, 3'600, "how long");
    options.real("--cpu", &settings.cpu, 0, contention_most, "processes that want to run");
    options.file("--trace", &settings.trace, false,
                 "instead: a file with a line `SECONDS CONTENTION` for each change, from the start on");
    options.number("--memory-mib", &settings.memory_mib, 0, 65'536, "memory of which every page is touched again and again");
    options.number("--disk-mib", &settings.disk_mib, 0, 4'096, "MiB written at a time, with fsync, again and again");
    options.number("--disk-rate", &settings.disk_rate, 0, 100'000, "MiB/s at most; 0: as fast as the disk");
    options.file("--disk-file", &settings.disk_file, false, "where; nothing is left of it");
    return options.parse(argc, argv);
}

class Load {
  public:
    explicit Load(int seconds) : start_(Clock::now()), end_(start_ + std::chrono::seconds(seconds)) {}

    bool goes_on() const { return Clock::now() < end_; }
    double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

    /// Sleeps, but not beyond the end.
    void pause(double seconds) const {
        const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(seconds));
        std::this_thread::sleep_until(std::min(until, end_));
    }

  private:
    Clock::time_point start_;
    Clock::time_point end_;
};

/// The `number`-th process that competes: runs for its part of every cycle. Adds up for how long it wanted to.
void compete(const Load& load, const std::vector<Stretch>& trace, int number, std::atomic<std::uint64_t>& micros) {
    Work work(0);
    while (load.goes_on()) {
        const double part = std::min(std::max(contention_at(trace, load.seconds()) - number, 0.0), 1.0);
        const double from = load.seconds();
        while (part > 0 && load.seconds() < from + part * cycle_seconds) {
            work.compute(10'000);
        }
        micros += static_cast<std::uint64_t>((load.seconds() - from) * 1e6);
        if (part < 1) {
            load.pause((1 - part) * cycle_seconds);
        }
    }
}

void touch(const Load& load, int mib, std::atomic<std::uint64_t>& passes) {
    constexpr std::size_t page = 4'096;
    Array<char> memory(static_cast<std::size_t>(mib) << 20, 1);
    while (load.goes_on()) {
        for (std::size_t at = 0; at < memory.size() && (at % (page << 10) != 0 || load.goes_on()); at += page) {
            ++memory[at];
        }
        ++passes;
    }
}

void write(const Load& load, const Settings& settings, Disk& disk, std::atomic<std::uint64_t>& mib) {
    while (load.goes_on() && disk.problem().empty()) {
        disk.write();
        mib += settings.disk_mib;
        const double ahead = settings.disk_rate > 0 ? static_cast<double>(mib) / settings.disk_rate - load.seconds() : 0;
        if (ahead > 0) {
            load.pause(ahead);
        }
    }
}

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void load(const Settings& settings) {
    const std::vector<Stretch> trace =
        settings.trace.empty() ? std::vector<Stretch>{{0, settings.cpu}} : read_trace(settings.trace);
    double most = 0;
    for (const Stretch& stretch : trace) {
        most = std::max(most, stretch.contention);
    }
    Disk disk(settings.disk_file, static_cast<std::size_t>(settings.disk_mib) << 20);
    if (!disk.problem().empty()) {
        throw error(disk.problem());
    }
    const Load load(settings.seconds);
    std::atomic<std::uint64_t> micros{0};
    std::atomic<std::uint64_t> passes{0};
    std::atomic<std::uint64_t> mib{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < most; ++number) {
        threads.emplace_back([&, number] { compete(load, trace, number, micros); });
    }
    if (settings.memory_mib > 0) {
        threads.emplace_back([&] { touch(load, settings.memory_mib, passes); });
    }
    if (settings.disk_mib > 0) {
        threads.emplace_back([&] { write(load, settings, disk, mib); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    if (!disk.problem().empty()) {
        throw error(disk.problem());
    }
    std::printf("competed_seconds %.3f\ncpu_seconds %.3f\nmemory_passes %llu\ndisk_mib %llu\n",
                static_cast<double>(micros) * 1e-6, cpu_seconds(), static_cast<unsigned long long>(passes),
                static_cast<unsigned long long>(mib));
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("load", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::load(settings);
        }
    });
}
