"""Architectures from the stores that `zoo_run.py --serve` or a test filled, in a fresh process in which no frame of precast may import the
tracer: `python -m tests.models.zoo_served LIBRARY DEVICE ARCHITECTURE=STORE...` prints for each how it differs from eager."""

from __future__ import annotations

import sys
import warnings

import torch

import precast
from tests.models.zoo_run import ANSWER, LIBRARIES, difference
from tests.support.refuse_tracer import refuse_tracer


def served(library: str, device: str, name: str, store: str) -> str:
    """The difference, "" where it agrees. A miss, or an import of the tracer, is one."""
    model, kwargs = LIBRARIES[library][1](name)
    model, kwargs = model.to(device), {k: v.to(device) for k, v in kwargs.items()}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        want = model(**kwargs)
        try:
            return difference(want, precast.load(model, store=store, require="hit")(**kwargs))
        except Exception as error:  # noqa: BLE001 - that is the verdict
            return f"{type(error).__name__}: {error}"[:300].replace("\n", " ")


if __name__ == "__main__":
    refuse_tracer()
    library, device, *places = sys.argv[1:]
    for name, _, store in (place.partition("=") for place in places):
        print(ANSWER + served(library, device, name, store))
