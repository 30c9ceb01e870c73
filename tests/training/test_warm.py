"""A training step in a fresh process: served from the store, forward and backward, with the tracer refused to precast."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import REFUSE, child

STEP = """
import sys
import torch
import precast

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)
        self.drop, self.last = torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.drop(torch.nn.functional.gelu(self.norm(self.first(x)))))

def losses(compile):
    torch.manual_seed(0)
    net = Net()
    called = precast.compile(net, store=sys.argv[1], fullgraph=True) if compile else net
    found = []
    for step in range(4):
        x = torch.randn(6, 8)
        loss = called(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        found.append(float(loss.detach()))
    return torch.tensor([*found, float(net.norm.running_var.sum())])

torch.testing.assert_close(losses(True), losses(False), rtol=1e-5, atol=1e-6)
"""


def test_a_second_process_traces_nothing(tmp_path: Path) -> None:
    (tmp_path / "training_program.py").write_text(STEP)
    child(tmp_path, "import training_program", str(tmp_path / "store"))
    child(
        tmp_path, REFUSE + "\nattempts = refuse_tracer()\nimport training_program\nassert not attempts, attempts\n", str(tmp_path / "store")
    )
    (artifact,) = (tmp_path / "store" / "programs").rglob("*.msgpack")
    assert artifact.is_file()
