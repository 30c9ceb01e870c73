"""PRECAST_LOGS: the one logging switch. `PRECAST_LOGS=guards,recompiles,store` shows those topics, `all` every topic."""

from __future__ import annotations

import difflib
import logging
import os
import sys

TOPICS = ("guards", "recompiles", "graph_breaks", "kernels", "store", "runtime", "compile", "capture", "lowering", "codegen", "driver")
"""Each is the logger `precast.<topic>`; warnings of every topic are always shown."""

_configured = False


def logger(topic: str) -> logging.Logger:
    """The logger of `topic`, set up from the environment on first use."""
    configure()
    return logging.getLogger(f"precast.{topic}")


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
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        handler.precast = True  # type: ignore[attr-defined]  # so that a second call does not add another
        root.addHandler(handler)
        root.propagate = False
    for part in wanted:
        _enable(part)


def _enable(part: str) -> None:
    name, _, level = part.partition("=")
    level_number = logging.DEBUG if level.lower() == "debug" else logging.INFO
    if name == "all":
        logging.getLogger("precast").setLevel(level_number)
    elif name in TOPICS:
        logging.getLogger(f"precast.{name}").setLevel(level_number)
    else:
        close = difflib.get_close_matches(name, TOPICS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; topics: {', '.join(TOPICS)}, all"
        logging.getLogger("precast").warning("PRECAST_LOGS: unknown topic %r%s", name, hint)
