"""Records of code that ran while a graph was traced without being traced itself: the names by which another process finds the functions."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Mapping

from precast.artifact_store.format.records import CodeDigest
from precast.runtime.fingerprint.functions import function_account, reached
from precast.runtime.fingerprint.resolve_names import imports
from precast.runtime.fingerprint.untraced_code import UNTRACED, UNTRACED_FILED, untraced_accounts


def untraced_records(
    codes: Mapping[types.CodeType, str], known: Mapping[types.CodeType, types.FunctionType], covered: Iterable[types.CodeType]
) -> tuple[list[CodeDigest], list[str]]:
    """One record per function, and the reasons for functions that another process could not find.

    `codes`: with the module whose globals each reads, the outer before the inner; `known`: functions of some of them; `covered`: code that
    other digests cover. Code nested in another's, or named by it, is covered by that one's record, unless it imports what it reads.
    """
    done = set(covered)
    nested: set[types.CodeType] = set()
    functions = functions_of(codes, known)
    records: dict[CodeDigest, None] = {}
    problems: list[str] = []
    for code, home in codes.items():
        inner = within([code]) - {code}
        if code not in nested and (code not in done or imports(code)):
            found = _records(code, home, functions.get(code, []))
            if found is None:
                problems.append(f"{code.co_qualname} ({code.co_filename}) is not traced, and a later process cannot find what it reads")
            else:
                records |= dict.fromkeys(found)
                done |= within(f.__code__ for function in functions.get(code, []) for f in reached(function))
        nested |= inner
    return list(records), problems


def within(codes: Iterable[types.CodeType]) -> set[types.CodeType]:
    """The code objects and those nested in them."""
    found: set[types.CodeType] = set()
    stack = list(codes)
    while stack:
        code = stack.pop()
        if code not in found:
            found.add(code)
            stack += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def functions_of(
    codes: Mapping[types.CodeType, str], known: Mapping[types.CodeType, types.FunctionType]
) -> dict[types.CodeType, list[types.FunctionType]]:
    """The live function objects of this code."""
    found = {code: [function] for code, function in known.items()}
    for holder in gc.get_referrers(*codes) if codes else ():
        if isinstance(holder, types.FunctionType) and holder.__code__ in codes:
            same = found.setdefault(holder.__code__, [])
            if not any(holder is other for other in same):
                same.append(holder)
    return found


def _records(code: types.CodeType, home: str, functions: Iterable[types.FunctionType]) -> list[CodeDigest] | None:
    """A record for each function, by a name that leads to a function with the same code; None where one of them has no such name.

    Where no live function with the code is known (it was freed, or the garbage collector does not track it), the one at its name counts.
    """
    found: list[CodeDigest] = []
    for function in functions:
        names = ((str(function.__module__), function.__qualname__), (home, code.co_qualname))
        alike = {False: function, True: types.FunctionType(code, function.__globals__) if not code.co_freevars else None}
        for filed, like in alike.items():
            wanted = "" if like is None else function_account(like).digest
            record = next((_record(*n, filed, told) for n in names if (told := _accounts(*n, filed, code).get(wanted))), None)
            if record is not None:
                found.append(record)
                break
        else:
            return None
    if functions:
        return found
    for filed in (False, True):
        if accounts := _accounts(home, code.co_qualname, filed, code):
            return [_record(home, code.co_qualname, filed, told) for told in accounts.values()]
    return None


def _accounts(module: str, qualname: str, filed: bool, code: types.CodeType) -> dict[str, str]:
    return untraced_accounts(module, qualname, code, filed)


def _record(module: str, qualname: str, filed: bool, told: str) -> CodeDigest:
    return CodeDigest((UNTRACED_FILED if filed else UNTRACED) + module, qualname, told)


__all__ = ["functions_of", "untraced_records", "within"]
