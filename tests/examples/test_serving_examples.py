"""The serving examples: built by their build file, started as their first lines say, asked over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import torch

from tests.support.needs import needs

needs("fastapi")
needs("uvicorn")
needs("gunicorn")
FOLDER = Path(__file__).parents[2] / "examples" / "serving"
PROCESS_SECONDS = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving") / "store"
    command = [sys.executable, "-m", "precast.cli", "build", str(FOLDER / "serving.toml"), "--store", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def served(command: list[str], store: Path, log: Path) -> Iterator[None]:
    env = {**os.environ, "STORE": str(store), "PATH": "", "CXX": ""}  # a server has no compiler
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=FOLDER, env=env, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text
    except HTTPError as error:
        return error.code, json.loads(error.read().decode())


def when_up(url: str, log: Path, body: Any = None) -> tuple[int, Any]:
    deadline = time.monotonic() + PROCESS_SECONDS
    while time.monotonic() < deadline:
        try:
            return ask(url, body)
        except (URLError, ConnectionError):
            time.sleep(0.1)
    pytest.fail(f"no answer from {url}: {log.read_text()[-2000:]}")


def expected(rows: list[list[float]]) -> list[list[float]]:
    sys.path.insert(0, str(FOLDER))
    try:
        import model  # type: ignore[import-not-found]

        with torch.no_grad():
            result: list[list[float]] = model.make()(torch.tensor(rows)).tolist()
        return result
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("model", None)


def test_fastapi_behind_uvicorn(store: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    rows = torch.randn(3, 32).tolist()
    with served(["uvicorn", "app:app", "--port", str(port)], store, log):
        status, ready = when_up(f"http://127.0.0.1:{port}/readyz", log)
        assert status == 200 and len(ready["artifacts"]) == 2
        status, answer = ask(f"http://127.0.0.1:{port}/classify", {"features": rows})
        assert status == 200
        torch.testing.assert_close(torch.tensor(answer["probabilities"]), torch.tensor(expected(rows)))
        assert ask(f"http://127.0.0.1:{port}/classify", {"features": [[1.0]]})[0] == 400
        status, text = ask(f"http://127.0.0.1:{port}/metrics")
        assert status == 200 and text.endswith("# EOF\n") and "precast_" in text
    assert "canary" not in log.read_text()


def test_gunicorn_forks_workers_that_have_everything(store: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    rows = torch.randn(8, 32).tolist()
    command = ["gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "forking:app"]
    with served(command, store, log):
        workers = set()
        deadline = time.monotonic() + PROCESS_SECONDS
        wanted = torch.tensor(expected(rows))
        while len(workers) < 2 and time.monotonic() < deadline:
            status, answer = when_up(f"http://127.0.0.1:{port}/classify", log, {"features": rows})
            assert status == 200, answer
            torch.testing.assert_close(torch.tensor(answer["probabilities"]), wanted)
            workers.add(answer["worker"])
        assert len(workers) == 2
        assert ask(f"http://127.0.0.1:{port}/classify", {})[0] == 400


def test_a_server_with_nothing_to_serve_by_does_not_start(tmp_path: Path) -> None:
    env = {**os.environ, "STORE": str(tmp_path / "empty")}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(free_port())]
    done = subprocess.run(command, cwd=FOLDER, env=env, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False)
    assert done.returncode != 0 and "nothing to serve by" in done.stderr and "was it pulled?" in done.stderr
