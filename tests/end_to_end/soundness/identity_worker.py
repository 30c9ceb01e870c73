"""Runs the cases of identity_programs.py in one process; prints one JSON line per case. Started by test_identity.py.

    identity_worker.py STORE cold|warm|torch two,same|same,two static|dynamic|freeze NAME...

cold: `precast.compile`. warm: `precast.load(require="hit")` with the tracer refused to precast. torch: `torch.compile(backend="precast")`.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.end_to_end.soundness.identity_programs import CASES, Call
from tests.support.refuse_tracer import refuse_tracer

ROUNDS = 3
"""The third time an order is gone through, native tables answer."""


def held(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """What an object holds, as data that can be compared."""
    if id(value) in seen:
        return f"<{len(seen) - seen.index(id(value))} up>"
    seen = (*seen, id(value))
    if isinstance(value, torch.Tensor):
        return (value.tolist(), {name: held(item, seen) for name, item in value.__dict__.items() if not name.startswith("_dynamo")})
    if isinstance(value, dict):
        return [(held(key, seen), held(item, seen)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [held(item, seen) for item in value]
    if hasattr(value, "__dict__") and not callable(value):
        return held(value.__dict__, seen)
    return repr(value) if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def outcome(function: Callable[..., Any], call: Call) -> Any:
    _, args, kwargs = call
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(*args, **kwargs)
    return held(result), held(args), held(kwargs)


def run(name: str, store: str, kind: str, order: list[str], how: str) -> dict[str, Any]:
    import precast

    options = {"freeze": True} if how == "freeze" else {"dynamic": "yes"} if how == "dynamic" and kind == "warm" else None
    made: dict[int, tuple[Any, Any]] = {}
    wrong = []
    for number in range(ROUNDS):
        for which in order:
            want = outcome(*(lambda call: (call[0], call))(CASES[name](which == "same")))
            call = CASES[name](which == "same")
            target = call[0]
            if id(target) not in made:
                made[id(target)] = target, _compiled(precast, target, f"{store}/{name}", kind, how, options)
            got = outcome(made[id(target)][1], call)
            if got != want:
                wrong.append(f"round {number}, {which}: {got} where eager gives {want}")
    served = sum(_graphs(compiled) for _, compiled in made.values()) if kind != "torch" else _torch_graphs(f"{store}/{name}")
    return {"wrong": wrong, "served": served}


def _compiled(precast: Any, target: Any, store: str, kind: str, how: str, options: Any) -> Any:
    if kind == "torch":
        from precast import torch_backend

        return torch.compile(target, backend=functools.partial(torch_backend.precast, store=store), dynamic=how == "dynamic" or None)
    if kind == "warm":
        return precast.load(target, store=store, require="hit", options=options)
    return precast.compile(target, store=store, dynamic=how == "dynamic" or None, options=options)


def _graphs(compiled: Any) -> int:
    """How many stored artifacts served calls."""
    from precast.runtime.api.compile import site_of

    return sum(bool(v.hits and v.stored) for p in site_of(compiled).all_programs for v in p.variants)


def _torch_graphs(store: str) -> int:
    return len(list(Path(store).glob("programs/*/*.msgpack")))


def main() -> None:
    store, kind, order, how, *names = sys.argv[1:]
    import precast  # noqa: F401 - before the refusal, as a server would

    logging.disable(logging.ERROR)
    attempts = refuse_tracer() if kind == "warm" else []
    for name in names:
        if kind == "torch":
            torch._dynamo.reset()
        try:
            report = run(name, store, kind, order.split(","), how)
        except BaseException:  # noqa: BLE001 - the test shows it
            report = {"failed": traceback.format_exc()[-2500:]}
        print(json.dumps({"name": name, **report, "attempts": list(attempts)}), flush=True)


if __name__ == "__main__":
    main()
