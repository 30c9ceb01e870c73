"""A stampede: processes of several machines start at once on a cold remote. How often is each artifact compiled, and when are all ready?

    python benchmarks/remote/stampede.py [--remotes folder,redis,s3] [--processes 32] [--machines 4] [--json FILE]

A machine is a local store of its own (the processes share this one's processor). The processes are forked after the import of torch and
precast, wait for a common moment, and call three programs: a plain one, one with a graph break, and one that each machine calls with a size
of its own. Beside it, one process alone on a cold remote and store. Compiles are counted from the processes' logs; each answer is compared
with eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MEMBERS = """
import json, os, sys, time
from pathlib import Path
import torch
import precast

def plain(x):
    return torch.sin(x) * 2 + 1

def breaks(x):
    y = x.cos() * 3
    if y.sum() > 0:
        return y.exp()
    return y - 1

def sized(x):
    return x.tanh() * x.shape[0]

folder, processes, machines = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if sys.argv[4:] == ["--tracer"]:
    import precast.compiling.driver

def member(number):
    os.environ["PRECAST_STORE"] = str(folder / f"store-{number % machines}")
    os.dup2(os.open(folder / f"log-{number}", os.O_WRONLY | os.O_CREAT), 2)
    torch.set_num_threads(1)
    (folder / f"ready-{number}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    right, begin, first = [], time.time(), None
    with torch.no_grad():
        for function, x in ((plain, torch.ones(5)), (breaks, torch.ones(4)), (sized, torch.ones(3 + number % machines))):
            got = precast.compile(function)(x)
            first = first or time.time()
            right.append(bool(torch.allclose(got, function(x), atol=1e-5)))
    told = {"right": all(right), "begin": begin, "first": first, "end": time.time()}
    (folder / f"told-{number}").write_text(json.dumps(told))

children = []
for number in range(processes):
    children.append(os.fork())
    if children[-1] == 0:
        member(number)
        sys.exit()
while len(list(folder.glob("ready-*"))) < processes:
    time.sleep(0.01)
(folder / "go").touch()
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255 for child in children))
"""


@dataclass
class Stampede:
    """What came of one. `compiled`: program -> compiles; `ready`: seconds until every process had all of its answers; `first`: until the
    last process had its first one; `fetched`, `waited`: how often a process said that it fetched an artifact, or waits for another.
    """

    remote: str
    processes: int
    machines: int
    compiled: dict[str, int]
    ready: float
    first: float
    right: bool
    fetched: int
    waited: int

    @property
    def once(self) -> bool:
        """Whether each artifact was compiled once: what has a size of its own is one static artifact and one symbolic one."""
        return all(count <= (2 if name == "sized" else 1) for name, count in self.compiled.items())


@contextmanager
def cold_remote(kind: str) -> Iterator[str]:
    """The URL of an empty remote of this kind."""
    from tests.support.servers import S3_ENVIRONMENT, redis_server, s3_server

    os.environ.update(S3_ENVIRONMENT)
    if kind == "folder":
        with tempfile.TemporaryDirectory(prefix="precast-shared-") as folder:
            yield f"shared://{folder}?trust=any"
    elif kind == "redis":
        with redis_server() as server:
            yield f"{server.url}?trust=any"
    elif kind == "s3":
        with s3_server() as server:
            yield f"{server.url}&trust=any"
    else:
        raise SystemExit(f"no remote {kind!r}: folder, redis, s3")


def run(kind: str, processes: int, machines: int, seconds: float = 600.0, *, small: bool = False) -> Stampede:
    """One stampede on a cold remote. `small`: the tracer is imported before the processes are forked, and the native runtime done without,
    which saves most of the time of a small one.
    """
    with cold_remote(kind) as url, tempfile.TemporaryDirectory(prefix="precast-stampede-") as temporary:
        folder = Path(temporary)
        (folder / "members.py").write_text(MEMBERS)
        logs = {"PRECAST_LOGS": "compile,store", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PRECAST_REMOTE": url, **logs, **({"PRECAST_NATIVE": "0"} if small else {})}
        command = [sys.executable, "members.py", str(folder), str(processes), str(machines), *(["--tracer"] if small else [])]
        done = subprocess.run(command, cwd=folder, env=environment, timeout=seconds, check=False)
        told = [json.loads(path.read_text()) for path in sorted(folder.glob("told-*"))]
        if done.returncode or len(told) < processes:
            raise SystemExit(f"{len(told)} of {processes} processes came to their end:\n{_logs(folder)[-4000:]}")
        return _judged(kind, processes, machines, told, _logs(folder))


def _logs(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("log-*")))


def _judged(kind: str, processes: int, machines: int, told: list[dict[str, float]], logs: str) -> Stampede:
    lines = logs.splitlines()
    made = Counter(line.split("__main__:")[1].split(":")[0] for line in lines if ": compiled artifact" in line)
    begin = min(each["begin"] for each in told)
    return Stampede(
        kind,
        processes,
        machines,
        dict(made),
        max(each["end"] for each in told) - begin,
        max(each["first"] for each in told) - begin,
        all(each["right"] for each in told),
        sum("fetch: " in line for line in lines),
        sum("waits for process" in line for line in lines),
    )


def main() -> int:
    """The exit code: 1 where an artifact was compiled twice, or an answer was wrong."""
    parser = argparse.ArgumentParser(description="a stampede on a cold remote")
    parser.add_argument("--remotes", default="folder,redis,s3")
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    print(
        "| remote | processes | machines | compiles | all ready, s | one process, s | answers |\n|---|--:|--:|---|--:|--:|---|", flush=True
    )
    for kind in given.remotes.split(","):
        alone, all_ = run(kind, 1, 1), run(kind, given.processes, given.machines)
        found += [alone, all_]
        compiles = ", ".join(f"{name} {count}" for name, count in sorted(all_.compiled.items()))
        answers = "right" if alone.right and all_.right else "WRONG"
        row = (kind, all_.processes, all_.machines, compiles, f"{all_.ready:.1f}", f"{alone.ready:.1f}", answers)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return 0 if all(each.right and each.once for each in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
