"""Dynamo's words about a graph break, shortened to one sentence and one hint."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

_NOISE = ("It may be possible to write Dynamo tracing rules", "If you believe this is", "This graph break may have been caused by")
_OPTIONS = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
"""Settings of Dynamo's that are options of precast's."""


def shorten(text: str) -> tuple[str, str]:
    """(what and why, a hint or "") of the text of an `Unsupported` error or of a graph break's reason."""
    lines = [line.strip() for line in text.splitlines()]
    while len(lines) > 1 and (not lines[0] or lines[0].startswith("Encountered graph break")):
        lines.pop(0)
    what = lines[0] if lines else ""
    if what.startswith("generic_jump"):
        return "the branch depends on the value of a tensor", "torch.where and torch.cond choose inside of a graph"
    why = _field(lines, "Explanation:")
    hints = [line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:")]
    hint = next((h for h in hints if not h.startswith(_NOISE)), "")
    hint = next((f'set options={{"{name}": True}}' for name in _OPTIONS if f"torch._dynamo.config.{name}" in hint), hint)
    return f"{what} ({_sentence(why)})" if why and why != what else what, _sentence(hint)


def _field(lines: list[str], name: str) -> str:
    return next((line.removeprefix(name).strip() for line in lines if line.startswith(name)), "")


def _sentence(text: str) -> str:
    """The text without addresses and its last full stop, at most 300 characters."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text).rstrip(". ")
    return text if len(text) <= 300 else text[:297] + "…"


_OPERATOR = re.compile(
    r"call_(?:function|method|module) "
    r"(?:<[^>]*?(?:function|method|OpOverload)[^>]*? ?(?P<inside>[\w.]+)(?: at 0x[0-9a-f]+)?>|(?P<name>[\w.]+))"
    r"\((?P<given>.*)\): got (?P<kind>\w+)\((?P<quote>['\"])(?P<said>.*?)(?P=quote),?\)",
    re.DOTALL,
)


def operator_error(text: str) -> str:
    """What an operator said when the tracer tried it on sizes alone, in one sentence and whole; empty where the text is none of that."""
    found = _OPERATOR.search(text)
    if found is None:
        return ""
    sizes = re.findall(r"FakeTensor\(\.\.\., (?:device='[^']*', )?size=(\([^)]*\))", found["given"])
    given = f" given tensors of sizes {', '.join(sizes)}" if sizes else ""
    said = found["said"].replace("\\n", " ").replace("\\'", "'").rstrip(". ")
    return f"{found['inside'] or found['name']}{given} raises {found['kind']}: {said}"


BY_DATA = "index with a number, x[i.item()]; bound a size with torch._check; or mark the call with precast.disable"


def known_by_data(error: Exception) -> tuple[str, str]:
    """(reason, `file:line` or "") for a size or a place that depends on data, where tracing the graph had to know it."""
    text = str(error)
    lines = re.findall(r'^\s*File "(.+)", line (\d+), in .*\n\s*(.*)', text.partition("Original traceback:")[2], re.MULTILINE)
    where, source = (f"{lines[-1][0]}:{lines[-1][1]}", lines[-1][2]) if lines else ("", "")
    needed = re.search(r"data-dependent expression (.+?) \(unhinted", text)
    what = f"a size or a place{f' ({needed[1]})' if needed else ''} that depends on the data of a tensor"
    return f"`{source}` needs {what}" if source else f"it needs {what}", where


def user_stack(frames: Iterable[traceback.FrameSummary]) -> tuple[str, ...]:
    """`file:line in function: source`, outermost first."""
    return tuple(f"{f.filename}:{f.lineno} in {f.name}{f': {f.line}' if f.line else ''}" for f in frames)


__all__ = ["BY_DATA", "known_by_data", "operator_error", "shorten", "user_stack"]
