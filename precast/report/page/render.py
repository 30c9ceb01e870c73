"""The page: facts, style, script and template in one file that asks no server for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

SCRIPTS = ("helpers", "selection", "graph", "code", "memory", "work", "guards", "page")
"""In the order in which they need one another; together they are one script."""


def page(artifacts: Sequence[dict[str, Any]]) -> str:
    """The HTML of a page about these artifacts, whose facts `facts` gives."""
    style = _asset("page.css")
    script = "".join(["(() => {\n'use strict';\n", *(_asset(f"{name}.js") for name in SCRIPTS), "})();\n"])
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html")).render(
        title=", ".join(dict.fromkeys(artifact["program"] for artifact in artifacts)),
        artifacts=artifacts,
        style=style,
        script=script,
        policy=policy(style, script),
        data=embedded(artifacts),
        version=version("precast"),
    )


def policy(style: str, script: str) -> str:
    """A content security policy by which a browser runs this script and this style and nothing else, and asks no server for anything."""
    return f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded(value: Any) -> str:
    """JSON that can stand inside of a script element, whatever a program's lines say: no character of it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return files("precast.report.page").joinpath("assets", name).read_text("utf-8")


__all__ = ["embedded", "page", "policy"]
