"""A torch that is newer than all that precast was tested with: one warning, and it works where what precast relies on holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from precast.runtime.common.supported_torch import NEWEST, SUPPORTED_TORCH, why_unknown, why_unsupported, written_for
from precast.runtime.targets.versions import torch_minor
from tests.end_to_end.test_unsupported_torch import command, run

NEWER = """
import precast.runtime.common.supported_torch as supported
supported.NEWEST = {minor!r}  # the torch at hand, under the name of one that nobody knows
torch.__version__ = torch.torch_version.TorchVersion('2.99.0+cpu')
"""
PROGRAM = """
import sys, warnings, torch
{prelude}
import precast

def f(x):
    return x * 2 + 1

x = torch.ones(2, 3)
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    for _ in range(2):
        compiled = precast.compile(f, store=sys.argv[1])
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))
        precast.reset()
for w in caught:
    print(w.category.__name__, w.message)
print("compiled", precast.compile(f, store=sys.argv[1], fullgraph=True)(x).sum())
"""


def newer(more: str = "") -> str:
    """A prelude: the torch at hand says that it is 2.99; `more`: what else is new in it."""
    return NEWER.format(minor=torch_minor()) + more


def test_it_works_with_one_warning(tmp_path: Path) -> None:
    done = run(tmp_path, newer(), PROGRAM, PRECAST_NATIVE="0")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("UserWarning precast")]
    assert len(told) == 1 and "this is torch 2.99.0+cpu" in told[0] and "doctor --probe" in told[0], done.stdout
    assert "compiled tensor(18.)" in done.stdout


def test_what_has_other_parameters_is_found_on_trial_and_left_as_it_is(tmp_path: Path) -> None:
    changed = "import torch._dynamo.symbolic_convert as convert\nconvert.get_funcname = lambda *, wanted: ''\n"
    done = run(tmp_path, newer(changed), PROGRAM, PRECAST_NATIVE="0")
    told = [line for line in done.stdout.splitlines() if line.startswith("UserWarning precast")]
    assert any("get_funcname takes" in line and "a capture takes longer" in line for line in told), done.stdout + done.stderr


def test_doctor_warns_of_it_and_finds_no_problem(tmp_path: Path) -> None:
    done = command(tmp_path, newer(), "doctor", "--store", f"{tmp_path}/store")
    lines = [line for line in done.stdout.splitlines() if " torch " in line]
    assert lines[0].startswith("warning") and "2.99.0+cpu" in lines[0] and "precast was tested with" in lines[0]
    assert not [line for line in lines if line.startswith("problem")], done.stdout


@pytest.mark.parametrize(
    "version, taken_for",
    [
        *((f"{minor}.1+cpu", minor) for minor in SUPPORTED_TORCH),
        ("2.16.0.dev20260901+cpu", NEWEST),
        ("3.0.0", NEWEST),
        ("2.9.1", ""),
        ("2.10.0+cpu", ""),
        ("1.13.1", ""),
        ("local", ""),
    ],
)
def test_what_a_version_is_taken_for(version: str, taken_for: str) -> None:
    assert written_for(version) == taken_for
    assert bool(why_unsupported(version)) == (not taken_for)
    assert bool(why_unknown(version)) == (taken_for == NEWEST and not version.startswith(f"{NEWEST}."))
