"""Cores and memory that the machine leaves to a process, by its affinity and control groups."""

import os
from pathlib import Path

import pytest

from asyncreader.system.limits import available_memory, usable_cores


def test_cores_are_the_quota_of_the_tightest_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota counts rounded up, of the group or one above it; v2 and v1, alone or joined."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:cpu,cpuacct:/job/x\n0::/job/x\n")

    def usable() -> int:
        return usable_cores(str(proc), str(groups))

    assert 1 <= usable_cores() <= usable() == 64
    v2, v1 = groups / "job", groups / "cpu" / "job" / "x"
    for folder in (v2, v1):
        folder.mkdir(parents=True)
    (v2 / "cpu.max").write_text("max 100000\n")
    assert usable() == 64
    (v2 / "cpu.max").write_text("650000 100000\n")
    assert usable() == 7
    (v1 / "cpu.cfs_period_us").write_text("100000\n")
    for quota, cores in ((-1, 7), (250_000, 3), (1000, 1)):
        (v1 / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert usable() == cores
    (v1 / "cpu.cfs_period_us").write_text("0\n")
    assert usable() == 7


def test_memory_is_what_the_tightest_cgroup_leaves(tmp_path: Path) -> None:
    """The machine's free memory, less where a cgroup, or one above it, has a limit; v2 and v1."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 99 kB\nodd\nMemAvailable: 8000 kB\n")
    (proc / "self" / "cgroup").write_text("4:memory:/job/x\n0::/job/x\n")

    def available() -> int:
        return available_memory(str(proc), str(groups))

    assert available() == 8000 * 1024
    v2 = groups / "job"
    v2.mkdir(parents=True)
    for name, text in {"max": "5000", "current": "2000", "stat": "anon 1\nfile 1500\n"}.items():
        (v2 / f"memory.{name}").write_text(text)
    assert available() == 4500
    (v2 / "memory.max").write_text("max\n")
    assert available() == 8000 * 1024
    v1 = groups / "memory" / "job" / "x"
    v1.mkdir(parents=True)
    (v1 / "memory.limit_in_bytes").write_text("3000")
    (v1 / "memory.usage_in_bytes").write_text("2900")
    assert available() == 100
