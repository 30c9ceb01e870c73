"""Runs the cases of metadata_programs.py, static and dynamic; prints one JSON line for each. Started by test_tensor_metadata.py.

    metadata_worker.py STORE cold|warm|torch [NAME[/static|/dynamic]...]

cold: `precast.compile`. warm: `precast.load` in a process that may not compile, with the tracer refused to precast. torch:
`torch.compile(backend="precast")`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.end_to_end.soundness.metadata_programs import CASES, Case
from tests.support.refuse_tracer import refuse_tracer


class Seen:
    """What can be seen of a call: every tensor with its metadata and values, which share memory, which are the arguments themselves."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.storages: list[torch.UntypedStorage] = []

    def value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            at = [i for i, arg in enumerate(self.args) if arg is value]
            return f"argument {at[0]}" if at else self.tensor(value)
        if isinstance(value, list | tuple):
            return [type(value).__name__, *map(self.value, value)]
        return repr(value)

    def tensor(self, tensor: torch.Tensor) -> list[Any]:
        storage = tensor.untyped_storage()
        if all(storage._cdata != known._cdata for known in self.storages):
            self.storages.append(storage)
        number = next(i for i, known in enumerate(self.storages) if known._cdata == storage._cdata)
        look = [str(tensor.dtype), list(tensor.shape), list(tensor.stride()), tensor.storage_offset(), tensor.requires_grad]
        return [type(tensor).__name__, *look, f"memory {number}", str(tensor.detach().tolist())]


def outcome(function: Callable[..., Any], held: Any, calls: Any) -> list[Any]:
    """What is seen of each call: the result, the arguments afterwards, and what a module holds."""
    found = []
    for args in calls:
        result = function(*args)
        seen = Seen(args)
        state = held.state_dict(keep_vars=True).values() if isinstance(held, torch.nn.Module) else ()
        arguments = [seen.tensor(arg) for arg in args]
        found.append([seen.value(result), arguments, [seen.tensor(t) for t in state]])
    return found


def run(case: Case, store: str, kind: str, dynamic: bool) -> None:
    import precast

    plain, fresh, sizes = case.make(), case.make(), True if dynamic else None
    want = outcome(plain, plain, case.calls())
    if kind == "torch":
        torch._dynamo.reset()
        compiled = torch.compile(fresh, backend="precast", dynamic=sizes)
    else:
        given = {"options": {"dynamic": "yes"} if dynamic else {}, "store": f"{store}/{case.name}-{dynamic}"}
        compiled = precast.load(fresh, require="hit", **given) if kind == "warm" else precast.compile(fresh, **given)
    got = outcome(compiled, fresh, case.calls())
    for number, (one, other) in enumerate(zip(want, got, strict=True)):
        assert one == other, f"call {number}: eager {one}, compiled {other}"


def main() -> None:
    store, kind, *names = sys.argv[1:]
    os.environ["PRECAST_STORE"] = store
    import precast  # noqa: F401 - before the refusal, as a server would

    attempts = refuse_tracer() if kind == "warm" else []
    warnings.simplefilter("ignore")
    for name, _, only in (asked.partition("/") for asked in names or CASES):
        for dynamic in (False, True) if not only else (only == "dynamic",):
            failed = None
            try:
                with torch.no_grad():
                    run(CASES[name], store, kind, dynamic)
            except BaseException:  # noqa: BLE001 - the test shows it
                failed = traceback.format_exc()[-2500:]
            print(json.dumps({"name": name, "dynamic": dynamic, "failed": failed, "attempts": list(attempts)}), flush=True)


if __name__ == "__main__":
    main()
