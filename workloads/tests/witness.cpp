// Preloaded into a program, tells at its end what the rank sent: lines `sent FROM TO BYTES` on stderr.
// The programs send with MPI_Isend only; the other ways of MPI-3.1 that a change might take are refused.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

std::map<int, long> bytes_to;

int refuse(const char* what) {
    std::fprintf(stderr, "witness: %s was called\n", what);
    std::abort();
}

}  // namespace

extern "C" {

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
    int size = 0;
    PMPI_Type_size(type, &size);
    bytes_to[to] += static_cast<long>(count) * size;
    return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}

int MPI_Finalize() {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (const auto& [to, bytes] : bytes_to) {
        std::fprintf(stderr, "sent %d %d %ld\n", rank, to, bytes);
    }
    std::fflush(stderr);
    return PMPI_Finalize();
}

int MPI_Send(const void*, int, MPI_Datatype, int, int, MPI_Comm) { return refuse("MPI_Send"); }
int MPI_Sendrecv(const void*, int, MPI_Datatype, int, int, void*, int, MPI_Datatype, int, int, MPI_Comm,
                 MPI_Status*) { return refuse("MPI_Sendrecv"); }
int MPI_Barrier(MPI_Comm) { return refuse("MPI_Barrier"); }
int MPI_Bcast(void*, int, MPI_Datatype, int, MPI_Comm) { return refuse("MPI_Bcast"); }
int MPI_Reduce(const void*, void*, int, MPI_Datatype, MPI_Op, int, MPI_Comm) { return refuse("MPI_Reduce"); }
int MPI_Allreduce(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) { return refuse("MPI_Allreduce"); }
int MPI_Gather(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, int, MPI_Comm) {
    return refuse("MPI_Gather");
}

}  // extern "C"
