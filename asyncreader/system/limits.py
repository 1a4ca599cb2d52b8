"""What the machine leaves to this process: cores and memory, as its control groups limit them, and
open files."""

from __future__ import annotations

import contextlib
import glob
import math
import os
import resource
from collections.abc import Iterator
from functools import lru_cache


def usable_cores(proc: str = "/proc", mounted: str = "/sys/fs/cgroup") -> int:
    """Cores this process may use: its affinity, or the quota of the tightest of its control groups
    (v2: cpu.max; v1: cpu.cfs_quota_us of cpu.cfs_period_us), rounded up.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for folder, version in _groups("cpu", proc, mounted):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (int(n) for name in names for n in _read(f"{folder}/{name}").split())
            if quota > 0:  # -1: no limit; nor is there one where it says "max"
                cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def available_memory(proc: str = "/proc", mounted: str = "/sys/fs/cgroup") -> int:
    """Bytes that this process could still fill, page cache included: of the machine (proc(5),
    MemAvailable), or what the tightest of its control groups leaves.
    """
    free = _table(f"{proc}/meminfo", 1024).get("MemAvailable:")
    if free is None:
        free = physical_memory()
    for folder, version in _groups("memory", proc, mounted):
        limit, used, cache = _MEMORY[version]
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            most, taken = int(_read(f"{folder}/{limit}")), int(_read(f"{folder}/{used}"))
            reclaimable = _table(f"{folder}/memory.stat", 1).get(cache, 0)
            free = min(free, max(0, most - taken + reclaimable))
    return free


def physical_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int | None:
    """How many files this process may have open; None for any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def allow_open_files(wanted: int) -> None:
    """Let this process have ``wanted`` files open: raises its soft limit where that is lower, as
    far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS allows fewer than its hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@lru_cache(maxsize=1)
def last_level_cache() -> int:
    """Bytes of the largest cache of the first core; 32 MiB where the system does not tell."""
    sizes = []
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = _read(path).strip()  # 107520K
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20}[text[-1]])
    return max(sizes, default=32 << 20)


_MEMORY = {
    2: ("memory.max", "memory.current", "file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
}


def _groups(controller: str, proc: str, mounted: str) -> Iterator[tuple[str, int]]:
    """Folders of this process's control group and those above it, and their version (1 or 2).

    In a container the path of /proc may be the host's, and what is mounted the container's own.
    """
    lines = []
    with contextlib.suppress(OSError):
        text = _read(f"{proc}/self/cgroup")
        lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") > 1]
    second = [path for _, kinds, path in lines if not kinds]
    first = [path for _, kinds, path in lines if controller in kinds.split(",")]
    for top, version, mine in ((mounted, 2, second), (f"{mounted}/{controller}", 1, first)):
        path = mine[0].strip("/") if mine else ""
        while True:
            yield os.path.join(top, path), version
            if not path:
                break
            path = os.path.dirname(path)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _table(path: str, unit: int) -> dict[str, int]:
    """Lines of a name and a number, in bytes."""
    try:
        rows = [line.split() for line in _read(path).splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) * unit for row in rows if len(row) > 1 and row[1].isdigit()}
