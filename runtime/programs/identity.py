"""What a program is made from, as frozen values: the settings of `precast.compile`, and its identity (names, key and code)."""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from precast.artifact_store import Store
from precast.artifact_store.format.records import ResumeRecord
from precast.runtime.fingerprint import bytecode
from precast.runtime.frames.entry import Entry, has_own_namespace
from precast.runtime.settings.backends import Backend
from precast.runtime.settings.options import key_options, without_generated_code

_LONGEST_KEY = 128
"""Characters of a program's key, which names a folder."""


@dataclass(frozen=True)
class Settings:
    """What `precast.compile` was asked for, validated. `label`: the name that the user gave. `require_hit`: a miss raises GuardMiss.

    `canary`: whether the first answer of each stored artifact is compared with eager's; a number is the tolerance (`canary.py`).
    """

    options: Mapping[str, Any]
    store: Store
    label: str | None = None
    require_hit: bool = False
    backend: Backend | None = None
    canary: bool | float = False

    def forcing(self, backend: Backend | None) -> Settings:
        """These for a backend that the stance forces: the options of precast's generated code are left out."""
        return replace(self, options={**self.options, **without_generated_code()}, backend=backend)

    @property
    def backend_identity(self) -> str:
        """What tells the backend from any other of this process; empty for precast's own."""
        return self.backend.identity if self.backend is not None else ""


@dataclass(frozen=True)
class Identity:
    """Which program it is. `name`: for people; `key`: its folder in the store; `code`: what is compiled, with its digest."""

    name: str
    key: str
    code: types.CodeType
    digest: str


def program_key(name: str, digest: str, options: Mapping[str, Any], label: str | None, backend: str = "", own: bool = False) -> str:
    """The name of a program's folder in the store: readable, and different whenever what is compiled could differ.

    `own`: the code's globals are no module's, so that the paths of its guards are others.
    """
    more = (*((backend,) if backend else ()), *(("own namespace",) if own else ()))
    identity = repr((label or name, digest, sorted(key_options(options).items()), *more))
    readable = re.sub(r"[^A-Za-z0-9_]+", ".", label or name.rpartition(":")[2]).strip(".")[:60]
    return f"{readable or 'program'}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"


def entry_identity(entry: Entry, settings: Settings) -> Identity:
    """Of a program that users call."""
    code = entry.function.__code__
    digest, own = bytecode.digest(code), has_own_namespace(entry.function)
    key = program_key(entry.name, digest, settings.options, settings.label, settings.backend_identity, own)
    return Identity(settings.label or entry.name, key, code, digest)


def resumed_identity(root: Identity, record: ResumeRecord, code: types.CodeType) -> Identity:
    """Of what continues a frame of the program `root` after a graph break; every process and every path to that code gives the same."""
    name = f"{root.name} (resumed at line {record.name.rpartition('_at_')[2]})"
    module = f".{record.module}" if record.module else ""
    return Identity(name, f"{root.key}.{record.digest[:16]}{module}"[:_LONGEST_KEY], code, record.digest)


def callee_identity(entry: Entry, code: types.CodeType, settings: Settings) -> Identity:
    """Of a function that programs call between their graphs. `entry`: of its shell; `code`: the function's own."""
    digest, own = bytecode.digest(code), has_own_namespace(entry.function)
    key = program_key(f"{entry.name}()", digest, settings.options, None, settings.backend_identity, own)
    return Identity(entry.name, key, code, digest)


__all__ = ["Identity", "Settings", "callee_identity", "entry_identity", "program_key", "resumed_identity"]
