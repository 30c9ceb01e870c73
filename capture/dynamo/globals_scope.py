"""The names that Dynamo puts into a module's globals while it traces, and no others: other threads may set globals meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from precast.capture.adapters.dynamo import InstructionTranslatorBase, OutputGraph, PyCodegen
from precast.capture.common.patching import patched


@contextlib.contextmanager
def names_of_this_trace(namespace: dict[str, Any]) -> Iterator[None]:
    """What Dynamo puts into `namespace` for this thread's trace is taken out at the end, however that comes."""
    mine = threading.get_ident()
    found: dict[str, None] = {}
    install, import_, cached = OutputGraph.install_global_unsafe, InstructionTranslatorBase.import_source, PyCodegen.setup_globally_cached

    def concerns(scope: Any) -> bool:
        return scope is namespace and threading.get_ident() == mine

    def put(scope: Any, call: Any, name_of: Any) -> Any:
        """The result of `call`, whose new name in `scope` is noted; what the name will be is known only afterwards."""
        if not concerns(scope):
            return call()
        before = set(namespace)
        result = call()
        name = name_of(result)
        if name not in before:
            found[name] = None
        return result

    def install_global_unsafe(self: OutputGraph, name: str, value: Any) -> None:
        if concerns(self.global_scope) and name not in namespace:  # hundreds in a trace
            found[name] = None
        install(self, name, value)

    def import_source(self: InstructionTranslatorBase, module_name: str) -> Any:
        return put(self.output.global_scope, lambda: import_(self, module_name), lambda source: source.global_name)

    def setup_globally_cached(self: PyCodegen, name: str, value: Any) -> Any:
        return put(self.tx.f_globals, lambda: cached(self, name, value), lambda code: code[-1].argval)

    try:
        with (
            patched(OutputGraph, "install_global_unsafe", install_global_unsafe),
            patched(InstructionTranslatorBase, "import_source", import_source),
            patched(PyCodegen, "setup_globally_cached", setup_globally_cached),
        ):
            yield
    finally:
        for name in found:
            namespace.pop(name, None)


__all__ = ["names_of_this_trace"]
