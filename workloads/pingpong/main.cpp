// Two ranks exchange messages of a fixed size (section 5.2 of MPICH-GQ).

#include <cstdio>

#include "common/qos.hpp"
#include "common/samples.hpp"
#include "common/world.hpp"

namespace workload {

namespace {

constexpr const char* story =
    "pingpong sends a message from each even rank to the next odd one and back, again\n"
    "and again. Start it on an even number of ranks; every pair goes on by itself.\n"
    "Prints for the first pair `round_trip_us P50 P99` and `one_way_mbit RATE`.";

constexpr const char* examples =
    "Examples:\n"
    "  mpirun -n 2 pingpong --bytes 131072 --seconds 5\n"
    "  mpirun -n 2 pingpong --bytes 131072 --qos premium --kbps 20000\n";

struct Settings {
    int bytes = 8;
    double seconds = 2;
    int warmup = 20;
    QosOptions qos;
};

bool read_settings(int argc, char** argv, Settings& settings) {
    Options options("pingpong", story, examples);
    options.number("--bytes", &settings.bytes, 0, 1 << 30, "bytes of a message");
    options.real("--seconds", &settings.seconds, 0.01, 3600, "how long it goes on");
    options.number("--warmup", &settings.warmup, 0, 1'000'000, "exchanges before, not counted");
    settings.qos.declare(options);
    return options.parse(argc, argv);
}

class Exchange {
  public:
    Exchange(const World& world, int bytes) : peer_(world.rank() ^ 1), leads_(world.rank() % 2 == 0), data_(bytes) {}

    /// One round trip; false when the leader has said that it was the last.
    bool once(bool is_last) {
        const int size = static_cast<int>(data_.size());
        MPI_Status status;
        if (leads_) {
            MPI_Send(data_.data(), size, MPI_BYTE, peer_, is_last, MPI_COMM_WORLD);
            MPI_Recv(data_.data(), size, MPI_BYTE, peer_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            return !is_last;
        }
        MPI_Recv(data_.data(), size, MPI_BYTE, peer_, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Send(data_.data(), size, MPI_BYTE, peer_, 0, MPI_COMM_WORLD);
        return status.MPI_TAG == 0;
    }

    bool leads() const { return leads_; }

  private:
    int peer_;
    bool leads_;
    std::vector<char> data_;
};

void play(const Settings& settings) {
    const World world;
    world.require(world.ranks() % 2 == 0, "an even number");
    settings.qos.ask(MPI_COMM_WORLD, settings.bytes);
    Exchange exchange(world, settings.bytes);
    for (int round = 0; round < settings.warmup; ++round) {
        exchange.once(false);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    Samples trips;
    const double start = MPI_Wtime();
    double before = start, now = start;
    for (bool goes_on = true; goes_on; before = now) {
        goes_on = exchange.once(exchange.leads() && before - start >= settings.seconds);
        now = MPI_Wtime();
        trips.add(now - before);
    }
    if (world.tells()) {
        std::printf("round_trip_us %.2f %.2f\n", trips.quantile(0.5) * 1e6, trips.quantile(0.99) * 1e6);
        // Of all of the time: what is slow now and then counts.
        std::printf("one_way_mbit %.3f\n", settings.bytes * 8e-6 * 2 * trips.count() / (now - start));
    }
}

}  // namespace

}  // namespace workload

int main(int argc, char** argv) {
    return workload::run_program("pingpong", [&] {
        workload::Settings settings;
        if (workload::read_settings(argc, argv, settings)) {
            workload::play(settings);
        }
    });
}
