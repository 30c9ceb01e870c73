"""accelerate's list of backends is an enumeration, which refuses names that it does not know: `register()` makes it take "precast".

With it `TrainingArguments(torch_compile=True, torch_compile_backend="precast")`, `Accelerator(dynamo_backend="precast")`,
`TorchDynamoPlugin(backend="precast")` and `ACCELERATE_DYNAMO_BACKEND=precast` mean `torch.compile(model, backend="precast")`.
"""

from __future__ import annotations

import enum
from typing import Any

_NAME = "PRECAST"


def register() -> None:
    """Let accelerate take "precast" where it takes the name of a backend, from now on in this process.

    By `_missing_`, the documented hook of enumerations for values that they do not list; what accelerate lists stays as it is. Does nothing
    where accelerate knows the name. Raises ImportError without accelerate.
    """
    from accelerate.utils import DynamoBackend

    if _NAME in DynamoBackend:
        return
    member = _member(DynamoBackend)
    before = DynamoBackend._missing_

    def missing(cls: type[enum.Enum], value: object) -> Any:
        return member if isinstance(value, str) and value.upper() == _NAME else before(value)

    DynamoBackend._missing_ = classmethod(missing)


def _member(cls: Any) -> Any:
    """What the enumeration answers for the name: a value of it that it does not list."""
    made = str.__new__(cls, _NAME)
    made._name_ = made._value_ = _NAME
    return made


__all__ = ["register"]
