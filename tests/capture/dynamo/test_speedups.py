"""Dynamo names functions for its log of calls, out of tokenized source files: only where somebody reads that log."""

from __future__ import annotations

import logging

import pytest
import torch
from torch._dynamo import funcname_cache, symbolic_convert

from precast.capture import CaptureOptions, capture


@pytest.mark.parametrize("read", [False, True])
def test_source_files_are_tokenized_for_a_log_that_is_read(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = symbolic_convert.trace_call_log
    monkeypatch.setattr(funcname_cache, "cache", {})
    level, silent = log.level, log.propagate
    log.setLevel(logging.DEBUG if read else logging.WARNING)
    log.propagate = False
    try:
        capture(lambda x: torch.relu(x) + 1, (torch.randn(2),), {}, options=CaptureOptions({}))
    finally:
        log.setLevel(level)
        log.propagate = silent
    assert bool(funcname_cache.cache) is read
