"""What the table of timm's families needs where neither timm nor torchvision is installed: stand-ins that can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.models.zoo_run import Judged, failures
from tests.models.zoo_timm import FAMILIES

IMPORTS = """
import torch
from tests.models.stub_packages import stand_in_for

assert stand_in_for("json", "not_here", "nor_here") == ("not_here", "nor_here")
assert stand_in_for("not_here") == ()
import json
import not_here.transforms.functional as F
from not_here import transforms
from not_here.ops.misc import FrozenThing
from nor_here import Image

assert transforms.functional is F and json.loads("1") == 1
assert not isinstance(torch.nn.Linear(1, 1), FrozenThing)
assert len({Image.Resampling.NEAREST, Image.Resampling.CUBIC}) == 2 and Image.Resampling.CUBIC is Image.Resampling.CUBIC
assert isinstance(transforms.Compose(), torch.nn.Module) and not hasattr(transforms, "_private")
try:
    import neither_here
except ModuleNotFoundError:
    print("as it should be")
"""


def test_stand_ins() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.stdout == "as it should be\n", done.stderr


def test_the_table_is_long_enough() -> None:
    assert len(FAMILIES) >= 40


def test_what_counts_as_a_failure() -> None:
    agrees, one = Judged("a", "precast", "", False, 1, 0.0), Judged("a", "inductor", "", False, 1, 0.0)
    none = Judged("a", "inductor", "RuntimeError: no", False, 0, 0.0)
    assert failures([(agrees, one), (agrees, none), (agrees,), (Judged("a", "precast", "Refused: no", False, 0, 0.0), none)]) == []
    for ours in (
        Judged("a", "precast", "tensor 0 is off", True, 1, 0.0),
        Judged("a", "precast", "Refused: no", False, 0, 0.0),
        Judged("a", "precast", "", False, 2, 0.0),
        Judged("a", "precast", "", False, 1, 0.0, breaks=1),
        Judged("a", "precast", "", False, 1, 0.0, served="GuardMiss: no"),
    ):
        assert failures([(ours, one)]) == ["a"]
