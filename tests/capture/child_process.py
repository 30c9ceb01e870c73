"""Child processes of test_processes.py.

child.py capture OUT NAME…     capture each model or program in turn; write the last frame
child.py run FRAME NAME        rebuild it with the tracer refused, check guards, run, compare with eager
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
REFUSED = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy", "triton")


def subject(name: str) -> Any:
    if name in ("plain", "nested modules", "inner function", "literal tensor", "dataclass result", "ordered dict"):
        from tests.capture import programs

        return programs.PROGRAMS[name]()
    from tests.capture import models

    return models.make(name)


def capture_last(out: str, names: list[str]) -> None:
    import msgpack
    import torch

    from precast.capture import capture

    for name in names:
        fn, args, kwargs = subject(name)
        with torch.no_grad():
            frame = capture(fn, args, kwargs)
    record = {
        "hash": frame.guard_hash,
        "guards": [g.to_data() for g in frame.guards],
        "digests": [d.to_data() for d in frame.digests],
        "code": frame.code.to_data(),
        "inputs": [i.to_data() for i in frame.inputs],
        "outputs": [o.to_data() for o in frame.outputs],
        "uncacheable": list(frame.uncacheable),
        "graph": frame.graph.code,
    }
    Path(out).write_bytes(msgpack.packb(record))


class Refuse:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == r or name.startswith(r + ".") for r in REFUSED):
            raise ImportError(f"{name} is refused in this process")


def forget_tracer() -> None:
    """transformers imports torch._dynamo by itself; what precast does must not need it."""
    for name in [n for n in sys.modules if any(n == r or n.startswith(r + ".") for r in REFUSED)]:
        del sys.modules[name]
    sys.meta_path.insert(0, Refuse())


def run(path: str, name: str) -> None:
    import msgpack
    import torch

    fn, args, kwargs = subject(name)
    with torch.no_grad():
        expected = fn(*args, **kwargs)
    forget_tracer()

    from precast.artifact_store.format.guards import Guard
    from precast.artifact_store.format.records import FrameRecord, GraphInput, GraphOutput
    from precast.artifact_store.trust.trusted import made_here
    from precast.runtime.executable.calling_convention import graph_outputs
    from precast.runtime.executable.constants import Constants
    from precast.runtime.fingerprint.validate import changed_code
    from precast.runtime.frames.entry import LocalsOf, entry_of
    from precast.runtime.frames.rewritten_code import build
    from precast.runtime.guards.evaluate import compile_checker, failure
    from precast.runtime.paths.paths import resolve

    data = msgpack.unpackb(Path(path).read_bytes(), strict_map_key=False)
    record = FrameRecord.from_data(data["code"])
    inputs = [GraphInput.from_data(i) for i in data["inputs"]]
    outputs = [GraphOutput.from_data(o) for o in data["outputs"]]
    guards = [Guard.from_data(g) for g in data["guards"]]
    entry = entry_of(fn)
    locals_of = LocalsOf(entry.function)
    values, cells = locals_of((*entry.prefix, *args), {**entry.keywords, **kwargs}), locals_of.cells()
    digests = {f"{d['module']}:{d['qualname']}#{d['digest']}": d["digest"] for d in data["digests"]}
    assert not changed_code(digests, entry.function.__code__), changed_code(digests, entry.function.__code__)
    namespace: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan"), "NoneType": type(None)}
    exec(data["graph"], namespace)
    constants = Constants(record.tensors).on()
    bound = {
        n: constants[i.path[0][1]] if i.kind == "constant" else resolve(i.path, values, cells) for n, i in enumerate(inputs) if i.bound
    }

    def graph(*per_call: Any) -> Any:
        full = [bound[n] if i.bound else per_call[i.position] for n, i in enumerate(inputs)]
        return graph_outputs(outputs, namespace["forward"](None, *full), full)

    with torch.no_grad():
        failures = [text for guard in guards if (text := failure(guard, values, cells))]
        assert not failures, failures
        assert compile_checker(guards)(values, cells)
        got = build(made_here(record), entry.function, graph)(*entry.prefix, *args, **{**entry.keywords, **kwargs})
    first = list(got.values())[0] if isinstance(got, dict) else got
    wanted = list(expected.values())[0] if isinstance(expected, dict) else expected
    assert type(got) is type(expected)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(first, wanted)
    else:
        assert torch.equal(first.logits, wanted.logits)
    assert not [n for n in sys.modules if n.startswith("torch._dynamo")]
    print("ran")


if __name__ == "__main__":
    if sys.argv[1] == "capture":
        capture_last(sys.argv[2], sys.argv[3:])
    else:
        run(sys.argv[2], sys.argv[3])
