/*
 * A synchronous training job in MPI: each rank computes a gradient, all add theirs up over a ring, and all take the same step. Usage:
 * train STEPS [FILE]. Rank 0 writes a line, to the file or to standard output, for each step:
 * the time in seconds since 1970, the step and the loss; at the end a sum of all weights' bits. Everything follows from a seed and the number of ranks, so that two runs end with the same weights, to the bit.
 */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INPUTS = 32, HIDDEN = 512, BATCH = 16, WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN, TAG = 9 };
static const float RATE = 0.05f;

static float weights[WEIGHTS];
/* The last element is the loss. */
static float gradient[WEIGHTS + 1];

/* A number from -1 to 1, by SplitMix64. */
static float draw(uint64_t *state)
{
    uint64_t mixed = *state += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    return (float)(mixed >> 40) / (1 << 23) - 1.0f;
}

static void learn_from(uint64_t *state)
{
    float inputs[INPUTS], hidden[HIDDEN], target = 0.0f;
    for (int i = 0; i < INPUTS; i++)
        inputs[i] = draw(state);
    for (int i = 0; i < INPUTS; i += 2)
        target += inputs[i] * inputs[i + 1];
    const float *biases = weights + INPUTS * HIDDEN, *outer = biases + HIDDEN;
    float found = 0.0f;
    for (int h = 0; h < HIDDEN; h++) {
        float sum = biases[h];
        for (int i = 0; i < INPUTS; i++)
            sum += weights[h * INPUTS + i] * inputs[i];
        hidden[h] = tanhf(sum);
        found += outer[h] * hidden[h];
    }
    float error = found - target;
    for (int h = 0; h < HIDDEN; h++) {
        float back = error * outer[h] * (1.0f - hidden[h] * hidden[h]);
        for (int i = 0; i < INPUTS; i++)
            gradient[h * INPUTS + i] += back * inputs[i];
        gradient[INPUTS * HIDDEN + h] += back;
        gradient[INPUTS * HIDDEN + HIDDEN + h] += error * hidden[h];
    }
    gradient[WEIGHTS] += error * error;
}

/* The sum over all ranks, in the same order on each: parts travel around the ring, first to be added up, then to be copied. */
static void add_up(float *values, int count, int rank, int ranks)
{
    int part = (count + ranks - 1) / ranks, to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    static float incoming[WEIGHTS + 1];
    for (int step = 0; step < 2 * (ranks - 1); step++) {
        int out = (rank - step + 2 * ranks) % ranks, in = (rank - step - 1 + 2 * ranks) % ranks;
        int first = in * part, size = first + part > count ? count - first : part;
        int out_first = out * part, out_size = out_first + part > count ? count - out_first : part;
        MPI_Sendrecv(values + out_first, out_size, MPI_FLOAT, to, TAG, incoming, size, MPI_FLOAT, from, TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (step < ranks - 1)
            for (int i = 0; i < size; i++)
                values[first + i] += incoming[i];
        else
            memcpy(values + first, incoming, size * sizeof *values);
    }
}

int main(int argc, char **argv)
{
    int rank, ranks, steps = argc > 1 ? atoi(argv[1]) : 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    FILE *out = rank == 0 && argc > 2 ? fopen(argv[2], "w") : stdout;
    if (!out) {
        perror(argv[2]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    uint64_t state = 1;
    for (int i = 0; i < WEIGHTS; i++)
        weights[i] = draw(&state) / sqrtf(INPUTS);
    for (int step = 1; step <= steps; step++) {
        memset(gradient, 0, sizeof gradient);
        uint64_t data = (uint64_t)step << 32 | (uint64_t)rank << 16;
        for (int sample = 0; sample < BATCH; sample++)
            learn_from(&data);
        add_up(gradient, WEIGHTS + 1, rank, ranks);
        for (int i = 0; i < WEIGHTS; i++)
            weights[i] -= RATE / (BATCH * ranks) * gradient[i];
        if (rank == 0) {
            struct timespec now;
            clock_gettime(CLOCK_REALTIME, &now);
            fprintf(out, "%ld.%06ld %d %.6f\n", (long)now.tv_sec, now.tv_nsec / 1000, step, gradient[WEIGHTS] / (BATCH * ranks));
            fflush(out);
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        sum = sum * 31 + bits;
    }
    uint64_t least, most;
    MPI_Reduce(&sum, &least, 1, MPI_UINT64_T, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&sum, &most, 1, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        fprintf(out, "weights %016llx%s\n", (unsigned long long)sum, least == most ? "" : " that differ from rank to rank");
    MPI_Finalize();
    return 0;
}
