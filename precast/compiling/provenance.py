"""Where an artifact comes from: packages always; builder, sources and revision where the build asks. In `info` only, never in the key.

Nothing of it names the machine, its user or a path, and only what `--provenance` or PRECAST_PROVENANCE asks for may differ between two
builds of one source.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import torch

log = logging.getLogger("precast.driver")
ENVIRONMENT = "PRECAST_PROVENANCE"
GIT_SECONDS = 10.0
_OFF = ("", "0")
_ON = "1"
"""Provenance without an id of the builder."""
_CI: dict[str, tuple[str, ...]] = {
    "GitHub Actions": ("GITHUB_SERVER_URL", "/", "GITHUB_REPOSITORY", "/actions/runs/", "GITHUB_RUN_ID"),
    "GitLab CI": ("CI_JOB_URL",),
    "Jenkins": ("BUILD_URL",),
    "Azure Pipelines": ("SYSTEM_COLLECTIONURI", "SYSTEM_TEAMPROJECT", "/_build/results?buildId=", "BUILD_BUILDID"),
    "CircleCI": ("CIRCLE_BUILD_URL",),
    "Buildkite": ("BUILDKITE_BUILD_URL",),
    "Travis CI": ("TRAVIS_BUILD_WEB_URL",),
    "Drone": ("DRONE_BUILD_LINK",),
}
"""System -> the parts of its run's URL: names of environment variables (capitals), and texts between them."""


@dataclass(frozen=True)
class Asked:
    """What a build wants in its artifacts. `builder`: the user's id of who builds, "" for none; `ci`: system and URL of the run."""

    builder: str = ""
    ci: tuple[str, str] | None = None

    def to_data(self) -> dict[str, Any]:
        """For a job of a farm."""
        return {"builder": self.builder, "ci": list(self.ci) if self.ci else None}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Asked:
        return Asked(data["builder"], (data["ci"][0], data["ci"][1]) if data["ci"] else None)


@dataclass
class Wish:
    """What this process's build asks for; None where it does not, so that the environment decides."""

    asked: Asked | None = None


wish = Wish()
"""`precast build --provenance` and the workers of a farm replace what is in it."""


def asked() -> Asked | None:
    """By `wish`, else PRECAST_PROVENANCE: the builder's id, or 1 without one."""
    if wish.asked is not None:
        return wish.asked
    text = os.environ.get(ENVIRONMENT, "").strip()
    return None if text in _OFF else asked_by(text)


def asked_by(builder: str) -> Asked:
    """With the run of continuous integration that this process is a part of."""
    return Asked("" if builder == _ON else builder, ci_run(os.environ))


def ci_run(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The system and the URL of the run that this is, as known systems tell it; None outside of them. Nothing is asked of any service."""
    for system, parts in _CI.items():
        names = [part for part in parts if part.isupper()]
        if all(environment.get(name) for name in names):
            url = "".join(environment[part] if part.isupper() else part for part in parts)
            return system, without_user(url)
    return None


def provenance_of(target_has_triton: bool, modules: Iterable[str]) -> dict[str, Any]:
    """What a manifest's provenance says beside the seconds. `modules`: names of those whose code was traced."""
    found: dict[str, Any] = {"packages": _packages(target_has_triton)}
    wanted = asked()
    if wanted is None:
        return found
    builder = {"system": f"{platform.system()} {platform.machine()}", "cpu": _cpu(), "id": wanted.builder}
    found["builder"] = {key: value for key, value in builder.items() if value}
    if wanted.ci is not None:
        found["builder"] |= {"ci": wanted.ci[0], "run": wanted.ci[1]}
    sources = _sources(modules)
    if sources:
        found["sources"] = {name: digest for name, (digest, _) in sources.items()}
        found["git"] = _git(str(next(iter(sources.values()))[1].parent))
    return found


def _packages(with_triton: bool) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if with_triton:
        import importlib.metadata

        found["triton"] = importlib.metadata.version("triton")
    return found


@functools.cache
def _cpu() -> str:
    """The processor's model, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _sources(modules: Iterable[str]) -> dict[str, tuple[str, Path]]:
    """The user's modules among these -> SHA-256 of their files, and the files. Installed packages are named by their versions instead."""
    installed = tuple(str(Path(folder).resolve()) for folder in {*sys.path, os.path.dirname(os.__file__)} if "packages" in folder)
    found: dict[str, tuple[str, Path]] = {}
    for name in sorted(set(modules)):
        file = getattr(sys.modules.get(name), "__file__", None)
        if not file or name.split(".")[0] in ("torch", "precast"):
            continue
        path = Path(file).resolve()
        if str(path).startswith((*installed, str(Path(os.__file__).resolve().parent))):
            continue
        try:
            found[name] = (hashlib.sha256(path.read_bytes()).hexdigest(), path)
        except OSError as error:
            log.warning("provenance: the source of %s cannot be read: %s", name, error)
    return found


@functools.cache
def _git(folder: str) -> dict[str, Any]:
    """Revision, whether tracked files differ from it, and where the repository comes from; or why that is not known."""
    try:
        revision = _ask_git(folder, "rev-parse", "HEAD")
        dirty = bool(_ask_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return {"unknown": said.strip().splitlines()[0].replace(folder, "the folder") if said.strip() else type(error).__name__}
    found: dict[str, Any] = {"revision": revision, "dirty": dirty}
    try:
        found["repository"] = without_user(_ask_git(folder, "config", "--get", "remote.origin.url"))
    except (OSError, subprocess.SubprocessError):
        log.info("provenance: the repository has no remote called origin")
    return found


def _ask_git(folder: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    return done.stdout.strip()


def without_user(url: str) -> str:
    """The URL without the user and the password that may stand in it. git@host:path is no URL, and stays."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.scheme and "@" in parts.netloc else url
