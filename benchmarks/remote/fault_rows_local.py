"""Rows of the fault table that need no remote: killed writers, full disks, damage, clocks, permissions, pruning under load."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from fault_tools import Cycle, artifact, start, write_many, write_until_refused

from precast.artifact_store import Store
from precast.artifact_store.maintenance.index import open_index
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.maintenance.verify import verify

NOBODY = 65534
YEAR = 365 * 86400.0


def killed_writer(cycle: Cycle) -> None:
    """A writer is killed (SIGKILL) at a random moment; its successor goes on and is killed as well."""
    reported: set[int] = set()
    for first in (0, 100):
        child = start(write_many, str(cycle.root), first, first + 100)
        child.wait_for_word()
        time.sleep(cycle.chance.uniform(0.0, 0.05))
        child.kill()
        reported |= set(child.end(cycle))
        cycle.expect(Store.open(cycle.root), reported, "after the kill")
    verify(Store.open(cycle.root), repair=True)
    cycle.expect(Store.open(cycle.root), reported, "after a repair")


def two_writers(cycle: Cycle) -> None:
    """Two processes write the same artifacts, and half of each other's besides, while this one reads; one of them is killed."""
    children = [start(write_many, str(cycle.root), first, first + 12) for first in (0, 6)]
    for _ in range(3):
        cycle.read(Store.open(cycle.root))
        time.sleep(cycle.chance.uniform(0.0, 0.03))
    if cycle.chance.random() < 0.5:
        children[0].kill()
    reported = set(children[0].end(cycle)) | set(children[1].end(cycle))
    cycle.expect(Store.open(cycle.root), reported, "after both")


def _with_small_files(tell: Callable[[object], None], root: str, limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    write_until_refused(tell, root, 50, 52)


def full_disk(cycle: Cycle) -> None:
    """No file can grow past a random size (EFBIG, at every place where a disk can be found to be full)."""
    reported = cycle.put(Store.open(cycle.root), range(3))
    told = start(_with_small_files, str(cycle.root), cycle.chance.choice([0, 1, 50, 500, cycle.chance.randrange(40_000)])).end(cycle)
    cycle.tally.events["refused"] += any(type(item) is str for item in told)
    reported |= {item for item in told if type(item) is int}
    cycle.expect(Store.open(cycle.root), reported, "on the full disk")
    cycle.expect(Store.open(cycle.root), reported | cycle.put(Store.open(cycle.root), [60]), "when there is room again")


def full_filesystem(cycle: Cycle) -> None:
    """A real filesystem (tmpfs) of a random small size fills up (ENOSPC); root only."""
    disk = cycle.folder / "disk"
    disk.mkdir()
    size = cycle.chance.randrange(120, 400)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        cycle.tally.events["no mount"] += 1
        return
    try:
        told = start(write_until_refused, str(disk / "store"), 0, 40).end(cycle)
        cycle.tally.events["refused"] += any(type(item) is str for item in told)
        store = Store.open(disk / "store")
        store.used(artifact(0)[0].artifact_id)
        cycle.put(store, [50])
        cycle.expect(Store.open(disk / "store"), {item for item in told if type(item) is int}, "on the full filesystem")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _damaged(cycle: Cycle, damage: Callable[[Path], None]) -> None:
    """A random file of a store, whatever its kind, is damaged; only artifacts that need it may be missed, and a repair brings the rest."""
    store = Store.open(cycle.root)
    reported = cycle.put(store, range(4))
    store.put_record("tuning", "choices", {"mm": "onednn"})
    store.used(artifact(1)[0].artifact_id)
    with open_index(store):
        pass
    (cycle.root / "leases" / "somebody").write_bytes(b"\x80")
    file = cycle.chance.choice(sorted(path for path in cycle.root.rglob("*") if path.is_file()))
    name = file.relative_to(cycle.root).as_posix()
    needs = {number for number in reported if file.name.removesuffix(".msgpack") in {artifact(number)[0].artifact_id, *artifact(number)[1]}}
    file.chmod(0o600)
    damage(file)
    cycle.tally.events[name.split("/")[0]] += 1
    with cycle.must_not_raise(f"{name} is damaged"):
        opened = Store.open(cycle.root)
        opened.record("tuning", "choices")
        opened.used(artifact(2)[0].artifact_id)
        with opened.lease("somebody", timeout=0.05):
            pass
        if name == "format":
            cycle.read(opened)  # the whole store counts as somebody else's, or a newer precast's, until a person says that it is not
            file.write_bytes(b"1\n")
        else:
            cycle.expect(opened, reported - needs, f"{name} is damaged")
        verify(Store.open(cycle.root), repair=True)
        cycle.expect(Store.open(cycle.root), reported - needs, f"{name} was repaired")
        cycle.expect(Store.open(cycle.root), reported | cycle.put(Store.open(cycle.root), needs), f"{name} was made anew")


def bit_flip(cycle: Cycle) -> None:
    """One bit of one file of a random kind."""

    def flip(file: Path) -> None:
        data = bytearray(file.read_bytes())
        if data:
            data[cycle.chance.randrange(len(data))] ^= 1 << cycle.chance.randrange(8)
            file.write_bytes(data)

    _damaged(cycle, flip)


def truncation(cycle: Cycle) -> None:
    """One file of a random kind ends early; now and then it is empty, or longer than it was."""

    def cut(file: Path) -> None:
        size = file.stat().st_size
        os.truncate(file, cycle.chance.choice([0, cycle.chance.randrange(size + 1), size + 1]))

    _damaged(cycle, cut)


def clock_skew(cycle: Cycle) -> None:
    """Files are dated years off in either direction, and this machine's clock is off as well; pruned as a cron job does."""
    reported = cycle.put(Store.open(cycle.root), range(4))
    ahead = set()
    for file in cycle.root.rglob("*"):
        skew = cycle.chance.choice([-3 * YEAR, -3600.0, 0.0, 3600.0, 3 * YEAR])
        os.utime(file, (time.time() + skew, time.time() + skew), follow_symlinks=False)
    wrong_clock = time.time() + cycle.chance.choice([-2 * YEAR, -60.0, 60.0, 2 * YEAR])
    begin = time.monotonic()
    with mock.patch("time.time", lambda: wrong_clock + time.monotonic() - begin), cycle.must_not_raise("with another clock"):
        store = Store.open(cycle.root)
        cycle.expect(store, reported, "with another clock")
        ahead |= cycle.put(store, [7])
        prune(store, Policy())
        cycle.expect(Store.open(cycle.root), reported | ahead, "after a prune of leftovers")
    cycle.expect(Store.open(cycle.root), reported | ahead, "with the right clock again")


def _as_nobody(tell: Callable[[object], None], root: str) -> None:
    """What a process of another user finds: it reads what it may, and writes nothing."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    store = Store.open(root)
    served = [content.content.options["number"] for content in store.trusted_variants("model-0123abcd")]
    refused = store.try_put(*artifact(70))
    with store.lease("ab" * 32, timeout=0.1):
        store.used(artifact(0)[0].artifact_id)
    tell((served, refused))


def read_only(cycle: Cycle) -> None:
    """Another user's store that may be read: a folder, and then the same opened read-only; root only."""
    if os.getuid():
        cycle.tally.events["not root"] += 1
        return
    cycle.folder.chmod(0o755)
    reported = cycle.put(Store.open(cycle.root), range(3))
    subprocess.run(["chmod", "-R", "a+rX", str(cycle.root)], check=True)
    told = start(_as_nobody, str(cycle.root)).end(cycle)
    if [(sorted(served), bool(refused)) for served, refused in told] != [(sorted(reported), True)]:
        cycle.tally.fault("lost", 1, f"read by another user: {told}")
    store = Store.open(cycle.root, readonly=True)
    cycle.expect(store, reported, "opened read-only")
    if cycle.put(store, [71]):
        cycle.tally.fault("wrong", 1, "a read-only store was written")


def no_permission(cycle: Cycle) -> None:
    """Another user's store that may not even be read, or a random part of it; root only."""
    if os.getuid():
        cycle.tally.events["not root"] += 1
        return
    cycle.folder.chmod(0o755)
    reported = cycle.put(Store.open(cycle.root), range(3))
    subprocess.run(["chmod", "-R", "a+rX", str(cycle.root)], check=True)
    path = cycle.chance.choice([cycle.root, *sorted(cycle.root.rglob("*"))])
    path.chmod(0o700 if path.is_dir() else 0o600)
    for served, refused in start(_as_nobody, str(cycle.root)).end(cycle):
        if not refused or not set(served) <= reported:
            cycle.tally.fault("wrong", 1, f"another user was served {served}, and its write was {refused or 'done'}")
    cycle.expect(Store.open(cycle.root), reported, "for its own user")


def _prune_often(tell: Callable[[object], None], root: str, times: int, keep: int) -> None:
    for _ in range(times):
        prune(Store.open(root), Policy(keep_last=keep) if keep else Policy())
        tell("pruned")


def pruned_under_load(cycle: Cycle) -> None:
    """Two processes write and this one reads while a third prunes; leftovers only, so that nothing good may go, or all but a few."""
    keep = cycle.chance.choice([0, 0, 3])
    writers = [start(write_many, str(cycle.root), first, first + 10) for first in (0, 8)]
    writers[0].wait_for_word()
    pruner = start(_prune_often, str(cycle.root), 6, keep)
    while pruner.process.exitcode is None:
        cycle.read(Store.open(cycle.root))
    pruner.end(cycle)
    reported = set().union(*(child.end(cycle) for child in writers))
    if keep:
        served = cycle.read(Store.open(cycle.root))
        if len(served) < min(keep, len(reported)):
            cycle.tally.fault("lost", keep - len(served), f"{keep} were to be kept, and {len(served)} are served")
    else:
        cycle.expect(Store.open(cycle.root), reported, "after pruning")


ROWS = {
    "writer killed": (killed_writer, 100),
    "two writers, one killed": (two_writers, 60),
    "full disk (file size limit)": (full_disk, 60),
    "full filesystem (tmpfs)": (full_filesystem, 20),
    "bit flip in any file": (bit_flip, 200),
    "truncation of any file": (truncation, 150),
    "clock skew": (clock_skew, 60),
    "read-only": (read_only, 20),
    "no permission": (no_permission, 40),
    "pruned under load": (pruned_under_load, 40),
}
