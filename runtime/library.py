"""Compiled graphs: a shared object opened, its wanted C shims resolved in the torch that is loaded, ready to run.

The object has no DT_NEEDED on torch: the loader hands it a table of addresses (docs/architecture.md), so that a symbol which this torch
lacks is a clean miss with a reason and not a failing dlopen.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from precast.runtime.errors import LoadError
from precast.runtime.externs import PENDING, Externs, take_exception
from precast.runtime.locks import Lock

ABI = 1
ERROR_CAPACITY = 4096
CALL_PYTHON = "precast_call_python"
"""The one symbol that the runtime itself supplies. A name with a leading "?" may be missing: its slot is then NULL."""
_TORCH_LIBRARIES = ("libtorch_cpu.so", "libtorch_python.so", "libtorch.so")
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

_lock = Lock()
_torch_handles: list[ctypes.CDLL] = []
_loaded: dict[str, Library] = {}


def torch_libraries() -> list[ctypes.CDLL]:
    """torch's shared objects as this process has them open (never opened anew)."""
    with _lock:
        if not _torch_handles:
            import torch

            folder = os.path.join(os.path.dirname(torch.__file__), "lib")
            for name in _TORCH_LIBRARIES:
                try:
                    _torch_handles.append(ctypes.CDLL(os.path.join(folder, name), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
                except OSError:
                    continue  # not part of this build of torch; a symbol that is then missing is reported by name
        return _torch_handles


def resolve_symbol(name: str) -> int | None:
    """Address of a C symbol of torch, or None."""
    for handle in torch_libraries():
        try:
            return ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


class Library:
    """One opened shared object. Stays open for the life of the process: OpenMP threads and workspaces may still belong to it.

    `run`, `prepare`, `release` are addresses of the exported functions (the last two 0 where absent); `table` is the address of the
    resolved symbol table.
    """

    def __init__(self, path: Path, parts: Mapping[str, Library] | None = None) -> None:
        try:
            self._handle = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise LoadError(f"{path.name[:12]}… cannot be opened as a shared object: {error}") from error
        abi = self._variable("precast_abi")
        if abi != ABI:
            raise LoadError(f"{path.name[:12]}… speaks library ABI {abi}, this precast {ABI}: it needs to be compiled again")
        self._externs = Externs(self._text("precast_externs"), path.name[:12], parts)
        self._table = self._resolve(self._symbols(path), path)
        self.table = ctypes.addressof(self._table)
        self.run = self._address("precast_run")
        self.prepare = self._address("precast_prepare")
        self.release = self._address("precast_release")
        if not self.run:
            raise LoadError(f"{path.name[:12]}… exports no precast_run")
        self.call_run = _RUN(self.run)

    def _variable(self, name: str) -> int | None:
        try:
            return int(ctypes.c_int64.in_dll(self._handle, name).value)
        except ValueError:
            return None

    def _text(self, name: str) -> bytes:
        address = self._address(name)
        return ctypes.string_at(address) if address else b""

    def _address(self, name: str) -> int:
        try:
            return ctypes.cast(getattr(self._handle, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    def _symbols(self, path: Path) -> list[str]:
        address = self._address("precast_symbols")
        if not address:
            raise LoadError(f"{path.name[:12]}… exports no precast_symbols")
        names: list[str] = []
        entries = ctypes.cast(address, ctypes.POINTER(ctypes.c_char_p))
        while (name := entries[len(names)]) is not None:
            names.append(name.decode())
        return names

    def _resolve(self, names: list[str], path: Path) -> ctypes.Array[ctypes.c_void_p]:
        known = {CALL_PYTHON: self._externs.address}
        addresses = [known.get(name) or resolve_symbol(name.removeprefix("?")) for name in names]
        missing = [name for name, address in zip(names, addresses, strict=True) if not address and not name.startswith("?")]
        if missing:
            import torch

            raise LoadError(f"{path.name[:12]}… needs {', '.join(missing)}, which torch {torch.__version__} does not have")
        return (ctypes.c_void_p * (len(names) + 1))(*addresses, None)

    def prepare_state(self, inputs: ctypes.Array[ctypes.c_void_p]) -> int:
        """Run `precast_prepare` on input handles; the state's address, 0 where the library has nothing to prepare."""
        if not self.prepare:
            return 0
        state = ctypes.c_void_p()
        error = ctypes.create_string_buffer(ERROR_CAPACITY)
        if _PREPARE(self.prepare)(self.table, ctypes.addressof(inputs), ctypes.addressof(state), error, ERROR_CAPACITY):
            raise RuntimeError(f"preparing weights failed: {error.value.decode(errors='replace')}")
        return state.value or 0

    def release_state(self, state: int) -> None:
        """Give a state back to the library."""
        if state and self.release:
            _RELEASE(self.release)(self.table, state)


def load_parts(digests: Mapping[str, str], find: Callable[[str], Path | None]) -> dict[str, Library]:
    """The libraries of bodies among a graph's blobs (role -> digest), opened; each may call the others. Raises LoadError."""
    parts: dict[str, Library] = {}
    for role, digest in digests.items():
        if role.startswith("part"):
            path = find(digest)
            if path is None:
                raise LoadError(f"the library {digest[:12]}… of a branch or loop is missing or damaged")
            parts[digest] = load_library(digest, path, parts)
    return parts


def load_library(digest: str, path: Path, parts: Mapping[str, Library] | None = None) -> Library:
    """The library with this digest, opened once per process; `parts`: what it may call, by digest. Raises LoadError."""
    with _lock:
        library = _loaded.get(digest)
    if library is None:
        library = Library(path, parts)
        with _lock:
            library = _loaded.setdefault(digest, library)
    return library


def raise_run_error(message: str) -> None:
    """Turn the text that `precast_run` left into an exception: "I:" marks an index error, `externs.PENDING` what an op raised in Python."""
    if message.startswith(PENDING) and (problem := take_exception()) is not None:
        raise problem
    if message.startswith("I:"):
        raise IndexError(message[2:].strip())
    raise RuntimeError(message or "the compiled graph failed without a message")
