// A bulk-synchronous program: all ranks compute, talk along a pattern, and meet; again and again.

#include <algorithm>
#include <array>
#include <cstdio>

#include "bsp/pattern.hpp"
#include "common/disk.hpp"
#include "common/failure.hpp"
#include "common/iterations.hpp"
#include "common/work.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "bsp computes and communicates in turns, as bulk-synchronous programs do: in each\n"
    "superstep every rank computes, sends a message to each of its partners, receives\n"
    "theirs, and waits until all have. An iteration has --granularity supersteps,\n"
    "among which its work and its bytes are divided.\n"
    "Prints `steps N` and `bytes N` (what an iteration is), `iteration I SECONDS` for\n"
    "each, and at the end `seconds_per_iteration MEAN` and `iterations_per_second\n"
    "RATE`.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 4 bsp --compute 20 --ratio 5   # talks for a sixth of the time\n"
    "  mpirun -n 4 bsp --pattern ring --compute 5 --bytes 100000 --at-least 60\n"
    "  mpirun -n 2 bsp --disk-mib 10 --disk-file /tmp/bsp   # and waits for the disk\n";

constexpr int most_bytes = 256'000'000;

struct Settings {
    std::string pattern = "all-to-all";
    std::string flows;
    int compute = 10;
    int steps = 0;
    double ratio = 0;
    int bytes = 10'000;
    int granularity = 1;
    int working_set = 1;
    int imbalance = 0;
    int disk_mib = 0;
    std::string disk_file = "bsp.tmp";
    IterationOptions iterations;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("bsp", story, examples);
    options.choice("--pattern", &settings.pattern, pattern_names(), "who sends to whom");
    options.file("--flows", &settings.flows, false,
                 "instead of a pattern: a file with a line `FROM TO` for each message");
    options.number("--compute", &settings.compute, 0, 100'000,
                   "milliseconds that an iteration computes, as measured at the start on rank 0");
    options.number("--steps", &settings.steps, 0, 2'000'000'000,
                   "instead: thousands of steps of arithmetic, as printed before; the same on every machine");
    options.real("--ratio", &settings.ratio, 0, 10'000,
                 "computing to communicating: chooses the bytes at the start, when nobody else should be on "
                 "the nodes; 0: as --bytes says");
    options.number("--bytes", &settings.bytes, 0, most_bytes, "bytes to each partner in an iteration");
    options.number("--granularity", &settings.granularity, 1, 10'000, "supersteps of an iteration");
    options.number("--working-set", &settings.working_set, 1, 65'536, "MiB of memory that computing touches");
    options.number("--imbalance", &settings.imbalance, 0, 1'000,
                   "per cent that the last rank computes more than the first; evenly in between");
    options.number("--disk-mib", &settings.disk_mib, 0, 4'096,
                   "MiB that each rank writes to the disk at the end of an iteration, with fsync");
    options.file("--disk-file", &settings.disk_file, false, "where; a dot and the rank are added");
    settings.iterations.declare(options);
    return options.parse(argc, argv);
}

/// Messages along a pattern, and the meeting after them.
class Network {
  public:
    Network(Partners partners, Waiting waiting) : partners_(std::move(partners)), waiting_(waiting) {}

    void exchange(int bytes) {
        out_.resize(bytes);
        in_.resize(partners_.from.size() * bytes);
        std::vector<MPI_Request> requests;
        for (std::size_t i = 0; i < partners_.from.size(); ++i) {
            requests.emplace_back();
            MPI_Irecv(in_.data() + i * bytes, bytes, MPI_BYTE, partners_.from[i], tag, MPI_COMM_WORLD,
                      &requests.back());
        }
        for (const int to : partners_.to) {
            requests.emplace_back();
            MPI_Isend(out_.data(), bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests.back());
        }
        requests.emplace_back();
        MPI_Ibarrier(MPI_COMM_WORLD, &requests.back());
        wait_all(requests, waiting_);
    }

  private:
    static constexpr int tag = 1;

    Partners partners_;
    Waiting waiting_;
    std::vector<char> out_;
    std::vector<char> in_;
};

std::uint64_t from_rank_0(std::uint64_t value, Waiting waiting) {
    wait_for(waiting, [&](MPI_Request* request) {
        MPI_Ibcast(&value, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, request);
    });
    return value;
}

/// Ends all ranks if the disk of one has failed.
void check(const Disk& disk, Waiting waiting) {
    const char mine = !disk.problem().empty();
    char any = 0;
    wait_for(waiting, [&](MPI_Request* request) {
        MPI_Iallreduce(&mine, &any, 1, MPI_CHAR, MPI_MAX, MPI_COMM_WORLD, request);
    });
    if (any) {
        throw error(mine ? disk.problem() : "another rank could not write to its disk");
    }
}

/// Seconds of one exchange: the median of a few, on rank 0.
double exchange_seconds(Network& network, int bytes) {
    std::array<double, 5> trials{};
    for (double& trial : trials) {
        network.exchange(0);  // so that all begin together
        const double start = MPI_Wtime();
        network.exchange(bytes);
        trial = MPI_Wtime() - start;
    }
    std::sort(trials.begin(), trials.end());
    return trials[trials.size() / 2];
}

/// Bytes with which an exchange takes `seconds`, nearly: by rule of three, a few times.
int bytes_for(Network& network, double seconds, Waiting waiting) {
    double bytes = 100'000;
    for (int round = 0; round < 6; ++round) {
        const double took = exchange_seconds(network, static_cast<int>(bytes));
        const double scaled = bytes * std::clamp(seconds / took, 0.1, 10.0);
        const auto next = static_cast<std::uint64_t>(std::clamp(scaled, 1.0, static_cast<double>(most_bytes)));
        bytes = static_cast<double>(from_rank_0(next, waiting));
    }
    return static_cast<int>(bytes);
}

void bsp(const Settings& settings) {
    const World world;
    const Partners partners = settings.flows.empty()
                                  ? partners_in(settings.pattern, world.rank(), world.ranks())
                                  : partners_by(settings.flows, world.rank(), world.ranks());
    Network network(partners, settings.iterations.waiting());
    Work work(static_cast<std::size_t>(settings.working_set) << 20);
    Disk disk(settings.disk_file + "." + std::to_string(world.rank()),
              static_cast<std::size_t>(settings.disk_mib) << 20);

    const Waiting waiting = settings.iterations.waiting();
    if (settings.disk_mib > 0) {
        check(disk, waiting);
    }
    const std::uint64_t rate = from_rank_0(work.steps_per_second(), waiting);
    const std::uint64_t steps = settings.steps > 0 ? static_cast<std::uint64_t>(settings.steps) * 1'000
                                                   : rate * settings.compute / 1'000;
    const int supersteps = settings.granularity;
    const double computing = static_cast<double>(steps) / static_cast<double>(rate);
    const int bytes = settings.ratio > 0
                          ? bytes_for(network, computing / settings.ratio / supersteps, waiting)
                          : settings.bytes / supersteps;
    if (world.rank() == 0) {
        std::printf("steps %llu\nbytes %lld\n", static_cast<unsigned long long>((steps + 500) / 1'000),
                    static_cast<long long>(bytes) * supersteps);
        std::fflush(stdout);
    }
    const double more = settings.imbalance / 100.0 * world.rank() / std::max(world.ranks() - 1, 1);
    const auto mine = static_cast<std::uint64_t>(static_cast<double>(steps) * (1 + more) / supersteps);
    run_iterations(settings.iterations, world, [&](int) {
        for (int superstep = 0; superstep < supersteps; ++superstep) {
            work.compute(mine);
            network.exchange(bytes);
        }
        if (settings.disk_mib > 0) {
            disk.write();
            check(disk, waiting);
        }
    });
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("bsp", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::bsp(settings);
        }
    });
}
