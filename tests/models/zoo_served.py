"""Architectures from the stores that `zoo_run.py --serve` or a test filled, in a fresh process in which no frame of precast may import the
tracer: `python -m tests.models.zoo_served LIBRARY DEVICE answer|train ARCHITECTURE=STORE...` prints for each how it differs from eager."""

from __future__ import annotations

import sys
import warnings

import precast
from tests.models.zoo_run import ANSWER, subject
from tests.support.refuse_tracer import refuse_tracer


def served(library: str, device: str, train: bool, name: str, store: str) -> str:
    """The difference, "" where it agrees. A miss, or an import of the tracer, is one."""
    judged = subject(name, library, device, train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = judged.of(lambda model: model)
        try:
            return judged.difference(want, judged.of(lambda model: precast.load(model, store=store, require="hit")))
        except Exception as error:  # noqa: BLE001 - that is the verdict
            return f"{type(error).__name__}: {error}"[:300].replace("\n", " ")


if __name__ == "__main__":
    attempts = refuse_tracer()
    library, device, what, *places = sys.argv[1:]
    for name, _, store in (place.partition("=") for place in places):
        attempts.clear()
        found = served(library, device, what == "train", name, store)
        print(ANSWER + (found or " ".join(attempts[:1])))
