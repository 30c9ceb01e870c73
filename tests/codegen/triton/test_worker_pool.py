"""Processes that compile Triton's kernels: the same bytes, the same errors, and nothing lost with them."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.codegen.cuda import backend
from precast.codegen.cuda.benchmarking import said
from precast.codegen.triton.build import images, schedule_compiles, worker_pool
from precast.codegen.triton.build import worker as triton_worker
from precast.codegen.triton.build.images import PTX, Cubin, candidate_images, compile_images
from precast.codegen.triton.build.worker_pool import Keeper, Pool
from precast.codegen.triton.render.render import TritonKernel
from precast.compiling import driver
from tests.codegen.triton.test_render import kernels_of

ROWS = ("lerp-f32", "softmax/-1-f32", "embedding/sum-f32", "chain/residual_layernorm_gelu-bf16")
HELLO = (
    "import json, os, runpy, sys, time; start = json.loads(sys.argv[1]); sys.path[:] = start['path']; import msgpack; "
    "w = runpy.run_path(start['file']); say = lambda what: w['_say'](1, msgpack.packb(what)); say(w['identity']()); "
)
SAYS = "import sys, time; sys.stdout.buffer.write(bytes([0, 0, 0, 1, {}])); sys.stdout.flush(); time.sleep(60)"


@pytest.fixture(scope="module")
def kernels() -> list[TritonKernel]:
    return [kernel for row in ROWS for kernel in kernels_of(row)]


@pytest.fixture(autouse=True)
def settings_of_a_fresh_process() -> Iterator[None]:
    """Other tests set knobs of Triton and set them back: to the same value, but no longer by default."""
    from triton import knobs

    groups = (knobs.build, knobs.cache, knobs.compilation, knobs.runtime, knobs.language, knobs.nvidia)
    kept = [(group.__dict__, dict(group.__dict__)) for group in groups]
    for now, _ in kept:
        now.clear()
    yield
    for now, before in kept:
        now.clear()
        now.update(before)


@pytest.fixture
def pools() -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(*args: Any) -> Pool:
        made.append(Pool(*args))
        return made[-1]

    yield make
    for pool in made:
        pool.end()


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Keeper]]:
    monkeypatch.setattr(worker_pool.tempfile, "tempdir", str(tmp_path))
    made: list[Keeper] = []

    def make() -> Keeper:
        made.append(Keeper())
        return made[-1]

    yield make
    for keeper in made:
        keeper.end_idle()


def refuse(kernel: TritonKernel, arch: str) -> Cubin:
    raise AssertionError(f"{kernel.entry} was compiled in this process")


def facts(cubins: list[Cubin]) -> list[Any]:
    return [(c.entry, c.arch, c.image, c.metadata) for c in cubins]


def gone(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def started(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join()


def wait_ready(pool: Pool) -> None:
    assert all(worker.ready(60) for worker in pool.workers)


@pytest.mark.parametrize("arch", ["sm_90", PTX])
def test_the_same_images(
    arch: str, kernels: list[TritonKernel], pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = compile_images(kernels, arch, 2)
    pool = pools(2)
    wait_ready(pool)
    monkeypatch.setattr(images, "_compile", refuse)
    assert facts(compile_images(kernels, arch, 2, pool)) == facts(here)
    assert capfd.readouterr() == ("", "")


def test_a_process_has_the_pipes_and_nothing_else_of_its_parent(kernels: list[TritonKernel], pools: Callable[..., Pool]) -> None:
    """Nor torch: its import would take longer than the kernels."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        pool = pools(1)
        wait_ready(pool)
        compile_images(kernels[:1], PTX, 1, pool)
        (worker,) = pool.workers
        open_there = {os.readlink(entry) for entry in Path(f"/proc/{worker.pid}/fd").iterdir()}
        ours = {os.readlink(f"/proc/self/fd/{pipe}") for pipe in (worker._to, worker._from)}
        assert open_there - {"/dev/null"} == ours
        assert "libtorch" not in Path(f"/proc/{worker.pid}/maps").read_text()
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("", "it has ended"),
        ("print('x' * 1000); import time; time.sleep(60)", "something else than a message"),
        (SAYS.format(193), "else than a message"),
        (
            "import sys, time; sys.stdout.buffer.write(bytes([0, 0, 0, 1, 7])); sys.stdout.flush(); time.sleep(60)",
            "another Python or Triton",
        ),
        (HELLO + "os._exit(0)", "it has ended"),
        (HELLO + "sys.stdin.buffer.read(1); os._exit(0)", "it has ended"),
        (HELLO + "time.sleep(60)", "it said nothing for"),
        (HELLO + "say({'image': 7})\nwhile True: time.sleep(1)", "something else than an image"),
        ("import time; time.sleep(60)", None),
    ],
    ids=["dies", "babbles", "not-msgpack", "another", "dies-early", "dies-late", "hangs", "nonsense", "never-ready"],
)
def test_what_a_process_does_not_do_is_done_here(
    script: str,
    why: str | None,
    kernels: list[TritonKernel],
    pools: Callable[..., Pool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(schedule_compiles, "GRACE_SECONDS", 0.2)
    patience = 0.5 if why and "nothing" in why else 30.0
    monkeypatch.setattr(worker_pool, "PATIENCE", patience)
    monkeypatch.setattr(worker_pool.Worker.image, "__defaults__", (patience,))
    pool = pools(1, [sys.executable, "-c", script, worker_pool.start_command()[-1]])
    if why:  # it has said something, or ended
        assert worker_pool._wait(pool.workers[0]._from, select.POLLIN, time.monotonic() + 60)
    with caplog.at_level(logging.INFO, "precast.compile"):
        found = compile_images(kernels[:2], PTX, 2, pool)
    lines = [record.getMessage() for record in caplog.records if "which was to compile kernels" in record.getMessage()]
    assert len(lines) == (0 if why is None else 1) and all(str(why) in line for line in lines)
    assert not (why and pool.alive())
    assert facts(found) == facts(compile_images(kernels[:2], PTX))


def test_a_killed_process_is_replaced_by_a_thread(kernels: list[TritonKernel], pools: Callable[..., Pool]) -> None:
    pool = pools(2)
    wait_ready(pool)
    for worker in pool.workers:
        os.kill(worker.pid, signal.SIGSTOP)  # it is asked, and killed in the midst of it
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {' '.join(str(w.pid) for w in pool.workers)}"])
    found = compile_images(kernels, PTX, 2, pool)
    killer.wait()
    assert not pool.alive() and facts(found) == facts(compile_images(kernels, PTX))


def test_none_can_be_started(kernels: list[TritonKernel], pools: Callable[..., Pool], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "precast.compile"):
        pool = pools(2, ["/nowhere/python"])
    assert pool.workers == [] and len(caplog.records) == 1 and "could not be started" in caplog.text
    assert compile_images(kernels[:1], PTX, 1, pool)[0].entry == kernels[0].entry


def test_refusals_of_triton_are_the_same(kernels: list[TritonKernel], pools: Callable[..., Pool]) -> None:
    good = kernels[0]
    bad = [replace(good, source=good.source.replace("tl.store(", f"tl.store({n}, ", 1)) for n in (1, 2)]
    pool = pools(2)
    wait_ready(pool)
    errors = []
    for ways in ((), (pool,)):
        with pytest.raises(Exception) as caught:  # Triton's, whatever it is
            compile_images([good, *bad], "sm_90", 2, *ways)
        errors.append((type(caught.value), str(caught.value), caught.value.__notes__))
    assert errors[0] == errors[1] and f"while kernel {good.entry} was compiled for sm_90" in errors[0][2]
    assert len(pool.alive()) == 2


def test_candidates_that_triton_refuses_leave_the_others(kernels: list[TritonKernel]) -> None:
    good = kernels[0]
    source = good.source.replace("tl.store(", "tl.store(1, ", 1).replace(good.entry, "bad")
    bad = replace(good, entry="bad", source=source)
    first, refused, again = candidate_images([good, bad, good], "sm_90", 2)
    assert isinstance(first, Cubin) and first is again and facts([first]) == facts(compile_images([good], "sm_90"))
    assert isinstance(refused, Exception) and "while kernel bad was compiled for sm_90" in refused.__notes__
    assert "\n" not in said(refused) and said(refused).startswith(f"{type(refused).__name__}: ")


def test_they_end_with_a_parent_that_is_killed() -> None:
    script = (
        "import sys, time; from precast.codegen.triton.build.worker_pool import Pool; pool = Pool(2); [w.ready(60) for w in pool.workers]; "
        "print(*(w.pid for w in pool.workers), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


def test_they_end_when_nobody_asks(keepers: Callable[[], Keeper], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "IDLE_SECONDS", 0.2)
    keeper = keepers()
    keeper.begin(2)
    assert keeper.pool is not None
    pids = [worker.pid for worker in keeper.pool.workers]
    assert len(keeper.take()) == 2
    time.sleep(0.5)
    assert keeper.pool is not None and len(keeper.pool.alive()) == 2  # in use
    keeper.give_back()
    assert all(gone(pid) for pid in pids)
    end = time.monotonic() + 10
    while keeper.pool is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert keeper.pool is None and keeper.timer is not None


def test_one_pool_of_a_user_at_a_time(keepers: Callable[[], Keeper]) -> None:
    """Many processes that compile at once fill the cores already."""
    one, other = keepers(), keepers()
    one.begin(1)
    other.begin(1)
    assert one.pool is not None and other.pool is None and other.take() == []
    other.give_back()
    one.end_idle()
    other.begin(1)
    assert other.pool is not None


def test_a_forked_child_leaves_them_alone(
    keepers: Callable[[], Keeper], kernels: list[TritonKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keepers()
    monkeypatch.setattr(worker_pool, "_keeper", keeper)
    keeper.begin(1)
    assert keeper.pool is not None
    pool = keeper.pool
    pipes = [pool.workers[0]._to, pool.workers[0]._from]
    child = os.fork()
    if child == 0:
        closed = 0
        for pipe in pipes:
            try:
                os.fstat(pipe)
            except OSError:
                closed += 1
        started(worker_pool.begin())
        os._exit(0 if closed == 2 and worker_pool._keeper.pool is None and not pool.alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    wait_ready(pool)
    monkeypatch.setattr(images, "_compile", refuse)
    assert compile_images(kernels[:1], PTX, 1, pool)[0].entry == kernels[0].entry


def test_modules_that_hide_others_and_a_path_that_was_changed(
    kernels: list[TritonKernel], pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process finds what this one finds, although neither its folder nor the environment says so."""
    (tmp_path / "values.py").write_text("raise SystemExit")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [str(tmp_path), Path("/relative"), *sys.path])  # type: ignore[list-item]
    pool = pools(1)
    wait_ready(pool)
    monkeypatch.setattr(images, "_compile", refuse)
    assert compile_images(kernels[:1], PTX, 1, pool)[0].entry == kernels[0].entry


def test_another_triton_is_not_used(pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = [entry for entry in sys.path if entry and Path(entry, "triton").is_dir()]
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"__path__.append({real[0]!r} + '/triton')\n__version__ = 'other'\n")
    monkeypatch.syspath_prepend(tmp_path)
    (worker,) = pools(1).workers
    with pytest.raises(worker_pool.WorkerLost):
        assert not worker.ready(60)


@pytest.mark.parametrize(
    ("cores", "executable", "setting", "count"),
    [
        (2, sys.executable, "", 0),
        (7, sys.executable, "", 0),
        (8, sys.executable, "", 4),
        (64, sys.executable, "", 8),
        (64, sys.executable, "TRITON_CACHE_DIR", 8),
        (64, sys.executable, "TRITON_KERNEL_DUMP", 0),
        (64, sys.executable, "MLIR_ENABLE_DUMP", 0),
        (64, None, "", 0),
        (64, "", "", 0),
        (64, "/usr/bin/uwsgi", "", 0),
    ],
)
def test_how_many(cores: int, executable: str | None, setting: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "usable_cores", lambda: cores)
    monkeypatch.setattr(sys, "executable", executable)
    if setting:
        monkeypatch.setenv(setting, "1")
    assert worker_pool.worker_count() == count


def test_what_was_set_since_they_began_is_not_theirs(keepers: Callable[[], Keeper], monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    keeper = keepers()
    keeper.begin(1)
    pool = keeper.pool
    assert keeper.take() != []
    keeper.give_back()
    with monkeypatch.context() as patch:
        patch.setitem(knobs.nvidia.__dict__, "ptxas_options", "-O1")
        assert keeper.take() == []
        keeper.give_back()
    monkeypatch.setenv("PTXAS_OPTIONS", "-O1")
    assert keeper.take() == []
    keeper.give_back()
    keeper.begin(1)
    assert keeper.pool is not pool and keeper.take() != []
    keeper.give_back()


def test_a_compilation_uses_those_that_were_begun(
    keepers: Callable[[], Keeper], kernels: list[TritonKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keepers()
    monkeypatch.setattr(worker_pool, "_keeper", keeper)
    monkeypatch.setattr(worker_pool, "FEW_KERNELS", 2)
    monkeypatch.setattr(worker_pool, "worker_count", lambda: 1)
    started(worker_pool.begin())
    assert keeper.pool is not None
    wait_ready(keeper.pool)
    monkeypatch.setattr(images, "_compile", refuse)
    assert [c.entry for c in compile_images(kernels[:2], PTX)] == [k.entry for k in kernels[:2]]


def test_few_kernels_are_for_threads(keepers: Callable[[], Keeper], monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keepers()
    monkeypatch.setattr(worker_pool, "_keeper", keeper)
    keeper.begin(1)
    for kernels, processes in ((worker_pool.FEW_KERNELS - 1, 0), (worker_pool.FEW_KERNELS, 1)):
        with worker_pool.taken(kernels) as workers:
            assert len(workers) == processes and keeper.users == 1
    assert keeper.users == 0


def test_a_process_stays_no_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should its parent forget it, with the pipes open."""
    script = (
        "import json, runpy, sys; start = json.loads(sys.argv[1]); sys.path[:] = start['path']; "
        "serve = runpy.run_path(start['file'])['_serve']; serve.__globals__['IDLE_SECONDS'] = 0.3; serve()"
    )
    pool = Pool(1, [sys.executable, "-c", script, worker_pool.start_command()[-1]])
    try:
        assert pool.workers[0].process.wait(60) == 0
    finally:
        pool.end()


@pytest.mark.parametrize(("target", "begins"), [("cuda:sm_90", ["processes", "capture"]), ("cpu:x86-64-v3", ["capture"])])
def test_they_begin_before_the_tracer(target: str, begins: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []
    capture = driver.capture

    def traced(*args: Any, **kwargs: Any) -> Any:
        calls.append("capture")
        return capture(*args, **kwargs)

    monkeypatch.setattr(backend, "begin_processes", lambda: calls.append("processes"))
    monkeypatch.setattr(driver, "capture", traced)
    with torch.no_grad():
        precast.precompile(torch.sin, [((torch.randn(4),), {})], targets=[target], store=tmp_path / "store")
    assert calls == begins


def test_the_process_imports_its_file_alone() -> None:
    text = Path(triton_worker.__file__).read_text()
    assert "import torch" not in text and "from precast" not in text and "import precast" not in text
