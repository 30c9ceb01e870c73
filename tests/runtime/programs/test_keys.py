"""What is part of a program's key and what is not, option by option; what counts against the limits; which code is the same code."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from precast.runtime.common.errors import OptionError
from precast.runtime.counting.tallies import Compiles
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.programs.identity import program_key
from precast.runtime.settings.options import MODES, OPTIONS, CudaGraphOptions, merge_options
from precast.runtime.targets import cpu, ladder, nvidia_devices, versions

DEFAULTS = merge_options()


def key(**changes: Any) -> str:
    given: dict[str, Any] = {"name": "app:f", "digest": "ab", "options": DEFAULTS, "label": None, "backend": "", "own": False}
    return program_key(**{**given, **changes})


@pytest.mark.parametrize(
    "change",
    [{"name": "app:g"}, {"name": "other:f"}, {"digest": "cd"}, {"label": "mine"}, {"backend": "eager"}, {"own": True}],
    ids=str,
)
def test_what_tells_programs_apart(change: dict[str, Any]) -> None:
    assert key(**change) != key() and key(**change) == key(**change)


def test_every_part_counts_beside_the_others() -> None:
    parts = [{}, {"backend": "eager"}, {"own": True}, {"backend": "eager", "own": True}, {"backend": "own namespace"}, {"label": "f"}]
    keys = {key(**part) for part in parts}
    assert len(keys) == len(parts) - 1 and key(backend="own namespace") == key(own=True)  # no backend has a name with a blank


OTHERS: dict[str, Any] = {
    "freeze": True,
    "fullgraph": True,
    "dynamic": "yes",
    "epilogue_fusion": False,
    "fallback_random": False,
    "activation_memory": "less",
    "memory_growth": 0.5,
    "max_autotune": True,
    "max_autotune_seconds": 30,
    "target": "cpu:x86-64-v3",
    "triton.cudagraphs": True,
    "triton.cudagraph_skip_dynamic_graphs": True,
    "recompile_limit": 3,
    "accumulated_recompile_limit": 3,
    "error_on_graph_break": True,
    "isolate_recompiles": True,
    "guard_filter_fn": None,
    "background_compile": True,
    "trace.enabled": True,
    "trace.graph_diagram": True,
    "trace.dir": "/somewhere",
    "capture_scalar_outputs": True,
    "capture_dynamic_output_shape_ops": True,
    "store_results": False,
    "sanitize": "address",
}
IN_THE_KEY = {
    *("freeze", "fullgraph", "dynamic", "epilogue_fusion", "fallback_random", "max_autotune", "error_on_graph_break"),
    *("capture_scalar_outputs", "capture_dynamic_output_shape_ops", "sanitize", "activation_memory", "memory_growth"),
}
"""Written out here, so that an option that leaves the key, or enters it, is looked at. A filter has tests of its own."""


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_which_options_are_part_of_the_key(name: str) -> None:
    other = key(options={**DEFAULTS, name: OTHERS[name]})
    assert (other != key()) == (name in IN_THE_KEY)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"freeze": 1}, "wants bool, got int"),
        ({"freeze": None}, "wants bool"),
        ({"recompile_limit": True}, "wants int, got bool"),
        ({"recompile_limit": 2.0}, "wants int, got float"),
        ({"dynamic": "maybe"}, "not one of"),
        ({"dynamic": ""}, "not one of"),
        ({"freez": True}, "did you mean 'freeze'"),
    ],
    ids=str,
)
def test_values_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        merge_options(options=options)


def test_where_values_come_from() -> None:
    """Defaults, then the mode's, then the options', then what is fixed; None leaves what there is."""
    for mode, sets in MODES.items():
        assert merge_options(mode) == {**DEFAULTS, **sets}
    assert merge_options(options={"recompile_limit": 3})["recompile_limit"] == 3
    assert merge_options(options={"fullgraph": False}, fullgraph=True)["fullgraph"] is True
    assert merge_options(options={"fullgraph": True}, fullgraph=None)["fullgraph"] is True
    with pytest.raises(OptionError, match="not both"):
        merge_options("max-autotune", {"freeze": True})
    with pytest.raises(OptionError, match="unknown mode"):
        merge_options("fast")


def test_when_cuda_graphs_are_wanted() -> None:
    assert CudaGraphOptions.of(DEFAULTS) is None
    assert CudaGraphOptions.of(merge_options("reduce-overhead")) == CudaGraphOptions(False)
    both = {"triton.cudagraphs": True, "triton.cudagraph_skip_dynamic_graphs": True}
    assert CudaGraphOptions.of(merge_options(options=both)) == CudaGraphOptions(True)


SHARED, OTHER_STORE, OTHER_KEY = ("/a", "limits-test"), ("/b", "limits-test"), ("/a", "limits-other")


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    for shared in (SHARED, OTHER_STORE, OTHER_KEY):
        Compiles().reset(shared)


@pytest.mark.parametrize(
    ("counted", "isolated", "reached"),
    [
        ([], False, ""),
        ([{"stored": True}] * 2, False, ""),
        ([{"stored": True}] * 3, False, "recompile_limit (3)"),
        ([{"stored": False}] * 3, False, "recompile_limit (3)"),
        ([{"stored": True}, {"stored": False}, {"stored": True}], False, "recompile_limit (3)"),
        ([{"stored": True, "isolated": True}] * 3, True, "recompile_limit (3)"),
        ([{"stored": True}] * 3, True, ""),
        ([{"stored": True, "in_vain": True}] * 4, False, ""),
        ([{"stored": True, "in_vain": True}] * 5, False, "accumulated_recompile_limit (5)"),
        ([{"stored": True, "in_vain": True}] * 3 + [{"stored": True}] * 2, False, "accumulated_recompile_limit (5)"),
    ],
)
def test_limits(counted: list[dict[str, bool]], isolated: bool, reached: str) -> None:
    compiles = Compiles()
    for one in counted:
        compiles.count(SHARED, one["stored"], one.get("isolated", False), one.get("in_vain", False))
    assert compiles.reached(SHARED, 3, 5, isolated) == reached


def test_who_shares_a_count() -> None:
    first, second = Compiles(), Compiles()
    for _ in range(3):
        first.count(SHARED, True, False)
    assert second.reached(SHARED, 3, 5, False) and not second.reached(SHARED, 3, 5, True)
    assert not second.reached(OTHER_STORE, 3, 5, False) and not second.reached(OTHER_KEY, 3, 5, False)
    for _ in range(3):
        first.count(OTHER_KEY, False, False)
    assert not second.reached(OTHER_KEY, 3, 5, False), "what cannot be stored serves nobody else"
    first.reset(SHARED)
    assert not second.reached(SHARED, 1, 1, False) and not first.reached(SHARED, 1, 1, False)


def compiled(source: str) -> types.CodeType:
    namespace: dict[str, Any] = {}
    exec(compile(source, "<test>", "exec"), namespace)
    code: types.CodeType = namespace["f"].__code__
    return code


DIFFERENT = [
    ("return x + 1", "return x + 2"),
    ("return x + 1", "return x + 1.0"),
    ("return x + 1", "return x + True"),
    ("return x * 0.0", "return x * -0.0"),
    ("return x.a", "return x.b"),
    ("return x, 'a'", "return x, b'a'"),
    ("return x in {1, 2}", "return x in {1, 3}"),
    ("return (lambda y: y + 1)(x)", "return (lambda y: y + 2)(x)"),
    ("return [(1, 2), x]", "return [(1, 3), x]"),
    ("try:\n        return x\n    except KeyError:\n        return 1", "try:\n        return x\n    except ValueError:\n        return 1"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=[other for _, other in DIFFERENT])
def test_code_that_does_something_else_has_another_digest(one: str, other: str) -> None:
    assert digest(compiled(f"def f(x):\n    {one}\n")) != digest(compiled(f"def f(x):\n    {other}\n"))


@pytest.mark.parametrize("head", ["def f(y):", "def f(x, /):", "def f(*, x):", "def f(*x):", "def f(x, y=1):", "async def f(x):"])
def test_how_it_is_called_is_part_of_the_code(head: str) -> None:
    source = "    return {}\n"
    assert digest(compiled(f"{head}\n{source}")) != digest(compiled(f"def f(x):\n{source}"))


def test_where_code_stands_is_no_part_of_it() -> None:
    moved = compile("\n\n\ndef f(x):\n    return x + 1\n", "/another/file", "exec")
    namespace: dict[str, Any] = {}
    exec(moved, namespace)
    assert digest(namespace["f"].__code__) == digest(compiled("def f(x):\n    return x + 1\n"))


def test_a_set_has_one_digest_in_whatever_order_it_lies() -> None:
    """As it does in processes with other hash seeds."""
    one, other = frozenset((0, 8, 16)), frozenset((16, 8, 0))
    assert one == other and [*one] != [*other], "these numbers fall on one place of the table"
    code = compiled("def f(x):\n    return x\n")
    fresh = digest.__wrapped__  # the digests that are kept take both for one
    assert fresh(code.replace(co_consts=(None, one))) == fresh(code.replace(co_consts=(None, other)))


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.13.0", "2.13"), ("2.13.1+cpu", "2.13"), ("2.9.0a0+git123", "2.9"), ("3.0.0", "3.0"), ("2.11.0+cu130", "2.11")],
)
def test_torchs_minor_version(version: str, minor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert versions.torch_minor.__wrapped__() == minor


def test_pythons_minor_version() -> None:
    assert versions.python_minor() == ".".join(map(str, sys.version_info[:2]))


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (cpu._V4, ["cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:x86-64"]),
        (cpu._V4 - {"avx512bw"}, ["cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:x86-64"]),
        (cpu._V3 - {"fma"}, ["cpu:x86-64-v2", "cpu:x86-64"]),
        (frozenset({"sse2"}), ["cpu:x86-64"]),
    ],
    ids=["v4", "v3", "v2", "baseline"],
)
def test_a_level_needs_all_its_instructions(flags: frozenset[str], steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "cpu_flags", lambda: flags)
    monkeypatch.setattr(cpu, "native_target", lambda: "cpu:native-0")
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    assert list(cpu.ladder.__wrapped__()) == ["cpu:native-0", *steps]


@pytest.mark.parametrize("capabilities", [((8, 6), (8, 0)), ((8, 0), (8, 6))])
def test_of_several_gpus_the_best_counts(capabilities: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_devices, "capabilities", lambda: capabilities)
    assert ladder.rank("cuda:sm_80") == 0 and ladder.rank("cuda:sm_86") == 0 and ladder.rank("cuda:sm_90") is None
