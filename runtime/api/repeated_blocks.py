"""Regional compilation: the repeated blocks of a model, compiled in place, so that one artifact serves all equal blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.runtime.api.compile import compile_module
from precast.runtime.common.errors import OptionError

Block = str | type[torch.nn.Module]


def compile_repeated_blocks(model: torch.nn.Module, blocks: Block | Iterable[Block] | None = None, **settings: Any) -> tuple[str, ...]:
    """Compile the repeated blocks of `model` in place, each by itself, and return their names in the model.

    blocks: the blocks' classes, or the names of these; None: the model's own `_repeated_blocks` where it has them (as in diffusers), else
    the class of which a container of the model holds several, and which covers the most parameters.
    `settings`: those of `compile`; each block has its own recompile limit (isolate_recompiles) unless they say otherwise. Blocks that
    differ in their weights only share one artifact. Raises OptionError where nothing is found.
    """
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"compile_repeated_blocks takes an nn.Module, not {type(model).__name__}")
    wanted = _wanted(model, blocks)
    found = [(name, module) for name, module in _outermost(model, wanted) if module is not model]
    if not found:
        raise OptionError(f"{type(model).__name__} contains no {' or '.join(map(_name, wanted))}; it contains {_contents(model)}")
    for _, module in found:
        compile_module(module, **{"isolate_recompiles": True, **settings})
    return tuple(name for name, _ in found)


def _wanted(model: torch.nn.Module, blocks: Block | Iterable[Block] | None) -> tuple[Block, ...]:
    if blocks is None:
        blocks = getattr(model, "_repeated_blocks", None) or _most_repeated(model)
    return (blocks,) if isinstance(blocks, (str, type)) else tuple(blocks)


def _most_repeated(model: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that a container holds several of, and whose blocks have the most parameters; of equals, the outer one."""
    parameters: dict[type[torch.nn.Module], int] = {}
    for container in model.modules():
        if isinstance(container, (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)):
            for cls, members in _by_class(container).items():
                if len(members) > 1:
                    parameters[cls] = parameters.get(cls, 0) + sum(p.numel() for member in members for p in member.parameters())
    if not parameters:
        raise OptionError(f"{type(model).__name__} has no repeated blocks in a ModuleList, ModuleDict or Sequential: name their classes")
    return max(parameters, key=lambda cls: parameters[cls])  # of equals the first: `modules()` goes from the outside in


def _by_class(container: torch.nn.Module) -> dict[type[torch.nn.Module], list[torch.nn.Module]]:
    members: dict[type[torch.nn.Module], list[torch.nn.Module]] = {}
    for child in container.children():
        members.setdefault(type(child), []).append(child)
    return members


def _outermost(model: torch.nn.Module, wanted: tuple[Block, ...], prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """The wanted modules that are inside of no other wanted one, with their names."""
    for name, child in model.named_children():
        if type(child) in wanted or type(child).__name__ in wanted:
            yield prefix + name, child
        else:
            yield from _outermost(child, wanted, f"{prefix}{name}.")


def _name(block: Block) -> str:
    return block if isinstance(block, str) else block.__name__


def _contents(model: torch.nn.Module) -> str:
    return ", ".join(sorted({type(module).__name__ for module in model.modules() if module is not model})) or "no modules"


__all__ = ["compile_repeated_blocks"]
