"""What of this machine a build may use: cores and memory, limited by the process's control group."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def peak_memory() -> int:
    """The peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_memory() -> int:
    """Free memory of the machine, limited by this process's control group, in bytes."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free)


def cores() -> int:
    """Cores that this process may use, limited by its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores
