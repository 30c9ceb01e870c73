"""Subgraphs: bodies of branches and loops are compiled as graphs of their own, which the outer graph names by digest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from precast.artifact_store import GraphRecord
from precast.runtime.common.errors import Refused
from precast.runtime.executable.library import IMAGE, PART

Build = Callable[[torch.fx.GraphModule, str], GraphRecord]


def build_parts(graph: torch.fx.GraphModule, build: Build) -> dict[str, str]:
    """Compiles, by `build`, the bodies that the graph's nodes name; `meta["parts"]` of a node then says how to call them.

    Returns the libraries' digests by role, those of bodies inside of bodies too. Raises Refused.
    """
    libraries: dict[str, list[str]] = {}
    known: dict[str, str] = {}
    for node in graph.graph.nodes:
        named = [a for a in node.args if isinstance(a, torch.fx.Node) and a.op == "get_attr"]
        names = [str(a.target) for a in named if isinstance(_attribute(graph, str(a.target)), torch.fx.GraphModule)]
        if node.op != "call_function" or not names:
            continue
        for name in names:
            if name not in known:
                body = _attribute(graph, name)
                record = build(body, name)
                libraries |= _libraries(record.blobs)
                known[name] = describe_part(body, record)
        node.meta["parts"] = tuple(known[name] for name in names)
    roles: dict[str, str] = {}
    for number, (library, images) in enumerate(libraries.items()):
        roles[f"{PART}{number}"] = library
        roles |= {f"{PART}{number}.{IMAGE}{k}": digest for k, digest in enumerate(images)}
    return roles


def _libraries(blobs: Mapping[str, str]) -> dict[str, list[str]]:
    """Every library among a graph's blobs, with the images that it launches, in order."""
    found: dict[str, list[str]] = {}
    for role, digest in blobs.items():
        if role == "library" or role.startswith(PART) and role.removeprefix(PART).isdecimal():
            begin = IMAGE if role == "library" else f"{role}.{IMAGE}"
            images = {int(r.removeprefix(begin)): d for r, d in blobs.items() if r.startswith(begin)}
            found[digest] = [images[k] for k in sorted(images)]
    return found


def describe_part(body: torch.fx.GraphModule, record: GraphRecord) -> str:
    """JSON: the library's digest, one layout per input (null: dense row-major; a list: strides; "int": a number), a letter per result."""
    layouts = [_layout(n) for n in body.graph.nodes if n.op == "placeholder"]
    output = next(n for n in reversed(body.graph.nodes) if n.op == "output")
    results = "".join("t" if isinstance(v, torch.fx.Node) and isinstance(v.meta["val"], torch.Tensor) else "i" for v in output.args[0])
    return json.dumps({"library": record.library, "inputs": layouts, "results": results}, separators=(",", ":"))


def _layout(node: torch.fx.Node) -> Any:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return "int"
    if value.is_contiguous():
        return None
    strides = [s.node.maybe_as_int() if isinstance(s, torch.SymInt) else s for s in value.stride()]
    if None in strides:  # int() would take the stride of this call for that of all calls
        raise Refused("a branch or loop takes a tensor whose strides depend on a size that varies")
    return strides


def _attribute(graph: torch.fx.GraphModule, name: str) -> Any:
    value: Any = graph
    for part in name.split("."):
        value = getattr(value, part)
    return value
