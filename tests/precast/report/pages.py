"""Programs whose pages the tests of `precast report` read, and a page as its facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import torch

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.linear(x))  # </script><b id="broken">&lt; "quoted" \u2028
        return x + self.norm(y)


class Layers(torch.nn.Module):
    """Three layers of one form, and an end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.softmax(-1)


def layers() -> tuple[Callable[..., Any], Calls]:
    torch.manual_seed(0)
    return Layers().eval(), [((torch.randn(16, 32),), {}), ((torch.randn(8, 32),), {})]


class _Scripts(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data


def parsed(page: str) -> _Scripts:
    found = _Scripts()
    found.feed(page)
    return found


def artifacts_of(page: str) -> list[dict[str, Any]]:
    """What the page's script reads."""
    found: list[dict[str, Any]] = json.loads(parsed(page).scripts[0])
    return found


def code_of(function: dict[str, Any]) -> str:
    return "".join(function["tokens"][::2])


def squeezed(text: str) -> list[str]:
    """The lines of a text that are not blank, without the spaces at their ends."""
    return [line.rstrip() for line in text.splitlines() if line.strip() and not re.fullmatch(r"\s*", line)]
