// Measures Open MPI's collectives as `castnet-lab bench` measures ours: each call alone, all ranks begin together, as many calls as
// fit in a budget, at least 3 and at most 1000. Prints one JSON line per collective and size: the mean over ranks of the medians.
//
// collectives BUDGET_SECONDS NAME BYTES [NAME BYTES]...
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static float *in, *out;

static void fail(const char *why) {
    fprintf(stderr, "collectives: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

// `n` elements of a block for reducescatter and allgather, of the whole for the others.
static void call(const char *name, int n) {
    if (!strcmp(name, "allreduce"))
        MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(name, "reduce"))
        MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else if (!strcmp(name, "broadcast"))
        MPI_Bcast(in, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (!strcmp(name, "reducescatter"))
        MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(name, "allgather"))
        MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    else if (!strcmp(name, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    else
        fail("unknown collective");
}

static double timed(const char *name, int n) {
    if (strcmp(name, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    call(name, n);
    return MPI_Wtime() - start;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(double budget, const char *name, size_t bytes) {
    const int in_blocks = !strcmp(name, "reducescatter") || !strcmp(name, "allgather");
    const size_t elements = bytes / sizeof(float);
    const int n = (int)(in_blocks ? elements / size : elements), warm_up = 5;
    in = calloc(elements + 1, sizeof(float)), out = calloc(elements + 1, sizeof(float));
    if (!in || !out)
        fail("no memory");
    for (size_t i = 0; i < elements; i++)
        in[i] = (float)(rank + i % 7);
    double start = MPI_Wtime();
    for (int i = 0; i < warm_up; i++)
        timed(name, n);
    double each = (MPI_Wtime() - start) / warm_up, slowest;
    MPI_Allreduce(&each, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double calls = budget / slowest;
    const int iterations = calls < 3 ? 3 : calls > 1000 ? 1000 : (int)calls;
    double *times = calloc(iterations, sizeof(double)), sum = 0;
    if (!times)
        fail("no memory");
    for (int i = 0; i < iterations; i++)
        times[i] = timed(name, n);
    if (!strcmp(name, "allreduce") && n && out[n - 1] != size * (float)((n - 1) % 7) + size * (size - 1) / 2)
        fail("AllReduce gave a wrong sum");
    qsort(times, iterations, sizeof(double), ascending);
    MPI_Reduce(&times[iterations / 2], &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"collective\":\"%s\",\"bytes\":%zu,\"iterations\":%d,\"time_median_us\":%.2f}\n", name,
               in_blocks ? n * size * sizeof(float) : n * sizeof(float), iterations, sum / size * 1e6);
    free(times);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    // Until processes have settled on their cores, calls take longer.
    for (int i = 0; i < 500; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 2; i + 1 < argc; i += 2)
        measure(atof(argv[1]), argv[i], strtoull(argv[i + 1], NULL, 10));
    MPI_Finalize();
    return 0;
}
