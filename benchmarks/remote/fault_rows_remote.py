"""Rows of the fault table with a remote: services that hang, lie, lose and drip; machines that are killed while they send; damaged tiers.

Machines are local stores of their own. What a machine has put is published when it is told so; a fresh machine then looks, under the fault
and after it, and whatever was reported as stored has to arrive there in the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fault_tools import KEY, Cycle, Row, artifact, start

from precast.artifact_store import Store
from precast.artifact_store.remote import spool
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.behind.remotes import Remotes
from precast.artifact_store.remote.endpoint import TimeOuts
from precast.artifact_store.remote.program_index import Entry
from precast.artifact_store.remote.settings import from_url
from tests.support.fault_proxy import FaultProxy

TIMEOUTS = TimeOuts(connect=0.3, stall=0.3, whole=1.0)
"""Shorter than a user's, so that a thousand cycles end."""
BUDGET = 0.25
GRACE = 0.5
"""Seconds by which a call may exceed the budget on a busy machine before that is noted."""


class Everything:
    """What a machine wants of a program: all artifacts, no further records."""

    def order(self, entry: Entry) -> int | None:
        """Any is as good as any other."""
        return 0

    def records(self, program_key: str) -> list[tuple[str, str]]:
        """None."""
        return []


def machine(root: Path, url: str) -> Store:
    """A machine's store with this remote behind it."""
    store = Store.open(root, remote=[])
    tier = open_tier(from_url(f"{url}?trust=any&budget={BUDGET}s", "the fault table"), TIMEOUTS)
    from precast.artifact_store.remote.behind.local_side import LocalSide

    store._remotes, store._remotes_known = Remotes([tier], LocalSide(store, store._entries, store._records)), True
    return store


def remotes_of(store: Store) -> Remotes:
    """They are there."""
    assert store.remotes is not None
    return store.remotes


def send(cycle: Cycle, store: Store, seconds: float = 20.0) -> bool:
    """Waits until everything that is noted in the store has been sent; whether it was."""
    remotes = remotes_of(store)
    until = time.monotonic() + seconds
    with cycle.must_not_raise("sending"):
        remotes.uploads.wake(always=True)
        while spool.pending(store.root):
            if time.monotonic() > until:
                return False
            remotes.uploads.flush(0.2)
            remotes.uploads.wake(always=True)
            time.sleep(0.01)
    return True


def look(cycle: Cycle, store: Store, wait: float | None = None) -> set[int]:
    """What a call that misses finds: it waits for the remote's budget, or `wait` seconds, and reads what is there then."""
    remotes = remotes_of(store)
    begin = time.monotonic()
    with cycle.must_not_raise("a look"):
        seconds = remotes.seconds() if wait is None else {tier: wait for tier in remotes.tiers}
        for _ in remotes.look(KEY, Everything()).news(seconds):
            if time.monotonic() - begin > sum(seconds.values()):
                break
    if wait is None and time.monotonic() - begin > BUDGET + GRACE:
        cycle.tally.events["late"] += 1
    return cycle.read(store)


def arrives(cycle: Cycle, url: str, reported: set[int], when: str) -> None:
    """A fresh machine finds everything that was reported as stored."""
    store = machine(cycle.folder / f"fresh-{cycle.chance.random()}", url)
    missing = reported - look(cycle, store, wait=20.0)
    if missing:
        said = remotes_of(store).said(KEY)
        cycle.tally.fault("lost", len(missing), f"{when}: {sorted(missing)[:5]} do not arrive at a fresh machine; {said}")


def _published(cycle: Cycle, name: str, url: str, numbers: Iterable[int]) -> tuple[Store, set[int]]:
    store = machine(cycle.folder / name, url)
    reported = cycle.put(store, numbers)
    if not send(cycle, store):
        cycle.tally.fault("lost", len(reported), "nothing was wrong, and not all could be sent")
    return store, reported


# -- services


def service(kind: str, only: tuple[str, ...] = ("", "GET", "/ac/", "/cas/"), **settings: object) -> Row:
    """A row: a service that misbehaves in this way, for readers and then for a writer, always or a few times, and is mended."""

    def row(cycle: Cycle) -> None:
        with FaultProxy() as proxy:
            _, reported = _published(cycle, "writer", proxy.url, range(3))
            proxy.fault(kind, only=cycle.chance.choice(only), times=cycle.chance.choice([None, 1, 3]), **settings)  # type: ignore[arg-type]
            reader = machine(cycle.folder / "reader", proxy.url)
            look(cycle, reader)
            writer = machine(cycle.folder / "writer", proxy.url)
            reported |= cycle.put(writer, [10, 11])
            send(cycle, writer, seconds=0.3)
            cycle.expect(Store.open(cycle.folder / "writer", remote=[]), reported, f"at the writer, {kind}")
            proxy.heal()
            if not send(cycle, machine(cycle.folder / "writer", proxy.url)):  # the next process of that machine
                cycle.tally.fault("lost", 1, f"after {kind} not all could be sent: {spool.pending(cycle.folder / 'writer')[:2]}")
            arrives(cycle, proxy.url, reported, f"after {kind}")

    row.__name__ = f"service_{kind}_{settings}"
    row.__doc__ = f"A service with the fault {kind!r} {settings or ''}."
    return row


def forgets(cycle: Cycle) -> None:
    """A service that says yes to a PUT now and then and keeps nothing: the machine that put it has it, and who makes it anew sends it."""
    with FaultProxy() as proxy:
        proxy.fault("forget", only="PUT /cas/", times=cycle.chance.choice([1, 2, 5]))
        _, reported = _published(cycle, "writer", proxy.url, range(3))
        proxy.heal()
        _made_anew(cycle, proxy.url, reported, "a service that forgot")


def loses_objects(cycle: Cycle) -> None:
    """A service that has lost some of what it had, of any kind."""
    with FaultProxy() as proxy:
        _, reported = _published(cycle, "writer", proxy.url, range(3))
        for path in cycle.chance.sample(sorted(proxy.content), cycle.chance.randrange(1, len(proxy.content))):
            del proxy.content[path]
        _made_anew(cycle, proxy.url, reported, "a service that lost objects")


def damaged_objects(cycle: Cycle) -> None:
    """A service some of whose content has another bit, or ends early, of any kind."""
    with FaultProxy() as proxy:
        _, reported = _published(cycle, "writer", proxy.url, range(3))
        for path in cycle.chance.sample(sorted(proxy.content), cycle.chance.randrange(1, 3)):
            proxy.content[path] = _spoilt(cycle, proxy.content[path])
        _made_anew(cycle, proxy.url, reported, "a service with damaged objects")


def _spoilt(cycle: Cycle, data: bytes) -> bytes:
    if cycle.chance.random() < 0.3:
        return data[: cycle.chance.randrange(len(data))]
    changed = bytearray(data)
    changed[cycle.chance.randrange(len(data))] ^= 1 << cycle.chance.randrange(8)
    return bytes(changed)


def _made_anew(cycle: Cycle, url: str, reported: set[int], when: str) -> None:
    """Two machines in turn take what they can, compile what they cannot get, and send that: then everything arrives. Two, because an object
    that is damaged beside a damaged index is found by whoever reads the new index.
    """
    for name in ("reader", "second reader"):
        reader = machine(cycle.folder / name, url)
        missing = reported - look(cycle, reader, wait=20.0)
        cycle.tally.events["made anew"] += len(missing)
        cycle.put(reader, sorted(missing))
        send(cycle, reader)
    cycle.expect(Store.open(cycle.folder / "writer", remote=[]), reported, f"at the writer, {when}")
    arrives(cycle, url, reported, when)


# -- machines


def _publish_many(tell: Callable[[int], None], root: str, url: str, first: int, last: int) -> None:
    store = machine(Path(root), url)
    for number in range(first, last):
        if not store.try_put(*artifact(number)):
            tell(number)
    remotes_of(store).close(20.0)


def killed_sender(cycle: Cycle) -> None:
    """A machine's process is killed (SIGKILL) while it puts and sends; the next process of the machine sends the rest."""
    with FaultProxy(delay=cycle.chance.choice([0.0, 0.0, 0.005])) as proxy:
        child = start(_publish_many, str(cycle.root), proxy.url, 0, 5)
        child.wait_for_word()
        time.sleep(cycle.chance.uniform(0.0, 0.15))
        child.kill()
        reported = set(child.end(cycle))
        look(cycle, machine(cycle.folder / "reader", proxy.url))  # half of it is visible to nobody
        if not send(cycle, machine(cycle.root, proxy.url)):
            cycle.tally.fault("lost", 1, f"not all could be sent after the kill: {spool.pending(cycle.root)[:2]}")
        arrives(cycle, proxy.url, reported, "after the kill")


def two_machines(cycle: Cycle) -> None:
    """Three machines publish the same and different artifacts of one program at the same time, and one may be killed."""
    with FaultProxy() as proxy:
        roots = [cycle.folder / f"machine-{number}" for number in range(3)]
        children = [start(_publish_many, str(root), proxy.url, 2 * number, 2 * number + 4) for number, root in enumerate(roots)]
        if cycle.chance.random() < 0.5:
            children[0].wait_for_word()
            time.sleep(cycle.chance.uniform(0.0, 0.1))
            children[0].kill()
        reported = set().union(*(child.end(cycle) for child in children))
        for root in roots:
            if not send(cycle, machine(root, proxy.url)):
                cycle.tally.fault("lost", 1, f"{root.name} could not send all")
        arrives(cycle, proxy.url, reported, "after three machines")


def shared_folder(cycle: Cycle) -> None:
    """Two machines over a shared folder, one is killed; then one of its files is damaged, and what is missed is made anew."""
    shared = cycle.folder / "shared"
    shared.mkdir()
    children = [start(_publish_many, str(cycle.folder / name), str(shared), first, first + 3) for first, name in ((0, "writer"), (1, "b"))]
    children[1].wait_for_word()
    time.sleep(cycle.chance.uniform(0.0, 0.1))
    children[1].kill()
    reported = set(children[0].end(cycle))
    killed = set(children[1].end(cycle))
    send(cycle, machine(cycle.folder / "b", str(shared)))
    arrives(cycle, str(shared), reported | killed, "over a shared folder")
    file = cycle.chance.choice(sorted(path for path in shared.rglob("*") if path.is_file() and path.stat().st_size))
    os.chmod(file, 0o600)
    file.write_bytes(_spoilt(cycle, file.read_bytes()))
    cycle.tally.events[file.relative_to(shared).parts[1] if len(file.relative_to(shared).parts) > 1 else file.name] += 1
    _made_anew(cycle, str(shared), reported, f"{file.relative_to(shared)} of the shared folder is damaged")


ROWS: dict[str, tuple[Row, int]] = {
    "remote hangs": (service("hang"), 25),
    "remote answers 500": (service("status", status=500), 25),
    "remote answers 503, come back later": (service("status", status=503, retry_after="1"), 15),
    "remote answers 403": (service("status", status=403), 25),
    "remote answers 429": (service("status", status=429, retry_after="1"), 15),
    "remote answers garbage": (service("garbage"), 25),
    "remote answers a login page": (service("login"), 15),
    "remote redirects elsewhere": (service("redirect", location="http://127.0.0.1:9/"), 10),
    "remote sends half an object": (service("half", only=("GET", "/cas/", "/ac/")), 25),
    "remote sends too much": (service("long", only=("GET",)), 10),
    "remote sends another bit": (service("flip", only=("GET", "/cas/", "/ac/")), 25),
    "remote is slow (1 KB/s)": (service("drip", only=("GET",), rate=1000), 15),
    "remote cuts connections": (service("reset"), 20),
    "remote forgets what is put": (forgets, 20),
    "remote loses objects": (loses_objects, 40),
    "remote's content is damaged": (damaged_objects, 40),
    "sender killed": (killed_sender, 60),
    "three machines' writers, one killed": (two_machines, 30),
    "shared folder: writer killed, then a file damaged": (shared_folder, 30),
}
