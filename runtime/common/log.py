"""PRECAST_LOGS: the one logging switch. `PRECAST_LOGS=guards,recompiles,store` shows those topics, `all` every topic, `help` lists them.

Lines read `HH:MM:SS precast.topic: program: what happened`. Warnings of every topic are always shown.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import warnings

TOPICS = {
    "guards": "each compile's guards by kind (every one at debug level), and which calls cannot be checked natively",
    "recompiles": "why a call that has variants compiles another: the first guard of each that failed, what it expected and what it found",
    "graph_breaks": "where a program falls into several graphs or stays plain Python, and why",
    "kernels": "each step of a compiled graph: kernel or library call, loops, bytes, where it comes from (the loops at debug level)",
    "fusion": "what was fused into what, and why other pairs were not",
    "cudagraphs": "what is captured, for which inputs; why a graph or a call runs without a CUDA graph",
    "dynamic": "which sizes and numbers of a compile are symbolic, and what pins the others",
    "perf_hints": "what costs time and can be changed, with what to do",
    "store": "hits, what is put, misses with their reason, damage, leases",
    "compile": "stages of each compile with their seconds",
    "runtime": "loading artifacts, native dispatch, what runs eagerly and why",
    "driver": "`precast build`: jobs and errors with their stack",
}
"""Each is the logger `precast.<topic>`, and each says something."""

_configured = False


def logger(topic: str) -> logging.Logger:
    """The logger of `topic`, set up from the environment on first use."""
    configure()
    return logging.getLogger(f"precast.{topic}")


def warn(message: str) -> None:
    """A UserWarning that shows the caller's own line: the nearest one outside of precast and torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("precast", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def help_text() -> str:
    """The values that PRECAST_LOGS takes, as text."""
    width = max(map(len, TOPICS))
    lines = [f"  {name:<{width}}  {what}" for name, what in TOPICS.items()]
    head = "PRECAST_LOGS=topic,topic,… shows these topics on stderr; topic=debug shows more of one; all shows all:"
    return "\n".join([head, *lines])


def configure(setting: str | None = None) -> None:
    """Apply `setting` (default: PRECAST_LOGS, read once per process): comma-separated topics, each may end in `=debug`."""
    global _configured
    if setting is None:
        if _configured:
            return
        setting = os.environ.get("PRECAST_LOGS", "")
    _configured = True
    for topic in TOPICS:
        logging.getLogger(f"precast.{topic}").setLevel(logging.NOTSET)
    wanted = [part.strip() for part in setting.split(",") if part.strip()]
    if not wanted:
        return
    root = logging.getLogger("precast")
    if not any(getattr(handler, "precast", False) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        handler.precast = True  # type: ignore[attr-defined]  # so that a second call does not add another
        root.addHandler(handler)
        root.propagate = False
    for part in wanted:
        _enable(part)


def _enable(part: str) -> None:
    name, _, level = part.partition("=")
    level_number = logging.DEBUG if level.lower() == "debug" else logging.INFO
    if level.lower() not in ("", "debug", "info"):
        logging.getLogger("precast").warning("PRECAST_LOGS: %s: the level %r is not known; levels: info, debug", name, level)
    if name == "help":
        print(help_text(), file=sys.stderr)
    elif name == "all":
        logging.getLogger("precast").setLevel(level_number)
    elif name in TOPICS:
        logging.getLogger(f"precast.{name}").setLevel(level_number)
    else:
        close = difflib.get_close_matches(name, TOPICS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; topics: {', '.join(TOPICS)}, all (PRECAST_LOGS=help explains them)"
        logging.getLogger("precast").warning("PRECAST_LOGS: unknown topic %r%s", name, hint)
