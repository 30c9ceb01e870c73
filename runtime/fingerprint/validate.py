"""Validates fingerprints: whether the functions that were traced into still have the code that was compiled. Results are cached per
process; where a cached result says no, the function is looked up by its name again.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping

from precast.runtime.fingerprint import assumed_constants, triton_kernels, untraced_code
from precast.runtime.fingerprint.assumed_constants import CONSTANT, changed_result
from precast.runtime.fingerprint.bytecode import digest, direct_code, file_digest, find_code, forget_code
from precast.runtime.fingerprint.custom_operators import OPERATOR, operator_account
from precast.runtime.fingerprint.fingerprint import Account, names_of
from precast.runtime.fingerprint.module_scope import MISSING, Modules, load
from precast.runtime.fingerprint.tensor_subclasses import SUBCLASS, changed_subclass
from precast.runtime.fingerprint.triton_kernels import KERNEL, changed_kernel
from precast.runtime.fingerprint.untraced_code import UNTRACED, UNTRACED_FILED, changed_names

FILED = "filed "
"""The prefix, in the name of a manifest's digest, that says it is of all code in the module's file, as no name leads to the function."""
_LIBRARY = ("torch",)
"""Packages whose version is part of the artifact's key: their code is not read."""


def changed_code(digests: Mapping[str, str], entry: types.CodeType) -> str:
    """A sentence that names the first of `module:qualname#n -> digest` whose code has changed; "" when none has. ":qualname" is the entry.

    The part after `#` tells apart several functions of one name (lambdas, functions made by a decorator).
    """
    for name, wanted in digests.items():
        module, _, qualname = name.partition("#")[0].partition(":")
        kind, _, home = module.partition(" ")
        if home or module.endswith(" "):
            if reason := _CHECKS[f"{kind} "](home, qualname, wanted):
                return reason
            continue
        if module.partition(".")[0] in _LIBRARY:
            continue
        found = module and (
            wanted in _direct_digests(module, qualname)
            or wanted in _digests_of(module, qualname)
            or wanted in _direct_digests_now(module, qualname)  # the code in a function may have been another one when it was looked at
        )
        if not (found or (not module and wanted == digest(entry))):
            return f"the code of {qualname} in {module or 'the program'} has changed since"
    return ""


def _changed_operator(home: str, name: str, wanted: str) -> str:
    then = Account.read(wanted)
    found = operator_account(name, Modules(then.modules))
    if found is not None and found.digest == then.digest:
        return ""
    if found is not None:
        said = f"the operator {name} has another schema or fake implementation now, or what this one or its traced body names has changed"
        return f"{said}{names_of(then.differing(found))}"
    cure = f"import {home}, which registers it" if home else "load the library that registers it"
    return f"the operator {name} is not registered in this process: {cure}"


def _changed_file(module: str, qualname: str, wanted: str) -> str:
    load(module)
    return "" if file_digest(module) == wanted else f"the code in the file of {module}, where {qualname} is defined, has changed since"


_CHECKS: dict[str, Callable[[str, str, str], str]] = {
    CONSTANT: changed_result,
    OPERATOR: _changed_operator,
    KERNEL: changed_kernel,
    UNTRACED: changed_names,
    SUBCLASS: changed_subclass,
    UNTRACED_FILED: functools.partial(changed_names, filed=True),
    FILED: _changed_file,
}
"""Prefix of a digest's name -> a function of (module, rest, digest) that says what has changed, "" for nothing."""


def _direct_digests_now(module: str, qualname: str) -> frozenset[str]:
    """Digests of the function at this name in `module`, inside decorators too: the common case, without a search through the module.

    The module is imported if it was not, as the traced code had imported it. A function that is gone has no digest.
    """
    found = load(module)
    return frozenset() if found is MISSING else frozenset(map(digest, direct_code(found, qualname)))


_direct_digests = functools.lru_cache(maxsize=8192)(_direct_digests_now)


@functools.lru_cache(maxsize=8192)
def _digests_of(module: str, qualname: str) -> frozenset[str]:
    """Digests of all code with this qualified name in `module`, nested functions and functions inside decorators included."""
    return frozenset(map(digest, find_code(module, qualname)))


def forget() -> None:
    """Drops the cached results: code may have been reloaded."""
    _direct_digests.cache_clear()
    _digests_of.cache_clear()
    assumed_constants.forget()
    triton_kernels.forget()
    untraced_code.forget()
    forget_code()
