/*
 * Drives a network plugin of NCCL (interface version 11) as NCCL does between two ranks, with host memory: two processes, messages of
 * many sizes both ways, every byte compared. Usage: net PLUGIN.so
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"
#include "net.h"

#define ROUNDS 120
#define IN_FLIGHT 4
#define MOST (1 << 20)

#define OR_END(call)                                                      \
    do {                                                                  \
        ncclResult_t result = (call);                                     \
        if (result != ncclSuccess) {                                      \
            fprintf(stderr, "%d: %s is %d\n", getpid(), #call, result);   \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    if (level > NCCL_LOG_WARN)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

static size_t size_of(int round)
{
    static const size_t sizes[] = {0, 1, 8, 100, 4096, 5000, 65536, 300001, MOST};
    return sizes[round % (int)(sizeof sizes / sizeof *sizes)];
}

static unsigned char byte_of(int rank, int round, size_t at)
{
    return (unsigned char)(at * 31 + (at >> 8) + (size_t)round * 7 + (size_t)rank * 101);
}

struct way {
    void *comm, *memory, *region;
};

static struct way prepare(ncclNet_v11_t *net, void *comm)
{
    struct way way = {.comm = comm};
    if (posix_memalign(&way.memory, 4096, (size_t)IN_FLIGHT * MOST))
        exit(1);
    memset(way.memory, 0, (size_t)IN_FLIGHT * MOST);
    OR_END(net->regMr(comm, way.memory, (size_t)IN_FLIGHT * MOST, NCCL_PTR_HOST, &way.region));
    return way;
}

static void *slot(struct way *way, int round)
{
    return (char *)way->memory + (size_t)(round % IN_FLIGHT) * MOST;
}

/* Sends and receives all rounds, several at a time. */
static void exchange(ncclNet_v11_t *net, int rank, struct way *to, struct way *from)
{
    void *sends[IN_FLIGHT] = {0}, *receives[IN_FLIGHT] = {0};
    int sent = 0, received = 0, began_send = 0, began_receive = 0;
    while (sent < ROUNDS || received < ROUNDS) {
        if (began_receive < ROUNDS && began_receive < received + IN_FLIGHT) {
            void *data = slot(from, began_receive), **request = &receives[began_receive % IN_FLIGHT];
            size_t size = MOST;
            int tag = began_receive;
            void *unused = NULL;
            memset(data, 0xee, MOST);
            OR_END(net->irecv(from->comm, 1, &data, &size, &tag, &from->region, &unused, request));
            began_receive += *request != NULL;
        }
        if (began_send < ROUNDS && began_send < sent + IN_FLIGHT) {
            unsigned char *data = slot(to, began_send);
            size_t size = size_of(began_send);
            for (size_t at = 0; at < size; at++)
                data[at] = byte_of(rank, began_send, at);
            void **request = &sends[began_send % IN_FLIGHT];
            OR_END(net->isend(to->comm, data, size, began_send, to->region, NULL, request));
            began_send += *request != NULL;
        }
        int done = 0, size = -1;
        if (sent < began_send) {
            OR_END(net->test(sends[sent % IN_FLIGHT], &done, &size));
            sent += done;
        }
        done = 0;
        if (received < began_receive) {
            OR_END(net->test(receives[received % IN_FLIGHT], &done, &size));
            if (!done)
                continue;
            unsigned char *data = slot(from, received);
            size_t expected = size_of(received);
            int right = (size_t)size == expected;
            for (size_t at = 0; right && at < MOST; at++)
                right = data[at] == (at < expected ? byte_of(1 - rank, received, at) : 0xee);
            if (!right) {
                fprintf(stderr, "rank %d, message %d: %d bytes, %zu expected, or others\n", rank, received, size, expected);
                exit(1);
            }
            received++;
        }
    }
}

int main(int argc, char **argv)
{
    int pipes[2][2];
    if (argc != 2 || pipe(pipes[0]) || pipe(pipes[1]))
        return 2;
    pid_t child = fork();
    int rank = child == 0;
    /* It also calls functions of newer mlx5 libraries, for their devices alone. */
    void *plugin = dlopen(argv[1], RTLD_LAZY);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    ncclNet_v11_t *net = dlsym(plugin, "ncclNetPlugin_v11");
    if (!net)
        return 2;
    void *context = NULL, *listener, *to = NULL, *from = NULL;
    ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    OR_END(net->init(&context, 1, &config, logger, NULL));
    int devices = 0;
    OR_END(net->devices(&devices));
    ncclNetProperties_v11_t properties;
    OR_END(net->getProperties(0, &properties));
    if (devices < 1 || strncmp(properties.name, "spindrift", 9)) {
        fprintf(stderr, "%d devices, the first is %s\n", devices, properties.name);
        return 1;
    }
    char own[NCCL_NET_HANDLE_MAXSIZE], peer[NCCL_NET_HANDLE_MAXSIZE];
    memset(own, 0, sizeof own);
    OR_END(net->listen(context, 0, own, &listener));
    if (write(pipes[rank][1], own, sizeof own) != sizeof own || read(pipes[1 - rank][0], peer, sizeof peer) != sizeof peer)
        return 2;
    while (!to || !from) {
        if (!to)
            OR_END(net->connect(context, 0, peer, &to, NULL));
        if (!from)
            OR_END(net->accept(listener, &from, NULL));
    }
    struct way sends = prepare(net, to), receives = prepare(net, from);
    exchange(net, rank, &sends, &receives);
    /* Both are done before either closes. */
    char done = 1;
    if (write(pipes[rank][1], &done, 1) != 1 || read(pipes[1 - rank][0], &done, 1) != 1)
        return 2;
    OR_END(net->deregMr(to, sends.region));
    OR_END(net->deregMr(from, receives.region));
    OR_END(net->closeSend(to));
    OR_END(net->closeRecv(from));
    OR_END(net->closeListen(listener));
    if (rank)
        return 0;
    int status = 1;
    waitpid(child, &status, 0);
    if (status == 0)
        printf("%d messages each way over %s\n", ROUNDS, properties.name);
    return status != 0;
}
