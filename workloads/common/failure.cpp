#include "common/failure.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace workload {

namespace {

bool mpi_is_running() {
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised && !finalised;
}

int end_with(const std::string& name, ExitCode code, const char* line) {
    if (speaks_for_all()) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), line);
    } else {
        // Launchers end the job when the first rank fails: let rank 0 say why before that.
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    if (mpi_is_running()) {
        MPI_Finalize();
    }
    return static_cast<int>(code);
}

}  // namespace

int run_program(const std::string& name, const std::function<void()>& body) {
    try {
        body();
        return static_cast<int>(ExitCode::done);
    } catch (const Failure& failure) {
        return end_with(name, failure.code, failure.what());
    } catch (const std::bad_alloc&) {
        return end_with(name, ExitCode::error, "not enough memory");
    }
}

bool speaks_for_all() {
    if (mpi_is_running()) {
        int rank = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return rank == 0;
    }
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
        if (const char* rank = std::getenv(name)) {
            return std::atoi(rank) == 0;
        }
    }
    return true;
}

}  // namespace workload
