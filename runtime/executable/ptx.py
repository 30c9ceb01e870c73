"""PTX, the fall-back for GPUs that no image was made for: compiled by the driver once, and kept in the store as an image."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.trust.trusted import Trusted, content_of, made_here
from precast.runtime.common.errors import LoadError
from precast.runtime.common.log import logger
from precast.runtime.native.cuda_driver import driver_library
from precast.runtime.targets import nvidia_devices

KIND = "ptx"
"""Of the store's records: an image that a driver made of PTX."""
_ELF = b"\x7fELF"
_INPUT_PTX = 1
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CUjit_option
_LOG_BYTES = 8192
_WORKERS = 8


def is_ptx(image: bytes) -> bool:
    return not image.startswith(_ELF)


def loadable(images: Sequence[Trusted[bytes]], source: Any) -> list[Trusted[bytes]]:
    """`images`, with PTX replaced by what the driver makes of it for this machine's GPUs; kept in `source` where that is a store.

    Text stays text where the GPUs are of several kinds: the driver compiles it for each when it loads it. Raises LoadError.
    """
    found = list(images)
    wanted = [i for i, image in enumerate(found) if is_ptx(image.content)]
    kinds = nvidia_devices.capabilities() if wanted else ()
    if len(kinds) != 1:
        return found
    store = source if isinstance(source, Store) else None
    names = {i: record_name(found[i].content, kinds[0], nvidia_devices.machine().driver) for i in wanted}
    for i in wanted:
        found[i] = _kept(store, names[i]) or found[i]
    missing = [i for i in wanted if is_ptx(found[i].content)]
    for i, image in zip(missing, _compiled([found[i] for i in missing]), strict=True):
        found[i] = made_here(image, digest(image))
        _keep(store, names[i], image)
    return found


def record_name(image: bytes, capability: tuple[int, int], driver: nvidia_devices.Driver | None) -> str:
    """The name of the record that holds what a driver makes of this text for a device."""
    version = driver.version if driver is not None else "unknown"
    return f"{digest(image)[:40]}-sm_{capability[0]}{capability[1]}-{version}"


def _kept(store: Store | None, name: str) -> Trusted[bytes] | None:
    try:
        record = store.trusted_record(KIND, name) if store is not None else None
    except Untrusted as error:
        logger("store").warning("an image that a driver compiled is not used: %s", error)
        return None
    if store is None or record is None or not isinstance(record.content.get("image"), str):
        return None
    image = store.trusted_bytes(record.part(lambda record: str(record["image"])))
    return None if image is None or is_ptx(image.content) else image


def _keep(store: Store | None, name: str, image: bytes) -> None:
    if store is None or store.readonly:
        return
    blob = digest(image)
    try:
        store.put_record(KIND, name, {"image": blob, "blobs": [blob]}, {blob: image})
    except StoreError as error:
        logger("store").info("an image that the driver compiled was not kept: %s", error)


def _compiled(texts: Sequence[Trusted[bytes]]) -> list[bytes]:
    """What the driver makes of each text, some at a time. Raises LoadError."""
    if not texts:
        return []
    context = _context()
    logger("runtime").info("%d kernels are compiled from PTX by the driver, once for this kind of GPU", len(texts))
    with ThreadPoolExecutor(min(_WORKERS, len(texts), os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda text: link(text, context), texts))


def _context() -> ctypes.c_void_p:
    """torch's context on its current device."""
    import torch

    torch.zeros((), device="cuda")
    context = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    return context


def link(trusted: Trusted[bytes], context: ctypes.c_void_p) -> bytes:
    """The image that the driver makes of a text for the device of `context`. Raises LoadError with the driver's own words."""
    text = content_of(trusted)
    _call("cuCtxSetCurrent", context)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
    state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    data = text if text.endswith(b"\0") else text + b"\0"
    _call("cuLinkCreate_v2", ctypes.c_uint(2), options, values, ctypes.byref(state))
    try:
        _call("cuLinkAddData_v2", state, _INPUT_PTX, data, ctypes.c_size_t(len(data)), b"precast", ctypes.c_uint(0), None, None, log=log)
        _call("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(size), log=log)
        return ctypes.string_at(image.value or 0, size.value)
    finally:
        _call("cuLinkDestroy", state)


def _call(name: str, *arguments: Any, log: Any = None) -> None:
    function = getattr(driver_library(), name, None)
    if function is None:
        raise LoadError(f"its kernels are PTX, and there is no NVIDIA driver here that has {name}")
    code = function(*arguments)
    if code:
        said = f": {log.value.decode(errors='replace').strip()}" if log is not None and log.value else ""
        raise LoadError(f"the NVIDIA driver cannot compile its PTX ({name} gave {code}{said}); `precast doctor` shows what it needs")


__all__ = ["KIND", "is_ptx", "link", "loadable", "record_name"]
