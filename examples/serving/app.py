"""A FastAPI server that starts warm, with the init step that fetches what it serves.

    precast build examples/serving/serving.toml                      # in CI; then `precast push URL`
    precast pull URL --store /srv/store                              # the init step: see examples/deploy for containers
    STORE=/srv/store uvicorn --app-dir examples/serving app:app

`/healthz` answers as soon as the process lives, `/readyz` once all that the store has is loaded, `/metrics` to OpenMetrics scrapers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import model
import torch
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, Field

import precast

state: dict[str, Any] = {}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model and every stored artifact before the first request; look for better artifacts once a minute."""
    served = precast.load(model.make(), store=os.environ["STORE"], canary=True, refresh_seconds=60)
    done = await asyncio.to_thread(precast.warm_up, served)
    if not done.artifacts:
        raise RuntimeError(f"nothing to serve by in {os.environ['STORE']}: {'; '.join(done.problems) or 'was it pulled?'}")
    state.update(served=served, warm_up=done)
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


class Request(BaseModel):
    features: list[list[float]] = Field(min_length=1)


def classify(rows: list[list[float]]) -> list[list[float]]:
    """Probabilities of each row. Raises precast.GuardMiss, with the reason, where no stored artifact fits."""
    with torch.no_grad():  # as it was built
        result: list[list[float]] = state["served"](torch.tensor(rows)).tolist()
    return result


@app.post("/classify")
def post(request: Request) -> dict[str, list[list[float]]]:
    if any(len(row) != model.FEATURES for row in request.features):
        raise HTTPException(400, f"each row has {model.FEATURES} numbers")
    try:
        return {"probabilities": classify(request.features)}
    except precast.GuardMiss as miss:
        raise HTTPException(422, str(miss)) from miss


@app.get("/healthz")
def health() -> dict[str, str]:
    return {"status": "alive"}


@app.get("/readyz")
def ready() -> dict[str, Any]:
    done = state["warm_up"]
    return {"artifacts": done.artifacts, "seconds": done.seconds}


@app.get("/metrics")
def metrics() -> Response:
    return Response(precast.metrics(), media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")
