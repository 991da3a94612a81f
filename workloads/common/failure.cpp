#include "common/failure.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

namespace workload {

namespace {

constexpr const char* no_memory = "not enough memory";

std::string program;

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

// One rank alone may lack memory. If that ended as after a Failure, it would wait in MPI_Finalize for the others, and
// they for what it does not send any more.
void end_without_memory() {
    if (!mpi_is_running()) {
        throw std::bad_alloc();
    }
    std::fprintf(stderr, "%s: %s\n", program.c_str(), no_memory);
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::error));
    std::abort();
}

}  // namespace

std::string short_form(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

int run_program(const std::string& name, const std::function<void()>& body) {
    program = name;
    std::set_new_handler(end_without_memory);
    try {
        body();
        return static_cast<int>(ExitCode::done);
    } catch (const Failure& failure) {
        return end_with(name, failure.code, failure.what());
    } catch (const std::bad_alloc&) {
        return end_with(name, ExitCode::error, no_memory);
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
