"""Guards for sources that the traced code read and Dynamo did not guard: method descriptors, classes in closures and the like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from precast.artifact_store.format.guards import Path
from precast.artifact_store.format.import_names import Untaggable
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.capture.guards.translate import Translation, held_here, same_object_guards
from precast.runtime.fingerprint.classes import is_versioned
from precast.runtime.paths.paths import PathError, describe


def unguarded(consumed: Iterable[Any], dynamo_guards: Iterable[Any], sources: SourceContext) -> Translation:
    """Identity guards for the sources read that have no guard on them or below them. A source that cannot have one makes the frame
    uncacheable."""
    guarded = _with_bases(guard.originating_source for guard in dynamo_guards)
    result = Translation()
    for source in consumed:
        if source in guarded or getattr(source, "freevar_name", "") == "__class__":  # the class that holds the method is guarded
            continue
        try:
            path = sources.path(source)
            value = sources.value(path)
        except (NotPortable, PathError):
            continue  # such a source exists only while tracing
        if not _versioned(path) and (callable(value) or hasattr(type(value), "__get__")) and not isinstance(value, torch.nn.Module):
            try:
                result.guards.extend(same_object_guards(path, value))
            except (NotPortable, Untaggable) as error:
                sentence = f"{describe(path)} is called or read by the traced code and cannot be recognised again: {error}"
                result.without_form(sentence, held_here(source, sources))
    return result


def _versioned(path: Path) -> bool:
    return path[0][0] in ("global", "module") and is_versioned(path[0][1])


def _with_bases(sources: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    for source in sources:
        while source is not None and source not in found:
            found.add(source)
            source = getattr(source, "base", None)
    return found
