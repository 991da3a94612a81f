#include "common/qos.hpp"

#include <keeptime_mpi.h>

#include <cstdio>

namespace workload {

void QosOptions::declare(Options& options) {
    options.choice("--qos", &class_, {"none", "best-effort", "low-latency", "premium"},
                   "class that the program asks for by the attribute KEEPTIME_QOS; none: it asks for nothing");
    options.real("--kbps", &kbps_, 0, 1e9, "with --qos: payload from each rank to each other, in kbit/s");
    options.choice("--shaping", &shaping_, {"on", "off"},
                   "with --qos: whether messages are paced to the rate or leave at line speed");
}

void QosOptions::ask(MPI_Comm comm, std::uint64_t bytes) const {
    if (class_ == "none") {
        return;
    }
    // Without the library MPI keeps the pointer itself.
    static keeptime_qos qos = KEEPTIME_QOS_INIT;
    qos.qos_class = class_ == "premium"       ? KEEPTIME_PREMIUM
                    : class_ == "low-latency" ? KEEPTIME_LOW_LATENCY
                                              : KEEPTIME_BEST_EFFORT;
    qos.bandwidth_kbps = kbps_;
    qos.max_message_size = bytes;
    qos.options = shaping_ == "off" ? KEEPTIME_UNSHAPED : 0;
    MPI_Comm_set_attr(comm, KEEPTIME_QOS, &qos);
    keeptime_qos* granted = nullptr;
    int there = 0, rank = 0;
    MPI_Comm_get_attr(comm, KEEPTIME_QOS, &granted, &there);
    MPI_Comm_rank(comm, &rank);
    if (rank != 0 || !there) {
        return;
    }
    static constexpr const char* states[] = {"not-asked", "waiting", "granted", "refused"};
    std::printf("qos %s %.0f\n", states[granted->state & 3], granted->reserved_kbps);
    std::fflush(stdout);
    if (granted->reason[0] != '\0') {
        std::fprintf(stderr, "qos: %s\n", granted->reason);
    }
}

}  // namespace workload
