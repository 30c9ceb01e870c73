"""Finding the native runtime: built by whoever compiles, carried in the store, loaded by whoever runs; without it Python does its work."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.trust.trusted import Trusted, content_of
from precast.runtime.common import torch_support
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger
from precast.runtime.native import build, kinds
from precast.runtime.native.tensor_layout import LayoutUnknown, configure
from precast.runtime.native.torch_symbols import resolve_symbol
from precast.runtime.settings import stance

ENVIRONMENT = "PRECAST_NATIVE"
"""Set to 0, the native runtime is neither loaded nor built."""

ADAPT_THREADS = "PRECAST_ADAPT_THREADS"
"""Set to 0, a call runs on as many threads as torch is set to, whoever else uses the cores."""

LAYOUT = "where tensors keep what"
WITHOUT_LAYOUT = "the native runtime stays off, and Python checks guards (tens of microseconds a call)"
"""The fact that the native runtime stands on, and what is done without it."""

_lock = Lock()


class _State:
    module: Any = None
    tables = False  # whether the versions of dicts can be trusted in this Python
    failed = ""


_state = _State()


def loaded() -> Any:
    """The native module, or None while there is none."""
    return _state.module


def reason() -> str:
    """Why there is none, once it has been tried."""
    return _state.failed


def wanted() -> bool:
    """Whether building the native runtime is worth trying."""
    return _state.module is None and not _state.failed and os.environ.get(ENVIRONMENT) != "0"


def tables_work() -> bool:
    """Whether guard tables can be used: the module is there and dict versions are sound in this Python."""
    return _state.tables


def find(store: Store) -> Any:
    """The native module, loaded from `store` if it is there; None otherwise. Never builds."""
    with _lock:
        if _state.module is not None or _state.failed or os.environ.get(ENVIRONMENT) == "0" or torch_support.unsupported():
            return _state.module
        file = _stored(store)
        if file is not None:
            _load(file)
        return _state.module


def _stored(store: Store) -> Trusted[Path] | None:
    """The native runtime that `store` has for this Python and torch."""
    try:
        record = store.trusted_record("native", build.record_name())
    except Untrusted as error:
        logger("runtime").warning("the native runtime is not loaded: %s", error)
        return None
    if record is None or not isinstance(record.content.get("library"), str):
        return None
    return store.trusted_file(record.part(lambda record: str(record["library"])))


def ensure(store: Store) -> Any:
    """`find`, and where the store has none, build it and keep it there: one process of a machine does, the others wait. None (with the
    reason logged) when it cannot be built.
    """
    if find(store) is not None or _state.failed or os.environ.get(ENVIRONMENT) == "0":
        return _state.module
    with store.lease(f"native-{build.record_name()}", timeout=build.TIMEOUT_SECONDS):
        return _built(store) if find(store) is None and not _state.failed else _state.module


def _built(store: Store) -> Any:
    try:
        library = build.build()
    except build.NativeBuildError as error:
        _fail(f"the native runtime cannot be built, so calls are dispatched by Python (tens of microseconds each): {error}")
        return None
    name = digest(library)
    try:
        store.put_record("native", build.record_name(), {"library": name, "blobs": [name]}, {name: library})
    except StoreError as error:
        _fail(f"the native runtime cannot be stored: {error}")
        return None
    return find(store)


def _load(file: Trusted[Path]) -> None:
    loader = importlib.machinery.ExtensionFileLoader("precast.runtime._native", str(content_of(file)))
    spec = importlib.util.spec_from_file_location("precast.runtime._native", content_of(file), loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        kinds.verify(module)
        configure(module)
    except LayoutUnknown as error:
        _fail(f"the native runtime cannot be used: {error}")
        torch_support.differs(torch_support.Difference(LAYOUT, str(error), WITHOUT_LAYOUT))
        return
    except (ImportError, AttributeError) as error:
        _fail(f"the native runtime cannot be used: {error}")
        return
    _state.tables = versions_are_sound(module)
    _let_threads_adapt(module)
    stance.state.listeners.append(module.force_eager)
    module.force_eager(stance.state.detour)
    _state.module = module  # last: threads that ask without the lock take it as it is


def _let_threads_adapt(module: Any) -> None:
    """Calls on two threads run on one while another process keeps the second from its core. It is torch's OpenMP."""
    if os.environ.get(ADAPT_THREADS) == "0":
        return
    addresses = [resolve_symbol(name) for name in ("omp_get_max_threads", "omp_set_num_threads", "GOMP_parallel")]
    if all(addresses):
        module.adapt_threads(*addresses)
    else:
        logger("runtime").info("this torch's OpenMP is another one: calls do not adapt to neighbours that use the cores")


def _fail(reason: str) -> None:
    _state.failed = reason
    logger("runtime").warning("%s", reason)


class _Plain:
    def __init__(self) -> None:
        self.a = 0


def _set_attribute(target: _Plain, value: int) -> None:
    target.a = value


def versions_are_sound(module: Any) -> bool:
    """Whether a table notices every way of writing to an instance's `__dict__`. In Python 3.13.0 hot attribute writes go unseen."""
    plain = _Plain()
    namespace = plain.__dict__

    def unseen(write: Callable[[], object]) -> bool:
        table = module.Table()
        table.dict(namespace, (), True)
        table.watch()
        before = table.check(())
        write()
        return not before or table.check(())

    # as often as it takes for the interpreter to specialise the store
    hot: list[Callable[[], object]] = [functools.partial(_set_attribute, plain, value) for value in range(1, 200)]
    others: list[Callable[[], object]] = [
        lambda: namespace.update(a=-1),
        lambda: namespace.pop("a"),
        lambda: setattr(plain, "b", 1),
        lambda: delattr(plain, "b"),
        lambda: namespace.setdefault("c", 2),
        lambda: namespace.popitem(),
        lambda: namespace.update({"d": 3, "e": 4}),
        lambda: namespace.clear(),
        lambda: namespace.update({"d": 3, "e": 4}),
    ]
    return not any(unseen(write) for write in (*hot, *others))
