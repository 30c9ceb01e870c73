"""Loops that people write, by hand and through libraries that write them: the losses of eager, in this process and in a warm one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precast
from precast.artifact_store import Store
from tests.support.needs import needs

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)) for _ in range(STEPS)]


def losses(change: Callable[[Net], Any]) -> list[float]:
    """A plain loop with AdamW. `change` compiles the model, or does not."""
    torch.manual_seed(0)
    model = Net()
    changed = change(model)
    model = model if changed is None else changed
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    found = []
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.item())
    return found


def same(ours: list[float], eager: list[float]) -> None:
    assert ours == pytest.approx(eager, rel=1e-4) and len(set(eager)) > 1


def stored(store: Store, count: int = 1) -> None:
    assert len(list(store.manifests())) == count


@pytest.mark.parametrize(
    "change",
    [
        lambda model: precast.compile(model),
        lambda model: precast.compile_module(model),
        lambda model: torch.compile(model, backend="precast"),
        lambda model: model.compile(backend="precast"),
    ],
    ids=["compile", "compile_module", "torch.compile", "Module.compile"],
)
def test_a_plain_loop(change: Callable[[Net], Any], store: Store, fresh_tracer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "precast")
        same(losses(change), losses(lambda model: None))
    stored(store)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_plain_loop_of_the_examples(tmp_path: Path) -> None:
    assert example("train_loop").compared(str(tmp_path))


@pytest.mark.slow
def test_the_trainer_of_the_examples(tmp_path: Path) -> None:
    needs("transformers")
    needs("accelerate")
    assert example("train_hf_trainer").compared(str(tmp_path))


class Classifier(Net):
    """What Trainer wants: labels in, the loss out."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(super().forward(x), labels)}


def trained(tmp_path: Path, compiled: bool = False, **settings: Any) -> list[float]:
    """The losses of a Trainer; `compiled`: in place before it."""
    transformers = needs("transformers")
    torch.manual_seed(0)
    model = Classifier()
    if compiled:
        precast.compile_module(model)
    rows = [{"x": x, "labels": label} for xs, ys in batches() for x, label in zip(xs, ys, strict=True)]
    common: dict[str, Any] = {"logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=1e-2, **common, **settings
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer(tmp_path: Path, store: Store, fresh_tracer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By accelerate's name for the backend, and compiled in place; both with the losses of eager."""
    needs("accelerate")
    from precast.integrations import accelerate

    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    eager = trained(tmp_path)
    accelerate.register()
    same(trained(tmp_path, torch_compile=True, torch_compile_backend="precast"), eager)
    stored(store, 1)
    same(trained(tmp_path, compiled=True), eager)
    stored(store, 2)


def test_accelerate_takes_the_name(store: Store, fresh_tracer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import copy
    import pickle

    needs("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    from precast.integrations.accelerate import register

    register()
    register()
    found = DynamoBackend("PRECAST")
    assert found.value == "PRECAST" and found in DynamoBackend and found is DynamoBackend("PRECAST") and found != DynamoBackend.NO
    assert pickle.loads(pickle.dumps(found)) is found and copy.deepcopy(found) is found  # noqa: S301 - our own
    with pytest.raises(ValueError, match="NONSENSE"):
        DynamoBackend("NONSENSE")
    assert TorchDynamoPlugin(backend="precast").to_kwargs()["backend"] == "precast"
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    AcceleratorState._reset_state(reset_partial_state=True)  # one for a process, which a Trainer before this has made
    accelerator = Accelerator(cpu=True, dynamo_backend="precast")
    try:
        same(losses(accelerator.prepare_model), losses(lambda model: None))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    stored(store)


def test_lightning(store: Store) -> None:
    lightning = needs("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net, self.losses = net, []

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    def fitted(change: Callable[[Net], Any]) -> list[float]:
        torch.manual_seed(0)
        module = Module(change(Net()))
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
        return module.losses  # type: ignore[no-any-return]

    same(fitted(lambda net: precast.compile(net, store=store)), fitted(lambda net: net))
    stored(store)


def test_lora(store: Store) -> None:
    """peft: the weights that are frozen get no gradients, those of the adapters get eager's."""
    peft = needs("peft")

    def gradients(compiled: bool) -> dict[str, Tensor | None]:
        torch.manual_seed(0)
        model = peft.get_peft_model(
            Net(), peft.LoraConfig(r=2, target_modules=["first", "second"], lora_dropout=0.0, init_lora_weights=False)
        )
        called = precast.compile(model, store=store) if compiled else model
        x, y = batches()[0]
        F.cross_entropy(called(x), y).backward()
        return {name: p.grad for name, p in model.named_parameters()}

    ours, eager = gradients(True), gradients(False)
    assert {name for name, gradient in ours.items() if gradient is not None} == {name for name in ours if "lora" in name}
    for name, gradient in eager.items():
        torch.testing.assert_close(ours[name], gradient)
    stored(store)
