// The declarations of rocBLAS that the examples use, to check their text on machines without ROCm.
#pragma once
#include <hip/hip_runtime_api.h>
extern "C" {
typedef struct _rocblas_handle *rocblas_handle;
typedef int rocblas_int;
typedef enum { rocblas_status_success = 0 } rocblas_status;
rocblas_status rocblas_create_handle(rocblas_handle *handle);
rocblas_status rocblas_destroy_handle(rocblas_handle handle);
rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream);
rocblas_status rocblas_saxpy(rocblas_handle handle, rocblas_int n, const float *alpha, const float *x, rocblas_int incx, float *y, rocblas_int incy);
}
