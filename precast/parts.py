"""Bodies of branches and loops, compiled as graphs of their own: the graph that calls them names their libraries by digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from precast.artifact_store import GraphRecord
from precast.runtime.errors import Refused

PART = "part"
"""Begins the role of a body's library among the blobs of a graph's record."""
Build = Callable[[torch.fx.GraphModule, str], GraphRecord]


def build_parts(graph: torch.fx.GraphModule, build: Build) -> dict[str, str]:
    """Compiles with `build` the bodies that the graph's nodes name; what a node needs to call its bodies goes into `meta["parts"]`.

    Returns the libraries' digests by role, those of bodies inside of bodies too. Raises Refused.
    """
    libraries: dict[str, None] = {}
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
                libraries |= dict.fromkeys(digest for role, digest in record.blobs.items() if role == "library" or role.startswith(PART))
                known[name] = describe_part(body, record)
        node.meta["parts"] = tuple(known[name] for name in names)
    return {f"{PART}{number}": digest for number, digest in enumerate(libraries)}


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
    try:
        return [int(s) for s in value.stride()]
    except Exception as error:
        raise Refused("a branch or loop takes a tensor whose strides depend on a size that varies") from error


def _attribute(graph: torch.fx.GraphModule, name: str) -> Any:
    value: Any = graph
    for part in name.split("."):
        value = getattr(value, part)
    return value
