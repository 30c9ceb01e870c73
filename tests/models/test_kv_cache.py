"""A key-value cache object that goes in and comes out: GPT-2 decodes step by step, compiled and then served by a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import REFUSE, child

pytestmark = pytest.mark.xdist_group("models")

DECODE = """
import sys
import torch
import transformers

torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=301, n_positions=64, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(config).eval()
prompt = torch.arange(6)[None] * 7 % 301


def decode(call, steps=3):
    "The prompt and then one token at a time: each call's result and the tensors of the cache that it gave."
    cache, ids, seen = transformers.DynamicCache(), prompt, []
    for _ in range(steps + 1):
        out = call(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert type(cache) is transformers.DynamicCache, type(cache)
        seen.append((type(out), out.logits.clone(), [t.clone() for layer in cache.layers for t in (layer.keys, layer.values)]))
        ids = out.logits[:, -1:].argmax(-1)
    assert cache.get_seq_length() == prompt.shape[1] + steps
    return seen


def compare(call):
    for (kind, logits, cache), (eager_kind, eager_logits, eager_cache) in zip(decode(call), decode(model), strict=True):
        assert kind is eager_kind
        torch.testing.assert_close(logits, eager_logits, rtol=1e-4, atol=1e-4)
        assert len(cache) == len(eager_cache) == 4
        for got, want in zip(cache, eager_cache, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
"""

COLD = """
import decoding, precast, sys, torch, warnings
from precast.runtime.api.compile import site_of
warnings.simplefilter("error", UserWarning)
with torch.no_grad():
    compiled = precast.compile(decoding.model, store=sys.argv[1])
    decoding.compare(compiled)
variants = [variant for program in site_of(compiled).programs for variant in program.variants]
assert variants and all(variant.stored for variant in variants), variants
"""

WARM = (
    REFUSE
    + """
import decoding, precast, sys, torch
refuse_tracer()
with torch.no_grad():
    decoding.compare(precast.load(decoding.model, store=sys.argv[1], require="hit"))
print("served")
"""
)


def test_a_cache_goes_in_and_comes_out(tmp_path: Path) -> None:
    (tmp_path / "decoding.py").write_text(DECODE)
    store = str(tmp_path / "store")
    child(tmp_path, COLD, store)
    assert child(tmp_path, WARM, store).strip() == "served"
