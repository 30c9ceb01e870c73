"""`precast doctor`: is everything here that precast needs? One line each, and what to do where not."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.text import many
from precast.artifact_store.maintenance.index import damage
from precast.artifact_store.maintenance.unreadable import unreadable
from precast.artifact_store.place import what_is_at
from precast.artifact_store.tiers.owner import owner, user_name
from precast.cli.output import (
    ANSWER_NO,
    Output,
    errors_to_json,
    finish,
    is_chosen,
    json_option,
    no_store,
    remote_option,
    store_option,
    style,
)
from precast.cli.store.stale import about_stale
from precast.report.units import human_size
from precast.runtime.common.log import logger
from precast.runtime.targets.shared_object import mounted_noexec
from precast.target_registry import families, load

GOOD, WARN, BAD = "ok", "warning", "problem"


_PROBE = 1 << 16
"""Bytes that are written to see whether any can be."""
_NAMED = 3
"""Of many files that cannot be read, as many are named."""


@dataclass(frozen=True)
class Finding:
    """One line: `state` is "ok", "warning" (precast works, with less) or "problem"."""

    topic: str
    state: str
    detail: str


@click.command(short_help="Check Python, torch, the compiler, the CPU and the store.")
@store_option
@remote_option
@json_option
@click.option("--probe", is_flag=True, help="List what precast relies on of torch, and whether each holds; examine nothing else.")
@errors_to_json
def doctor(store_path: str | None, as_json: bool, probe: bool) -> None:
    """Check Python, torch, the compiler, the CPU and the store. Exit code 1 when something keeps precast from working.

    With --probe: every fact about torch that precast relies on, ok, differs or fails, and exit code 1 when one fails. It is the first thing
    to run with a torch that is newer than precast.
    """
    if probe:
        from precast.cli.health.doctor_torch import probe as probe_torch

        probe_torch(as_json)
        return
    out = Output(as_json)
    _look_for_native(store_path)
    findings = [finding for examine in (_python, _torch, _gpus, _triton, _compiler, _cpu) for finding in examine()]
    findings += _store(store_path)
    findings += _remotes(store_path)
    out.data(findings)
    colours = {GOOD: "green", WARN: "yellow", BAD: "red"}
    for finding in findings:
        out.text(f"{style(f'{finding.state:<8}', fg=colours[finding.state])} {finding.topic:<9} {finding.detail}")
    bad = sum(finding.state == BAD for finding in findings)
    out.note(many(bad, "problem") if bad else "No problems")
    finish(ANSWER_NO if bad else 0)


def _python() -> Iterator[Finding]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    state = GOOD if supported else BAD
    advice = "" if supported else "; precast supports 3.11 to 3.13"
    yield Finding("python", state, f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}{advice}")
    yield Finding("precast", GOOD, importlib.metadata.version("precast"))


def _look_for_native(path: str | None) -> None:
    """Loads the native runtime that the store has, if any: whether this torch's tensors are as it expects is then said of torch."""
    try:
        from precast.runtime.native import loader

        loader.find(Store.open(path, strict=True))
    except (StoreError, ImportError, OSError, AttributeError) as error:  # each has a line of its own below
        logger("runtime").info("precast doctor: the native runtime was not looked for: %s", error)


def _torch() -> Iterator[Finding]:
    from precast.cli.health.doctor_torch import torch_lines

    for good, stops, detail in torch_lines():
        yield Finding("torch", GOOD if good else BAD if stops else WARN, detail)


def _gpus() -> Iterator[Finding]:
    for family in families():
        try:
            said = load(family.findings)() if family.findings else ()
            yield from (Finding("gpu", GOOD if good else WARN, detail) for good, detail in said)
        except ImportError as error:
            yield Finding("gpu", WARN, f"nothing is known of GPUs: {error}")


def _triton() -> Iterator[Finding]:
    try:
        yield Finding("triton", GOOD, importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("triton", WARN, "not installed: CUDA targets cannot be compiled here")


def _compiler() -> Iterator[Finding]:
    from precast.codegen.common.toolchain import CompilerMissing, look_for_compiler

    try:
        compiler = look_for_compiler()
    except CompilerMissing as error:
        yield Finding("compiler", WARN, f"this machine can load artifacts and cannot compile: {error}")
        return
    loop = "#pragma omp parallel for\n for (long i = 0; i < n; ++i) x[i] = std::sqrt(x[i]);"
    trial = f'#include <cmath>\nextern "C" void f(float* x, long n) {{\n{loop} }}\n'
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler.path, "-x", "c++", "-", "-shared", "-fPIC", "-O2", "-fopenmp", "-o", os.path.join(folder, "trial.so")]
        done = subprocess.run(command, input=trial, capture_output=True, text=True, check=False)
    if done.returncode:
        yield Finding("compiler", BAD, f"{compiler.version}: cannot build a shared object with OpenMP: {done.stderr.strip()[:200]}")
    else:
        yield Finding("compiler", GOOD, f"{compiler.version} ({compiler.path})")


def _cpu() -> Iterator[Finding]:
    from precast.runtime.targets.cpu import ladder

    chip = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            chip = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), chip)
    except OSError:
        chip += " (no /proc/cpuinfo)"
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cpu", GOOD, f"{chip}, {count} usable CPUs")
    yield Finding("targets", GOOD, ", ".join(ladder()))


def _store(path: str | None) -> Iterator[Finding]:
    try:
        store = Store.open(path, strict=True)
    except StoreError as error:
        yield Finding("store", BAD, str(error))
        return
    there = what_is_at(store.root)
    if there == "store" or not (is_chosen(path) or there == "other folder"):
        yield Finding("store", GOOD, f"{store.root}{'' if there == 'store' else ' (nothing was built yet; made on the first build)'}")
    else:
        yield Finding("store", BAD, no_store(store.root, there))
    existing = store.root
    while not existing.exists():
        existing = existing.parent
    checks: tuple[Callable[[], Finding], ...] = (
        lambda: _writable(store, str(existing)),
        lambda: _room(str(existing)),
        lambda: _executable(str(existing)),
    )
    for examine in checks:
        yield examine()
    if there == "store":
        count = sum(len(store.manifest_names(key)) for key in store.programs())
        mode = store.root.stat().st_mode & 0o777
        private = not mode & 0o022
        advice = "" if private else f"; mode {mode:o} lets others write what you execute: chmod 700 {store.root}"
        yield Finding("store", GOOD if private else BAD, f"{many(count, 'artifact')}{advice}")
        if (whose := owner(store.root)) not in (None, os.geteuid(), 0) and os.geteuid() == 0:
            yield Finding("store", GOOD, f"it belongs to {user_name(whose)}, and so will what root builds in it")
        elif whose not in (None, os.geteuid()):
            advice = "only that user should write it; no use is counted for this one"
            yield Finding("store", WARN, f"it belongs to {user_name(whose)}, and this is {user_name(os.geteuid())}: {advice}")
        if reason := damage(store):
            yield Finding("store", WARN, f"which artifacts were used is not known: {reason}")
        hidden = unreadable(store)
        for name, reason in [*hidden.items()][:_NAMED]:
            yield Finding("store", BAD, f"{store.path(name)} cannot be read ({reason}): make it readable for this user")
        if len(hidden) > _NAMED:
            yield Finding("store", BAD, f"and {len(hidden) - _NAMED} more that cannot be read")
        quarantined = store.quarantined()
        if quarantined:
            entries = many(quarantined, "damaged entry", "damaged entries")
            yield Finding("store", WARN, f"{entries} in quarantine/ (`precast verify` says more); if that grows, suspect the disk")
        # opened for reading, so that looking moves no damaged file into quarantine
        if stale := about_stale(manifest.versions for manifest in Store.open(store.root, readonly=True).manifests()):
            yield Finding("store", GOOD, stale)


def _remotes(path: str | None) -> Iterator[Finding]:
    from precast.cli.health.doctor_remote import remotes

    for said in remotes(path):
        yield Finding("remote", GOOD if said.good else BAD if said.broken else WARN, said.detail)


def _writable(store: Store, folder: str) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "; make room: `precast prune`" if full else ""
        said = f"{folder} cannot be written ({error.strerror}): artifacts are read, nothing new is kept{cure}"
        return Finding("store", BAD if full else WARN, said)
    return Finding("store", GOOD, "can be written")


def _room(folder: str) -> Finding:
    free = shutil.disk_usage(folder).free
    return Finding("store", GOOD if free > 1 << 30 else WARN, f"{human_size(free)} free on its disk")


def _executable(folder: str) -> Finding:
    if mounted_noexec(folder):
        return Finding(
            "store", BAD, f"{folder} is mounted noexec: shared objects cannot be loaded from it; choose another folder with --store"
        )
    return Finding("store", GOOD, "its filesystem allows loading shared objects")
