"""Reports look in IPython as `print` shows them. IPython itself is not needed: it looks for two methods."""

from __future__ import annotations

import html
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.capture import GraphBreak
from precast.runtime.api.precompile import SignatureReport
from precast.runtime.programs.explain_miss import VariantReport


class Printer:
    """What IPython's pretty printer offers, as far as it is used."""

    def __init__(self) -> None:
        self.written = ""

    def text(self, text: str) -> None:
        assert "\n" not in text, "IPython wants to break lines itself"
        self.written += text

    def break_(self) -> None:
        self.written += "\n"


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def made(kind: str, store: Store) -> Any:
    x = torch.ones(3)
    with torch.no_grad():
        if kind == "precompile":
            return precast.precompile(breaks, [((x,), {})], store=store, name="<breaks & 'more'>")
        if kind == "explain":
            return precast.explain(breaks)(x)
        return precast.explain_miss(precast.load(breaks, store=store), x)


PARTS = [
    SignatureReport(1, "cpu:native", "eager", "", 0.5, "because <of> this"),
    VariantReport("ab" * 32, "cpu:native", 2, ("x: expected <1>, found 2",)),
    GraphBreak("a < b", "hint", ("f.py:1",)),
]


@pytest.mark.parametrize("shown", ["precompile", "explain", "explain_miss", *PARTS], ids=str)
def test_it_is_shown_as_it_is_printed(shown: Any, store: Store) -> None:
    report = made(shown, store) if isinstance(shown, str) else shown
    printer = Printer()
    report._repr_pretty_(printer, False)
    assert printer.written == str(report) and not str(report).startswith(type(report).__name__)
    page = report._repr_html_()
    assert page.startswith("<pre>") and page.endswith("</pre>")
    inside = page[len("<pre>") : -len("</pre>")]
    assert "<" not in inside and ">" not in inside and html.unescape(inside) == str(report)
