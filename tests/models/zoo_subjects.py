"""What is compared of an architecture, eager against compiled: its answer, or a training step with its gradients and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

Compile = Callable[[torch.nn.Module], Callable[..., Any]]
SEED = 5


@dataclass(frozen=True)
class Answer:
    """The result of one call in eval mode."""

    model: torch.nn.Module
    kwargs: dict[str, torch.Tensor]

    def of(self, compiled: Compile) -> Any:
        """The result of what `compiled` makes of the module."""
        with torch.no_grad():
            return compiled(self.model)(**self.kwargs)

    def difference(self, want: Any, got: Any) -> str:
        """Tensors of the two results, in order, to 1e-4 of the largest value."""
        wants, gots = (_tensors(result) for result in (want, got))
        if len(wants) != len(gots):
            return f"{len(gots)} tensors for {len(wants)}"
        for i, (w, g) in enumerate(zip(wants, gots, strict=True)):
            if w.shape != g.shape or w.dtype != g.dtype:
                return f"tensor {i}: {g.dtype} {list(g.shape)} for {w.dtype} {list(w.shape)}"
            scale = w.double().abs().max().item() if w.numel() else 0.0
            if not torch.allclose(w.double(), g.double(), rtol=1e-4, atol=1e-4 * max(scale, 1e-3), equal_nan=True):
                return (
                    f"tensor {i} of {list(w.shape)} is off by {(w.double() - g.double()).abs().max().item():.3g}, largest value {scale:.3g}"
                )
        return ""


@dataclass(frozen=True)
class Step:
    """One training step, dropout and statistics as the architecture has them: every result counts in the loss, with weights of its own."""

    model: torch.nn.Module
    kwargs: dict[str, torch.Tensor]

    def of(self, compiled: Compile) -> dict[str, torch.Tensor | None]:
        """By name: the loss, the results, the gradients of all parameters and the buffers after a step of a copy of the module."""
        return self._of(compiled, copy.deepcopy(self.model).train(), self.kwargs)

    def _of(self, compiled: Compile, model: torch.nn.Module, kwargs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
        called = compiled(model)
        torch.manual_seed(SEED)
        with torch.enable_grad():
            results = _tensors(called(**kwargs))
            generator = torch.Generator().manual_seed(SEED)
            recorded = [t for t in results if t.requires_grad]
            weights = [torch.randn(t.shape, generator=generator, dtype=torch.double).to(t.device) for t in recorded]
            loss = torch.stack([(t.double() * w).mean() for t, w in zip(recorded, weights, strict=True)]).sum()
            loss.backward()
        found: dict[str, torch.Tensor | None] = {"loss": loss.detach()}
        found |= {f"result {i}": t.detach() for i, t in enumerate(results)}
        found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
        found |= {f"buffer {name}": b for name, b in model.named_buffers()}
        return found

    def exact(self) -> dict[str, torch.Tensor | None]:
        """The same in double precision, eagerly. On a CPU dropout draws the same masks there."""
        wide = tree_map(lambda v: v.double() if v.is_floating_point() else v, self.kwargs)
        return self._of(lambda model: model, copy.deepcopy(self.model).train().double(), wide)

    def _reference(self, want: Mapping[str, torch.Tensor | None]) -> Mapping[str, torch.Tensor | None]:
        """In double precision; eager's own where the architecture does not run in that, as XGLM, whose mask is the least float."""
        try:
            return self.exact()
        except RuntimeError as error:
            if "value cannot be converted" not in str(error):
                raise
            return want

    def difference(self, want: Mapping[str, torch.Tensor | None], got: Mapping[str, torch.Tensor | None]) -> str:
        """Agrees to 1e-4 of the tensor's largest value, or is at most four times as far from double precision as eager, or of the order of
        rounding: a bias before a batch norm has a gradient that is nothing else."""
        if list(want) != list(got):
            return f"{len(got)} tensors for {len(want)}"
        exact: Mapping[str, torch.Tensor | None] = {}
        for name, w in want.items():
            g = got[name]
            if w is None or g is None:
                if (w is None) != (g is None):
                    return f"{name} is {'none' if g is None else 'there'}, and eager's {'none' if w is None else 'there'}"
                continue
            if w.shape != g.shape or w.dtype != g.dtype:
                return f"{name}: {g.dtype} {list(g.shape)} for {w.dtype} {list(w.shape)}"
            scale = w.double().abs().max().item() if w.numel() else 0.0
            if torch.allclose(w.double(), g.double(), rtol=1e-4, atol=1e-4 * scale, equal_nan=True):
                continue
            exact = exact or self._reference(want)
            true = exact[name]
            assert true is not None
            mine, theirs = (float((t.double() - true).abs().max()) for t in (g, w))
            largest = max(float(t.abs().max()) for other, t in exact.items() if t is not None and t.numel() and _kind(other) == _kind(name))
            if not mine <= 4 * theirs + 4e-6 * largest:
                return f"{name} of {list(w.shape)} is off by {mine:.3g}, eager by {theirs:.3g}, largest value {scale:.3g}"
        return ""


def _kind(name: str) -> str:
    """Of results, gradients and buffers."""
    return name.partition(" ")[0]


Subject = Answer | Step


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(dict(result) if isinstance(result, dict) else result) if isinstance(leaf, torch.Tensor)]


__all__ = ["Answer", "Compile", "Step", "Subject"]
