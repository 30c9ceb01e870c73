"""What host programs for CUDA call beside `codegen/host/shims.py`: torch's shims of libtorch_cuda and the driver's own functions.

The driver's prototypes follow its documentation, handles as pointers: no CUDA header is needed, and build machines have none.
"""

from __future__ import annotations

from precast.codegen.host.shims import SHIMS

_INTS = "const int64_t*, int64_t"
_NINE = "void**, void**, void**, void**, int64_t*, int64_t*, void**, void**, void**"

ROWS_SHIMS = {
    "cuMemFree_v2": "int(*)(uint64_t)",
    "cuMemHostAlloc": "int(*)(void**, __SIZE_TYPE__, unsigned)",
    "cuMemFreeHost": "int(*)(void*)",
    "cuMemcpyHtoDAsync_v2": "int(*)(uint64_t, const void*, __SIZE_TYPE__, void*)",
    "cuStreamIsCapturing": "int(*)(void*, int*)",
    "cuStreamWaitEvent": "int(*)(void*, void*, unsigned)",
    "cuEventCreate": "int(*)(void**, unsigned)",
    "cuEventQuery": "int(*)(void*)",
    "cuEventSynchronize": "int(*)(void*)",
}
"""What the launch of an update over many rows calls (`rows_launch.py`)."""

CUDA_SHIMS: dict[str, str] = {
    **SHIMS,
    "aoti_torch_get_device_index": "int32_t(*)(void*, int32_t*)",
    "aoti_torch_get_current_device_index": "int32_t(*)(int32_t*)",
    "aoti_torch_create_cuda_guard": "int32_t(*)(int32_t, void**)",
    "aoti_torch_delete_cuda_guard": "int32_t(*)(void*)",
    "aoti_torch_get_current_cuda_stream": "int32_t(*)(int32_t, void**)",
    "aoti_torch_cuda_caching_allocator_raw_alloc": "int32_t(*)(uint64_t, void**)",
    "aoti_torch_cuda_caching_allocator_raw_delete": "int32_t(*)(void*)",
    "aoti_torch_cuda_mm_out": "int32_t(*)(void*, void*, void*)",
    "aoti_torch_cuda_bmm_out": "int32_t(*)(void*, void*, void*)",
    "aoti_torch_cuda_addmm_out": "int32_t(*)(void*, void*, void*, void*, double, double)",
    "aoti_torch_cuda_baddbmm_out": "int32_t(*)(void*, void*, void*, void*, double, double)",
    "aoti_torch_cuda_convolution": f"int32_t(*)(void*, void*, void**, {_INTS}, {_INTS}, {_INTS}, int32_t, {_INTS}, int64_t, void**)",
    "aoti_torch_cuda__addmm_activation": "int32_t(*)(void*, void*, void*, double, double, int32_t, void**)",
    "aoti_torch_cuda__scaled_dot_product_flash_attention": f"int32_t(*)(void*, void*, void*, double, int32_t, int32_t, double*, {_NINE})",
    "aoti_torch_cuda__scaled_dot_product_cudnn_attention": (
        f"int32_t(*)(void*, void*, void*, void**, int32_t, double, int32_t, int32_t, double*, {_NINE})"
    ),
    "aoti_torch_cuda__scaled_dot_product_efficient_attention": (
        "int32_t(*)(void*, void*, void*, void**, int32_t, double, int32_t, double*, void**, void**, void**, void**)"
    ),
    "cuEventRecord": "int(*)(void*, void*)",
    "cuGetErrorName": "int(*)(int, const char**)",
    "cuGetErrorString": "int(*)(int, const char**)",
    "cuCtxGetCurrent": "int(*)(void**)",
    "cuCtxSetCurrent": "int(*)(void*)",
    "cuCtxSynchronize": "int(*)()",
    "cuDevicePrimaryCtxRetain": "int(*)(void**, int)",
    "cuModuleLoadDataEx": "int(*)(void**, const void*, unsigned, int*, void**)",
    "cuModuleGetFunction": "int(*)(void**, void*, const char*)",
    "cuFuncSetAttribute": "int(*)(void*, int, int)",
    "cuLaunchKernel": ("int(*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**)"),
    "cuMemAlloc_v2": "int(*)(uint64_t*, __SIZE_TYPE__)",
    "cuMemcpyHtoD_v2": "int(*)(uint64_t, const void*, __SIZE_TYPE__)",
    "cuMemsetD32Async": "int(*)(uint64_t, unsigned, __SIZE_TYPE__, void*)",
    "cuMemcpyDtoHAsync_v2": "int(*)(void*, uint64_t, __SIZE_TYPE__, void*)",
    "cuMemcpyDtoDAsync_v2": "int(*)(uint64_t, uint64_t, __SIZE_TYPE__, void*)",
    "cuStreamSynchronize": "int(*)(void*)",
    **ROWS_SHIMS,
}
"""Function type by symbol. Names that begin with `cu` come from the driver's library, which the runtime opens."""
