// The declarations of HIP that the examples use, to check their text on machines without ROCm.
#pragma once
#include <stddef.h>
extern "C" {
typedef struct ihipStream_t *hipStream_t;
typedef enum { hipSuccess = 0 } hipError_t;
enum hipMemcpyKind { hipMemcpyHostToDevice = 1 };
hipError_t hipStreamCreate(hipStream_t *stream);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipMalloc(void **pointer, size_t bytes);
hipError_t hipFree(void *pointer);
hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
}
