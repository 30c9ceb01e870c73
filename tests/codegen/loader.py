"""A minimal loader for compiled graphs: ctypes only, for tests of the code generator."""

from __future__ import annotations

import ctypes
import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

PYTHON_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip


TORCH_CPU = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


class Loaded:
    """Calls a compiled graph with tensors and ints; errors become RuntimeError or IndexError."""

    def __init__(self, library: bytes, n_outputs: int = 1) -> None:
        self.n_outputs = n_outputs
        self.file = tempfile.NamedTemporaryFile(suffix=".so", delete=False)
        self.file.write(library)
        self.file.close()
        self.dll = ctypes.CDLL(self.file.name)
        Path(self.file.name).unlink()
        self.externs: list[dict[str, Any]] = json.loads(
            ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.dll, "precast_externs")))
        )
        self.callback = PYTHON_CALL(self._python)
        names = (ctypes.c_char_p * 10_000).in_dll(self.dll, "precast_symbols")
        addresses = []
        for name in iter(names):
            if name is None:
                break
            addresses.append(self._resolve(name.decode()))
        self.table = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.state = ctypes.c_void_p(None)

    def _resolve(self, name: str) -> int | None:
        if name == "precast_call_python":
            return ctypes.cast(self.callback, ctypes.c_void_p).value
        try:
            return ctypes.cast(getattr(TORCH_CPU, name.removeprefix("?")), ctypes.c_void_p).value
        except AttributeError:
            if name.startswith("?"):
                return None
            raise

    def _python(
        self, number: int, tensors: Any, n_tensors: int, ints: Any, n_ints: int, outs: Any, n_outs: int, error: int, capacity: int
    ) -> int:
        try:
            values = [_handle_to_tensor(tensors[i]) for i in range(n_tensors)]
            record = self.externs[number]
            namespace, _, rest = record["op"].partition("::")
            name, _, overload = rest.partition(".")
            op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")

            def decode(item: Any) -> Any:
                if item is None:
                    return None
                kind, value = next(iter(item.items()))
                match kind:
                    case "t":
                        return values[value]
                    case "i":
                        return ints[value]
                    case "x":
                        return struct.unpack("<d", struct.pack("<q", ints[value]))[0]
                    case "list":
                        return [decode(v) for v in value]
                    case "f":
                        return float(value)
                    case "dtype" | "layout" | "memory_format":
                        return getattr(torch, value.removeprefix("torch."))
                    case "device":
                        return self.place(value)
                    case _:
                        return value

            with torch.no_grad():
                result = op(*(decode(a) for a in record["args"]), **{k: decode(v) for k, v in record["kwargs"].items()})
            flat = list(result) if isinstance(result, tuple | list) else [result]
            handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([t for t in flat[:n_outs]])
            for i, handle in enumerate(handles):
                outs[i] = _capsule_pointer(handle)
            return 0
        except Exception as problem:  # noqa: BLE001  (crosses C: it becomes the call's error message)
            text = f"{type(problem).__name__}: {problem}".encode()[: capacity - 1] + b"\0"
            ctypes.memmove(error, text, len(text))
            return 1

    def place(self, device: str) -> torch.device:
        """The device that an argument of an extern call names."""
        return torch.device(device)

    def forget(self) -> None:
        """Drops the prepared weights, as the runtime does when a parameter changed."""
        if self.state.value:
            self.dll.precast_release(self.table, self.state)
        self.state = ctypes.c_void_p(None)

    def __call__(self, *inputs: torch.Tensor | int, extra: int = 0, homes: Mapping[int, torch.Tensor] | None = None) -> list[torch.Tensor]:
        """The tensor outputs; `extra` is the number of outputs of other kinds behind them, `homes` memory for some outputs."""
        n_outputs = self.n_outputs + extra
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([t for t in inputs if isinstance(t, torch.Tensor)])
        pointers = iter(_capsule_pointer(h) for h in handles)
        words = (ctypes.c_void_p * max(len(inputs), 1))(*[next(pointers) if isinstance(t, torch.Tensor) else t for t in inputs])
        outputs = (ctypes.c_void_p * max(n_outputs, 1))()
        for i, home in (homes or {}).items():
            outputs[i] = _capsule_pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(home))
        error = ctypes.create_string_buffer(4096)
        code = 0
        if hasattr(self.dll, "precast_prepare") and not self.state.value:
            code = self.dll.precast_prepare(self.table, words, ctypes.byref(self.state), error, ctypes.c_int64(4096))
        code = code or self.dll.precast_run(self.table, words, outputs, self.state, error, ctypes.c_int64(4096))
        for h in handles:
            _handle_to_tensor(_capsule_pointer(h))
        if code:
            text = error.value.decode()
            raise (IndexError(text[3:]) if text.startswith("I: ") else RuntimeError(text))
        return [_handle_to_tensor(outputs[i]) for i in range(self.n_outputs)]


def _capsule_pointer(handle: Any) -> int:
    if isinstance(handle, int):
        return handle
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(handle, None)


def _handle_to_tensor(pointer: int) -> torch.Tensor:
    """The tensor of an owned handle, which is deleted: "stealing" in torch 2.13 takes a second reference and leaves the handle alive."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(new(pointer, None, None))
    TORCH_CPU.aoti_torch_delete_tensor_object(ctypes.c_void_p(pointer))
    return tensor
