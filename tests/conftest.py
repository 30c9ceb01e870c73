"""Shared by all tests: an error while compiling is an error, and not a fall-back to eager that then agrees with eager; one seed; and a
store for each test, since what a warm one holds was compiled by another version of the code.
"""

import itertools
import os
import random
import tempfile
import zlib
from collections.abc import Generator, Iterator

import hypothesis
import numpy
import pytest
import torch

from tests.known_faults import mark
from tests.support.fixtures import counter, fresh_tracer, native_store, set_compiler, store

__all__ = ["counter", "fresh_tracer", "native_store", "set_compiler", "store"]

os.environ.setdefault("PRECAST_STRICT", "1")
os.environ.setdefault("PRECAST_STATS", "0")  # what tests count is written by the tests of the statistics only

STORES = tempfile.TemporaryDirectory(prefix="precast-tests-", ignore_cleanup_errors=True)
"""Holds a store for each test, made when it is first written; and one for what runs outside of tests, such as fixtures of a session."""
NUMBERS = itertools.count()
os.environ["PRECAST_STORE"] = os.path.join(STORES.name, "shared")

# Where the inputs are to be the same each time (continuous integration), hypothesis draws the same examples, too.
hypothesis.settings.register_profile("repeatable", derandomize=True, print_blob=True)
if os.environ.get("PRECAST_TEST_SEED"):
    hypothesis.settings.load_profile("repeatable")
SEED = int(os.environ.get("PRECAST_TEST_SEED") or int.from_bytes(os.urandom(4), "little"))


def _seed(text: str) -> None:
    seed = SEED ^ zlib.crc32(text.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


_seed("what is drawn while tests are collected")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test compiles without naming a store goes into one of its own: never into the user's, and never out of it."""
    monkeypatch.setenv("PRECAST_STORE", os.path.join(STORES.name, str(next(NUMBERS))))
    yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test draws numbers of its own, whatever ran before it: fresh ones in each run, those of PRECAST_TEST_SEED where it is set."""
    _seed(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A remote that a test leaves behind it would serve and spare artifacts of all that follow."""
    yield
    left = os.environ.pop("PRECAST_REMOTE", None)
    assert left is None, f"{item.nodeid} leaves PRECAST_REMOTE={left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Inputs", f"repeat with PRECAST_TEST_SEED={SEED}"))
    return report
