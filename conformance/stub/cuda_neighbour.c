/* Calls that onebuf never makes, and other users of the driver (cudarc) do: they wait, or are older forms of others. */
#include "cuda_stub.h"

EXPORT status cuGetErrorName(status s, const char **name);
EXPORT status cuStreamQuery(void *stream);
EXPORT status cuEventQuery(void *event);
EXPORT status cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values);

EXPORT status cuGetErrorString(status s, const char **text) { return cuGetErrorName(s, text); }

EXPORT status cuModuleLoadData(void **module, const void *image)
{
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

EXPORT status cuStreamSynchronize(void *stream)
{
    status s;
    while ((s = cuStreamQuery(stream)) == NOT_READY) nap(50);
    return s;
}

EXPORT status cuEventSynchronize(void *event)
{
    status s;
    while ((s = cuEventQuery(event)) == NOT_READY) nap(50);
    return s;
}

/* Of all streams, the legacy default one is waited for. */
EXPORT status cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }
