"""Starts the processes: each build and each case in one of its own, with a limit of time, and with nothing cached but the artifact."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case
from rounds import Failed, _why
from ways import WAYS, caches_in, environment

HERE = Path(__file__).resolve().parent
Outcome = dict[str, Any]
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # a pool of compilers cannot be forked


@dataclass(frozen=True)
class Settings:
    """Seconds that a process may take, an interpreter with another torch, and how many ways run at once."""

    timeout: float = 300
    other_python: Path | None = None
    jobs: int = 1


class Process:
    """A worker of one way. `caches` takes what torch remembers besides the artifact: it is empty, as on a machine that is new."""

    def __init__(self, way: str, root: Path, source: Path, settings: Settings, python: Path | None = None, **more: str):
        self.caches = Path(tempfile.mkdtemp(prefix="caches-", dir=root))
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(python or sys.executable), str(HERE / "worker.py"), "--way", way, "--source", str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=self.caches,
            env={**environment(WAYS[way], self.caches), **more},
        )
        self.late = False
        self.limit = settings.timeout
        self.started = self._read(self.limit)

    def _read(self, limit: float) -> Outcome:
        assert self.process.stdout is not None
        timer = threading.Timer(limit, self._end)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line:
            answer: Outcome = json.loads(line)
            return answer
        status = self.process.wait()
        self.log.seek(0)
        raise Failed(f"no answer within {limit:.0f} s" if self.late else _why(self.log.read(), status))

    def _end(self) -> None:
        self.late = True
        self.process.kill()

    def ask(self, do: str, **arguments: Any) -> Outcome:
        """Send one request and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._read(self.limit + (30 if "apart" in arguments else 0))

    def ask_apart(self, do: str, surroundings: tuple[tuple[str, str], ...] = (), **arguments: Any) -> Outcome:
        """The same in a child of the worker that has imported its modules and done nothing else."""
        caches = Path(tempfile.mkdtemp(dir=self.caches))
        apart = {**caches_in(caches), **dict(surroundings)}
        try:
            return self.ask(do, apart=apart, limit=self.limit, **arguments)
        finally:
            shutil.rmtree(caches, ignore_errors=True)

    def close(self) -> None:
        """End the worker and forget its caches."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.caches, ignore_errors=True)


class Bench:
    """One way: a folder with a copy of the source, and the artifacts that were built from it."""

    def __init__(self, root: Path, way: str, settings: Settings) -> None:
        self.root, self.way, self.settings = root, way, settings
        self.source = root / "source"
        self.source.mkdir(parents=True)
        shutil.copy(HERE / "subject.py", self.source)
        self.built: dict[tuple[str, bool], tuple[Path, Outcome]] = {}
        self.processes: dict[bool, Process] = {}

    def start(self) -> Process:
        """A fresh process of this way."""
        return Process(self.way, self.root, self.source, self.settings)

    def _worker(self, other_torch: bool) -> Process:
        if other_torch not in self.processes:
            python = self.settings.other_python if other_torch else None
            self.processes[other_torch] = Process(self.way, self.root, self.source, self.settings, python, **ONE_COMPILER)
        return self.processes[other_torch]

    def build(self, program: str, other_torch: bool = False) -> tuple[Path, Outcome]:
        """The artifact's folder and what the build said; built once."""
        if (program, other_torch) not in self.built:
            artifact = self.root / f"{program}-{other_torch}" / "artifact"
            artifact.mkdir(parents=True, mode=0o700)
            try:
                said = self._worker(other_torch).ask_apart("build", program=program, folder=str(artifact))
            except Failed as failure:
                said = {"error": f"the process ended: {failure}"}
            self.built[program, other_torch] = (artifact, said)
        return self.built[program, other_torch]

    def serve(self, case: Case) -> Outcome:
        """One case: build, unless that was done, and load in another process."""
        if case.other_torch and not self.settings.other_python:
            return {"outcome": "untried", "detail": "no --other-python was given"}
        if case.found and not WAYS[self.way].finds:
            return {"outcome": "untried", "detail": "whoever loads names the file"}
        artifact, said = self.build(case.program, case.other_torch)
        if said.get("error"):
            return {"outcome": "lacking" if said.get("lacking") else "unbuilt", "detail": said["error"]}
        folder = Path(tempfile.mkdtemp(dir=artifact.parent))
        shutil.copytree(artifact, folder / "artifact")
        path = self.source / "subject.py"
        text = path.read_text()
        if case.edit:
            assert case.edit[0] in text, f"{case.name} edits what is not there"
            path.write_text(text.replace(*case.edit))
        request = {"program": case.program, "folder": str(folder / "artifact"), "case": case.name}
        try:
            return self._worker(False).ask_apart("serve", case.environment, **request)
        except Failed as failure:
            return {"outcome": "error", "detail": f"the process ended: {failure}"}
        finally:
            path.write_text(text)
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            process.close()


def outcomes(
    cases: list[Case], ways: list[str], settings: Settings, keep: Callable[[str, str, Outcome], None]
) -> dict[str, dict[str, Outcome]]:
    """Every case under every way; ways run beside one another where several jobs are allowed, the cases of one in turn."""
    root = Path(tempfile.mkdtemp(prefix="precast-upstream-"))

    def of_way(way: str) -> dict[str, Outcome]:
        bench = Bench(root / way, way, settings)
        results = {}
        try:
            for case in cases:
                results[case.name] = bench.serve(case)
                print(f"{case.name}: {way}: {results[case.name]}", file=sys.stderr, flush=True)
                keep(case.name, way, results[case.name])
        finally:
            bench.close()
        return results

    try:
        with ThreadPoolExecutor(settings.jobs) as pool:
            by_way = dict(zip(ways, pool.map(of_way, ways), strict=True))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {case.name: {way: by_way[way][case.name] for way in ways} for case in cases}
