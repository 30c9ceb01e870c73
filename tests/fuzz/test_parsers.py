"""Parsers of what may come from elsewhere, with inputs drawn anew: their seeds (`parsers.py`), changed byte by byte and value by value."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.local.leases import identity
from precast.artifact_store.remote.leases import Holder
from tests.fuzz.parsers import PARSERS, Parser, tried

EXAMPLES = 40
SLOW = {"private key": 8}
"""A passphrase is meant to be slow."""
ODD = [
    None,
    True,
    -1,
    0,
    2**63,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "../../etc/passwd",
    "\0",
    "x" * 5000,
    b"",
    b"\xff" * 70,
    [],
    {},
    [[]] * 9,
    {"a": {"b": {}}},
]
PIECES = [
    b"\0",
    b"\xff" * 8,
    b"../",
    b"\r\n",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 2000,
    b"[" * 2000,
    b"\x81\xa0" * 900,
    b"&amp;" * 50,
    b"9" * 5000,
    "é\udcff".encode("utf-8", "surrogatepass"),
]


def changed_bytes(seed: bytes, draw: random.Random) -> bytes:
    """One to four edits: a bit, a byte, a cut, a piece put in, a part repeated."""
    data = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(data):
                data[at] = draw.randrange(256)
            case 2:
                del data[at : at + draw.randint(1, 40)]
            case 3:
                data[at:at] = draw.choice(PIECES)
            case 4:
                data[at:at] = data[max(0, at - draw.randint(1, 40)) : at]
            case _:
                del data[at:]
    return bytes(data)


def changed_value(value: Any, draw: random.Random, odd: list[Any]) -> Any:
    """The value with one part of it replaced, taken out or doubled."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: changed_value(value[key], draw, odd), **({"unknown": 1} if draw.random() < 0.05 else {})}
    if isinstance(value, list | tuple) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        items = list(value)
        items[at : at + 1] = (
            [[], items[at : at + 1] * 2][draw.randrange(2)] if draw.random() < 0.15 else [changed_value(items[at], draw, odd)]
        )
        return items
    return draw.choice([*odd, value, draw.choice(odd)])


def drawn(parser: Parser, draw: random.Random) -> bytes:
    seed = draw.choice(parser.seeds)
    if parser.form == "msgpack" and draw.random() < 0.6:
        return pack(changed_value(unpack(seed), draw, ODD))
    if parser.form == "json" and draw.random() < 0.6:
        plain = [10**400, *(item for item in ODD if not isinstance(item, bytes))]
        return json.dumps(changed_value(json.loads(seed), draw, plain)).encode()
    return changed_bytes(seed, draw)


@pytest.mark.parametrize("name", PARSERS)
def test_seeds_are_accepted(name: str) -> None:
    """Else what follows would try nothing."""
    assert any(tried(PARSERS[name], seed) for seed in PARSERS[name].seeds)


@pytest.mark.parametrize("name", PARSERS)
def test_changed_seeds(name: str) -> None:
    parser = PARSERS[name]

    @settings(max_examples=SLOW.get(name, EXAMPLES), deadline=2000, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        for _ in range(1 if name in SLOW else 5):
            tried(parser, drawn(parser, draw))

    check()


@pytest.mark.parametrize("name", PARSERS)
def test_anything(name: str) -> None:
    parser = PARSERS[name]

    @settings(max_examples=SLOW.get(name, EXAMPLES), deadline=2000, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        tried(parser, data)

    check()


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "piece", [b"\x91" * 200_000, b"[" * 200_000, b"\x81\xa1a" * 70_000, b"<a>" * 70_000, b"\0" * 300_000, b"a.b." * 60_000], ids=range(6)
)
def test_deep_and_long(name: str, piece: bytes) -> None:
    parser, started = PARSERS[name], time.process_time()
    tried(parser, piece)
    tried(parser, parser.seeds[0] + piece)
    tried(parser, parser.seeds[0][: len(parser.seeds[0]) // 2] + piece)
    assert time.process_time() - started < 5


FOUND = {
    "lease: a process that no system can have": ("lease", Holder("t", "s", "", 3, "held", {**identity(), "pid": 2**63}).to_bytes()),
    "recorded calls: a time of 400 digits": ("recorded calls", PARSERS["recorded calls"].seeds[0].replace(b"1.5}", b"1" * 400 + b"}")),
    "statistics: an endless process": ("statistics", PARSERS["statistics"].seeds[0].replace(b'"process":3', b'"process":Infinity')),
    "settings: a key of 60,000 parts": ("settings", b"a." * 60_000 + b"b = 1"),
    "size of a store: a key of 60,000 parts": ("size of a store", b"a." * 60_000 + b"max_size = 1"),
    "settings: a number of 5,000 digits": ("settings", b"remotes = " + b"9" * 5000),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_before(case: str) -> None:
    name, data = FOUND[case]
    started = time.process_time()
    tried(PARSERS[name], data)
    assert time.process_time() - started < 2
