"""Functions that ran while a graph was made without the tracer's reading them: what they name, as an account, compared once per process.

Their own code is among the digests of code; this is about their constants and helpers.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from precast.runtime.fingerprint.bytecode import digest, filed_functions, find_functions
from precast.runtime.fingerprint.fingerprint import Account, names_of
from precast.runtime.fingerprint.functions import function_account
from precast.runtime.fingerprint.module_scope import Modules, load

UNTRACED = "untraced "
"""Begins the module part of a digest's name where it belongs to such a function."""
UNTRACED_FILED = "untraced-filed "
"""The same where no name leads to the function, and it is what the module's file says."""
_known: dict[tuple[str, str, bool, tuple[str, ...]], list[Account]] = {}


def untraced_accounts(module: str, qualname: str, code: types.CodeType, filed: bool = False) -> dict[str, str]:
    """The accounts of the functions with this code that are found under this name, read now, by digest; none where it cannot be found.

    `filed`: look in the file of the module.
    """
    wanted = digest(code)
    for key in [key for key in tuple(_known) if key[:2] == (module, qualname)]:  # taken at once: other threads look at artifacts
        _known.pop(key, None)
    found = [function_account(f) for f in _find(filed)(module, qualname) if digest(f.__code__) == wanted]
    return {account.digest: account.text() for account in sorted(found, key=lambda account: account.digest)}


def _find(filed: bool) -> Callable[[str, str], list[types.FunctionType]]:
    return filed_functions if filed else find_functions


def changed_names(module: str, qualname: str, wanted: str, filed: bool = False) -> str:
    """Why what the function names is not what it was; empty where it is. `filed`: it is looked for in the file of the module."""
    then = Account.read(wanted)
    key = (module, qualname, filed, then.modules)
    known = _known.get(key)
    if known is None:
        load(module)  # the traced code had imported it
        known = _known[key] = [function_account(f, Modules(then.modules)) for f in _find(filed)(module, qualname)]
    if any(now.digest == then.digest for now in known):
        return ""
    nearest = min((then.differing(now) for now in known), key=len, default=[])
    said = f"{qualname} of {module}, which is not traced, or a function or a constant that it names has changed since"
    return f"{said}{names_of(nearest)}"


def forget() -> None:
    """Look at all of them again when they are next needed."""
    _known.clear()
