"""A production server: warm from the store, never compiles, says why when a request would miss.

    precast build examples/build.toml
    python examples/server.py examples/build/store        # or --once for one request and the time of its answer
    curl -d '{"sentences": ["I forgot my password."]}' localhost:8000

The machine needs the store, torch and the model's code: no compiler, and precast imports no tracer.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import sentences
import torch
from transformers import AutoTokenizer

import precast


class Service:
    """The compiled encoder behind a function from sentences to embeddings."""

    def __init__(self, store: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(sentences.folder(), local_files_only=True)
        self.encode = precast.load(sentences.make_encoder(), store=store, require="hit")

    def answer(self, texts: list[str]) -> list[list[float]]:
        """An embedding per sentence. Raises precast.GuardMiss, with the reason, where no stored artifact fits.

        Built for 1 and 8 sentences: the sizes differ, so the second artifact serves every batch from 2 on. With `batches = [1]` in
        build.toml, or `options = { dynamic = "no" }` there and here, other batches miss.
        """
        tokens = self.tokenizer(texts, padding="max_length", truncation=True, max_length=sentences.LENGTH, return_tensors="pt")
        with torch.no_grad():
            result: list[list[float]] = self.encode(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).tolist()
        return result


def handler(service: Service) -> type[BaseHTTPRequestHandler]:
    """The HTTP side: POST {"sentences": [...]}; 200 with embeddings, 400 for another body, 422 with the explanation of a miss."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: dict[str, Any]
            try:
                texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["sentences"]
                if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                    raise ValueError("at least one sentence, each a string, is wanted")
                status, body = 200, {"embeddings": service.answer(texts)}
            except (KeyError, TypeError, ValueError) as error:
                status, body = 400, {"error": f'send {{"sentences": ["…"]}}: {type(error).__name__}: {error}'}
            except precast.GuardMiss as miss:
                status, body = 422, {"error": str(miss)}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 in a container, to be reached from outside of it")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--once", action="store_true", help="answer one request, print how long it took, and stop")
    args = parser.parse_args()
    service = Service(args.store)
    start = time.perf_counter()
    vector = service.answer(["I forgot my password."])[0]
    print(f"first answer after {(time.perf_counter() - start) * 1e3:.0f} ms: [{vector[0]:.4f}, {vector[1]:.4f}, …]", flush=True)
    if not args.once:
        ThreadingHTTPServer((args.host, args.port), handler(service)).serve_forever()


if __name__ == "__main__":
    main()
