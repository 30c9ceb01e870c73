"""Compiled graphs: a shared object opened, its wanted C shims resolved in the torch that is loaded, ready to run.

The object has no DT_NEEDED on torch: the loader hands it a table of addresses (docs/internals.md), so that a symbol which this torch
lacks is a clean miss with a reason and not a failing dlopen.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from precast.artifact_store.format.records import GraphInput
from precast.artifact_store.trust.trusted import Trusted, content_of
from precast.runtime.common.errors import LoadError
from precast.runtime.common.locks import Lock
from precast.runtime.executable.blob_source import BlobSource
from precast.runtime.executable.fallback_ops import Externs
from precast.runtime.executable.run_errors import ERROR_CAPACITY, raise_run_error
from precast.runtime.native.torch_symbols import driver_of, resolve_symbol
from precast.runtime.targets.rules import DeviceLoader
from precast.target_registry import family_of, load

ABI = 1
PART, IMAGE = "part", "image"
"""Roles of blobs in a graph's record: `part<n>` a library that the graph calls, `image<k>` and `part<n>.image<k>` kernels for a GPU."""
CALL_PYTHON = "precast_call_python"
"""The one symbol that the runtime itself supplies. A name with a leading "?" may be missing: its slot is then NULL."""
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

_IMAGES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_PROFILE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_lock = Lock()
_loaded: dict[str, Library] = {}


class Library:
    """One opened shared object. Stays open for the life of the process: OpenMP threads and workspaces may still belong to it.

    `run`, `prepare`, `release`, `run_rows` are addresses of the exported functions (all but the first 0 where absent); `table` is the
    address of the resolved symbol table. `lent`: outputs for which a caller may give a tensor to write into. `may_draw`: it may draw random
    numbers.
    `uses_threads`: each run asks torch for the number of threads that it may take.
    `frees`: inputs whose handles it takes from the caller: it frees them after their last use, and sets them to NULL.
    """

    def __init__(self, file: Trusted[Path], parts: Mapping[str, Library] | None = None, images: Sequence[Trusted[bytes]] = ()) -> None:
        path = content_of(file)
        try:
            self._handle = ctypes.CDLL(str(content_of(file)), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            raise LoadError(f"{path.name[:12]}… cannot be opened as a shared object: {error}") from error
        abi = self._variable("precast_abi")
        if abi != ABI:
            raise LoadError(f"{path.name[:12]}… speaks library ABI {abi}, this precast {ABI}: it needs to be compiled again")
        self.externs = Externs(self._text("precast_externs"), path.name[:12], parts)
        symbols = self._symbols(path)
        self.uses_threads = "torch_get_num_threads" in symbols
        self._table = self._resolve(symbols, path)
        self.table = ctypes.addressof(self._table)
        self.run = self._address("precast_run")
        self.prepare = self._address("precast_prepare")
        self.release = self._address("precast_release")
        self.run_rows = self._address("precast_run_rows")
        if not self.run:
            raise LoadError(f"{path.name[:12]}… exports no precast_run")
        self.may_draw = self._variable("precast_draws") != 0
        self.lent = self._positions("precast_lent")
        self.frees = self._positions("precast_frees")
        self._hand_over_images(images)
        self.call_run = _RUN(self.run)

    def _variable(self, name: str) -> int | None:
        try:
            return int(ctypes.c_int64.in_dll(self._handle, name).value)
        except ValueError:
            return None

    def _positions(self, name: str) -> tuple[int, ...]:
        """An exported list of numbers that ends with -1; empty where there is none."""
        address = self._address(name)
        if not address:
            return ()
        entries = ctypes.cast(address, ctypes.POINTER(ctypes.c_int32))
        return tuple(itertools.takewhile(lambda n: n >= 0, (entries[i] for i in itertools.count())))

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
        known = {CALL_PYTHON: self.externs.address}
        addresses = [known.get(name) or resolve_symbol(name.removeprefix("?")) for name in names]
        missing = [name for name, address in zip(names, addresses, strict=True) if not address and not name.startswith("?")]
        loader = next((found for name in missing if (found := driver_of(name)) is not None), None)
        if loader is not None:
            raise LoadError(f"{path.name[:12]}… {loader.problem([name for name in missing if driver_of(name) is loader])}")
        if missing:
            import torch

            raise LoadError(f"{path.name[:12]}… needs {', '.join(missing)}, which torch {torch.__version__} does not have")
        return (ctypes.c_void_p * (len(names) + 1))(*addresses, None)

    def _hand_over_images(self, images: Sequence[Trusted[bytes]]) -> None:
        """Tells the library where its kernels' images are; it keeps the addresses, and this object the bytes."""
        address = self._address("precast_images")
        self._images = tuple(map(content_of, images))
        if not address:
            return
        count = len(self._images)
        self._image_addresses = (ctypes.c_char_p * (count + 1))(*self._images, None)
        self._image_sizes = (ctypes.c_int64 * (count + 1))(*map(len, self._images), 0)
        _IMAGES(address)(ctypes.addressof(self._image_addresses), ctypes.addressof(self._image_sizes), count)

    @property
    def leaves_marks(self) -> bool:
        """Whether `profile` may be called; what a precast before lowering version 24 compiled leaves none."""
        return self._address("precast_profile") != 0

    def profile(self, marks: int) -> None:
        """From now on each run leaves a mark before each step in the `struct Marks` (codegen/host/templates.py) at this address; 0: none.

        Raises LoadError for a library that leaves none.
        """
        address = self._address("precast_profile")
        if not address:
            raise LoadError("it was compiled by a precast whose code cannot be profiled: compile it again")
        _PROFILE(address)(marks or None)

    def prepare_state(self, inputs: ctypes.Array[ctypes.c_void_p], graph: Sequence[GraphInput] = ()) -> int:
        """Run `precast_prepare` on handles of the graph's inputs; the state's address, 0 where the library has nothing to prepare."""
        if not self.prepare:
            return 0
        state = ctypes.c_void_p()
        error = ctypes.create_string_buffer(ERROR_CAPACITY)
        if _PREPARE(self.prepare)(self.table, ctypes.addressof(inputs), ctypes.addressof(state), error, ERROR_CAPACITY):
            message = error.value.decode(errors="replace")
            raise_run_error(message if message.startswith("E:") else f"preparing weights failed: {message}", graph)
        return state.value or 0

    def release_state(self, state: int) -> None:
        """Give a state back to the library."""
        if state and self.release:
            _RELEASE(self.release)(self.table, state)


def opened() -> dict[str, Library]:
    """The libraries that this process has opened, by the digests of their blobs."""
    with _lock:
        return dict(_loaded)


Blobs = Trusted[Mapping[str, str]]
"""Of a graph's record, role -> digest."""


def graph_library(blobs: Blobs, source: BlobSource, target: str) -> Library:
    """The library of a graph's record, compiled for `target`, with its kernels' images and the libraries that it may call.
    Raises LoadError.
    """
    parts: dict[str, Library] = {}
    for role, digest in content_of(blobs).items():
        if role.startswith(PART) and role.removeprefix(PART).isdecimal():
            parts[digest] = _open(role, f"{role}.", blobs, source, target, parts)
    return _open("library", "", blobs, source, target, parts)


def _open(role: str, prefix: str, blobs: Blobs, source: BlobSource, target: str, parts: Mapping[str, Library]) -> Library:
    """The library with this role, opened once per process; `parts`: what it may call, by digest."""
    digest = blobs.content[role]
    file = _found(role, "library", blobs, source)
    with _lock:
        library = _loaded.get(digest)
    if library is not None:
        return library
    count = itertools.takewhile(lambda number: f"{prefix}{IMAGE}{number}" in blobs.content, itertools.count())
    images = [_found(f"{prefix}{IMAGE}{number}", "kernel image", blobs, source).part(Path.read_bytes) for number in count]
    if images and (door := family_of(target).loader):
        loader: DeviceLoader = load(door)
        images = loader.images(images, source)
    with _lock:  # one object: the shared object behind it keeps the addresses of one set of images
        return _loaded.get(digest) or _loaded.setdefault(digest, Library(file, parts, images))


def _found(role: str, what: str, blobs: Blobs, source: BlobSource) -> Trusted[Path]:
    digest = blobs.part(lambda digests: digests[role])
    file = source.trusted_file(digest)
    if file is None:
        raise LoadError(f"its {what} {digest.content[:12]}… is missing or damaged")
    return file
