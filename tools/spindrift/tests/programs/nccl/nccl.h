/* The part of NCCL's header that network plugins use. */
#ifndef SPINDRIFT_TEST_NCCL_H
#define SPINDRIFT_TEST_NCCL_H
#include <stddef.h>
#include <stdint.h>

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
#endif
