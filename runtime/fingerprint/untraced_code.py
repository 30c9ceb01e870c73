"""Fingerprints of functions that ran during tracing without being traced (fake implementations, `allow_in_graph`), checked once per
process.

The digest of their own code is stored apart; these fingerprints cover their constants and callees.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from precast.runtime.fingerprint.bytecode import digest, filed_functions, find_functions
from precast.runtime.fingerprint.fingerprint import Account, names_of
from precast.runtime.fingerprint.functions import function_account
from precast.runtime.fingerprint.module_scope import Modules, load

UNTRACED = "untraced "
"""The prefix, in the name of a manifest's digest, that says it is of such a function."""
UNTRACED_FILED = "untraced-filed "
"""The prefix for a function that no name leads to, and that is found in its module's file."""
_known: dict[tuple[str, str, bool, tuple[str, ...]], list[Account]] = {}


def untraced_accounts(module: str, qualname: str, code: types.CodeType, filed: bool = False) -> dict[str, str]:
    """The current fingerprints, by digest, of the functions with this code that have this name; empty where none is found.

    `filed`: look in the file of the module.
    """
    wanted = digest(code)
    for key in [key for key in tuple(_known) if key[:2] == (module, qualname)]:  # a copy: other threads may add to it
        _known.pop(key, None)
    found = [function_account(f) for f in _find(filed)(module, qualname) if digest(f.__code__) == wanted]
    return {account.digest: account.text() for account in sorted(found, key=lambda account: account.digest)}


def _find(filed: bool) -> Callable[[str, str], list[types.FunctionType]]:
    return filed_functions if filed else find_functions


def changed_names(module: str, qualname: str, wanted: str, filed: bool = False) -> str:
    """Why the function's fingerprint has changed; "" where it has not. `filed`: look for the function in the file of the module."""
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
    """Drops the cached results."""
    _known.clear()
