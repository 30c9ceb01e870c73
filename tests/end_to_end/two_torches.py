"""Two environments with different torch, one store: `python -m tests.end_to_end.two_torches PYTHON_A PYTHON_B`, from the root.

Each step runs the command, or a process that serves, with one of the two interpreters, and says what it must. What A built misses under B
with the reason wherever one looks; both artifacts then lie in one store, and each serves its own. `--farm` adds a dask worker of the other
torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
FACTORIES = ("net", "branching")
SERVE = """
import json, sys, torch, precast
from tests.precast.cli import app
out = {}
with torch.no_grad():
    for name in sys.argv[3:]:
        torch.manual_seed(0)
        program, calls = getattr(app, name)()
        f = precast.load(program, store=sys.argv[1], require="hit", remote=sys.argv[2] or None, name=name)
        said = []
        for args, kwargs in calls:
            try:
                close = torch.allclose(f(*args, **kwargs), program(*args, **kwargs), atol=1e-5)
                said.append("hit" if close else "wrong")
            except precast.GuardMiss:
                explained = precast.explain_miss(f, *args, **kwargs)
                said.append(f"{explained.cause} ({explained.detail}): {explained}")
        out[name] = said
print(json.dumps(out))
"""


@dataclass
class Side:
    """One interpreter, and the minor versions of its torch and Python."""

    python: str
    folder: Path
    torch: str = ""
    state: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said = self.run("-c", "import torch; print(torch.__version__)")[0]
        self.torch = ".".join(said.strip().split("+")[0].split(".")[:2])

    def run(self, *words: object, code: int | None = 0, **more: str) -> tuple[str, str]:
        """Output and errors of this interpreter; its exit code has to be `code`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECAST_")}
        env = kept | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.folder / "state"), "PRECAST_STATS": "1"} | more
        done = subprocess.run(
            [self.python, "-W", "ignore", *map(str, words)], capture_output=True, text=True, cwd=ROOT, env=env, check=False, timeout=900
        )
        assert code is None or done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def precast(self, *words: object, code: int | None = 0, **more: str) -> str:
        """All that the command says."""
        return "".join(self.run("-m", "precast.cli", *words, code=code, **more))

    def serve(self, store: Path, remote: str = "") -> dict[str, list[str]]:
        """By program, what became of each of its calls in a process that only serves."""
        found: dict[str, list[str]] = json.loads(self.run("-c", SERVE, store, remote, *FACTORIES)[0])
        return found


def tell(step: str, said: str = "") -> None:
    """A line for each step that holds."""
    print(f"ok  {step}{f': {said}' if said else ''}", flush=True)


def line_with(text: str, part: str) -> str:
    """The line that has `part`, which must be there."""
    found = next((line.strip() for line in text.splitlines() if part in line), None)
    assert found is not None, f"{part!r} is not in:\n{text}"
    return found[:220]


def all_hit(found: dict[str, list[str]]) -> bool:
    """Whether every call of every program was served, with the right values."""
    return all(said == "hit" for calls in found.values() for said in calls)


class Steps:
    """A and B, and a folder for what they make."""

    def __init__(self, one: Side, two: Side, folder: Path) -> None:
        self.one, self.two, self.folder = one, two, folder
        self.store = folder / "store"
        self.file = folder / "build.toml"
        rows = (f'[[program]]\nfactory = "tests.precast.cli.app:{name}"\nname = "{name}"\n' for name in FACTORIES)
        self.file.write_text('targets = ["cpu:x86-64-v3"]\n' + "\n".join(rows))
        self.mismatch = f"it was compiled for torch {one.torch}, and this is torch {two.torch}"
        self.detail = f"torch version ({one.torch}, here {two.torch})"

    def build(self, side: Side, store: Path) -> str:
        return line_with(side.precast("build", self.file, "--store", store), "failed;")

    def listed(self, side: Side, store: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(side.run("-m", "precast.cli", "ls", "--store", store, "--json")[0])
        return found

    def misses_cleanly(self) -> None:
        """What A built, under B: each place that is asked gives the same reason."""
        tell(f"{self.one.torch} builds", self.build(self.one, self.store))
        served = self.two.serve(self.store)
        first = [calls[0] for calls in served.values()]
        assert all(said.startswith(self.detail) and self.mismatch in said for said in first), served
        tell(f"{self.two.torch} misses", first[0].splitlines()[0])
        tell("stats --by cause", line_with(self.two.precast("stats", "--by", "cause", "--store", self.store), "torch version"))
        tell("check", line_with(self.two.precast("check", self.file, "--store", self.store, code=1), self.mismatch))
        tell("explain", line_with(self.two.precast("explain", self.file, "--store", self.store, code=None), self.mismatch))
        logged = self.two.run("-c", SERVE, self.store, "", FACTORIES[0], PRECAST_LOGS="runtime")[1]
        assert sum(self.mismatch in line for line in logged.splitlines()) == len(
            {line for line in logged.splitlines() if self.mismatch in line}
        )
        tell("log", line_with(logged, self.mismatch))

    def lie_in_one_store(self) -> None:
        """B builds as well: nothing of A's goes, and each serves its own."""
        before = {entry["id"] for entry in self.listed(self.one, self.store)}
        tell(f"{self.two.torch} builds into the same store", self.build(self.two, self.store))
        entries = self.listed(self.two, self.store)
        assert before < {entry["id"] for entry in entries}
        counts = {version: sum(entry["versions"]["torch"] == version for entry in entries) for version in (self.one.torch, self.two.torch)}
        assert all(counts.values()) and sum(counts.values()) == len(entries), counts
        tell("ls --json", f"artifacts by torch {counts}")
        tell("of which", str(sorted((e["program_name"], e["versions"]["torch"]) for e in entries)))
        for side in (self.one, self.two):
            assert all_hit(served := side.serve(self.store)), served
            tell(f"{side.torch} is served by its own", line_with(side.precast("check", self.file, "--store", self.store), "signatures hit"))
        for side, other in ((self.one, self.two), (self.two, self.one)):
            stale = f"made for torch {other.torch}, and {side.torch} is installed"
            tell(f"{side.torch} ls", line_with(side.precast("ls", "--store", self.store), stale))
            tell(f"{side.torch} doctor", line_with(side.precast("doctor", "--store", self.store), stale))
            listed = side.run("-m", "precast.cli", "prune", "--stale-versions", "--dry-run", "--store", self.store)[0].splitlines()
            assert len(listed) == counts[other.torch] and all(stale in line for line in listed), listed
            tell(f"{side.torch} prune --stale-versions", f"{len(listed)} of {len(entries)}, all of torch {other.torch}")
        tell("verify", self.two.precast("verify", "--store", self.store).splitlines()[-1])
        pair = [next(e["id"] for e in entries if e["program_name"] == "net" and e["versions"]["torch"] == v) for v in counts]
        said = self.two.precast("diff", *pair, "--store", self.store, code=None)
        tell("diff", line_with(said, f"torch {self.one.torch} != {self.two.torch}"))
        tell("show", line_with(self.two.precast("show", pair[0], "--store", self.store), f"torch {self.one.torch}"))
        tell("explain ID", line_with(self.two.precast("explain", pair[0], "--store", self.store, code=None), f"torch {self.one.torch}"))

    def move(self) -> None:
        """Remotes, bundles and sync take artifacts of any torch; a look-up names the cause."""
        alone, remote = self.folder / "alone", f"shared://{self.folder}/shared?trust=any"
        (self.folder / "shared").mkdir()
        tell(f"{self.one.torch} builds", self.build(self.one, alone))
        self.one.precast("push", remote, "--store", alone)
        served = self.two.serve(self.folder / "empty", remote)
        first = [calls[0] for calls in served.values()]
        assert all(said.startswith(self.detail) and self.mismatch in said for said in first), served
        tell(f"{self.two.torch} with a remote of {self.one.torch}", line_with(first[0], "Beyond the store"))
        counted = self.two.precast("stats", "--by", "cause", "--store", self.folder / "empty")
        tell("stats of a remote look-up", line_with(counted, "torch version"))
        tell(f"{self.two.torch} pushes beside", self.two.precast("push", remote, "--store", self.store).splitlines()[-1])
        for side in (self.one, self.two):
            fresh = self.folder / f"fresh-{side.torch}"
            assert all_hit(served := side.serve(fresh, remote)), served
            kept = {entry["versions"]["torch"] for entry in self.listed(side, fresh)}
            assert kept == {side.torch}, kept
            tell(f"{side.torch} is served by the remote, and fetches its own only")
        pulled = self.folder / "pulled"
        tell(f"{self.two.torch} pulls", self.two.precast("pull", remote, "--store", pulled).splitlines()[-1])
        synced = self.folder / "synced"
        tell(f"{self.one.torch} syncs", self.one.precast("sync", pulled, synced).splitlines()[-1])
        bundle, opened = self.folder / "all.precast", self.folder / "opened"
        self.two.precast("export", bundle, "--store", synced)
        tell(f"{self.one.torch} imports", self.one.precast("import", bundle, "--store", opened, "--trust", "any").splitlines()[-1])
        for side in (self.one, self.two):
            assert all_hit(served := side.serve(opened)), served
        tell("both are served by what was pulled, synced, exported and imported")
        ids = [{entry["id"] for entry in self.listed(self.two, store)} for store in (self.store, opened)]
        assert ids[0] == ids[1]
        tell("diff of two stores", self.two.precast("diff", alone, self.store, code=None).splitlines()[-1])

    def farm(self) -> None:
        """A scheduler with one worker of the other torch: it is refused, and the build says why."""
        address = self.folder / "scheduler.json"
        workers: list[subprocess.Popen[bytes]] = []

        def start(side: Side, *words: str) -> None:
            command = [side.python, "-W", "ignore", "-m", *words]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env=env))

        try:
            start(
                self.two,
                "distributed.cli.dask_scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--scheduler-file",
                str(address),
                "--no-dashboard",
            )
            wait_for(lambda: address.exists() and address.stat().st_size > 0)
            url = json.loads(address.read_text())["address"].replace("tcp://", "dask://")
            worker = (
                "distributed.cli.dask_worker",
                "--scheduler-file",
                str(address),
                "--nworkers",
                "1",
                "--nthreads",
                "1",
                "--no-dashboard",
            )
            start(self.one, *worker)
            refused = f"it has torch {self.one.torch}, and this machine torch {self.two.torch}"
            wants = ("build", self.file, "--store", self.folder / "farmed", "--executor", url)
            tell("a farm of the other torch alone", line_with(self.two.precast(*wants, code=1), refused))
            start(self.two, *worker)
            time.sleep(20.0)  # until it is known to the scheduler
            said = self.two.precast(*wants)
            tell("with a worker of this torch beside", line_with(said, refused))
            tell("", said.splitlines()[-1])
        finally:
            for process in reversed(workers):
                process.terminate()
                process.wait(30)


def wait_for(there: Callable[[], bool], seconds: float = 120.0) -> None:
    """Until it is there. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise TimeoutError("what was waited for did not come")
        time.sleep(0.2)


def main(arguments: list[str]) -> None:
    """Run all steps; the first that does not hold ends it."""
    pythons = [word for word in arguments if word != "--farm"]
    if len(pythons) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="two-torches-") as name:
        folder = Path(name)
        one, two = (Side(str(Path(python).absolute()), folder) for python in pythons)
        assert one.torch != two.torch and re.fullmatch(r"\d+\.\d+", one.torch), (one.torch, two.torch)
        steps = Steps(one, two, folder)
        steps.misses_cleanly()
        steps.lie_in_one_store()
        steps.move()
        if "--farm" in arguments:
            steps.farm()
    print(f"torch {one.torch} and torch {two.torch}: all steps hold")


if __name__ == "__main__":
    main(sys.argv[1:])
