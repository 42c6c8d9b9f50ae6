// A rank of MPI: it says what it sees, after all ranks have met.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

int main(int argc, char **argv) {
    int rank, sum;
    char line[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    int length = snprintf(line, sizeof line, "RANK=%d SUM=%d CUDA=%s F=%s N=%s\n", rank, sum,
                          variable("CUDA_VISIBLE_DEVICES"), variable("GPUFRAC_FRACTION"),
                          variable("SLURMD_NODENAME"));
    // One write, so that the lines of ranks do not mix.
    if (write(STDOUT_FILENO, line, length) != length)
        return 1;
    return MPI_Finalize();
}
