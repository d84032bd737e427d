// Measures Open MPI's collectives like the OSU benchmarks: each operation alone, with an untimed barrier between operations
// (except for the barrier itself), and the mean over all iterations and ranks. Prints one JSON line per primitive and size.
//
// collectives ALLREDUCE|BROADCAST|BARRIER BYTES ITERATIONS [BYTES ITERATIONS]...
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *why) {
    fprintf(stderr, "collectives: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void measure(const char *primitive, size_t bytes, int iterations, int rank, int size) {
    const int elements = (int)(bytes / sizeof(float));
    const int warm_up = iterations / 10 + 2;
    float *in = calloc(elements + 1, sizeof(float)), *out = calloc(elements + 1, sizeof(float));
    if (!in || !out)
        fail("no memory");
    double mine = 0;
    for (int turn = -warm_up; turn < iterations; turn++) {
        for (int i = 0; i < elements; i++)
            in[i] = (float)(rank + i % 7);
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        if (!strcmp(primitive, "allreduce"))
            MPI_Allreduce(in, out, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else if (!strcmp(primitive, "broadcast"))
            MPI_Bcast(in, elements, MPI_FLOAT, 0, MPI_COMM_WORLD);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        if (turn >= 0)
            mine += (MPI_Wtime() - start) * 1e6 / iterations;
    }
    const float last = (float)((elements - 1) % 7);
    if (!strcmp(primitive, "allreduce") && elements && out[elements - 1] != size * last + size * (size - 1) / 2)
        fail("AllReduce gave a wrong sum");
    if (!strcmp(primitive, "broadcast") && elements && in[elements - 1] != last)
        fail("Broadcast gave wrong bytes");
    double sum = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"primitive\":\"%s\",\"bytes\":%zu,\"iterations\":%d,\"us\":%.2f}\n", primitive, bytes, iterations,
               sum / size);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 2; i + 1 < argc; i += 2)
        measure(argv[1], strtoull(argv[i], NULL, 10), atoi(argv[i + 1]), rank, size);
    MPI_Finalize();
    return 0;
}
