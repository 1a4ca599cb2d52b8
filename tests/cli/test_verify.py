"""``asyncreader verify``: its verdicts, and its exit codes."""

import json
from pathlib import Path

import numpy as np
from command_sets import damaged, run
from fakes import hdf5

import converters


def test_verify_a_whole_set(packed: Path) -> None:
    """Nothing wrong: exit 0 and one line, with --quiet none, with --json the report."""
    result = run("verify", packed)
    assert result.exit_code == 0
    assert result.stdout == f"ok: 20 checksums right (HDF5, 20 samples, {packed})\n"
    assert run("verify", packed, "--quiet").output == ""
    report = json.loads(run("verify", packed, "--json").stdout)
    assert report["ok"] is True
    assert report["unverified"] is False
    assert (report["count"], report["checked"], report["problems"]) == (20, 20, [])


def test_verify_a_damaged_set(packed: Path, tmp_path: Path) -> None:
    """Each bad sample is a line on stdout, and the exit code is 1, in every form of output."""
    bad = damaged(packed, tmp_path / "bad.h5", 3, 17)
    result = run("verify", bad)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert "record 3" in lines[0]
    assert "record 17" in lines[1]
    assert lines[2] == f"damaged: 2 bad samples (HDF5, 20 samples, {bad})"
    assert run("verify", bad, "--quiet").output.splitlines() == lines[:2]
    result = run("verify", bad, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["bad"] == 2


def test_verify_decodes(photos: Path, tmp_path: Path) -> None:
    """--decode says how many pictures it decoded."""
    target = tmp_path / "e.lmdb"
    converters.convert(photos, target, encoding="original")
    result = run("verify", target, "--decode", "--jobs", "1")
    words = f"ok: 20 checksums right; 20 images decoded (LMDB, 20 samples, {target})\n"
    assert (result.exit_code, result.stdout) == (0, words)


def test_verify_a_set_without_checksums(tmp_path: Path) -> None:
    """A foreign set is said to be unverified, not ok."""
    result = run("verify", hdf5(tmp_path / "f.h5", data=np.zeros((4, 3), "u1")))
    assert result.exit_code == 0
    assert result.stdout.startswith("unverified: it has no checksums")
