"""A gunicorn server whose workers are forked from one process that has loaded everything: they share its memory and start at once.

    STORE=/srv/store gunicorn --chdir examples/serving --preload --workers 4 forking:app

Loading maps the code and decodes the guards in the parent, before it forks. Nothing is run there: a parent that has run OpenMP code
leaves its children a thread pool without threads, which the first parallel region then waits for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import model
import torch

import precast

served = precast.load(model.make(), store=os.environ["STORE"])
warm_up = precast.warm_up(served)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """POST /classify {"features": [[…]]}: 200 with probabilities and the worker's pid, 422 with the explanation of a miss."""
    try:
        rows = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))["features"]
        with torch.no_grad():
            answer: dict[str, Any] = {"probabilities": served(torch.tensor(rows)).tolist(), "worker": os.getpid()}
        status = "200 OK"
    except precast.GuardMiss as miss:
        status, answer = "422 Unprocessable Content", {"error": str(miss)}
    except (KeyError, TypeError, ValueError) as error:
        status, answer = "400 Bad Request", {"error": f"{type(error).__name__}: {error}"}
    body = json.dumps(answer).encode()
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
