"""What Dynamo and AOTAutograd hand over: helpers that its bytecode calls, kinds of guards, fields of records."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from precast.runtime.frames.dynamo_shims import SHIMS
from precast.torch_facts.fact import OK, Answer, Fact, answer_of

BY_PROGRAM = "a program that needs it is not stored, or runs eagerly, and says so"
WITHOUT_SHIM: dict[str, str] = {
    "torch._dynamo.graph_bytecode_inputs.get_external_object_by_index": "streams and events: refused",
    "torch._dynamo.graph_bytecode_inputs.stash_graph_created_object": "streams and events: refused",
    "torch._dynamo.graph_bytecode_inputs.store_user_object_weakrefs": "streams and events: refused",
    "torch._dynamo.utils.build_event": "streams and events: refused",
    "torch._dynamo.utils.build_stream": "streams and events: refused",
    "torch._dynamo.utils.get_current_stream": "streams and events: refused",
    "torch._dynamo.guards.unwrap_async_collective_tensor": "asynchronous collectives: refused",
}
"""Helpers that have no version of precast's, on purpose."""
WITHOUT_RULE: dict[str, str] = {
    "DICT_VERSION": "torch installs none any more",
    "DISPATCH_KEY_SET_MATCH": "torch installs it for no program of torch.compile",
    "COW_TENSOR_MATCH": "copy-on-write tensors: refused",
    "CURRENT_STREAM_MATCH": "streams: refused",
}
"""Kinds of guards without a portable form, on purpose."""
RECORDS: dict[str, tuple[str, ...]] = {
    "torch._functorch._aot_autograd.schemas:ViewAndMutationMeta": (
        "input_info",
        "output_info",
        "tokens",
        "grad_enabled_mutation",
        "subclass_fw_graph_out_meta",
        "num_intermediate_bases",
        "traced_tangents",
    ),
    "torch._functorch._aot_autograd.schemas:InputAliasInfo": ("mutates_data", "requires_grad", "mutation_type"),
    "torch._functorch._aot_autograd.schemas:OutputAliasInfo": ("output_type", "base_idx", "view_meta_sequence", "requires_grad"),
    "torch._functorch._aot_autograd.schemas:SubclassCreationMeta": ("attrs", "outer_size", "outer_stride", "meta", "original_subclass"),
    "torch._functorch._aot_autograd.schemas:AOTState": ("needs_autograd", "fw_metadata"),
    "torch._functorch._aot_autograd.schemas:AOTGraphCapture": ("graph_module", "maybe_subclass_meta"),
}
"""Class -> fields that capture reads."""


def facts() -> Iterator[Fact]:
    """Helpers, kinds of guards, records."""
    for helper in helpers():
        yield Fact(
            "bytecode helpers",
            helper,
            "artifacts of programs with side effects and graph breaks",
            BY_PROGRAM,
            functools.partial(_shim, helper),
            deep=True,
        )
    for kind in kinds():
        yield Fact("guard kinds", kind, "guards of stored programs", BY_PROGRAM, functools.partial(_rule, kind), deep=True)
    for record, fields in RECORDS.items():
        check = functools.partial(_fields, record, fields)
        yield Fact("AOTAutograd's records", record.rpartition(":")[2], "graphs", BY_PROGRAM, check, deep=True)


def helpers() -> list[str]:
    """What Dynamo's code generators import from its own modules: its sources say it (`load_import_from(module, name)`)."""
    spec = importlib.util.find_spec("torch._dynamo")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    found: set[str] = set()
    for file in sorted(root.rglob("*.py")):
        text = file.read_text("utf-8")
        if "load_import_from" not in text:
            continue
        own = ".".join(["torch._dynamo", *file.relative_to(root).with_suffix("").parts])
        for call in ast.walk(ast.parse(text)):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "load_import_from"
                and len(call.args) == 2
            ):
                module, name = _module(call.args[0], own), call.args[1]
                if module.startswith("torch._dynamo") and isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found.add(f"{module}.{name.value}")
    return sorted(found)


def _module(expression: ast.expr, own: str) -> str:
    if isinstance(expression, ast.Constant):
        return str(expression.value)
    text = ast.unparse(expression).removesuffix("__name__").removesuffix(".")
    return {"": own, "utils": "torch._dynamo.utils"}.get(text, text)


def _shim(helper: str) -> Answer:
    module, _, name = helper.rpartition(".")
    if hasattr(SHIMS.get(module), name):
        return OK
    return Answer("ok", WITHOUT_SHIM[helper]) if helper in WITHOUT_SHIM else Answer("differs", "it has no version of precast's")


def kinds() -> list[str]:
    """The kinds of guards that Dynamo has."""
    from precast.capture.adapters.guards import GuardBuilder

    return sorted(name for name in dir(GuardBuilder) if name.isupper())


def _rule(kind: str) -> Answer:
    from precast.capture.guards.translate import has_rule

    if has_rule(kind):
        return OK
    return Answer("ok", WITHOUT_RULE[kind]) if kind in WITHOUT_RULE else Answer("differs", "it has no portable form")


def _fields(record: str, fields: tuple[str, ...]) -> Answer:
    module, _, name = record.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    known = (
        {field.name for field in dataclasses.fields(found)}
        if dataclasses.is_dataclass(found)
        else set(getattr(found, "__annotations__", {}))
    )
    known |= {attribute for attribute, _ in inspect.getmembers_static(found)}
    return answer_of([f"it has no {field}" for field in fields if field not in known])


__all__ = ["facts", "helpers", "kinds"]
