"""Python `__getattribute__` methods whose reads are known exactly: those of transformers' configs, which every Hugging Face model has.

A class's method is recognised by its code: it has to equal this source compiled by this very Python. Any other is Opaque.
"""

from __future__ import annotations
import __future__

import functools
import types
from typing import Any

from precast.runtime.fingerprint.bytecode import digest

_ALIASING = """
class Config:
    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)
"""
_HETEROGENEOUS = """
class Config:
    def __getattribute__(self, key: str) -> Any:
        heterogeneity_spec = super().__getattribute__("__dict__").get("_heterogeneity_spec")
        if heterogeneity_spec is not None:
            if key in heterogeneity_spec.per_layer_attributes:
                if not super().__getattribute__("allow_global_per_layer_attribute_access"):
                    raise AmbiguousGlobalPerLayerAttributeError(
                        f"'{key}' is a per-layer attribute and may vary across layers. Access it via the individual layer "
                        f"configs instead (e.g. config.per_layer_config[i].{key}). To read the global config value from "
                        f"config.{key} anyway, set `allow_global_per_layer_attribute_access` to `True` on the config. "
                        f"Warning: only do this if the caller can safely handle heterogeneous configs; code that assumes "
                        f"a homogeneous model may use the global value incorrectly."
                    )

                logger.warning_once(
                    f"Reading global config value for per-layer attribute `{key}` on a heterogeneous config. "
                    "Only do this if the caller can safely handle heterogeneous configs; code that assumes a homogeneous "
                    "model may use the global value incorrectly."
                )

        return super().__getattribute__(key)
"""
_KNOWN = {"aliasing": _ALIASING, "heterogeneous": _HETEROGENEOUS}


@functools.cache
def _by_digest() -> dict[str, str]:
    """Kinds by digest: with and without postponed annotations, of which compiled code keeps a flag that modules differ in."""
    found = {}
    for kind, source in _KNOWN.items():
        for flags in (0, __future__.annotations.compiler_flag):
            namespace: dict[str, Any] = {"Any": Any}
            exec(compile(source, "<known getter>", "exec", flags, dont_inherit=True), namespace)
            found[digest(namespace["Config"].__getattribute__.__code__)] = kind
    return found


def known_kind(function: Any) -> str | None:
    """What a `__getattribute__` does: "aliasing", "heterogeneous" (plain unless `_heterogeneity_spec` is set), or None: not known.

    Aliasing: names in the class's `attribute_map` stand for others.
    """
    return _by_digest().get(digest(function.__code__)) if isinstance(function, types.FunctionType) else None
