"""docs/numerics.md says which pointwise operators torch computes: exactly those that have neither a lowering nor a decomposition."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from precast.lowering.build.registry import LOWERINGS
from precast.lowering.decompositions import DECOMPOSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "numerics.md"
COMPOSITE = "CompositeImplicitAutograd"


def pointwise() -> dict[str, bool]:
    """Functional pointwise operators of ATen -> whether some overload is left to torch. Composite ones are taken apart before lowering."""
    found: dict[str, bool] = {}
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace != "aten" or name.startswith("_"):
            continue
        op = getattr(getattr(torch.ops.aten, name), overload or "default", None)
        if op is None or torch.Tag.pointwise not in op.tags or op._schema.is_mutable or str(op._schema.returns[0].type) != "Tensor":
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), COMPOSITE):
            found[name] = found.get(name, False) or not (op in LOWERINGS or op in DECOMPOSITIONS)
    return found


def test_the_list_of_pointwise_externs_is_true() -> None:
    section = PAGE.read_text().partition("## Pointwise operators that torch computes")[2].partition("##")[0]
    listed = re.findall(r"`([a-z0-9_*]+)`", section)
    operators = pointwise()
    assert len(listed) > 5 and len(operators) > 100
    ours = [name for name, left in operators.items() if not left]
    for name, left in operators.items():
        if left:
            assert any(fnmatchcase(name, item) for item in listed), f"{name} is an extern call, and docs/numerics.md does not say so"
    for item in listed:
        assert hasattr(torch.ops.aten, item) or "*" in item, f"docs/numerics.md: there is no operator {item}"
        assert not [name for name in ours if fnmatchcase(name, item)], f"docs/numerics.md: {item} is lowered"
