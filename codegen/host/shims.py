"""The C shims that host programs call: prototypes by name, all present in torch 2.11 to 2.13 unless marked optional."""

from __future__ import annotations

from collections.abc import Mapping

from precast.lowering.ir.sizes import Unsupported

_SIZES = "const int64_t*, int64_t"

SHIMS: dict[str, str] = {
    "aoti_torch_get_data_ptr": "int32_t(*)(void*, void**)",
    "aoti_torch_get_strides": "int32_t(*)(void*, int64_t**)",
    "aoti_torch_get_sizes": "int32_t(*)(void*, int64_t**)",
    "aoti_torch_get_dim": "int32_t(*)(void*, int64_t*)",
    "aoti_torch_empty_strided": "int32_t(*)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**)",
    "aoti_torch_create_tensor_from_blob": (
        "int32_t(*)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**)"
    ),
    "aoti_torch__reinterpret_tensor": "int32_t(*)(void*, int64_t, const int64_t*, const int64_t*, int64_t, void**)",
    "aoti_torch_get_storage_offset": "int32_t(*)(void*, int64_t*)",
    "aoti_torch_new_tensor_handle": "int32_t(*)(void*, void**)",
    "aoti_torch_delete_tensor_object": "int32_t(*)(void*)",
    "aoti_torch_clone": "int32_t(*)(void*, void**)",
    "aoti_torch_copy_": "int32_t(*)(void*, void*, int32_t)",
    "aoti_torch_cpu_addmm_out": "int32_t(*)(void*, void*, void*, void*, double, double)",
    "aoti_torch_cpu_baddbmm_out": "int32_t(*)(void*, void*, void*, void*, double, double)",
    "aoti_torch_cpu_mm_out": "int32_t(*)(void*, void*, void*)",
    "aoti_torch_cpu_bmm_out": "int32_t(*)(void*, void*, void*)",
    "aoti_torch_cpu__linear_pointwise": "int32_t(*)(void*, void*, void**, const char*, const double**, int64_t, const char**, void**)",
    "aoti_torch_cpu__linear_pointwise_binary": "int32_t(*)(void*, void*, void*, void**, const char*, void**)",
    "aoti_torch_cpu_convolution": (f"int32_t(*)(void*, void*, void**, {_SIZES}, {_SIZES}, {_SIZES}, int32_t, {_SIZES}, int64_t, void**)"),
    "aoti_torch_cpu_mkldnn__convolution_pointwise": (
        "int32_t(*)(void*, void*, void**, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int64_t, "
        "const char*, const double**, int64_t, const char**, void**)"
    ),
    "aoti_torch_cpu_mkldnn__convolution_pointwise_binary": (
        "int32_t(*)(void*, void*, void*, void**, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int64_t, "
        "const char*, double*, const char**, const double**, int64_t, const char**, void**)"
    ),
    "aoti_torch_cpu_mkldnn__convolution_pointwise_binary_": (
        "int32_t(*)(void*, void*, void*, void**, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int64_t, "
        "const char*, double*, const char**, const double**, int64_t, const char**, void**)"
    ),
    "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu": (
        "int32_t(*)(void*, void*, void*, double, int32_t, void**, double*, void**, void**)"
    ),
    "torch_call_dispatcher": "int32_t(*)(const char*, const char*, uint64_t*, uint64_t)",
    "torch_new_list_reserve_size": "int32_t(*)(__SIZE_TYPE__, void**)",
    "torch_list_push_back": "int32_t(*)(void*, uint64_t)",
    "aoti_torch_grad_mode_is_enabled": "bool(*)()",
    "aoti_torch_grad_mode_set_enabled": "void(*)(bool)",
    "torch_get_num_threads": "int32_t(*)(uint32_t*)",
    "?torch_exception_get_what_without_backtrace": "const char*(*)()",
    "precast_call_python": "int32_t(*)(int64_t, void**, int64_t, const int64_t*, int64_t, void**, int64_t, char*, int64_t)",
}
"""Function type by symbol. A leading `?` marks an optional symbol: its slot holds NULL where torch lacks it."""

DISPATCHER = frozenset({"torch_call_dispatcher", "torch_new_list_reserve_size", "torch_list_push_back"})
"""Without these, operators are called through Python."""


class SymbolTable:
    """Numbers the shims that a host program uses, in order of first use; `prototypes` are those that it may."""

    def __init__(self, prototypes: Mapping[str, str] = SHIMS) -> None:
        self.prototypes = prototypes
        self.names: list[str] = []

    def use(self, name: str) -> str:
        """Registers `name` and returns the identifier under which generated code calls it."""
        key = name if name in self.prototypes else f"?{name}"
        if key not in self.prototypes:
            raise KeyError(f"no prototype for shim {name}")
        if key not in self.names:
            self.names.append(key)
        return name

    def require(self, missing: frozenset[str]) -> None:
        """Raises Unsupported where a name that is used is among `missing`."""
        if lacking := [name for name in self.names if name in missing]:
            raise Unsupported(f"generated code for it calls {', '.join(lacking)}, which this torch does not have")

    def definitions(self) -> str:
        """Macros that map each used name to its table slot (`table` is in scope in every entry point)."""
        lines = [f"#define {name.removeprefix('?')} (({self.prototypes[name]})table[{number}])" for number, name in enumerate(self.names)]
        quoted = "".join(f'"{n}", ' for n in self.names)
        return "\n".join([*lines, f'extern "C" const char* const precast_symbols[] = {{{quoted}0}};'])
