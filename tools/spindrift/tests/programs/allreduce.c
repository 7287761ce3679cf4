/* An MPI program that checks itself: sums of many sizes over all ranks, messages around a ring, and a counter that all ranks add to. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                   \
    do {                                                                   \
        if (!(condition)) {                                                \
            printf("rank %d: %s is not true\n", rank, #condition);         \
            MPI_Abort(MPI_COMM_WORLD, 3);                                  \
        }                                                                  \
    } while (0)

static int rank, ranks;

static void sums(void) {
    for (int count = 1; count <= 1 << 18; count *= 8) {
        double *own = malloc(count * sizeof *own), *sum = malloc(count * sizeof *sum);
        for (int i = 0; i < count; i++)
            own[i] = rank + i;
        MPI_Allreduce(own, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            CHECK(sum[i] == (double)ranks * i + ranks * (ranks - 1) / 2.0);
        free(own);
        free(sum);
    }
}

static void ring(void) {
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int bytes = 1; bytes <= 1 << 21; bytes *= 8) {
        unsigned char *out = malloc(bytes), *in = malloc(bytes);
        for (int i = 0; i < bytes; i++)
            out[i] = (unsigned char)(rank * 31 + i % 251);
        MPI_Sendrecv(out, bytes, MPI_BYTE, to, 7, in, bytes, MPI_BYTE, from, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < bytes; i++)
            CHECK(in[i] == (unsigned char)(from * 31 + i % 251));
        free(out);
        free(in);
    }
}

static void counter(void) {
    long count = 0, one = 1, before;
    MPI_Win window;
    MPI_Win_create(&count, sizeof count, sizeof count, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < 10; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        CHECK(count == 10L * ranks);
    MPI_Win_free(&window);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    sums();
    ring();
    counter();
    if (rank == 0)
        printf("right on %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
